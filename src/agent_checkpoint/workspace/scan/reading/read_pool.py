"""The files that one scan has to read, and its reader processes. Owns starting and killing them.

The scan lists and stats everything itself, counts the limit, and stores all objects. While it lists
directories, files wait in a bounded queue; many of them are worth processes that read them. Then
the scan reads from the queue, too, so that a slow process delays only its last batches.
"""

from __future__ import annotations

import fcntl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Condition, Thread
from typing import TYPE_CHECKING

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.options import Compression
from agent_checkpoint.workspace.scan.reading.chunking import CHUNKED_FROM
from agent_checkpoint.workspace.scan.reading.entry_reader import (
    DirectoryRequest,
    ReadRequest,
    ReadResult,
)
from agent_checkpoint.workspace.scan.reading.read_messages import (
    READY,
    decode_answer,
    encode_request,
    read_message,
    write_message,
)

if TYPE_CHECKING:
    import subprocess

_WORKER = "agent_checkpoint.workspace.scan.reading.read_worker"
_MOST_WORKERS = 8
_BATCH_FILES = 64
_BATCH_BYTES = 2 << 20
_BATCHES = 4
"""The batches that a process has at a time, so that it need not wait for a busy scan."""
_MOST_WAITING = 256
"""The batches that wait for a process. The scan reads what does not fit in."""
_PIPE_BYTES = 1 << 20
"""Of a pipe with answers, as large as a user may set it: a process need not wait to send one."""

Results = dict[bytes, ReadResult]
Rows = Sequence[ReadResult]
Receive = Callable[[Mapping[str, bytes]], None]


class _Batch:
    """Files to read: the request, and where the results go."""

    def __init__(self, number: int) -> None:
        self.number = number
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

    def fill(self, rows: Rows) -> None:
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
    """The files to read of one scan and its reader processes, used by one thread."""

    def __init__(self, receive: Receive) -> None:
        """Start without processes.

        Args:
            receive: gets the objects that processes read, in stored form, in several threads.
        """
        self._receive = receive
        self._workers: list[_Worker] = []
        self._batch = _Batch(1)
        self._waiting: deque[_Batch] = deque()
        self._done = 0
        """All batches up to this number are read."""
        self._changed = Condition()
        self._error: BaseException | None = None
        self._is_closed = False

    def start(self, root: int, compression: Callable[[], Compression]) -> None:
        """Start one process per further core, if there are any and they can be started.

        Args:
            root: the descriptor of the root directory.
            compression: returns that of the objects; called while the processes start.
        """
        with block_forks():
            from agent_checkpoint.backends.os_support.own_program import (
                start_on_further_cores,  # slow to load
            )

        for process in start_on_further_cores(_WORKER, [str(root)], most=_MOST_WORKERS, fds=[root]):
            self.add(process)
        chosen = compression()
        for worker in self._workers:
            if worker.process.stdin is not None:
                with suppress(OSError):  # it has died, and does not get ready
                    write_message(worker.process.stdin, chosen)

    def add(self, process: subprocess.Popen[bytes]) -> None:
        """Add a process that was started."""
        if process.stdout is not None and hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux, Python 3.10
            with suppress(OSError):  # the user has too many pipes
                fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        worker = _Worker(process, self)
        self._workers.append(worker)
        with suppress(RuntimeError):  # too many threads: it does not get ready
            worker.thread.start()

    def take(
        self, path: bytes, requests: Sequence[ReadRequest], results: Results
    ) -> tuple[Sequence[ReadRequest], int]:
        """Queue files of a directory.

        Large files are stored in chunks as they are read, and are not queued.

        Returns:
            the files that the caller has to read, and the number of the batch of the others, or 0.

        Raises:
            WorkspaceError: a process has died.
            StorageError: the store failed.
        """
        self._check()
        self._feed()
        small = [each for each in requests if each.size <= CHUNKED_FROM]
        if not small or len(self._waiting) >= _MOST_WAITING:
            return requests, 0
        number = self._batch.number
        if self._batch.add(path, small, results):
            self._queue()
        return [each for each in requests if each.size > CHUNKED_FROM], number

    def wait(self, number: int, read: Callable[[Sequence[DirectoryRequest]], Rows]) -> None:
        """Wait until this batch and those before it are read; meanwhile read batches that wait.

        Args:
            number: the number of the batch.
            read: reads files in this process.

        Raises the same errors as `take`.
        """
        if number <= self._done:
            return
        if number == self._batch.number:
            self._queue()
        while True:
            self._feed()
            with self._changed:
                if not self._waiting:
                    self._changed.wait_for(lambda: self._error or self._first_open() > number)
                self._done = self._first_open() - 1
            self._check()
            if number <= self._done:
                return
            batch = self._waiting.popleft()
            batch.fill(read(batch.request))

    @property
    def is_done(self) -> bool:
        """Whether everything is read."""
        return not (self._batch.files or self._waiting or any(w.sent for w in self._workers))

    def close(self) -> None:
        """Kill the processes, which hold nothing of their own. May be called twice."""
        self._is_closed = True
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
            if worker.thread.is_alive():
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
            worker.process.kill()  # nobody reads its answers, and the scan may be writing to it
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

    def _queue(self) -> None:
        self._waiting.append(self._batch)
        self._batch = _Batch(self._batch.number + 1)

    def _feed(self) -> None:
        """Give batches that wait to processes that have room.

        Only the thread of the scan does, since writing to a process may have to wait until its
        answers are read.
        """
        for worker in self._workers:
            while self._waiting and worker.is_ready and len(worker.sent) < _BATCHES:
                batch = self._waiting.popleft()
                worker.sent.append(batch)
                self._send(batch, worker)

    def _send(self, batch: _Batch, worker: _Worker) -> None:
        if worker.process.stdin is None:
            raise AssertionError("unreachable: it is a pipe")
        try:
            write_message(worker.process.stdin, encode_request(batch.request))
        except OSError:
            self._error = self._error or _died(worker.process)
        self._check()

    def _first_open(self) -> int:
        """Return the number of the first batch that is not read; batches are taken in order."""
        queues = [*[worker.sent for worker in self._workers], self._waiting]
        return min([each[0].number for each in queues if each], default=self._batch.number)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error


def _died(process: subprocess.Popen[bytes]) -> WorkspaceError:
    return WorkspaceError(
        "A process that read files for the snapshot ended unexpectedly (status "
        f"{process.wait()}), so nothing was saved. Retry; if it was killed for its memory, free "
        "some."
    )
