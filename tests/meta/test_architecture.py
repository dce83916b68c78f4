"""ARCHITECTURE.md names only files that exist, and every folder and file of the package."""

import re
from pathlib import Path

import agent_checkpoint

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(agent_checkpoint.__file__).parent
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def named_files() -> set[str]:
    return set(re.findall(r"[\w./-]+\.(?:py|md|toml)\b", PAGE))


def test_every_file_named_exists() -> None:
    missing = [
        name
        for name in sorted(named_files())
        if not (PACKAGE / name).is_file() and not (ROOT / name).is_file()
    ]
    assert missing == []


def test_every_package_folder_is_named() -> None:
    folders = {init.parent.relative_to(PACKAGE) for init in PACKAGE.rglob("__init__.py")}
    folders.discard(Path())
    assert folders
    assert [str(folder) for folder in sorted(folders) if f"`{folder}/`" not in PAGE] == []


def test_every_file_of_the_lower_layers_is_named() -> None:
    files = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        if file.name != "__init__.py" and file.parent.name != "testing"
    }
    assert sorted(files - named_files()) == []
