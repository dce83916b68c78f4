"""How the source is laid out: telling names, docstrings."""

import ast
import re
from pathlib import Path

import pytest

import agent_checkpoint
from agent_checkpoint.records import Kind

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


BY_ATTRIBUTE = re.compile(r"\b(?:get|has|set)attr\(\s*[\w.]*(?:backend|inner)\s*,")
BY_CLASS = re.compile(r"\bisinstance\([^()]*\b(?:Memory|File|SQLite|Wrapper)Backend\b")


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_callers_rely_on_declared_properties_of_a_backend(source: Path) -> None:
    """Otherwise a wrapper loses a feature silently: declare it in `BackendProperties`."""
    text = source.read_text(encoding="utf-8")
    assert not BY_ATTRIBUTE.findall(text)
    assert not BY_CLASS.findall(text)


PRIVATE_ELSEWHERE = {
    "_asdict": "a method of NamedTuple",
    "_fields": "a method of NamedTuple",
    "_replace": "a method of NamedTuple",
    "_exit": "`os._exit`",
    "_current_frames": "`sys._current_frames`, which needs no import of threading",
    "_actions": "argparse has no other way to list the options of a parser",
    "_color_system": "rich has no other way to ask for the colors of a terminal",
    "_checkpoint_fields": "users override it in their classes",
}
"""The underscore names that other modules may use, each with the reason."""


def names_defined_in(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and is_own(node.value):
            if isinstance(node.ctx, ast.Store):
                names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # of `__slots__`
            names.add(node.value)
    return names


def is_own(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def private_names_of_others(tree: ast.AST) -> dict[str, list[int]]:
    """Return the underscore attributes of objects of other modules, with their lines."""
    own, found = names_defined_in(tree), dict[str, list[int]]()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or is_own(node.value) or node.attr in own:
            continue
        if node.attr.startswith("_") and not node.attr.startswith("__"):
            found.setdefault(node.attr, []).append(node.lineno)
    return found


FOUND = {
    name(source): private_names_of_others(ast.parse(source.read_text("utf-8")))
    for source in SOURCES
}


def test_underscore_names_are_found() -> None:
    tree = ast.parse("self._a; super()._b; x._c; x.y._d; x.__e__\nclass F:\n    _f = 1\nF._f; x.g")
    assert private_names_of_others(tree) == {"_c": [1], "_d": [1]}


@pytest.mark.parametrize("source", FOUND)
def test_underscore_names_are_not_used_across_modules(source: str) -> None:
    """Give a collaborator a public name, or pass what is needed as an argument."""
    assert {n: lines for n, lines in FOUND[source].items() if n not in PRIVATE_ELSEWHERE} == {}


@pytest.mark.parametrize("exception", PRIVATE_ELSEWHERE)
def test_each_exception_is_needed(exception: str) -> None:
    assert any(exception in names for names in FOUND.values())


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


KINDS = {value for name, value in vars(Kind).items() if name.isupper()}
BARE_KIND = re.compile(
    r"""\bkind\b["'\]]*\s*(?:==?|!=|(?:not )?in|: \w+ =|:)\s*[({]?["']"""
    rf"""(?:{"|".join(sorted(KINDS))})["']"""
)


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_kinds_of_checkpoints_are_constants(source: Path) -> None:
    """A type checker finds a typo in a name, but not in a string."""
    assert not BARE_KIND.findall(source.read_text(encoding="utf-8")), "use records.Kind"
