"""The documents: every Python block runs, every output shown is what it printed, every link leads
somewhere, and the reference and the format page say what the code says."""

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import agent_checkpoint
from agent_checkpoint.core.codec import decode, leaves

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "sh", "text", "json"}
NOT_OURS = {"dist", "build", "htmlcov"}

# Runs the blocks of a page in __main__, as if typed one after another. The line breaks in front
# give a traceback the line numbers of the page.
RUN = """
import sys

def run(page, lines):
    import json
    for line, source in json.loads(lines):
        code = compile("\\n" * line + source, page, "exec", dont_inherit=True)
        exec(code, vars(sys.modules["__main__"]))
        print("\\0", end="", flush=True)

run(*sys.argv[1:])
"""


NEEDS = {
    "claude-agent-sdk.md": "claude_agent_sdk",
    "deepagents.md": "deepagents",
    "langgraph.md": "langgraph",
    "openai-agents.md": "agents",
    "pydantic-ai.md": "pydantic_ai",
}
"""The packages that the blocks of a page need."""


class Block(NamedTuple):
    """A fenced block: its first line's index in the page, its language and its text."""

    line: int
    language: str
    text: str
    output: "str | None"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page; a `text` block that follows a `python` block is its output."""
    found: list[Block] = []
    fence, start, follows_python = None, 0, False
    lines = page.read_text(encoding="utf-8").split("\n")
    for index, line in enumerate(lines):
        if fence is None and line.startswith("```"):
            fence, start = line[3:], index + 1
        elif fence is not None and line == "```":
            text = "".join(f"{inner}\n" for inner in lines[start:index])
            if fence == "text" and follows_python:
                found[-1] = found[-1]._replace(output=text)
            else:
                found.append(Block(start, fence, text, None))
            fence, follows_python = None, fence == "python"
        elif fence is None:
            assert "```" not in line, f"{page.name}:{index + 1}: begin fences at the margin"
            follows_python = follows_python and not line.strip()
    assert fence is None, f"{page.name}: the last block has no end"
    return found


def matches(shown: str, printed: str) -> bool:
    """Whether the output is the one shown, in which `…` stands for anything within a line."""
    pattern = ".*".join(map(re.escape, shown.split("…")))
    return re.fullmatch(pattern, printed) is not None


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
@pytest.mark.slow
def test_python_blocks_run_and_print_what_is_shown(page: Path, tmp_path: Path) -> None:
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    todo = [block for block in blocks(page) if block.language == "python"]
    sources = json.dumps([(block.line, block.text) for block in todo])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN, str(page), sources],
        cwd=tmp_path,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path / ".config"), "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    outputs = done.stdout.split("\0")[:-1]
    assert len(outputs) == len(todo)
    for block, printed in zip(todo, outputs):
        if block.output is not None:
            assert matches(block.output, printed), (
                f"{name(page)}:{block.line} prints\n{printed}\nand shows\n{block.output}"
            )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{name(page)}:{block.line}: {block.language!r}"


def test_the_example_of_the_readme_can_be_pasted_into_a_prompt(tmp_path: Path) -> None:
    example = next(block for block in blocks(ROOT / "README.md") if block.language == "python")
    done = subprocess.run(
        [sys.executable, "-i", "-q", "-W", "error"],
        input=example.text,
        cwd=tmp_path,
        env={**os.environ, "PYTHONUTF8": "1", "PYTHON_BASIC_REPL": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert "Error" not in done.stderr, done.stderr
    assert example.output is not None
    printed = done.stdout.splitlines()  # with what a prompt echoes in between
    assert [line for line in example.output.splitlines() if line not in printed] == []


@pytest.mark.slow
def test_the_backend_of_the_how_to_passes_the_shipped_suite(tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "write-a-backend.md"
    source = "".join(block.text for block in blocks(page) if block.language == "python")
    (tmp_path / "test_page.py").write_text(source, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout


def markdown_files() -> Iterator[Path]:
    for folder, below, files in os.walk(ROOT):
        below[:] = [name for name in below if not name.startswith(".") and name not in NOT_OURS]
        yield from (Path(folder, file) for file in files if file.endswith(".md"))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.+?) *$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r"`[^`]*`", "", text)
    return re.findall(r"\]\(([^)\s]+)\)", text)


@pytest.mark.parametrize("page", sorted(markdown_files()), ids=name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)} links to {link}, which does not exist"
        if anchor:
            assert anchor in anchors(target), f"{name(page)} links to {link}: no such heading"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    queue = [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        seen.add(page)
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target not in seen:
                queue.append(target)
    pages = {*PAGES, *(ROOT / "design").glob("*.md"), *ROOT.glob("*.md")}
    assert sorted(map(name, pages - seen)) == []


# -- the reference ---------------------------------------------------------------------------------


def bare_signature(call: object, called: str, *, bound: bool = False) -> str:
    """How a call is written in the reference: without type hints and without `self`."""
    signature = inspect.signature(call)  # type: ignore[arg-type]
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return called + text.replace("'", '"').replace("mappingproxy({})", "{}")


def reference() -> str:
    return (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("public", agent_checkpoint.__all__)
def test_the_reference_has_every_public_name(public: str) -> None:
    assert f"`{public}" in reference()


@pytest.mark.parametrize(
    "owner",
    [
        "Backend",
        "CheckpointManager",
        "Checkpointable",
        "FileBackend",
        "MemoryBackend",
        "Session",
        "Workspace",
    ],
)
def test_the_reference_has_every_public_method_as_it_is(owner: str) -> None:
    cls = getattr(agent_checkpoint, owner)
    text = reference()
    for method, call in inspect.getmembers(cls, inspect.isfunction):
        if method.startswith("_"):
            continue
        if owner == "CheckpointManager" and method.startswith("a") and hasattr(cls, method[1:]):
            assert f"`{method}`" in text
        else:
            assert f"`{bare_signature(call, method, bound=True)}`" in text


@pytest.mark.parametrize(
    "function",
    [
        "CheckpointManager",
        "FileBackend",
        "KeepBest",
        "KeepEvery",
        "KeepLatest",
        "KeepNewerThan",
        "KeepTagged",
        "Workspace",
        "bisect",
        "blame",
        "checkpoint",
        "explore",
        "register_alias",
        "register_migration",
        "register_type",
        "replay",
    ],
)
def test_the_reference_has_every_function_as_it_is(function: str) -> None:
    call = getattr(agent_checkpoint, function)
    assert f"`{bare_signature(call, function)}`" in reference()


@pytest.mark.parametrize("public", agent_checkpoint.transcripts.__all__)
def test_the_reference_has_every_name_of_transcripts(public: str) -> None:
    value = getattr(agent_checkpoint.transcripts, public)
    shown = bare_signature(value, f"transcripts.{public}") if inspect.isfunction(value) else public
    assert f"`{shown}" in reference()


def test_the_reference_says_which_errors_are_also_built_in_ones() -> None:
    for public in agent_checkpoint.__all__:
        error = getattr(agent_checkpoint, public)
        if isinstance(error, type) and issubclass(error, BaseException):
            row = next(line for line in reference().splitlines() if line.startswith(f"| `{public}"))
            for base in (KeyError, ValueError):
                assert (f"`{base.__name__}`" in row) == issubclass(error, base)


def test_the_format_page_has_every_tag() -> None:
    page = (ROOT / "docs" / "format-file-store.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^\| `(\$\w+)", page, flags=re.M))
    importlib.import_module("agent_checkpoint.core.log")  # adds its tag
    assert shown == {*decode.TAG_HANDLERS, *leaves.DECODERS, "$type"}
