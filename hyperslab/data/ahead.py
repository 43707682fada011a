"""Reading ahead of use in threads, as far as memory allows; a read that hangs is begun again, then named."""

import atexit
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from hyperslab.data.chunks import WATCH, Watch
from hyperslab.errors import UserError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Task = Callable[[], None]

MAX_AHEAD = 8
MAX_WORKERS = 256
TRIES = 3
JOIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Generic[Result]):
    """One go at reading something, into memory of its own."""

    tasks: Sequence[Task]
    """Do not depend on one another; at least one, since what has none left is done."""
    finish: Callable[[], Result]
    """Called once all tasks are done."""

    def __post_init__(self) -> None:
        """Refuse what would pass for done with nothing read.

        Raises
        ------
        ValueError
            When there is no task.
        """
        if not self.tasks:
            raise ValueError("an attempt to read has no task; give it one, if only to do nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[Result]):
    """Something to read."""

    begin: Callable[[], Attempt[Result]]
    """Called again where an attempt hangs: what comes back late must not touch what is in use by then."""
    size_bytes: int
    """Memory that the result takes, and that reading it takes beside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How far, and with how many threads, a rank reads ahead."""

    workers: int = 1
    memory_bytes: int = 1 << 30
    """Memory for results: the one in use, the one that is handed over next, and those read ahead, at least one."""
    patience_seconds: float = 300.0
    """Time without any chunk after which what is waited for is begun again."""
    pin: bool = False
    """Whether results lie in page-locked memory, from which an accelerator copies by itself."""

    def __post_init__(self) -> None:
        """Refuse numbers of threads that cannot read.

        Raises
        ------
        UserError
            When there are none, or too many.
        """
        if not 1 <= self.workers <= MAX_WORKERS:
            raise UserError(f"reading_threads: found {self.workers}; give a whole number from 1 to {MAX_WORKERS}")


def read_ahead(jobs: Iterable[Job[Result]], reading: Reading) -> Generator[Result, None, None]:
    """The results of jobs, in their order, some of them read before they are asked for.

    Raises
    ------
    UserError
        When a task fails, reads do not come back however often they are begun, or no thread can be started.
    """
    crew = _Crew(reading)
    pending: deque[tuple[Job[Result], _Begun[Result]]] = deque()
    # What was handed over last counts: its user may hold it until the next one is there.
    in_use = held = 0
    try:
        crew.hire()
        for job in jobs:
            while len(pending) > 1 and (
                in_use + held + job.size_bytes > reading.memory_bytes or len(pending) > MAX_AHEAD
            ):
                in_use = pending[0][0].size_bytes
                held -= in_use
                yield crew.finished(*pending.popleft())
            pending.append((job, crew.begin(job)))
            held += job.size_bytes
        while pending:
            yield crew.finished(*pending.popleft())
    finally:
        crew.dismiss()


class _Begun(Generic[Result]):
    """An attempt that was begun; one event for all its tasks, since each wake-up takes Python's lock."""

    def __init__(self, attempt: Attempt[Result], turn: int) -> None:
        self.turn = turn
        """Place of its job among all."""
        self.finish = attempt.finish
        self.error: BaseException | None = None
        self.over = threading.Event()
        self._left: dict[int, Task] = dict(enumerate(attempt.tasks))

    def do(self, number: int) -> None:
        """Do a task, unless nobody wants it any more."""
        task = self._left.get(number)
        if task is None:
            return
        try:
            task()
        except BaseException as error:
            if number in self._left:
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
        self._watch = Watch()
        self._queue: SimpleQueue[tuple[_Begun[Any], int] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._turns = itertools.count()
        self._last_turn: float = float("inf")
        """Nobody will ask for what comes after a job that failed."""

    def begin(self, job: Job[Result], turn: int | None = None) -> _Begun[Result]:
        attempt = job.begin()
        begun = _Begun(attempt, next(self._turns) if turn is None else turn)
        for number in range(len(attempt.tasks)):
            self._queue.put((begun, number))
        return begun

    def finished(self, job: Job[Result], begun: _Begun[Result]) -> Result:
        """The result of a job, begun again where no read of the crew comes back."""
        tries, since = 1, time.monotonic()
        while not begun.over.wait(self._reading.patience_seconds):
            if self._watch.answered > since:
                since = time.monotonic()
                continue
            where = f"{self._watch.in_flight()}: no answer in {self._reading.patience_seconds:g} s"
            if tries == TRIES:
                raise UserError(
                    f"{where}, tried {TRIES} times; the file system hangs: look at it, then go on with "
                    "`hyperslab resume`"
                )
            logger.warning("%s; begun again", where)
            tries += 1
            begun.abandon()
            self.hire()
            begun = self.begin(job, begun.turn)
        if begun.error is not None:
            raise begun.error
        return begun.finish()

    def hire(self) -> None:
        """Start as many threads as are asked for, beside those that hang.

        Raises
        ------
        UserError
            When the system gives no more of them.
        """
        # A thread that still reads while the interpreter goes would take the process down with it.
        atexit.register(self.dismiss)
        for number in range(self._reading.workers):
            thread = threading.Thread(target=self._work, name="loader", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise UserError(
                    f"reading_threads: thread {number + 1} of {self._reading.workers} did not start ({error}); "
                    "take fewer, or raise the system's limit (`ulimit -u`)"
                ) from None
            self._threads.append(thread)

    def dismiss(self) -> None:
        """End the threads; one that hangs is left to itself."""
        self._watch.over.set()
        for _ in self._threads:
            self._queue.put(None)
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        atexit.unregister(self.dismiss)

    def _work(self) -> None:
        WATCH.set(self._watch)
        while (order := self._queue.get()) is not None:
            begun, number = order
            if begun.turn <= self._last_turn and not self._watch.over.is_set():
                begun.do(number)
                if begun.error is not None:
                    self._last_turn = min(self._last_turn, begun.turn)
            del order, begun  # what was read must not live on until the next task comes
