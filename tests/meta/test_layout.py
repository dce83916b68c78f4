"""How the source is laid out: telling names, docstrings."""

import ast
from pathlib import Path

import pytest

import agent_checkpoint

PACKAGE = Path(agent_checkpoint.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
SAYS_NOTHING = {"common", "helper", "helpers", "misc", "util", "utils"}


def name(source: Path) -> str:
    return str(source.relative_to(PACKAGE))


def test_there_are_sources() -> None:
    assert len(SOURCES) > 40


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_a_name_says_what_is_inside(source: Path) -> None:
    words = {part.strip("_") for part in source.relative_to(PACKAGE).with_suffix("").parts}
    assert not words & SAYS_NOTHING


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_a_file_begins_with_a_docstring(source: Path) -> None:
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
    assert docstring, "say what the file owns and what it must not know"
    assert docstring.splitlines()[0].endswith((".", ":")), "the first line is a sentence"


MOST_MODULES = 16


@pytest.mark.parametrize(
    "folder",
    sorted({source.parent for source in SOURCES if source.parent.name != "commands"}),
    ids=name,
)
def test_a_folder_holds_few_modules(folder: Path) -> None:
    """Past a dozen or so a folder holds several concepts: make sub-packages."""
    modules = [file for file in folder.glob("*.py") if file.name != "__init__.py"]
    assert len(modules) <= MOST_MODULES


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
