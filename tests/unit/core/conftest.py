"""Names, migrations and types that a test registers are forgotten after it."""

import pytest

from agent_checkpoint.core import migrations, names, types


@pytest.fixture(autouse=True)
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, registry in [
        (names, "_aliases"),
        (names, "_classes"),
        (migrations, "_steps"),
        (types, "_by_class"),
        (types, "_by_name"),
    ]:
        known = getattr(module, registry)
        copied = {
            key: dict(value) if registry == "_steps" else value for key, value in known.items()
        }
        monkeypatch.setattr(module, registry, copied)
