"""Reading ahead of use in threads, as far as memory allows; a read that hangs is begun again, then named."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from hyperslab.data.chunks import chunks_read, in_flight
from hyperslab.errors import UserError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Task = Callable[[], None]

MAX_AHEAD = 8
TRIES = 3
JOIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Generic[Result]):
    """One go at reading something, into memory of its own."""

    tasks: Sequence[Task]
    """Do not depend on one another."""
    finish: Callable[[], Result]
    """Called once all tasks are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[Result]):
    """Something to read."""

    begin: Callable[[], Attempt[Result]]
    """Called again where an attempt hangs: what comes back late must not touch what is in use by then."""
    size_bytes: int
    """Memory that the result takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How far, and with how many threads, a rank reads ahead."""

    workers: int = 1
    memory_bytes: int = 1 << 30
    """Memory for results that are read and not yet used; one is always read ahead."""
    patience_seconds: float = 300.0
    """Time without any chunk after which what is waited for is begun again."""
    pin: bool = False
    """Whether results lie in page-locked memory, from which an accelerator copies by itself."""


def read_ahead(jobs: Iterable[Job[Result]], reading: Reading) -> Generator[Result, None, None]:
    """The results of jobs, in their order, some of them read before they are asked for.

    Raises
    ------
    UserError
        When a task fails, or reads do not come back however often they are begun.
    """
    crew = _Crew(reading)
    pending: deque[tuple[Job[Result], _Begun[Result]]] = deque()
    held = 0
    try:
        for job in jobs:
            pending.append((job, crew.begin(job)))
            held += job.size_bytes
            while len(pending) > 1 and (held + job.size_bytes > reading.memory_bytes or len(pending) > MAX_AHEAD):
                held -= pending[0][0].size_bytes
                yield crew.finished(*pending.popleft())
        while pending:
            yield crew.finished(*pending.popleft())
    finally:
        for _, begun in pending:
            begun.abandon()
        crew.dismiss()


class _Begun(Generic[Result]):
    """An attempt that was begun; one event for all its tasks, since each wake-up takes Python's lock."""

    def __init__(self, attempt: Attempt[Result]) -> None:
        self.finish = attempt.finish
        self.error: BaseException | None = None
        self.over = threading.Event()
        self._left: dict[int, Task] = dict(enumerate(attempt.tasks))
        if not attempt.tasks:
            self.over.set()

    def do(self, number: int) -> None:
        """Do a task, unless nobody wants it any more."""
        task = self._left.get(number)
        if task is None:
            return
        try:
            task()
        except BaseException as error:
            self.error = error
            self.abandon()
        self._left.pop(number, None)
        if not self._left:
            self.over.set()

    def abandon(self) -> None:
        """Leave out all tasks that were not begun."""
        self._left.clear()


class _Crew:
    """Threads that do tasks. They are daemons: one that hangs in a read must not keep the process alive."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._queue: SimpleQueue[tuple[_Begun[Any], int] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._hire()

    def begin(self, job: Job[Result]) -> _Begun[Result]:
        attempt = job.begin()
        begun = _Begun(attempt)
        for number in range(len(attempt.tasks)):
            self._queue.put((begun, number))
        return begun

    def finished(self, job: Job[Result], begun: _Begun[Result]) -> Result:
        """The result of a job, begun again where no read of any thread comes back."""
        tries, seen = 1, chunks_read()
        while not begun.over.wait(self._reading.patience_seconds):
            if seen != (seen := chunks_read()):
                continue
            where = f"{in_flight()}: no answer in {self._reading.patience_seconds:g} s"
            if tries == TRIES:
                raise UserError(
                    f"{where}, tried {TRIES} times; the file system hangs: look at it, then go on with "
                    "`hyperslab resume`"
                )
            logger.warning("%s; begun again", where)
            tries += 1
            begun.abandon()
            self._hire()
            begun = self.begin(job)
        if begun.error is not None:
            raise begun.error
        return begun.finish()

    def dismiss(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _hire(self) -> None:
        for _ in range(self._reading.workers):
            thread = threading.Thread(target=self._work, name="loader", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (order := self._queue.get()) is not None:
            begun, number = order
            begun.do(number)
            del order, begun  # what was read must not live on until the next task comes
