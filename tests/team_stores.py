"""Stores of a team, for tests that run on every store: PostgreSQL and encrypted ones."""

from pathlib import Path

import pytest

KEY = bytes(range(32))

TEAM_STORES = [
    pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.long]),
    pytest.param("encrypted", marks=pytest.mark.slow),
    pytest.param("encrypted postgres", marks=[pytest.mark.slow, pytest.mark.long]),
]


def team_store(request: pytest.FixtureRequest, tmp_path: Path) -> "str | None":
    """Return the URL of the store that the parameter of a fixture names; None if it is no such."""
    kind = request.param
    if "encrypted" in kind:
        pytest.importorskip("cryptography", reason="needs agent-checkpoint[encryption]")
    url = f"sqlite://{tmp_path}/encrypted?"
    if "postgres" in kind:
        server = request.getfixturevalue("postgres_server")
        url = server.url(server.new_schema()) + "&"
    elif "encrypted" not in kind:
        return None
    if "encrypted" in kind:
        file = tmp_path / "store.key"
        file.touch(0o600)
        file.write_bytes(KEY)
        url += f"encryption_key_file={file}"
    return url.rstrip("?&")
