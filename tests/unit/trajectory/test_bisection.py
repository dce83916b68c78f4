"""`bisect`: which step broke it."""

import math
import os
import shutil
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_checkpoint import InvalidInputError, NotFoundError, Session, Workspace, bisect
from agent_checkpoint.backends.default_paths import data_home
from agent_checkpoint.session.steps.line import line_of
from agent_checkpoint.trajectory.file_history import FileHistory
from agent_checkpoint.trajectory.probe_directory import ProbeBase
from agent_checkpoint.workspace.fork import drivers
from agent_checkpoint.workspace.fork.isolated import private_forks_dir
from tests.unit.trajectory.trajectories import Coding, shell, write

NO_BUG = ["sh", "-c", "! grep -q bug app"]


def is_good(branch):
    return "bug" not in (branch.path / "app").read_text()


@pytest.fixture
def broken(manager, place):
    """A session whose 12th call, @13, brings a bug."""
    (place / "app").write_text("fine\n")
    with Session("s", workspace=place, store=manager) as session:
        for number in range(20):
            session.messages.append({"role": "user", "content": f"do {number}"})
            write("app" if number == 11 else f"f{number % 5}", "bug\n" if number == 11 else "x")
    return session


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    for name in ("branches", "forks", "bases"):
        directory = data_home() / name
        assert not directory.exists() or os.listdir(directory) == []


@pytest.mark.parametrize("test", [NO_BUG, "! grep -q bug app", is_good], ids=["argv", "sh", "def"])
def test_it_finds_the_step(broken, manager, test):
    found = bisect("s", test, store=manager)
    assert found.first_bad.endswith("-13")
    assert found.last_good.endswith("-12")
    assert found.step.calls[0].arguments == {"name": "app", "text": "bug\n"}
    assert found.step.prompt == "do 11"
    assert list(found.diff.changed) == ["app"]
    assert "+bug" in str(found.diff)
    assert len(found.tested) <= math.ceil(math.log2(21)) + 2
    assert found.is_certain
    assert "failed there and passed one step before, 1 run each" in found.certainty


def test_a_store_by_its_path_is_closed_and_the_result_stays_readable(broken, tmp_path):
    found = bisect("s", is_good, store=tmp_path / "store")
    assert "+bug" in found.diff.text()


def test_the_session_and_its_files_stay_as_they_are(broken, manager, place):
    before = manager.history("s"), sorted(os.listdir(place)), manager.list_keys()
    bisect("s", "echo mess > mess; rm -f f0; ! grep -q bug app", store=manager)
    assert (manager.history("s"), sorted(os.listdir(place)), manager.list_keys()) == before


def test_a_probe_sees_nothing_of_the_one_before(broken, manager):
    test = "test -e mess && exit 126; echo mess > mess; ! grep -q bug app"
    assert bisect("s", test, store=manager).first_bad.endswith("-13")


def test_a_command_runs_at_the_original_path(broken, manager, place):
    if not drivers.can_view(private_forks_dir()):
        pytest.skip("needs private mount namespaces")
    bisect("s", f'test "$PWD" = "{place}" || exit 126; ! grep -q bug app', store=manager)


def test_without_mount_namespaces_files_are_copied(broken, manager, place, monkeypatch):
    support = drivers._DriverSupport(view=False, mount=False, reflink=False)
    monkeypatch.setattr(drivers, "_probe_drivers", lambda place: support)
    test = f'test "$(pwd)" != "{place}" || exit 126; ! grep -q bug app'
    assert bisect("s", test, store=manager).first_bad.endswith("-13")
    assert bisect("s", is_good, store=manager).first_bad.endswith("-13")


def test_home_and_temporary_files_are_private(broken, manager, own_home):
    test = 'touch "$HOME/x" "$TMPDIR/y"; ls "$HOME" "$TMPDIR"; ! grep -q bug app'
    found = bisect("s", test, store=manager)
    assert not (own_home / "x").exists()
    assert {probe.output.splitlines().count("x") for probe in found.tested} == {1}


def test_a_function_gets_an_environment_and_the_state(broken, manager, own_home):
    seen = []

    def test(branch):
        assert branch.workspace.path == branch.path != Path(broken.key)
        assert branch.env["HOME"] != str(own_home)
        seen.append(len(branch.state_dict()["messages"]))
        return is_good(branch)

    bisect("s", test, store=manager)
    assert max(seen) == 20


def test_a_function_may_test_the_state_alone(manager, place):
    with Session("s", workspace=place, store=manager) as session:
        for number in range(8):
            session.messages.append({"role": "user", "content": str(number)})
            session.save()
    found = bisect("s", lambda branch: len(branch.state_dict()["messages"]) < 5, store=manager)
    assert found.first_bad.endswith("-6")
    assert not found.diff


def test_stale_objects_are_built_again(manager, place):
    """`make` compares times: a file has that of the checkpoint that last changed it."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    (place / "Makefile").write_text("out: in\n\tcp in out\n")
    (place / "in").write_text("fine\n")
    with Session("s", workspace=place, store=manager):
        shell("make -s out")
        write("other", "1")
        write("in", "bug\n")  # @4: the object is stale from here on
        write("other", "2")
        shell("make -s out")  # @6: the object shows it
        write("other", "3")
    found = bisect("s", "make -s out && ! grep -q bug out", store=manager)
    assert found.first_bad.endswith("-4")


def test_up_to_date_objects_are_not_built_again(manager, place):
    if shutil.which("make") is None:
        pytest.skip("needs make")
    (place / "Makefile").write_text("out: in\n\tfalse\n")
    (place / "in").write_text("fine\n")
    with Session("s", workspace=place, store=manager):
        write("out", "fine\n")
        write("x", "1")
        shell("cp in out; echo bug > out")
        write("x", "2")
    found = bisect("s", "make -s out || exit 126; ! grep -q bug out", store=manager, good="@2")
    assert found.first_bad.endswith("-4")


def test_a_content_that_comes_back_has_the_time_of_its_return(manager, place):
    with Session("s", workspace=place, store=manager):
        for text in "ABA":
            write("f", text)
    line = line_of(manager.store, manager.store.head("s"))[:4]
    base = ProbeBase(FileHistory(manager.store, line))
    try:
        for index in (3, 1, 3, 2, 1):
            base.move_to(index)
            assert (base.files / "f").read_text() == "?ABA"[index]
            assert (base.files / "f").stat().st_mtime_ns == line[index].ts_ns
    finally:
        base.close()


def test_setup_runs_first_and_its_failure_skips(broken, manager):
    test = 'test "$(cat built)" = fine; ! grep -q bug app'
    found = bisect("s", test, store=manager, setup="echo fine > built")
    assert found.first_bad.endswith("-13")
    with pytest.raises(InvalidInputError, match="was skipped at the bad end"):
        bisect("s", test, store=manager, setup="exit 3")


def test_setup_of_a_function(broken, manager):
    def test(branch):
        assert (branch.path / "built").read_text() == "yes\n"
        return is_good(branch)

    assert bisect("s", test, store=manager, setup="echo yes > built").first_bad.endswith("-13")


def test_skipped_checkpoints_leave_candidates(broken, manager):
    def test(branch):
        return None if branch.checkpoint.seq in (12, 13) else is_good(branch)

    found = bisect("s", test, store=manager)
    assert found.first_bad is None
    assert found.step is None
    assert [name.rpartition("-")[2] for name in found.candidates] == ["12", "13", "14"]
    assert "one of 3" in found.certainty
    assert not found.is_certain
    assert "app" in found.diff.changed


def test_125_skips(manager, place):
    with Session("s", workspace=place, store=manager):
        for number in range(1, 12):
            write("n", str(number))
            if number == 8:
                write("bug", "")
    test = "case $(cat n) in 7) exit 125;; esac; ! test -e bug"
    found = bisect("s", test, store=manager, good="@2")
    assert found.first_bad.endswith("-10")
    assert "skip" in {probe.verdict for probe in found.tested}


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("exit 126", "cannot be executed"),
        ("nonsense-command", "was not found"),
        ("kill -9 $$", "killed by signal 9"),
        ("exit 139", "killed by signal 11"),
        ("true", "passes at the bad end, s_"),
        ("false", r"fails at the good end, s_.* with good= or --good\."),
        ("exit 125", "was skipped at the bad end"),
    ],
)
def test_a_test_that_says_nothing_ends_the_search(broken, manager, test, message):
    with pytest.raises(InvalidInputError, match=message):
        bisect("s", test, store=manager)


def test_a_timeout_ends_the_search_and_the_command(broken, manager):
    with pytest.raises(InvalidInputError, match=r"did not end within 0\.2 s"):
        bisect("s", "sleep 1000", store=manager, timeout=0.2)


def test_a_function_must_answer(broken, manager):
    with pytest.raises(InvalidInputError, match=r"True \(good\), False \(bad\) or None"):
        bisect("s", lambda branch: 1, store=manager)


@pytest.mark.parametrize(
    "options",
    [{"repeats": 0}, {"jobs": 0}, {"executor": 3}, {"executor": ProcessPoolExecutor}],
)
def test_options_are_checked(broken, manager, options):
    with pytest.raises(InvalidInputError):
        bisect("s", "true", store=manager, **options)


@pytest.mark.parametrize("test", ["", [], 3, [1]])
def test_the_test_is_checked(broken, manager, test):
    with pytest.raises(InvalidInputError, match="test must be a command or a function"):
        bisect("s", test, store=manager)


def test_ends_can_be_given(broken, manager):
    found = bisect("s", is_good, store=manager, good="@10", bad="@15")
    assert found.first_bad.endswith("-13")
    assert {int(probe.at[1:]) for probe in found.tested} <= set(range(10, 16))
    with pytest.raises(NotFoundError):
        bisect("s", is_good, store=manager, bad="@99")
    with pytest.raises(InvalidInputError, match="comes after the bad end"):
        bisect("s", is_good, store=manager, good="@15", bad="@10")


def test_a_key_with_one_checkpoint_has_no_steps(manager, place):
    Session("s", workspace=place, store=manager).close()
    with pytest.raises(InvalidInputError, match="no earlier checkpoint"):
        bisect("s", "true", store=manager)


def test_what_a_rollback_passed_over_is_not_searched(manager, place):
    with Session("s", workspace=place, store=manager) as session:
        write("app", "fine")
        start = session.head
        write("app", "bug")
        session.rollback(start)
        write("other", "1")
        write("app", "bug again")
        bad = session.head
        write("other", "2")
    found = bisect("s", is_good, store=manager, good=start)
    assert found.first_bad == bad
    with pytest.raises(InvalidInputError, match="a rollback passed over it"):
        bisect("s", is_good, store=manager, good="@3")


def test_a_rollback_as_an_end_stands_for_its_target(manager, place):
    with Session("s", workspace=place, store=manager) as session:
        write("app", "fine")
        start = session.head
        write("app", "bug")
        again = session.rollback(start).id
        write("app", "bug")
        bad = session.head
    assert bisect("s", is_good, store=manager, good=again).first_bad == bad


def test_a_step_before_the_fork_is_found(manager, place):
    with Session("s", workspace=place, store=manager) as session:
        write("app", "fine")
        good = session.head
        write("app", "bug")
        bad = session.head
        with session.fork("f"):
            write("x", "1")
            write("x", "2")
    assert bisect("f", is_good, store=manager, good=good).first_bad == bad


def test_a_step_of_an_adopted_fork_is_found(manager, place):
    with Session("s", workspace=place, store=manager) as session:
        write("app", "fine")
        good = session.head
        with session.fork("f") as branch:
            write("x", "1")
            write("app", "bug")
            bad = branch.head
            write("x", "2")
            session.adopt(branch)
        write("x", "3")
    found = bisect("s", is_good, store=manager, good=good)
    assert (found.first_bad, found.step.key) == (bad, "f")


def test_several_at_once(broken, manager):
    with ThreadPoolExecutor(3) as executor:
        found = bisect("s", NO_BUG, store=manager, executor=executor, jobs=3)
    assert found.first_bad.endswith("-13")
    assert found.is_certain


def test_an_error_in_one_of_several_is_raised(broken, manager):
    def test(branch):
        if branch.checkpoint.seq not in (1, 21):
            raise RuntimeError("boom")
        return is_good(branch)

    with ThreadPoolExecutor(3) as executor, pytest.raises(RuntimeError, match="boom"):
        bisect("s", test, store=manager, executor=executor, jobs=3)


def test_results_that_are_not_monotonic_are_told(manager, place):
    with Session("s", workspace=place, store=manager):
        for number in range(1, 32):
            write("app", "bug" if 5 <= number <= 14 or number >= 28 else "fine")
            write("n", str(number))
    with ThreadPoolExecutor(3) as executor:
        found = bisect("s", is_good, store=manager, good="@2", executor=executor, jobs=3)
    assert found.step.calls[0].arguments["text"] == "bug"
    assert found.non_monotonic
    assert not found.is_certain
    assert "not monotonic" in found.certainty


def test_a_test_that_became_flaky_is_called_flaky(broken, manager):
    runs = {}

    def test(branch):
        runs[branch.checkpoint.id] = number = runs.get(branch.checkpoint.id, 0) + 1
        return is_good(branch) or number % 3 == 1

    found = bisect("s", test, store=manager, repeats=3)
    assert found.first_bad.endswith("-13")
    assert {probe.runs for probe in found.flaky} == {("good", "bad", "bad")}
    assert not found.is_certain
    assert "The test is flaky: @13 failed 2 of 3 runs" in found.certainty


def test_a_test_that_always_was_flaky_is_refused(broken, manager, tmp_path):
    count = tmp_path / "count"
    count.write_text("0")
    test = f"n=$(cat {count}); echo $((n + 1)) > {count}; test $((n % 2)) = 0"
    with pytest.raises(InvalidInputError, match=r"is flaky: at the good end, .* failed 1 of 2"):
        bisect("s", test, store=manager, repeats=2)


def test_a_directory_that_was_saved(manager, place):
    workspace = Workspace(place, manager.store)
    for number in range(9):
        (place / "app").write_text("fine" if number < 4 else "bug")
        (place / "n").write_text(str(number))
        workspace.snapshot()
    found = bisect(workspace.key, NO_BUG, store=manager)
    assert found.first_bad.endswith("-5")


def test_a_coding_agent(manager, place, tmp_path):
    agent = Coding(tmp_path / "store", place)
    agent.prompt("write it")
    for number in range(6):
        agent.write("app", "fine" if number < 3 else "bug")
        agent.write("n", str(number))
    agent.close()
    found = bisect(agent.key, NO_BUG, store=manager, good="@2")
    assert found.step.calls[0].arguments["content"] == "bug"
    assert found.step.prompt == "write it"


def test_links_modes_and_directories_are_exact(manager, place):
    with Session("s", workspace=place, store=manager):
        shell("mkdir -p d/e; ln -s d link; echo 1 > d/e/f; chmod 755 d/e/f; mkdir empty")
        shell("rm link; mkdir link; echo 2 > link/x; chmod 600 d/e/f; rm -r empty")
        shell("rm -r link d; echo file > d; chmod 444 d; ln -s nowhere link")
        shell("rm d; mkdir -m 555 d; touch bug")
    seen = {}

    def test(branch):
        seen[branch.checkpoint.seq] = sorted(
            (str(path.relative_to(branch.path)), oct(path.lstat().st_mode), path.is_symlink())
            for path in branch.path.rglob("*")
        )
        return not (branch.path / "bug").exists()

    bisect("s", test, store=manager)
    found = {seq: Workspace(place, manager.store).diff(f"s@{seq}") for seq in seen}
    assert len(found) >= 3
    for seq, listed in seen.items():
        tree = manager.store.read("s", seq)
        copy = place.parent / f"copy{seq}"
        copy.mkdir()
        Workspace(copy, manager.store).restore(tree.id)
        assert listed == sorted(
            (str(path.relative_to(copy)), oct(path.lstat().st_mode), path.is_symlink())
            for path in copy.rglob("*")
        )
