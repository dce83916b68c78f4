"""Exploring: the same outcome however it is run, and each trial costs only itself."""

import contextvars
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    Session,
    WorkspaceError,
    explore,
)
from agent_checkpoint.session.explore import explore as explore_module
from agent_checkpoint.session.explore import worker
from agent_checkpoint.workspace.fork import drivers, isolated
from tests.unit.session.explore import strategies
from tests.unit.session.explore.strategies import Spender
from tests.unit.session.places import files_of

VARIANTS = [{"n": 0}, {"n": 1}, {"n": 2}]


@pytest.fixture
def session(tmp_path, place):
    with Session("work", agent=Spender(), workspace=place, store=tmp_path / "store") as session:
        session.agent.memory.append(str(place))
        session.messages.append("hello")
        session.save()
        yield session


@pytest.fixture(params=["serial", "threads", "processes"])
def executor(request):
    if request.param == "serial":
        yield None
    elif request.param == "threads":
        with ThreadPoolExecutor(2) as pool:
            yield pool
    else:
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            yield pool


@pytest.fixture(params=["forked", "started"])
def processes(request, monkeypatch):
    if request.param == "started":
        monkeypatch.setattr(explore_module, "_is_local", lambda executor: False)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.fixture(autouse=True)
def nothing_is_left(own_home, tmp_path):
    yield
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(own_home) not in mounts
    assert str(tmp_path) not in mounts
    for name in ("forks", "bases", "branches"):
        left = own_home / "store" / name
        assert not left.exists() or not list(left.iterdir())


def without_times(outcome):
    """Return what is the same however it is run."""
    rows = outcome.to_dict()["trials"]
    for row, trial in zip(rows, outcome):
        for name in ("number", "key", "head", "ok", "seconds", "ready", "place", "output"):
            del row[name]
        row["error"] = row["error"] and row["error"].splitlines()[0]
        state = trial.state_diff
        del state["added"]["calls[0]"]  # which has the time
        row["state"], row["files"] = state, trial.file_diff.to_dict()
    return rows


def test_the_same_however_it_is_run(session, executor, place):
    before = files_of(place)
    outcome = explore(session, strategies.edit, VARIANTS, executor=executor)
    assert without_times(outcome) == [
        {
            "variant": {"n": n},
            "repeat": 0,
            "metrics": {"tokens": 10.0 * n, "cost": 0.0, "score": float(n), "lines": 1.0},
            "error": None,
            "steps": 1,
            "state": {
                "added": {
                    "agent.memory[1]": f"way {n}",
                    "messages[1]": {"role": "assistant", "content": f"way {n}"},
                    **dict(_task_added(outcome)),
                },
                "removed": {},
                "changed": {"agent.tokens": (0, 10 * n)} if n else {},
            },
            "files": {
                "added": [f"new-{n}"],
                "removed": ["run.sh"],
                "changed": {"src/app.py": ["content"]},
                "renamed": {},
            },
        }
        for n in range(3)
    ]
    assert files_of(place) == before
    assert session.agent.memory == [str(place)]
    assert list(session.messages) == ["hello"]


def _task_added(outcome):
    added = outcome.trials[0].state_diff["added"]
    return ((path, value) for path, value in added.items() if path.startswith("tasks"))


def test_the_best_is_adopted(session, executor, place):
    outcome = explore(session, strategies.edit, VARIANTS, executor=executor)
    report = outcome.best("score").adopt()
    assert report.id == session.head
    assert (place / "src/app.py").read_text() == "way(2)\n"
    assert not (place / "run.sh").exists()
    assert session.agent.memory[-1] == "way 2"
    assert [task.status for task in session.tasks] == ["completed"]
    with pytest.raises(ConflictError):
        outcome.trials[0].adopt()
    session.undo()
    assert (place / "run.sh").exists()
    assert session.agent.memory == [str(place)]


def test_a_failure_costs_only_itself(session, executor):
    outcome = explore(session, strategies.fail, VARIANTS, executor=executor)
    assert [trial.ok for trial in outcome] == [True, False, True]
    bad = outcome.trials[1]
    assert bad.error.startswith("LookupError: no way 1\n")
    assert "strategies.py" in bad.error
    assert bad.metrics == {}
    assert bad.state_diff["added"]["agent.memory[1]"] == "before it failed"
    assert outcome.best().variant == {"n": 2}


def test_coroutines(session, executor):
    outcome = explore(session, strategies.awaited, VARIANTS, executor=executor)
    assert [trial.score for trial in outcome] == [0, 1, 2]


def test_an_earlier_moment(session, executor, place):
    then = session.head
    (place / "src/app.py").write_text("later\n")
    session.agent.memory.append("later")
    session.save()
    outcome = explore(session, strategies.edit, [{"n": 1}], at=then, executor=executor)
    (trial,) = outcome
    assert trial.error is None
    assert trial.file_diff.changed == {"src/app.py": ("content",)}
    assert "+way(1)" in trial.file_diff.text()
    assert trial.state_diff["added"]["agent.memory[1]"] == "way 1"
    assert (place / "src/app.py").read_text() == "later\n"


def test_the_agent_of_a_factory(session, executor):
    outcome = explore(session, strategies.edit, [{"n": 1}], executor=executor, agent=Spender)
    assert outcome.trials[0].metrics["tokens"] == 10.0


def test_without_files_and_agent(tmp_path, executor):
    with Session("work", store=tmp_path / "store") as session:
        outcome = explore(session, strategies.score, [{}, {"n": 3}], executor=executor)
        assert [trial.score for trial in outcome] == [0, 3]
        assert outcome.trials[0].file_diff is None
        assert outcome.trials[0].place is None


def test_runs_are_repeated(session, executor):
    outcome = explore(session, strategies.score, [{"n": 1}, {"n": 2}], repeats=3, executor=executor)
    assert [(trial.number, trial.repeat) for trial in outcome] == [
        (number, repeat) for number in (0, 1) for repeat in (0, 1, 2)
    ]
    assert len({trial.key for trial in outcome}) == 6
    assert outcome.summary(1).n == 3


def test_results_come_as_they_end(session, executor):
    seen = []
    outcome = explore(session, strategies.score, VARIANTS, executor=executor, on_trial=seen.append)
    assert sorted(trial.number for trial in seen) == [0, 1, 2]
    assert all(trial.metrics for trial in seen)
    assert [trial.number for trial in outcome] == [0, 1, 2]


def test_what_cannot_be_undone_is_refused(session, executor, tmp_path):
    place = str(tmp_path / "letters")
    outcome = explore(
        session, strategies.act, [{"what": "send", "place": place}], executor=executor
    )
    assert "forks may not run irreversible tools" in outcome.trials[0].error
    assert not Path(place).exists()


def test_what_one_did_the_others_cannot_do_again(session, executor, tmp_path):
    place = str(tmp_path / "letters")
    variants = [{"what": "send", "place": place}] * 3
    outcome = explore(session, strategies.act, variants, executor=executor, effects="allow")
    assert Path(place).read_text() == "ann\n"
    assert sum(trial.ok for trial in outcome) == 1
    assert all("EffectConflictError" in trial.error for trial in outcome if not trial.ok)
    (winner,) = [trial for trial in outcome if trial.ok]
    assert [(effect.tool, effect.session) for effect in winner.effects] == [("send", winner.key)]
    winner.adopt()
    with session:
        assert strategies.send(place, "ann") == "sent ann"
    assert Path(place).read_text() == "ann\n"


@pytest.mark.parametrize("what", ["text", "pair", "inner"])
def test_results_that_are_no_numbers(session, what):
    (trial,) = explore(session, strategies.nonsense, [{"what": what}])
    assert "must return a number" in trial.error


def test_no_result_is_fine(session):
    (trial,) = explore(session, strategies.nonsense, [{"what": "none"}])
    assert trial.ok
    assert trial.score is None


# -- in processes --------------------------------------------------------------------------------


def test_each_sees_its_files_at_the_original_path(session, processes, place):
    outcome = explore(session, strategies.tell_place, [{}] * 4, executor=processes)
    assert [trial.error for trial in outcome] == [None] * 4
    can_view = isolated.can_view(isolated.private_forks_dir())
    assert {trial.metrics["same_path"] for trial in outcome} == {float(can_view)}
    assert {trial.metrics["files"] for trial in outcome} == {3.0}
    assert sorted(files_of(place)) == ["run.sh", "src/app.py"]


def test_where_no_view_can_be_had_files_come_from_the_store(session, processes, monkeypatch, place):
    monkeypatch.setattr(isolated, "can_view", lambda place: False)
    outcome = explore(session, strategies.edit, VARIANTS, executor=processes)
    assert [trial.error for trial in outcome] == [None] * 3
    assert str(place) not in {trial.place for trial in outcome}
    assert outcome.trials[1].file_diff.to_dict()["added"] == ["new-1"]
    outcome.best().adopt()
    assert (place / "new-2").read_text() == "2"


class RunTwice(Executor):
    """Runs each job again, as a cluster does if the worker of a job died before it told the end."""

    def submit(self, run, job):
        run(job)
        future = Future()
        future.set_result(run(job))
        return future


@pytest.mark.parametrize("has_view", [True, False])
def test_a_job_that_runs_again_begins_anew(session, monkeypatch, tmp_path, has_view):
    if not has_view:
        monkeypatch.setattr(isolated, "can_view", lambda place: False)
    outbox = tmp_path / "outbox"
    variants = [{"place": str(outbox)}]
    (trial,) = explore(session, strategies.tried_before, variants, executor=RunTwice())
    assert trial.error is None
    assert (trial.metrics["files"], trial.metrics["memory"]) == (2, 1)
    assert trial.file_diff.to_dict()["added"] == ["tried"]
    assert outbox.read_text() == f"{trial.key}\n"  # its effects are not repeated
    assert len(CheckpointManager(tmp_path / "store").list_keys()) == 2


@pytest.mark.parametrize("how", ["kill", "real time", "exit", "vanish", "memory"])
def test_one_that_ends_badly_costs_only_itself(session, processes, how):
    outcome = explore(
        session, strategies.leave, [{"how": "well"}, {"how": how}, {"how": "well"}],
        executor=processes,
    )  # fmt: skip
    assert [trial.ok for trial in outcome] == [True, False, True]
    words = {
        "kill": "killed by SIGKILL, possibly out of memory",
        "real time": "killed by SIGRTMIN+5.",
        "exit": "SystemExit: enough",
        "vanish": "status 3",
        "memory": "MemoryError",
    }
    assert words[how] in outcome.trials[1].error
    assert outcome.trials[1].head is not None


@pytest.mark.slow
def test_one_that_hangs_is_killed_with_what_it_started(session, processes):
    began = time.monotonic()
    outcome = explore(
        session, strategies.leave, [{"how": "hang"}, {"how": "well"}], executor=processes, timeout=3
    )
    assert time.monotonic() - began < 60
    assert "Timed out after 3 s and was killed" in outcome.trials[0].error
    assert outcome.trials[1].ok
    assert not _sleepers(session)


def test_what_a_trial_leaves_running_ends_with_it(session, processes):
    if not isolated.can_view(isolated.private_forks_dir()):
        pytest.skip("processes that leave their group are only found in a view")
    (trial,) = explore(session, strategies.leave, [{"how": "daemon"}], executor=processes)
    assert trial.ok
    assert not _sleepers(session)


def _sleepers(session):
    """Return the processes that strategies of this test have left asleep."""
    whose = os.fsencode(session.manager.store.backend.path)
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[-2:-1] == [whose]:
            found.append(pid)
    return found


def test_what_it_wrote_is_kept(session, processes):
    (trial,) = explore(session, strategies.speak, [{}], executor=processes)
    assert sorted(trial.output.split("\n")) == ["", "and seen", "to be heard"]


def test_of_what_is_too_long_the_end_is_read_and_no_more(tmp_path):
    with (tmp_path / "output").open("wb") as file:
        file.truncate(1 << 36)  # a hole: nobody has so much memory
        file.seek(0, os.SEEK_END)
        file.write("ä".encode() * 3000)
    (tmp_path / "result").write_text('{"metrics": {"score": 1}}')
    found = worker._result(tmp_path, 0, None)
    size = (1 << 36) + 6000
    assert found["output"] == f"[the last 4,000 of {size:,} bytes]\n" + "ä" * 2000
    assert found["metrics"] == {"score": 1}
    (tmp_path / "output").write_text("short")
    assert worker._result(tmp_path, 0, None)["output"] == "short"


def test_a_store_that_is_only_here(place, processes):
    session = Session("work", workspace=place, store=CheckpointManager())
    with session, pytest.raises(InvalidInputError, match="Other processes cannot open this store"):
        explore(session, strategies.score, [{}], executor=processes)


def test_what_cannot_be_sent(session, processes):
    lock = threading.Lock()
    with pytest.raises(InvalidInputError, match="cannot be pickled for another process"):
        explore(session, strategies.score, [{"n": lock}], executor=processes)


def test_a_closure_can_be_sent(session, processes):
    pytest.importorskip("cloudpickle")
    factor = 7
    outcome = explore(session, lambda branch, n: n * factor, VARIANTS, executor=processes)
    assert [trial.score for trial in outcome] == [0, 7, 14]


PROGRAM = """
import sys
from concurrent.futures import ProcessPoolExecutor
from agent_checkpoint import Session, explore
{hide}

class Here:
    pass

def strategy(branch, n):
    assert isinstance(Here(), Here)
    (branch.workspace.path / "file").write_text(str(n))
    return n

if __name__ == "__main__":
    with Session("work", workspace=sys.argv[1], store=sys.argv[2]) as session:
        with ProcessPoolExecutor(2) as pool:
            outcome = explore(session, strategy, [{{"n": 1}}, {{"n": 2}}], executor=pool)
        print([trial.error or trial.score for trial in outcome])
        outcome.best().adopt()
"""


@pytest.mark.slow
@pytest.mark.parametrize("hide", ["", "sys.modules['cloudpickle'] = None"])
def test_functions_of_a_program(tmp_path, place, hide):
    (tmp_path / "program.py").write_text(PROGRAM.format(hide=hide))
    command = [sys.executable, str(tmp_path / "program.py"), str(place), str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[1.0, 2.0]\n"
    assert (place / "file").read_text() == "2"


class Losing(Executor):
    """An executor whose workers are lost."""

    def submit(self, function, /, *args, **options):
        future = Future()
        future.set_exception(ConnectionError("worker is gone"))
        return future


def test_workers_that_are_lost(session):
    (trial,) = explore(session, strategies.score, [{}], executor=Losing())
    assert trial.error == "The worker failed: ConnectionError: worker is gone"
    assert trial.head is None
    with pytest.raises(InvalidInputError, match="failed"):
        trial.adopt()
    with pytest.raises(NotFoundError, match="was not started"):
        _ = trial.state_diff


class Impatient(Executor):
    """An executor in this process, while whose first job a person loses patience."""

    def submit(self, function, job):
        threading.Thread(target=function, args=(job,)).start()
        time.sleep(1)
        raise KeyboardInterrupt


def test_a_person_who_stops_it(session):
    with pytest.raises(KeyboardInterrupt):
        explore(session, strategies.leave, [{"how": "hang"}], executor=Impatient())
    deadline = time.monotonic() + 20
    while _sleepers(session) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _sleepers(session)
    session.save()


def test_who_explores_is_gone(session, monkeypatch):
    monkeypatch.setattr(worker, "is_gone", lambda owner: True)
    (trial,) = explore(session, strategies.leave, [{"how": "hang"}], executor=_Inline())
    assert "The process that called explore() has exited" in trial.error
    assert not _sleepers(session)


@pytest.mark.parametrize("how", ["local", "elsewhere", "killed"])
def test_the_namespace_of_a_trial_is_searched_again_unless_its_worker_did(
    session, monkeypatch, how
):
    if not isolated.can_view(isolated.private_forks_dir()):
        pytest.skip("no mount namespaces here")
    searched = []
    monkeypatch.setattr(drivers, "end_view", searched.append)
    monkeypatch.setattr(explore_module, "_is_local", lambda executor: how != "elsewhere")
    if how == "killed":
        monkeypatch.setattr(explore_module, "run_in_worker", strategies.kill_worker)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        (trial,) = explore(session, strategies.edit, [{"n": 1}], executor=pool)
    assert trial.ok == (how != "killed")
    of_the_exploration = 1
    assert len(searched) == of_the_exploration + (how != "local")


class _Inline(Executor):
    def submit(self, function, job):
        future = Future()
        future.set_result(function(job))
        return future


# -- in threads ----------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [False, True])
def test_a_thread_that_hangs_is_given_up(session, threads):
    gate = threading.Event()
    errors = []

    def wait(branch):
        gate.wait(30)
        try:
            branch.save()
        except InvalidInputError as error:
            errors.append(error)

    with ThreadPoolExecutor(1) as pool:
        executor = pool if threads else None
        (trial,) = explore(session, wait, [{}], executor=executor, timeout=0.2)
    assert "Timed out after 0.2 s" in trial.error
    assert trial.head is not None
    gate.set()
    deadline = time.monotonic() + 10
    while not errors and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "closed" in str(errors[0])


def test_a_person_who_stops_it_here(session, place):
    def stop(branch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        explore(session, stop, [{}])
    (place / "free").touch()
    session.save()


def test_exploring_within_a_task_of_the_session(session):
    for task in session.tasks(["look", "act"]):
        with task:
            if task.id == "look":
                outcome = explore(session, strategies.score, VARIANTS)
                assert outcome.best().score == 2
    assert [task.status for task in session.tasks] == ["completed", "completed"]


def test_a_strategy_may_explore(session):
    def deeper(branch, n):
        return explore(branch, strategies.score, [{"n": n}, {"n": n + 1}]).best().score

    outcome = explore(session, deeper, VARIANTS)
    assert [trial.score for trial in outcome] == [1, 2, 3]


# -- what makes no sense -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": 7}, "strategy must be a function"),
        ({"strategy": None}, "strategy must be a function"),
        ({"executor": ThreadPoolExecutor}, "submit"),
        ({"variants": [7]}, "A variant must be a dict"),
        ({"executor": 7}, "submit"),
        ({"timeout": 0}, "seconds"),
        ({"timeout": "soon"}, "seconds"),
        ({"timeout": float("inf")}, "seconds"),
        ({"variants": None}, "list of dicts"),
        ({"on_trial": 5}, "on_trial must be a function"),
        ({"repeats": 0}, "at least 1"),
        ({"repeats": True}, "at least 1"),
        ({"effects": "perhaps"}, "'refuse' or 'allow'"),
        ({"agent": 7}, "function"),
    ],
)
def test_options_that_make_no_sense(session, options, words):
    whole = {"strategy": strategies.score, "variants": VARIANTS, **options}
    with pytest.raises(InvalidInputError, match=words):
        explore(session, **whole)


def test_no_variants_no_trials(session):
    assert len(explore(session, strategies.score, [])) == 0


def test_a_strategy_that_does_not_take_the_variant(session):
    (trial,) = explore(session, strategies.score, [{"unknown": 1}])
    assert "TypeError" in trial.error


def test_a_closed_session(session):
    session.close()
    with pytest.raises(InvalidInputError, match="closed"):
        explore(session, strategies.score, [{}])


def test_the_index_of_the_original_is_not_touched(session, processes, place, own_home):
    index = own_home / "store/index"
    before = {path: path.read_bytes() for path in index.iterdir()}
    explore(session, strategies.many_files, [{"n": 1500}], executor=processes)
    assert {path: path.read_bytes() for path in index.iterdir()} == before


@pytest.mark.parametrize("what", ["nan", "inf", "name"])
def test_metrics_that_no_checkpoint_can_have(session, executor, what):
    (trial,) = explore(session, strategies.odd_metrics, [{"what": what}], executor=executor)
    assert trial.error is None
    assert trial.state_diff["added"]["agent.memory[1]"] == "its end"
    assert len(trial.metrics) == 4


def test_tools_of_a_coroutine_are_recorded(session, executor):
    (trial,) = explore(session, strategies.awaits_tools, [{}], executor=executor)
    assert trial.error is None
    assert trial.steps == 1


def test_a_store_within_the_workspace(place, processes, tmp_path):
    """A view would show each process a store of its own."""
    letters = str(tmp_path / "letters")
    with Session("work", workspace=place, store=place / "store") as session:
        variants = [{"what": "send", "place": letters}] * 3
        outcome = explore(session, strategies.act, variants, executor=processes, effects="allow")
        assert Path(letters).read_text() == "ann\n"
        (winner,) = [trial for trial in outcome if trial.ok]
        winner.adopt()


def test_modules_are_found_in_the_same_order(session, processes, tmp_path, monkeypatch):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "twice_there.py").write_text(f"where = {name!r}")
    monkeypatch.syspath_prepend(str(tmp_path / "second"))
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    (trial,) = explore(session, strategies.which_module, [{}], executor=processes)
    assert trial.score == len("first")


def test_an_executor_that_is_shut_down_meanwhile(session):
    pool = ThreadPoolExecutor(1)
    gate = threading.Event()

    def stop(branch, n):
        if n == 0:
            pool.shutdown(wait=False, cancel_futures=True)
            gate.set()
        return n

    outcome = explore(session, stop, VARIANTS, executor=pool)
    assert outcome.trials[0].ok
    assert all("CancelledError" in trial.error for trial in outcome.trials[1:])
    with pytest.raises(InvalidInputError, match="does not accept jobs"):
        explore(session, stop, VARIANTS, executor=pool)


class Waiting(Executor):
    """Accepts jobs and runs none."""

    def __init__(self):
        self.futures = []

    def submit(self, fn, /, *args, **kwargs):
        self.futures.append(Future())
        return self.futures[-1]


def test_a_trial_that_cannot_be_prepared_cancels_those_before_it(session, monkeypatch):
    waiting = Waiting()
    real = explore_module._WorkerTrials.job

    def job(self, trial, payload):
        if trial.variant == VARIANTS[2]:
            raise WorkspaceError("no room for the third")
        return real(self, trial, payload)

    monkeypatch.setattr(explore_module._WorkerTrials, "job", job)
    with pytest.raises(WorkspaceError, match="no room"):
        explore(session, strategies.score, VARIANTS, executor=waiting)
    assert [future.cancelled() for future in waiting.futures] == [True, True]


def test_no_trial_starts_if_a_later_variant_cannot_be_pickled(session):
    waiting = Waiting()
    with pytest.raises(InvalidInputError, match="cannot be pickled"):
        explore(session, strategies.score, [*VARIANTS, {"n": threading.Lock()}], executor=waiting)
    assert waiting.futures == []


def test_an_agent_that_cannot_be_made(session, executor):
    outcome = explore(session, strategies.score, VARIANTS, executor=executor, agent=strategies.no)
    assert all("no agent today" in trial.error for trial in outcome)


def test_a_variant_is_each_runs_own(session):
    def add(branch, seen):
        seen.append(1)
        return len(seen)

    outcome = explore(session, add, [{"seen": []}], repeats=3)
    assert [trial.score for trial in outcome] == [1, 1, 1]


def test_an_error_of_who_looks_on(session):
    def look(trial):
        raise LookupError

    with pytest.raises(LookupError):
        explore(session, strategies.score, VARIANTS, on_trial=look)
    assert session.workspace.fork_origin.held is None
    explore(session, strategies.score, VARIANTS)


def test_a_branch_that_was_open_before_stays_open(session):
    branch = session.fork("mine")
    explore(session, strategies.score, VARIANTS)
    assert branch._state.is_open
    assert (branch.workspace.path / "run.sh").exists()
    branch.close()


def test_a_trial_that_failed_is_adopted_only_by_name(session):
    outcome = explore(session, strategies.fail, VARIANTS)
    bad = outcome.trials[1]
    for adopt in (bad.adopt, lambda: session.adopt(bad)):
        with pytest.raises(InvalidInputError, match=f"session.adopt\\('{bad.key}'\\)"):
            adopt()
    session.adopt(bad.key)
    assert session.agent.memory[-1] == "before it failed"


def test_what_a_trial_used_is_its_own(session):
    session.agent.tokens = 1000
    session.save()
    outcome = explore(session, strategies.edit, [{"n": 2}])
    assert outcome.trials[0].metrics["tokens"] == 20


def test_after_the_session_is_closed(session):
    outcome = explore(session, strategies.score, VARIANTS)
    session.close()
    with pytest.raises(InvalidInputError, match="Open it again, then call"):
        outcome.best().adopt()


def test_threads_of_a_strategy_that_belong_to_nobody_are_told(session):
    def careless(branch):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(strategies.write, str(branch.workspace.path / "x"), "x").result()
        return len(branch.notices)

    def careful(branch):
        run = contextvars.copy_context().run
        with ThreadPoolExecutor(1) as pool:
            pool.submit(run, strategies.write, str(branch.workspace.path / "x"), "x").result()
        return len(branch.notices)

    (trial,) = explore(session, careless, [{}])
    assert (trial.score, trial.steps) == (1, 0)
    assert "copy_context" in session.notices[0]
    (trial,) = explore(session, careful, [{}])
    assert trial.steps == 1


def test_variants_that_json_does_not_know(session):
    outcome = explore(session, strategies.score, [{"n": True}, {"n": 1}])
    outcome.trials[0].variant["n"] = Path("/x")
    assert json.loads(json.dumps(outcome.to_dict()))["trials"][0]["variant"]["n"]
    assert repr(outcome) == "<Outcome: 2 of 2 trials succeeded>"
