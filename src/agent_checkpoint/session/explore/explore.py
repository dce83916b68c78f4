"""`explore`: runs variants in forks of one checkpoint. Owns planning and collecting the trials.

Each trial has its own fork. Trials run in this process, sequentially or in threads; or each in
its own process, which a worker of an executor starts, here or on another machine.
"""

from __future__ import annotations

import copy
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from agent_checkpoint.errors import InvalidInputError, WorkspaceError
from agent_checkpoint.options import Driver, ForkEffects
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.branch.session_fork import ForkPoint
from agent_checkpoint.session.branch.trial import Trial, TrialInspection
from agent_checkpoint.session.explore.in_process import run_in_process
from agent_checkpoint.session.explore.outcome import Outcome
from agent_checkpoint.session.explore.payload import encode_payloads
from agent_checkpoint.session.explore.trial_process import files_key
from agent_checkpoint.session.explore.trial_run import Strategy
from agent_checkpoint.session.explore.trial_start import TrialServer
from agent_checkpoint.session.explore.worker import Job, run_in_worker
from agent_checkpoint.session.session import Session
from agent_checkpoint.session.subagent import state_of
from agent_checkpoint.session.task_progress import show_progress
from agent_checkpoint.session.tools.call_arguments import describe_error
from agent_checkpoint.workspace.fork.drivers import ForkPaths, end_fork, this_process
from agent_checkpoint.workspace.fork.isolated import IsolatedForks

_T = TypeVar("_T")

_POLL_SECONDS = 0.5
_LONGEST_KEY = 900
"""The maximum number of bytes of the session's key in the keys of its trials."""


def explore(
    session: Session,
    strategy: Strategy,
    variants: Iterable[Mapping[str, Any]],
    *,
    at: str | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    effects: ForkEffects = "refuse",
    repeats: int = 1,
    agent: Callable[[], Any] | None = None,
    driver: Driver = "auto",
    on_trial: Callable[[Trial], object] | None = None,
) -> Outcome:
    """Run a strategy once per variant, each in its own fork of the same checkpoint.

    The session and its files are not changed. Nothing may write to the workspace during the call.

    Args:
        session: the session to fork.
        strategy: called with the fork and a variant's values as keywords; returns the score, or a
            dict of metrics. It works in `branch.workspace.path`.
        variants: the variants, as dicts of keywords.
        at: the checkpoint to fork; if not given, the current state is saved and forked.
        executor: runs trials concurrently. A ThreadPoolExecutor runs them in this process, any
            other executor in one process per trial. By default, trials run sequentially.
        timeout: seconds after which a trial fails. Its process is killed; a thread keeps running.
        effects: `allow` or `refuse` irreversible tools in the forks.
        repeats: how many times each variant runs.
        agent: creates the agent of a fork; by default, the session's agent is cloned.
        driver: how files are forked in this process; see `Workspace.fork`.
        on_trial: called with each trial when it ends.

    Raises:
        InvalidInputError: an option is invalid, the strategy cannot be pickled, or other processes
            cannot open the store.
        CheckpointError: the session cannot be saved. Failures of a trial are reported in its
            outcome.
    """
    state = state_of(session)
    state.check_open()
    _check(strategy, executor, timeout, repeats, on_trial)
    forking = ForkPoint(state, at=at, label="explore", effects=effects, agent=agent)
    look = TrialInspection(state, forking.checkpoint, session.adopt)
    trials = _plan_trials(session.key, variants, repeats, look)
    with ExitStack() as stack:
        stack.enter_context(_held(forking))
        ends = _run_all(stack, forking, strategy, trials, executor, timeout, driver)
        for done, (trial, result) in enumerate(ends, 1):
            trial.set_result(result)
            show_progress(done, len(trials), trial.in_words())
            if on_trial is not None:
                on_trial(trial)
    return Outcome(trials)


def _check(strategy: Any, executor: Any, timeout: Any, repeats: Any, on_trial: Any) -> None:
    if not callable(strategy):
        raise InvalidInputError(f"strategy must be a function, not {short_repr(strategy)}.")
    if on_trial is not None and not callable(on_trial):
        raise InvalidInputError(f"on_trial must be a function, not {short_repr(on_trial)}.")
    is_class = isinstance(executor, type)
    if executor is not None and (is_class or not callable(getattr(executor, "submit", None))):
        raise InvalidInputError(
            f"executor must be an instance with submit(), as in concurrent.futures, not "
            f"{short_repr(executor)}."
        )
    if timeout is not None and not (
        isinstance(timeout, (int, float)) and 0 < timeout < threading.TIMEOUT_MAX
    ):
        raise InvalidInputError(f"timeout must be a number of seconds, not {short_repr(timeout)}.")
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise InvalidInputError(
            f"repeats must be a number of runs, at least 1, not {short_repr(repeats)}."
        )


def _plan_trials(
    key: str, variants: Iterable[Mapping[str, Any]], repeats: int, look: TrialInspection
) -> list[Trial]:
    token = secrets.token_hex(3)
    begin = key.encode()[:_LONGEST_KEY].decode(errors="ignore")
    trials = []
    if not isinstance(variants, Iterable):
        raise InvalidInputError(f"variants must be a list of dicts, not {short_repr(variants)}.")
    for number, variant in enumerate(variants):
        if not isinstance(variant, Mapping):
            raise InvalidInputError(
                f"A variant must be a dict of the strategy's keywords, not {short_repr(variant)}."
            )
        for repeat in range(repeats):
            name = f"{begin}/{token}-{number}" + (f".{repeat}" if repeats > 1 else "")
            trials.append(Trial(_copy_variant(variant), number, repeat, name, _inspection=look))
    return trials


def _copy_variant(variant: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy of a variant, so that runs do not share values.

    A shallow copy if a value cannot be deep-copied.
    """
    try:
        return copy.deepcopy(dict(variant))
    except Exception:  # such as a lock, which threads may share
        return dict(variant)


@contextmanager
def _held(forking: ForkPoint) -> Iterator[None]:
    """Hold the workspace if its current files are forked: copy-on-write forks are then cheap."""
    workspace, tree = forking.state.workspace, forking.tree
    origin = None if workspace is None else workspace.fork_origin
    if workspace is None or tree is None or origin is None or origin.held is not None:
        yield
        return
    if origin.present_id() != tree.id:  # the fork point has other files
        yield
        return
    with workspace.hold(tree):
        yield


def _run_all(
    stack: ExitStack,
    forking: ForkPoint,
    strategy: Strategy,
    trials: list[Trial],
    executor: Executor | None,
    timeout: float | None,
    driver: Driver,
) -> Iterator[tuple[Trial, dict[str, Any]]]:
    """Iterate over the trials as they end, with their results."""
    if executor is None or isinstance(executor, ThreadPoolExecutor):

        def inside(trial: Trial) -> dict[str, Any]:
            return run_in_process(
                forking, trial.key, strategy, trial.variant, driver=driver, timeout=timeout
            )

        if executor is None:
            return ((trial, inside(trial)) for trial in trials)
        return _completed(_submitted(executor, inside, trials, trials))
    apart = stack.enter_context(
        _WorkerTrials(forking, strategy, timeout, is_local=_is_local(executor))
    )
    payloads = encode_payloads(map(apart.content, trials))  # all, before a trial has side effects
    # The first runs while the forks of the others are prepared.
    jobs = (apart.job(trial, payload) for trial, payload in zip(trials, payloads))
    return _completed(_submitted(executor, run_in_worker, jobs, trials), apart.end)


def _submitted(
    executor: Executor,
    run: Callable[[Any], dict[str, Any]],
    jobs: Iterable[Any],
    trials: list[Trial],
) -> dict[Future[dict[str, Any]], Trial]:
    futures: dict[Future[dict[str, Any]], Trial] = {}
    try:
        for job, trial in zip(jobs, trials):
            futures[_submit(executor, run, job)] = trial
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return futures


def _submit(executor: Executor, run: Callable[[Any], _T], job: Any) -> Future[_T]:
    try:
        return executor.submit(run, job)
    except RuntimeError as error:
        raise InvalidInputError(f"The executor does not accept jobs: {error}.") from error


def _completed(
    futures: dict[Future[dict[str, Any]], Trial],
    after: Callable[[Trial, dict[str, Any]], object] = lambda trial, result: None,
) -> Iterator[tuple[Trial, dict[str, Any]]]:
    try:
        while futures:
            wait(futures, _POLL_SECONDS, FIRST_COMPLETED)
            # `wait` does not report a future that its executor cancelled.
            done = [future for future in futures if future.done()]
            while done:
                future = done.pop(0)
                trial = futures.pop(future)
                try:
                    result = future.result()
                except (Exception, CancelledError) as error:  # the worker died or was cancelled
                    result = {"error": f"The worker failed: {describe_error(error)}{_hint(error)}"}
                # Without references, dask does not compute a result again if its worker dies later.
                del future
                after(trial, result)
                yield trial, result
    finally:
        for future in futures:
            future.cancel()


def _is_local(executor: Executor) -> bool:
    """Return whether the workers of an executor are processes of this Python, on Linux."""
    pools = sys.modules.get("concurrent.futures.process")  # slow to load: an executor has done so
    is_pool = pools is not None and isinstance(executor, pools.ProcessPoolExecutor)
    return is_pool and sys.platform.startswith("linux") and bool(sys.executable)


def _cwd() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # it was removed
        return "/"


def _hint(error: BaseException) -> str:
    if type(error).__name__ != "BrokenProcessPool":
        return ""
    return (
        ' If the start method is "spawn", the main program needs an '
        '`if __name__ == "__main__":` guard.'
    )


class _WorkerTrials:
    """Prepares trials that run in their own processes: shared files, and one job each."""

    def __init__(
        self, forking: ForkPoint, strategy: Strategy, timeout: float | None, *, is_local: bool
    ) -> None:
        self._forking = forking
        self._strategy = strategy
        self._timeout = timeout
        self._is_local = is_local
        self._owner = this_process()
        self._server: TrialServer | None = None
        self._address: dict[str, str] | None = None
        self._stage: IsolatedForks | None = None
        self._places: dict[str, ForkPaths] = {}
        self._running: set[str] = set()
        """The keys of the trials that have not ended."""
        url = forking.state.manager.store.backend.properties.url
        if url is None:
            raise InvalidInputError(
                "Other processes cannot open this store. Use a store with a path or URL, a "
                "ThreadPoolExecutor, or no executor."
            )
        self._url = url

    def __enter__(self) -> _WorkerTrials:
        if self._is_local:
            with suppress(OSError):  # otherwise workers start an interpreter for each trial
                self._server = TrialServer()
                self._address = self._server.address
        try:
            workspace, tree = self._forking.state.workspace, self._forking.tree
            if workspace is not None and tree is not None:
                with suppress(WorkspaceError):  # otherwise trials restore files from the store
                    self._stage = IsolatedForks(workspace.fork_origin, tree)
        except BaseException:
            self._stop_server()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            for key in list(self._running):
                self._end(key)
        finally:
            self._stop_server()
            if self._stage is not None:
                self._stage.close()

    def content(self, trial: Trial) -> dict[str, Any]:
        """Return the strategy, variant, agent and parts, by the names of error messages."""
        forking, state = self._forking, self._forking.state
        redactor = state.manager.policy.redactor
        return {
            "the strategy": self._strategy,
            "a variant": trial.variant,
            "the agent": forking.new_agent or state.root.agent,
            "the parts": forking.parts,
            "the redact= option": None if redactor is None else redactor.option,
        }

    def job(self, trial: Trial, payload: bytes) -> Job:
        """Return the job of a trial for a worker. Raises WorkspaceError."""
        forking, state = self._forking, self._forking.state
        view = None
        self._running.add(trial.key)
        if self._stage is not None:
            self._places[trial.key], view = self._stage.fork()
        options = {} if state.workspace is None else state.workspace.options
        spec = {
            "store": self._url,
            "key": trial.key,
            "point": forking.checkpoint.id,
            "every": state.every,
            "provider": state.root.provider,
            "prices": {name: dict(price) for name, price in state.prices.items()},
            "effects": forking.effects,
            "makes_agent": forking.new_agent is not None,
            "fmt": state.manager.fmt,
            "pickles": state.manager.policy.pickles,
            "view": view,
            "files": None,
            "has_files": forking.tree is not None,
            "options": {name: options[name] for name in ("ignore", "gitignore") if options},
            "cwd": _cwd(),
            "server": self._address,
        }
        return Job(payload, spec, self._owner, self._timeout)

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.close()

    def end(self, trial: Trial, result: dict[str, Any]) -> None:
        """Remove the fork of a trial. Raises WorkspaceError, StorageError."""
        # Other executors may run a job twice, so that the other attempt is still in the namespace.
        self._end(trial.key, is_view_ended=self._is_local and result.get("is_view_ended") is True)

    def _end(self, key: str, *, is_view_ended: bool = False) -> None:
        self._running.discard(key)
        places = self._places.pop(key, None)
        if places is not None:
            end_fork(places, is_view_ended=is_view_ended)
        if is_view_ended:  # it had no files from the store
            return
        manager = self._forking.state.manager
        if self._forking.tree is not None and manager.store.newest(files_key(key)):
            manager.delete(files_key(key))  # of a process that was killed
