"""Names, migrations and types that a test registers are forgotten after it."""

import pytest

from agent_checkpoint.core import migrations, names, types


@pytest.fixture(autouse=True)
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    # Classes of other tests must not make the names of ours ambiguous.
    classes = {
        name: [
            known for known in found if (known() or type).__module__.startswith("tests.unit.core")
        ]
        for name, found in names._classes.items()
    }
    monkeypatch.setattr(names, "_classes", classes)
    monkeypatch.setattr(names, "_aliases", {})
    monkeypatch.setattr(migrations, "_steps", {})
    monkeypatch.setattr(types, "_by_class", {})
    monkeypatch.setattr(types, "_by_name", {})
