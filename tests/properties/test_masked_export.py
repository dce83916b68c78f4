"""A masked archive has what `redact=` would have stored, with another word in the placeholders."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, Log
from tests.properties.test_redaction import planted
from tests.secrets_of_each_kind import CORES, SECRETS, places


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.sampled_from(list(SECRETS)), st.data())
def test_masking_is_redacting(kind: str, data: st.DataObject) -> None:
    value = data.draw(planted(SECRETS[kind]))
    count = data.draw(st.sampled_from([1, 3, 60]))
    state: dict[str, Any] = {"one": value, "list": [value] * count, "log": Log([value] * count)}
    exact, redacting, other = (CheckpointManager(redact=r) for r in (None, "secrets", None))
    exact.save("key", state)
    redacting.save("key", state)
    with TemporaryDirectory() as folder:
        exact.export_archive(Path(folder, "a"), "key", mask=True)
        other.import_archive(Path(folder, "a"))
    assert places(other, CORES[kind]) == []
    assert other.verify().ok
    found, expected = other.state_dict("key"), redacting.state_dict("key")
    assert repr(found).replace("[masked:", "[redacted:") == repr(expected)
