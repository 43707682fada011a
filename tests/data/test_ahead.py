"""Results come in order, within memory; a task that fails is told, one that hangs is begun again, then named."""

import itertools
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from hyperslab.data import ahead
from hyperslab.data.ahead import MAX_AHEAD, Attempt, Job, Reading, read_ahead
from hyperslab.errors import UserError


def job(number: int, *tasks: Callable[[], None], size_bytes: int = 1) -> Job[int]:
    attempt = Attempt(tasks=list(tasks or [lambda: None]), finish=lambda: number)
    return Job(begin=lambda: attempt, size_bytes=size_bytes)


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_order_however_long_they_take(workers: int) -> None:
    jobs = [job(n, lambda n=n: time.sleep(0.01 * (5 - n))) for n in range(5)]  # type: ignore[misc]
    assert list(read_ahead(jobs, Reading(workers=workers))) == [0, 1, 2, 3, 4]


def test_no_more_is_read_ahead_than_memory_allows() -> None:
    begun: list[int] = []
    # Of 10 bytes each, three fit: one in use, two ahead of it.
    jobs = (job(n, lambda n=n: begun.append(n), size_bytes=10) for n in range(100))  # type: ignore[misc]
    reader = read_ahead(jobs, Reading(memory_bytes=30))
    for number in range(20):
        assert next(reader) == number
        time.sleep(0.002)
        assert max(begun) <= number + 2
    reader.close()


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


def test_slow_is_not_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    came_back = itertools.count()
    monkeypatch.setattr(ahead, "chunks_read", lambda: next(came_back))
    tries: list[int] = []

    def slow() -> None:
        tries.append(1)
        time.sleep(1)

    assert list(read_ahead([job(3, slow)], Reading(patience_seconds=0.05))) == [3]
    assert len(tries) == 1


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
