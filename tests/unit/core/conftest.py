"""Names, migrations and types that a test registers are forgotten after it."""

import pytest

from agent_checkpoint.core import class_names, migrations
from agent_checkpoint.core.codec import type_registry


@pytest.fixture(autouse=True)
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    # Classes of other tests must not make the names of ours ambiguous.
    classes = {
        name: [
            known for known in found if (known() or type).__module__.startswith("tests.unit.core")
        ]
        for name, found in class_names._classes.items()
    }
    monkeypatch.setattr(class_names, "_classes", classes)
    monkeypatch.setattr(class_names, "_aliases", {})
    monkeypatch.setattr(migrations, "_steps", {})
    monkeypatch.setattr(type_registry, "_by_class", {})
    monkeypatch.setattr(type_registry, "_by_name", {})
