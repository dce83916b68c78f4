"""`blame`: which step wrote a line."""

import subprocess

import pytest

from agent_checkpoint import InvalidInputError, NotFoundError, Session, Workspace, blame
from agent_checkpoint.trajectory import line_origins
from agent_checkpoint.trajectory.line_origins import parse_range
from tests.unit.trajectory.trajectories import Coding, delete, rename, shell, write


@pytest.fixture
def session(manager, place):
    with Session("s", workspace=place, store=manager) as session:
        yield session


def origins(manager, path, **options):
    """The short forms of the steps, line by line."""
    found = blame(path, store=manager, **options)
    assert [line.number for line in found] == list(range(1, len(found) + 1))
    return [None if line.step is None else line.step.at for line in found]


def test_each_line_has_its_step(session, manager, place):
    session.messages.append({"role": "user", "content": "please"})
    write("f", "a\nb\nc\n")
    write("f", "a\nB\nc\n")
    write("f", "a\nB\nc\nd\n")
    found = blame(place / "f", store=manager)
    assert [line.text for line in found] == ["a", "B", "c", "d"]
    assert [line.step.at for line in found] == ["@2", "@3", "@2", "@4"]
    step = found[1].step
    assert (step.key, step.agent, step.prompt) == ("s", "session", "please")
    assert step.calls[0].arguments["text"] == "a\nB\nc\n"
    assert found[1].to_dict()["step"]["at"] == "@3"


def test_shell_edits_are_included(session, manager, place):
    write("f", "a\nb\n")
    shell("sed -i s/b/B/ f")
    assert origins(manager, place / "f") == ["@2", "@3"]


def test_lines_that_are_not_saved_yet(session, manager, place):
    write("f", "a\nb\n")
    (place / "f").write_text("a\nnew\nb\n")
    assert origins(manager, place / "f") == ["@2", None, "@2"]


def test_lines_of_a_person_between_two_calls_belong_to_no_call(session, manager, place):
    write("f", "a\n")
    (place / "f").write_text("a\nby a person\n")
    write("f", "a\nby a person\nb\n")
    found = blame(place / "f", store=manager)
    assert [len(line.step.calls) for line in found] == [1, 0, 1]
    assert found[1].step.kind == "outside"


def test_lines_as_old_as_the_first_checkpoint(manager, place):
    (place / "f").write_text("old\n")
    with Session("s", workspace=place, store=manager):
        write("f", "old\nnew\n")
        found = blame(place / "f", store=manager)
    assert [(line.step.at, line.is_first) for line in found] == [("@1", True), ("@2", False)]


def test_a_rollback_keeps_the_authors(session, manager, place):
    write("f", "a\n")
    write("f", "a\nb\n")
    target = session.head
    write("f", "x\n")
    session.rollback(target)
    write("f", "a\nb\nc\n")
    assert origins(manager, place / "f")[:2] == ["@2", "@3"]


def test_a_restored_file_keeps_its_authors(session, manager, place):
    write("f", "a\n")
    write("f", "a\nb\n")
    target = session.head
    write("f", "x\n")
    write("g", "y\n")
    session.rollback(target, parts=["workspace"])
    assert origins(manager, place / "f") == ["@2", "@3"]


def test_a_file_deleted_and_made_again_begins_anew(session, manager, place):
    write("f", "a\n")
    delete("f")
    write("f", "a\n")
    assert origins(manager, place / "f") == ["@4"]


def test_renames_are_followed(session, manager, place):
    write("f", "a\nb\nc\n")
    rename("f", "g")
    write("g", "a\nB\nc\n")
    shell("mkdir d; mv g d/h")
    assert origins(manager, place / "d/h") == ["@2", "@4", "@2"]


def test_a_rename_with_an_edit_is_followed(session, manager, place):
    write("f", "a\nb\nc\nd\n")
    shell("mv f g; echo e >> g")
    assert origins(manager, place / "g") == ["@2"] * 4 + ["@3"]


def test_another_file_is_not_taken_for_a_rename(session, manager, place):
    write("f", "a\nb\nc\nd\n")
    shell("rm f; printf 'a\\n1\\n2\\n3\\n' > g")
    assert origins(manager, place / "g") == ["@3"] * 4


def test_all_sessions_of_a_directory(manager, place, tmp_path):
    one, two = Coding(tmp_path / "store", place, "one"), Coding(tmp_path / "store", place, "two")
    one.prompt("write it")
    one.write("f", "a\nb\nc\n")
    two.prompt("mend it")
    two.write("f", "a\nB\nc\n")
    (place / "f").write_text("a\nB\nc\nby a person\n")
    one.write("f", "A\nB\nc\nby a person\n")
    found = blame(place / "f", store=manager)
    assert [line.step.key for line in found] == [one.key, two.key, one.key, one.key]
    assert [line.step.prompt for line in found][:2] == ["write it", "mend it"]
    assert [len(line.step.calls) for line in found] == [1, 1, 1, 0]
    assert found[0].step.calls[0].arguments["content"].startswith("A\n")


def test_one_key_alone(manager, place, tmp_path):
    one, two = Coding(tmp_path / "store", place, "one"), Coding(tmp_path / "store", place, "two")
    one.write("f", "a\nb\n")
    two.write("f", "a\nB\n")
    one.write("g", "x\n")
    found = blame("f", store=manager, key=one.key)
    assert {line.step.key for line in found} == {one.key}


def test_the_file_at_a_checkpoint(session, manager, place):
    write("f", "a\n")
    write("f", "a\nb\n")
    at = session.head
    write("f", "c\n")
    assert origins(manager, "f", at=at) == ["@2", "@3"]
    delete("f")
    assert origins(manager, "f", key="s", at="@3") == ["@2", "@3"]


def test_a_step_before_the_fork_of_a_directory(manager, place, tmp_path):
    with Session("s", workspace=place, store=manager) as session:
        write("f", "a\n")
        with session.fork("branch"):
            write("f", "a\nb\n")
            found = blame("f", store=manager, key="branch")
    assert [line.step.key for line in found] == ["s", "branch"]


def test_a_directory_that_was_saved(manager, place):
    workspace = Workspace(place, manager.store)
    for text in ("a\n", "a\nb\n", "a\nb\nc"):
        (place / "f").write_text(text)
        workspace.snapshot()
    assert origins(manager, place / "f") == ["@1", "@2", "@3"]


def test_the_second_answer_is_cached(session, manager, place, monkeypatch):
    write("f", "a\n")
    first = blame(place / "f", store=manager)
    with monkeypatch.context() as patch:
        patch.setattr(line_origins, "PathHistory", None)
        assert blame(place / "f", store=manager) == first
    (place / "f").write_text("a\nb\n")
    assert len(blame(place / "f", store=manager)) == 2
    write("f", "a\nb\n")
    assert blame(place / "f", store=manager)[1].step.at == "@3"


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda place: (place / "b").write_bytes(b"\0\1"), InvalidInputError),
        (lambda place: (place / "b").mkdir(), NotFoundError),
        (lambda place: None, NotFoundError),
    ],
)
def test_what_has_no_lines_is_refused(session, manager, place, make, error):
    make(place)
    session.save()
    with pytest.raises(error):
        blame(place / "b", store=manager)


def test_a_directory_without_checkpoints(manager, tmp_path):
    (tmp_path / "f").write_text("a\n")
    with pytest.raises(NotFoundError, match="No directory above"):
        blame(tmp_path / "f", store=manager)
    with pytest.raises(NotFoundError, match="no key 'x'"):
        blame("f", store=manager, key="x")


def test_adopted_lines_belong_to_the_steps_of_the_fork(session, manager, place):
    write("f", "a\nb\n")
    write("g", "before\n")
    with session.fork("try") as branch:
        write("f", "a\nB\n")
        write("f", "a\nB\nc\n")
        write("new", "made there\n")
        with branch.fork("inner") as inner:
            write("f", "a\nB\nc\nd\n")
        branch.adopt(inner)
    session.adopt(branch)
    write("f", "a\nB\nc\nd\ne\n")
    found = [
        (line.step.key, line.step.calls[0].arguments["text"])
        for line in blame(place / "f", store=manager)
    ]
    assert [key for key, _ in found] == ["s", "try", "try", "inner", "s"]
    assert [len(text.split()) for _, text in found] == [2, 2, 3, 4, 5]
    (line,) = blame(place / "new", store=manager)
    assert (line.step.key, line.step.calls[0].tool) == ("try", "write")
    assert [line.step.key for line in blame(place / "g", store=manager)] == ["s"]


def test_merged_files_of_a_fork_have_its_authors(session, manager, place):
    write("f", "a\n")
    write("g", "a\n")
    with session.fork("try") as branch:
        write("f", "a\nin the fork\n")
    write("g", "a\nmeanwhile\n")
    session.adopt(branch, merge="files")
    keys = {
        name: [line.step.key for line in blame(place / name, store=manager)] for name in ("f", "g")
    }
    assert keys == {"f": ["s", "try"], "g": ["s", "s"]}


def test_an_empty_file_has_no_lines(session, manager, place):
    write("f", "")
    assert blame(place / "f", store=manager) == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2,3", [2, 3]),
        ("4", [4]),
        (",2", [1, 2]),
        ("4,", [4, 5]),
        ("2,+3", [2, 3, 4]),
        ("4,9", [4, 5]),
    ],
)
def test_ranges_of_lines(text, numbers):
    assert list(parse_range(text, 5)) == numbers


@pytest.mark.parametrize("text", ["", "x", "0", "3,2", "-1", "1,+x"])
def test_wrong_ranges(text):
    if text == "":
        assert list(parse_range(text, 5)) == [1]
        return
    with pytest.raises(InvalidInputError):
        parse_range(text, 5)


def test_it_agrees_with_git(manager, tmp_path, place):
    """Each step is also a commit."""
    import random

    chance, counter = random.Random(7), iter(range(10_000))

    def git(*words):
        return subprocess.run(
            ["git", "-c", "user.name=n", "-c", "user.email=e", *words],
            cwd=place,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    workspace = Workspace(place, manager.store, ignore=[".git"], watch=False)
    git("init", "-q")
    lines, commits = [f"line {next(counter)}" for _ in range(30)], {}
    for _ in range(40):
        start = chance.randrange(len(lines))
        stop = min(len(lines), start + chance.choice([0, 0, 1, 2]))
        lines[start:stop] = [f"line {next(counter)}" for _ in range(chance.choice([0, 1, 3]))]
        lines = lines or ["rest"]
        (place / "f").write_text("\n".join(lines) + chance.choice(["\n", "\n", ""]))
        git("add", "f")
        git("commit", "-q", "--allow-empty", "-m", "x")
        workspace.snapshot(label="step")
        commits[git("rev-parse", "HEAD").strip()] = len(commits) + 1
    shown = git("blame", "--line-porcelain", "f").splitlines()
    expected = [commits[row.split()[0]] for row in shown if row.split()[0] in commits]
    found = blame(place / "f", store=manager)
    assert [int(line.step.at[1:]) for line in found] == expected
