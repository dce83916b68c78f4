"""Workspaces of sessions, as they are on the disk."""

from pathlib import Path


def files_of(place: Path) -> "dict[str, tuple[str, int]]":
    """Return the files below a directory, with their permissions."""
    return {
        str(path.relative_to(place)): (path.read_text(), path.stat().st_mode & 0o777)
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }
