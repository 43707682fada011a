"""Reading ahead of use in threads, as far as memory allows; a read that hangs is begun again, then named."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeVar

from hyperslab.data.chunks import in_flight
from hyperslab.errors import UserError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Task = Callable[[], None]

MAX_AHEAD = 8
TRIES = 3
JOIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[Result]):
    """Something to read, in tasks that do not depend on one another."""

    tasks: list[Task]
    """May run twice, even at the same time: a task that hangs is begun again."""
    finish: Callable[[], Result]
    """Called once all tasks are done."""
    size_bytes: int
    """Memory that the result takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How far, and with how many threads, a rank reads ahead."""

    workers: int = 1
    memory_bytes: int = 1 << 30
    """Memory for results that are read and not yet used; one is always read ahead."""
    patience_seconds: float = 300.0
    """Time after which a task that does not come back is begun again."""
    pin: bool = False
    """Whether results lie in page-locked memory, from which an accelerator copies by itself."""


def read_ahead(jobs: Iterable[Job[Result]], reading: Reading) -> Generator[Result, None, None]:
    """The results of jobs, in their order, some of them read before they are asked for.

    Raises
    ------
    UserError
        When a task fails, or does not come back however often it is begun.
    """
    crew = _Crew(reading)
    pending: deque[tuple[Job[Result], _Begun]] = deque()
    held = 0
    try:
        for job in jobs:
            pending.append((job, crew.begin(job.tasks)))
            held += job.size_bytes
            while len(pending) > 1 and (held + job.size_bytes > reading.memory_bytes or len(pending) > MAX_AHEAD):
                held -= pending[0][0].size_bytes
                yield crew.finished(*pending.popleft())
        while pending:
            yield crew.finished(*pending.popleft())
    finally:
        for _, begun in pending:
            begun.left.clear()
        crew.dismiss()


class _Begun:
    """The tasks of a job that was begun; one event for all of them, since each wake-up takes Python's lock."""

    def __init__(self, tasks: list[Task]) -> None:
        self.left = dict(enumerate(tasks))
        self.error: BaseException | None = None
        self.over = threading.Event()
        if not tasks:
            self.over.set()

    def do(self, number: int) -> None:
        """Do a task, unless another thread has done it, or nobody wants it any more."""
        task = self.left.get(number)
        if task is None:
            return
        try:
            task()
        except BaseException as error:
            # One that was begun again may have been done by now.
            if number in self.left:
                self.error = error
                self.over.set()
        self.left.pop(number, None)
        if not self.left:
            self.over.set()


class _Crew:
    """Threads that do tasks. They are daemons: one that hangs in a read must not keep the process alive."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._queue: SimpleQueue[tuple[_Begun, int] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        for _ in range(reading.workers):
            self._hire()

    def begin(self, tasks: list[Task]) -> _Begun:
        begun = _Begun(tasks)
        for number in range(len(tasks)):
            self._queue.put((begun, number))
        return begun

    def finished(self, job: Job[Result], begun: _Begun) -> Result:
        patience = self._reading.patience_seconds
        for last in (*[False] * (TRIES - 1), True):
            if begun.over.wait(patience):
                break
            if last:
                raise UserError(
                    f"{in_flight()}: no answer in {patience:g} s, tried {TRIES} times; the file system hangs: "
                    "look at it, then go on with `hyperslab resume`"
                )
            logger.warning("no answer in %s s: %s; begun again", patience, in_flight())
            for number in list(begun.left):
                self._hire()
                self._queue.put((begun, number))
        if begun.error is not None:
            raise begun.error
        return job.finish()

    def dismiss(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _hire(self) -> None:
        thread = threading.Thread(target=self._work, name="loader", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (order := self._queue.get()) is not None:
            begun, number = order
            begun.do(number)
            del order, begun  # what was read must not live on until the next task comes
