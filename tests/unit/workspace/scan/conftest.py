"""Shared by the tests of the scanner."""

from typing import Any

import pytest

from agent_checkpoint.workspace.scan.reading import entry_reader


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> "list[bytes]":
    """The names of the files that are read."""
    names: list[bytes] = []
    read = entry_reader.read_whole

    def counted(directory: int, name: bytes) -> Any:
        names.append(name)
        return read(directory, name)

    monkeypatch.setattr(entry_reader, "read_whole", counted)
    return names
