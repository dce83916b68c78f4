"""The reader processes of one scan. Owns starting, feeding and killing them.

The scan lists and stats everything itself, counts the limit, and stores all objects. It gives files
to a process that has room for them, and reads them itself if none has. So nothing waits for a slow
process until the end, and the number of files and bytes on their way is bounded.
"""

from __future__ import annotations

import fcntl
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Condition, Thread

from agent_checkpoint.backends.os_support.own_program import start_on_further_cores
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.options import Compression
from agent_checkpoint.workspace.scan.reading.chunking import CHUNKED_FROM
from agent_checkpoint.workspace.scan.reading.entry_reader import ReadRequest, ReadResult
from agent_checkpoint.workspace.scan.reading.read_messages import (
    READY,
    DirectoryRequest,
    decode_answer,
    encode_request,
    read_message,
    write_message,
)

_WORKER = "agent_checkpoint.workspace.scan.reading.read_worker"
_MOST_WORKERS = 8
_BATCH_FILES = 64
_BATCH_BYTES = 2 << 20
_BATCHES = 4
"""The batches that a process has at a time, so that it need not wait for a busy scan."""
_PIPE_BYTES = 1 << 20
"""Of a pipe with answers, as large as a user may set it: a process need not wait to send one."""

Results = dict[bytes, ReadResult]
Receive = Callable[[Mapping[str, bytes]], None]


class _Batch:
    """Files for one process: the request, and where the results go."""

    def __init__(self) -> None:
        self.request: list[DirectoryRequest] = []
        self.results: list[Results] = []
        self.files = 0
        self.bytes = 0

    def add(self, path: bytes, requests: Sequence[ReadRequest], results: Results) -> bool:
        """Add files of a directory; return whether the batch is full."""
        self.request.append(DirectoryRequest(path, requests))
        self.results.append(results)
        self.files += len(requests)
        self.bytes += sum([each.size for each in requests])
        return self.files >= _BATCH_FILES or self.bytes >= _BATCH_BYTES

    def fill(self, rows: Sequence[ReadResult]) -> None:
        """Pass on the results."""
        found = iter(rows)
        for directory, results in zip(self.request, self.results):
            for each in directory.requests:
                results[each.name] = next(found)


class _Worker:
    """One reader process, and the thread that receives its answers."""

    def __init__(self, process: subprocess.Popen[bytes], pool: ReadPool) -> None:
        self.process = process
        self.sent: deque[_Batch] = deque()
        self.is_ready = False
        self.thread = Thread(
            target=pool.serve, args=(self,), name="agent-checkpoint-reading", daemon=True
        )


class ReadPool:
    """The reader processes of one scan, used by one thread."""

    def __init__(self, receive: Receive) -> None:
        """Create an empty pool. `receive` gets the objects in stored form, in several threads."""
        self._receive = receive
        self._workers: list[_Worker] = []
        self._batch = _Batch()
        self._target: _Worker | None = None
        self._changed = Condition()
        self._error: BaseException | None = None
        self._is_closed = False

    @classmethod
    def start(cls, root: int, compression: Compression, receive: Receive) -> ReadPool | None:
        """Start one process per further core; None if there is none, or no process can be started.

        Args:
            root: the descriptor of the root directory.
            compression: of the objects.
            receive: called with the objects in stored form, by several threads.
        """
        pool = cls(receive)
        arguments = [str(root), compression]
        for process in start_on_further_cores(_WORKER, arguments, most=_MOST_WORKERS, fds=[root]):
            pool.add(process)
        return pool if pool._workers else None

    def add(self, process: subprocess.Popen[bytes]) -> None:
        """Add a process that was started."""
        if process.stdout is not None and hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux, Python 3.10
            with suppress(OSError):  # the user has too many pipes
                fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        worker = _Worker(process, self)
        self._workers.append(worker)
        worker.thread.start()

    def take(
        self, path: bytes, requests: Sequence[ReadRequest], results: Results
    ) -> Sequence[ReadRequest]:
        """Give files of a directory to a process; return those that the caller has to read.

        Large files are stored in chunks as they are read, and are not given away.

        Raises:
            WorkspaceError: a process has died.
            StorageError: the store failed.
        """
        self._check()
        if self._target is None:
            self._target = self._idle_worker()
        small = [each for each in requests if each.size <= CHUNKED_FROM]
        if self._target is None or not small:
            return requests
        if self._batch.add(path, small, results):
            self._send()
        return [each for each in requests if each.size > CHUNKED_FROM]

    def settle(self) -> None:
        """Wait until all results are there. Raises the same errors as `take`."""
        if self._batch.files:
            self._send()
        with self._changed:
            self._changed.wait_for(
                lambda: self._error is not None or not any(each.sent for each in self._workers)
            )
        self._check()

    def close(self) -> None:
        """Kill the processes, which hold nothing of their own. May be called twice."""
        self._is_closed = True
        for worker in self._workers:
            worker.process.kill()
            worker.process.wait()
        for worker in self._workers:
            worker.thread.join()
            for pipe in (worker.process.stdin, worker.process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # a request that could not be written
                        pipe.close()

    def serve(self, worker: _Worker) -> None:
        """Receive the answers of one process until it ends; runs in a thread."""
        try:
            self._receive_all(worker)
            if worker.sent and not self._is_closed:
                raise _died(worker.process)
        except BaseException as error:  # raised in the thread of the scan
            self._error = self._error or error
        with self._changed:
            worker.is_ready = False
            self._changed.notify_all()

    def _receive_all(self, worker: _Worker) -> None:
        if worker.process.stdout is None:
            raise AssertionError("unreachable: it is a pipe")
        while (message := read_message(worker.process.stdout)) is not None:
            if message == READY:
                with self._changed:
                    worker.is_ready = True
                    self._changed.notify_all()
                continue
            batch = worker.sent[0]
            results, objects = decode_answer(message)
            self._receive(objects)
            batch.fill(results)
            with self._changed:
                worker.sent.popleft()
                self._changed.notify_all()

    def _idle_worker(self) -> _Worker | None:
        ready = [each for each in self._workers if each.is_ready and len(each.sent) < _BATCHES]
        return min(ready, key=lambda each: len(each.sent), default=None)

    def _send(self) -> None:
        batch, self._batch = self._batch, _Batch()
        worker, self._target = self._target, None
        if worker is None or worker.process.stdin is None:
            raise AssertionError("unreachable: a batch has a process with a pipe")
        worker.sent.append(batch)
        try:
            write_message(worker.process.stdin, encode_request(batch.request))
        except OSError:
            self._error = self._error or _died(worker.process)
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error


def _died(process: subprocess.Popen[bytes]) -> WorkspaceError:
    return WorkspaceError(
        "A process that read files for the snapshot ended unexpectedly (status "
        f"{process.wait()}), so nothing was saved. Retry; if it was killed for its memory, free "
        "some."
    )
