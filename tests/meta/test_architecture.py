"""ARCHITECTURE.md is one page, names only files that exist, and names every package."""

import re
from pathlib import Path

import agent_checkpoint

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(agent_checkpoint.__file__).parent
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_it_is_one_page() -> None:
    assert len(PAGE.splitlines()) <= 150


def test_every_file_named_exists() -> None:
    named = set(re.findall(r"[\w./-]+\.(?:py|md|toml)\b", PAGE))
    assert named
    missing = [
        name for name in named if not (PACKAGE / name).is_file() and not (ROOT / name).is_file()
    ]
    assert sorted(missing) == []


def test_every_package_is_named() -> None:
    folders = {init.parent.relative_to(PACKAGE) for init in PACKAGE.rglob("__init__.py")}
    folders.discard(Path())
    assert folders
    assert [str(folder) for folder in sorted(folders) if f"`{folder}/`" not in PAGE] == []
