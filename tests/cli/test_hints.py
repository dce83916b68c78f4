"""Commands and names that are shown to be typed: the store, short forms, what may be meant."""

import ast
import re
import shlex
from pathlib import Path

import pytest

import agent_checkpoint
from agent_checkpoint.cli.hints import HINTS, command_line, error_text
from agent_checkpoint.errors import Hint, NotFoundError, UnsafeWorkspaceError, WorkspaceError
from agent_checkpoint.formatting import without_password
from agent_checkpoint.present.graph_lanes import LaneNode, draw_lanes
from tests.cli.world import opened, run, run_process


def suggested(text: str) -> "list[list[str]]":
    found = re.findall(r"(?:: |`)agent-checkpoint ([^`\n]*)", text)
    return [shlex.split(words) for words in found]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a file."""
    made = tmp_path / "repo"
    made.mkdir()
    (made / "app.py").write_text("good\n")
    return made


def test_every_suggested_command_is_for_the_same_store(place: Path, tmp_path: Path) -> None:
    store = tmp_path / "a store"
    begin = ["--store", str(store)]
    saved = run(*begin, "save", at=place)
    assert suggested(saved.out) == [[*begin, "restore", "@1"]]
    (place / "app.py").write_text("broken\n")
    back = suggested(run(*begin, "restore", "@1", "--yes", at=place).out)
    assert back[0] == [*begin, "undo"]
    assert run(*back[0], "--yes", at=place).status == 0
    assert (place / "app.py").read_text() == "broken\n"
    key = run(*begin, "log", "--json", at=place).data["key"]
    more = run("log", "-n", "1", *begin, at=place)
    assert [*begin, "log", key, "--all"] in suggested(more.out)
    forked = run(*begin, "fork", key, "try", at=place)
    assert suggested(forked.out) == [[*begin, "log", key]]
    unknown = run(*begin, "show", "nothing", at=place)
    assert suggested(unknown.err) == [[*begin, "keys"]]
    below = run(*begin, "save", at=_made(place / "src"))
    assert [*begin, "save", "."] in suggested(below.out)


def test_so_are_those_about_a_copied_key(place: Path, tmp_path: Path) -> None:
    begin = ["--store", str(tmp_path / "copy")]
    key = run("--store", tmp_path / "store", "save", "--json", at=place).data["key"]
    assert run("copy", tmp_path / "store", tmp_path / "copy").status == 0
    expected = [[*begin, "save", "--mine", key], [*begin, "restore", key, "--into", "DIR"]]
    assert suggested(run(*begin, "log", at=place).err) == expected
    assert suggested(run(*begin, "save", at=place).out)[1:] == expected
    assert run(*expected[0], at=place).status == 0
    other = run(*begin, "log", at=_made(tmp_path / "other"))
    assert suggested(other.err) == [[*begin, "save"], [*begin, "keys"]]


def test_a_password_of_the_store_is_not_repeated() -> None:
    for store in ("postgresql://me:secret@host/db?schema=a", "pq:///db?scram_client_key=secret"):
        assert "secret" not in command_line("log", store)
        assert "secret" not in error_text(NotFoundError("Use `agent-checkpoint keys`."), store)
    assert command_line("log", "postgresql://me:secret@host/db?schema=a") == (
        "agent-checkpoint --store 'postgresql://me@host/db?schema=a' log"
    )
    for store in ("a:b@c/d?password=e", "sqlite:///a:b@c", "postgresql://me@host/db?a=b&c=d"):
        assert without_password(store) == store


def test_so_are_those_about_a_store(place: Path, tmp_path: Path) -> None:
    store = tmp_path / "a store"
    begin = ["--store", str(store)]
    for number in range(2):
        (place / "app.py").write_text(f"{number}\n")
        assert run(*begin, "save", at=place).status == 0
    key = run(*begin, "log", "--json", at=place).data["key"]
    assert run(*begin, "export", key, "x.ckpt", at=tmp_path).status == 0
    other = ["--store", str(tmp_path / "other")]
    imported = run(*other, "import", "x.ckpt", at=tmp_path)
    assert suggested(imported.out) == [[*other, "log", key]]
    pruned = run(*begin, "prune", key, "--keep-latest", "1", "--yes")
    assert suggested(pruned.out) == [[*begin, "gc"]]


def _made(place: Path) -> Path:
    place.mkdir()
    return place


def test_a_store_of_the_environment_is_not_repeated(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_CHECKPOINT_STORE", str(tmp_path / "store"))
    assert suggested(run("save", at=place).out) == [["restore", "@1"]]


def test_a_rollback_of_another_store_says_so(tmp_path: Path) -> None:
    from agent_checkpoint import Session

    store = tmp_path / "store"
    with Session("fix", store=store) as session:
        session.messages.append({"role": "user", "content": "one"})
        session.save()
        session.messages.append({"role": "user", "content": "two"})
        session.save()
    done = run("--store", store, "rollback", "fix", "--yes")
    (back,) = suggested(done.out)
    assert back[:4] == ["--store", str(store), "rollback", "fix"]
    assert run(*back, "--yes").status == 0


READERS = [
    ["log"],
    ["show", "@1"],
    ["diff"],
    ["restore", "@1"],
    ["rollback"],
    ["fork", "a", "b"],
    ["tasks"],
    ["effects"],
    ["approvals"],
    ["rewind"],
    ["keys"],
    ["stats"],
    ["verify"],
    ["prune", "a", "--keep-latest", "1"],
    ["gc"],
    ["export", "a", "b"],
]


@pytest.mark.parametrize("typed", READERS, ids=lambda typed: typed[0])
def test_a_store_that_was_named_and_is_not_there(
    typed: "list[str]", place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no-store").mkdir()
    for name in ("nowhere", "no-store", "sqlite://" + str(tmp_path / "nowhere")):
        store = name if "://" in name else tmp_path / name
        ran = run("--store", store, *typed, at=place)
        assert (ran.status, "No store at" in ran.err) == (3, True), ran
    assert not (tmp_path / "nowhere").exists()
    monkeypatch.setenv("AGENT_CHECKPOINT_STORE", str(tmp_path / "nowhere"))
    assert run(*typed, at=place).status == 3


def test_a_store_is_made_by_what_writes(place: Path, tmp_path: Path) -> None:
    assert run("--store", tmp_path / "new", "save", at=place).status == 0
    assert run("--store", tmp_path / "new", "verify", at=place).status == 0
    url = f"file://{tmp_path / 'files'}"
    assert run("--store", url, "keys").status == 3
    assert run("--store", url, "save", at=place).status == 0
    assert run("--store", url, "keys").status == 0


def test_your_own_store_may_be_empty_but_not_verified() -> None:
    assert run("keys").status == 0
    ran = run("verify")
    assert ran.status == 3
    assert "No store at" in ran.err


@pytest.mark.parametrize("name", ["~1", "@~1"])
def test_steps_back_in_a_form_that_shells_leave_alone(repo: Path, name: str) -> None:
    assert run("show", name, "--json", at=repo).data["seq"] == 1
    assert run("diff", name, "@~0", "--exit-code", at=repo).status == 1
    (repo / "app.py").write_text("broken\n")
    assert run("restore", name, "--yes", at=repo).status == 0
    assert (repo / "app.py").read_text() == "print('hello')\n"


def test_what_a_shell_has_made_of_a_tilde(repo: Path) -> None:
    ran = run("show", str(repo), at=repo)
    assert ran.status == 3
    assert "@~1" in ran.err
    assert "'~1'" in ran.err


def test_a_number_alone(repo: Path) -> None:
    ran = run("show", "1", at=repo)
    assert ran.status == 3
    assert "@1" in ran.err


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("help", "agent-checkpoint --help"),
        ("version", "agent-checkpoint --version"),
        ("list", "agent-checkpoint keys"),
        ("status", "agent-checkpoint diff"),
    ],
)
def test_what_other_programs_have(name: str, hint: str) -> None:
    ran = run(name)
    assert ran.status == 2
    assert hint in ran.err.splitlines()[0]


def test_what_is_required_is_named_alone() -> None:
    ran = run("restore")
    assert ran.status == 2
    assert "required: ID." in ran.err


@pytest.mark.parametrize("number", ["0", "-1"])
def test_a_number_of_checkpoints_is_one_or_more(repo: Path, number: str) -> None:
    assert run("log", "-n", number, at=repo).status == 2
    assert run("rewind", "-N", number, at=repo).status == 2


def test_now_stands_at_the_end_and_in_ascii(repo: Path) -> None:
    assert run("log", at=repo).out.splitlines()[0].endswith("better  ← now")
    plain = run_process("log", at=repo, PYTHONIOENCODING="ascii", PYTHONUTF8="0").out
    assert plain.splitlines()[0].endswith("better  <- now")
    assert "\\u" not in plain


def test_nothing_of_a_difference_is_cut_in_a_pipe() -> None:
    with opened() as manager:
        manager.save("run", {"text": "a"})
        manager.save("run", {"text": "b" * 5000, **{f"f{n}": n for n in range(80)}})
    shown = run("diff", "run@1", "run").out
    assert "b" * 5000 in shown
    assert "f79: 79" in shown
    assert "…" not in shown
    assert "b" * 5000 in run("show", "run").out


def test_the_preview_of_a_restore_names_the_directory(repo: Path) -> None:
    (repo / "app.py").write_text("broken\n")
    told = run("restore", "@1", "--dry-run", at=repo).out
    heading = f"In {repo.resolve()}: 1 file to write\n"
    assert f"{heading}  write app.py\n" in told
    assert heading in run("restore", "@1", "--yes", at=repo).out
    assert "In " not in run("restore", "@1", "--dry-run", at=repo).out


def test_one_is_not_many(repo: Path) -> None:
    (repo / "app.py").write_text("broken\n")
    told = run("restore", "@1", "--dry-run", at=repo).out
    assert "1 of these was never saved; it is saved in a safety checkpoint first." in told


def test_a_rollback_without_files_to_change_does_not_say_nothing_to_do(session: Path) -> None:
    done = run("rollback", "fix", "--parts", "messages", "--yes", at=session)
    assert done.status == 0
    done = run("rollback", "fix", "--to", "fix@1", "--effects", "warn", "--yes", at=session)
    done = run("rollback", "fix", "--to", "fix@1", "--effects", "warn", "--yes", at=session)
    assert done.status == 0
    assert "Nothing to do" not in done.out


def test_what_has_lost_its_beginning_is_no_ancestor() -> None:
    nodes = [
        LaneNode(("run", 5), None, "*"),  # what it came from was pruned
        LaneNode(("try", 1), None, "Y"),
    ]
    assert [before for before, _ in draw_lanes(nodes)] == ["*", "  Y"]


def test_log_after_prune_draws_a_fork_beside(tmp_path: Path) -> None:
    with opened() as manager:
        manager.save("run", {"n": 1})
        manager.fork("run", "try")
        for number in range(2, 5):
            manager.save("run", {"n": number})
    assert run("prune", "run", "--keep-latest", "1", "--yes").status == 0
    lines = run("log", "run").out.splitlines()
    assert lines[0].startswith("● @4")
    assert lines[1].startswith("  ⑂ try@1")


def hints_in_source() -> "dict[str, set[str]]":
    """The codes of all hints in the source, and the names of their values."""
    found: dict[str, set[str]] = {}
    for source in Path(agent_checkpoint.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Hint":
                for code in node.args[1:]:
                    assert isinstance(code, ast.Constant), "a hint code is a literal"
                    found.setdefault(code.value, set()).update(
                        str(item.arg) for item in node.keywords
                    )
    return found


def test_the_command_has_a_text_for_every_hint_with_its_values() -> None:
    hints = hints_in_source()
    assert set(hints) == set(HINTS)
    for code, names in hints.items():
        HINTS[code].format(run="agent-checkpoint", **dict.fromkeys(names, "x"))


def told(hint: Hint, store: "str | None" = None) -> str:
    return error_text(WorkspaceError("It failed.", hint=hint), store)


def test_the_command_speaks_of_commands() -> None:
    lists = Hint("list_keys() lists all keys.", "list_keys")
    assert told(lists) == "It failed. `agent-checkpoint keys` lists all keys."
    assert told(lists, "a b") == "It failed. `agent-checkpoint --store 'a b' keys` lists all keys."
    resolve = Hint("…", "resolve", effect="3f")
    assert "`agent-checkpoint effects resolve 3f --happened`, or `--not`" in told(resolve)
    assert told(Hint("Retry.")) == "It failed. Retry."
    assert error_text(WorkspaceError("It failed.")) == "It failed."
    assert error_text(OSError("no")) == "OSError: no"


def test_values_of_a_hint_are_quoted_for_a_shell() -> None:
    hint = Hint("…", "history", key="a `{run}` $(b)")
    shown = told(hint, "s")
    assert shown.endswith(
        "`agent-checkpoint --store s log 'a `{run}` $(b)'` lists its checkpoints."
    )


def test_force_is_offered_where_the_command_has_it() -> None:
    error = UnsafeWorkspaceError("Too large.", hint=Hint("…", "force"))
    assert error_text(error, can_force=True).endswith("or pass --force.")
    assert error_text(error) == "Too large. Use the directory of one project."


def test_both_the_meant_form_and_the_list_are_shown(repo: Path) -> None:
    ran = run("show", "17", at=repo)
    assert ran.status == 3
    assert "@17" in ran.err
    assert "`agent-checkpoint keys`" in ran.err


def test_a_missing_checkpoint_of_a_key(repo: Path) -> None:
    with opened() as manager:
        manager.save("my run", {"n": 1})
        with pytest.raises(NotFoundError, match=r"history\('my run'\) lists its checkpoints"):
            manager.state_dict("my run", "my run@9")
    ran = run("show", "my run@9")
    assert suggested(ran.err) == [["log", "my run"]]


def test_diff_of_a_directory(repo: Path) -> None:
    refused = run("diff", "repo", at=repo.parent)
    assert refused.status == 3
    assert "To compare a directory: `cd repo && agent-checkpoint diff`." in refused.err
    (repo.parent / "two words").mkdir()
    assert "`cd 'two words' && " in run("diff", "two words", at=repo.parent).err
    for name in ("nowhere", "x" * 5000):
        assert "To compare" not in run("diff", name, at=repo.parent).err
    store = f"sqlite://{repo.parent}/other"
    assert run("--store", store, "save", at=repo).status == 0
    refused = run("--store", store, "diff", "repo", at=repo.parent)
    assert f"`cd repo && agent-checkpoint --store {store} diff`" in refused.err


def test_the_same_is_named_as_it_was_typed(repo: Path) -> None:
    place = repo.resolve()
    assert run("diff", at=repo).out == f"No differences between @2 and {place}.\n"
    assert run("diff", "@~0", at=repo).out == f"No differences between @2 and {place}.\n"
    assert run("diff", "@2", "@2", at=repo).out == "No differences between @2 and @2.\n"
    with opened() as manager:
        manager.save("run", {"x": 1})
        manager.save("run", {"x": 1})
    assert run("diff", "run@1", "run").out == "No differences between run@1 and run@2.\n"
    assert run("diff", "run@1").out == "No differences between run@1 and run@2.\n"
