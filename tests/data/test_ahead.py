"""Results come in order, within memory; a task that fails is told, one that hangs is begun again, then named."""

import random
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from hyperslab.data.ahead import MAX_AHEAD, MAX_WORKERS, Attempt, Job, Reading, read_ahead
from hyperslab.data.chunks import WATCH
from hyperslab.errors import UserError


def job(number: int, *tasks: Callable[[], None], size_bytes: int = 1) -> Job[int]:
    attempt = Attempt(tasks=list(tasks or [lambda: None]), finish=lambda: number)
    return Job(begin=lambda: attempt, size_bytes=size_bytes)


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_order_however_long_they_take(workers: int) -> None:
    jobs = [job(n, lambda n=n: time.sleep(0.01 * (5 - n))) for n in range(5)]  # type: ignore[misc]
    assert list(read_ahead(jobs, Reading(workers=workers))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("workers", [0, -1, MAX_WORKERS + 1])
def test_numbers_of_threads_that_cannot_read_are_refused(workers: int) -> None:
    with pytest.raises(UserError, match=f"^reading_threads: found {workers}; give a whole number from 1 to 256$"):
        Reading(workers=workers)


def test_an_attempt_without_a_task_does_not_pass_for_done() -> None:
    with pytest.raises(ValueError, match="an attempt to read has no task"):
        Attempt(tasks=[], finish=lambda: "memory as it was found")


class Result:
    """What takes memory for as long as somebody holds it."""

    def __init__(self, number: int) -> None:
        self.number = number


class Memory:
    """Counts the bytes of results that are begun and not let go of."""

    def __init__(self) -> None:
        self.held = self.most = 0

    def job(self, number: int, size_bytes: int) -> Job[Result]:
        def begin() -> Attempt[Result]:
            results = [Result(number)]
            self._add(size_bytes)
            weakref.finalize(results[0], self._add, -size_bytes)
            return Attempt(tasks=[lambda: None], finish=results.pop)

        return Job(begin=begin, size_bytes=size_bytes)

    def _add(self, size_bytes: int) -> None:
        self.held += size_bytes
        self.most = max(self.most, self.held)


@pytest.mark.parametrize(
    ("memory_bytes", "most"),
    [
        # Results of 10 bytes. The one that was handed over is held until the next one is, and one is always read ahead.
        (0, 30),
        (30, 30),
        (39, 30),
        (40, 40),
        (75, 70),
        # One in use, and the most that are begun ahead of it.
        (10**6, 10 * (MAX_AHEAD + 2)),
    ],
)
def test_results_take_the_memory_that_is_allowed(memory_bytes: int, most: int) -> None:
    memory, numbers, held = Memory(), [], []
    for result in read_ahead((memory.job(number, 10) for number in range(50)), Reading(memory_bytes=memory_bytes)):
        numbers.append(result.number)
        held.append(memory.held)
    assert numbers == list(range(50))
    assert memory.most == most
    # All along: while a result is in use, only the room for the one that is begun when the next is asked for is free.
    assert set(held[10:40]) == {most - 10}


def test_results_of_different_sizes_take_no_more_than_is_allowed() -> None:
    memory, chance = Memory(), random.Random(0)
    jobs = (memory.job(number, chance.randrange(1, 30)) for number in range(300))
    assert len([result.number for result in read_ahead(jobs, Reading(memory_bytes=100))]) == 300
    assert 90 < memory.most <= 100


def test_a_result_larger_than_memory_is_read_all_the_same() -> None:
    assert list(read_ahead([job(n, size_bytes=10**12) for n in range(4)], Reading(memory_bytes=1))) == [0, 1, 2, 3]


def test_a_task_that_fails_is_told_to_whoever_asks_for_its_result() -> None:
    def fail() -> None:
        raise UserError("shard 7: is missing")

    reader = read_ahead([job(0), job(1, fail), job(2)], Reading())
    assert next(reader) == 0
    with pytest.raises(UserError, match="shard 7: is missing"):
        next(reader)


def test_reading_goes_on_while_a_result_is_in_use() -> None:
    begun: list[int] = []
    reader = read_ahead((job(n, lambda n=n: begun.append(n)) for n in range(100)), Reading())  # type: ignore[misc]
    next(reader)
    deadline = time.monotonic() + 30
    while len(begun) <= MAX_AHEAD and time.monotonic() < deadline:
        time.sleep(0.01)
    assert begun == list(range(MAX_AHEAD + 1))
    reader.close()


def test_a_job_that_failed_is_not_read_on() -> None:
    begun: list[int] = []

    def fail() -> None:
        raise UserError("shard 7: is missing")

    def slow(number: int) -> None:
        begun.append(number)
        time.sleep(0.2)

    rest = [partial(slow, number) for number in range(20)]
    reader = read_ahead([job(0, fail, *rest)], Reading(workers=2))
    with pytest.raises(UserError, match="shard 7: is missing"):
        next(reader)
    assert len(begun) <= 2
    assert not [thread for thread in threading.enumerate() if thread.name == "loader"]


def test_what_hangs_is_begun_again_in_memory_of_its_own() -> None:
    made: list[list[str]] = []
    released, late = threading.Event(), threading.Event()

    def begin() -> Attempt[list[str]]:
        memory: list[str] = []
        made.append(memory)
        first = len(made) == 1

        def task() -> None:
            if first:
                released.wait(30)
            memory.append("late" if first else "in time")
            if first:
                late.set()

        return Attempt(tasks=[task], finish=lambda: memory)

    reader = read_ahead([Job(begin=begin, size_bytes=1)], Reading(patience_seconds=0.1))
    result = next(reader)
    released.set()
    late.wait(30)
    assert result == ["in time"]
    assert made == [["late"], ["in time"]]
    reader.close()


def test_what_goes_on_hanging_ends_the_run() -> None:
    released = threading.Event()

    def hang() -> None:
        released.wait(30)

    reader = read_ahead([job(0, hang)], Reading(patience_seconds=0.05))
    with pytest.raises(UserError, match=r"no answer in 0\.05 s, tried 3 times"):
        next(reader)
    released.set()


def test_slow_is_not_hanging() -> None:
    tries: list[int] = []

    def slow() -> None:
        tries.append(1)
        for _ in range(100):
            time.sleep(0.01)
            WATCH.get().answered = time.monotonic()

    assert list(read_ahead([job(3, slow)], Reading(patience_seconds=0.2))) == [3]
    assert len(tries) == 1


def test_another_reader_that_reads_on_does_not_hide_one_that_hangs() -> None:
    released = threading.Event()

    def hang() -> None:
        released.wait(30)

    def answered() -> None:
        WATCH.get().answered = time.monotonic()

    def read_on() -> None:
        for _ in read_ahead((job(n, answered) for n in range(10**9)), Reading()):
            if released.wait(0.001):
                return

    other = threading.Thread(target=read_on)
    other.start()
    try:
        reader = read_ahead([job(0, hang)], Reading(patience_seconds=0.05))
        with pytest.raises(UserError, match="tried 3 times"):
            next(reader)
    finally:
        released.set()
        other.join()


def test_patience_is_five_minutes() -> None:
    # Longer than an NFS server takes to come back (docs/reading.md says it).
    assert Reading().patience_seconds == 5 * 60


def test_what_comes_after_a_failure_is_not_read() -> None:
    begun: list[str] = []
    failed, asked = threading.Event(), threading.Event()

    def fail() -> None:
        failed.set()
        raise UserError("shard 7: is missing")

    def wait() -> None:
        asked.wait(30)

    def note() -> None:
        begun.append("later" if failed.is_set() else "earlier")

    reader = read_ahead([job(0, note), job(1, wait), job(2, fail), job(3, note), job(4, note)], Reading())
    assert next(reader) == 0
    asked.set()
    failed.wait(30)
    # The thread would go on with the next job at once; nobody has asked for the one that failed yet.
    time.sleep(0.2)
    assert next(reader) == 1
    with pytest.raises(UserError, match="shard 7: is missing"):
        next(reader)
    assert begun == ["earlier"]


def test_a_failure_leaves_what_comes_before_it_to_be_read() -> None:
    # The first job hangs, and is begun again after the second one has failed.
    released, tries = threading.Event(), [0]

    def hangs_once() -> None:
        tries[0] += 1
        if tries[0] == 1:
            released.wait(30)

    def fail() -> None:
        raise UserError("shard 7: is missing")

    reader = read_ahead([job(0, hangs_once), job(1, fail)], Reading(workers=2, patience_seconds=0.2))
    try:
        assert next(reader) == 0
        with pytest.raises(UserError, match="shard 7: is missing"):
            next(reader)
    finally:
        released.set()


def test_what_fails_late_after_it_hung_spoils_nothing() -> None:
    released, late, tries = threading.Event(), threading.Event(), [0]

    def hangs_once() -> None:
        tries[0] += 1
        if tries[0] == 1:
            released.wait(30)
            late.set()
            raise OSError(5, "Input/output error")

    reader = read_ahead([job(0, hangs_once), *(job(n) for n in range(1, 30))], Reading(patience_seconds=0.3))
    assert next(reader) == 0
    released.set()
    late.wait(30)
    time.sleep(0.1)
    assert list(reader) == list(range(1, 30))


def test_threads_that_do_not_start_are_one_line_and_leave_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    original = threading.Thread.start
    started: list[threading.Thread] = []

    def start(self: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(self)
        original(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    message = r"^reading_threads: thread 4 of 5 did not start \(can't start new thread\); take fewer"
    with pytest.raises(UserError, match=message):
        next(read_ahead([job(0)], Reading(workers=5)))
    assert len(started) == 3
    assert not any(thread.is_alive() for thread in started)


def test_a_reader_that_is_closed_reads_nothing_more() -> None:
    begun: list[int] = []

    def slow(number: int) -> None:
        begun.append(number)
        time.sleep(0.1)

    reader = read_ahead((job(n, partial(slow, n)) for n in range(100)), Reading())
    next(reader)
    reader.close()
    # The first, and what the thread was at when it was closed: not the eight that were read ahead.
    assert len(begun) <= 3


def test_a_reader_that_is_closed_leaves_no_thread() -> None:
    before = threading.active_count()
    reader = read_ahead((job(n) for n in range(10**9)), Reading(workers=4))
    next(reader)
    reader.close()
    assert threading.active_count() == before
