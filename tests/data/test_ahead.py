"""Results come in order, within memory; a task that fails is told, one that hangs is begun again, then named."""

import threading
import time
from collections.abc import Callable

import pytest

from hyperslab.data.ahead import Job, Reading, read_ahead
from hyperslab.errors import UserError


def job(number: int, task: Callable[[], None] = lambda: None, size_bytes: int = 1) -> Job[int]:
    return Job(tasks=[task, task], finish=lambda: number, size_bytes=size_bytes)


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


def test_a_task_that_hangs_is_begun_again() -> None:
    tries, released = [], threading.Event()

    def hangs_once() -> None:
        tries.append(1)
        if len(tries) == 1:
            released.wait(30)

    single = Job(tasks=[hangs_once], finish=lambda: 5, size_bytes=1)
    assert list(read_ahead([single], Reading(patience_seconds=0.1))) == [5]
    assert len(tries) == 2
    released.set()


def test_a_task_that_goes_on_hanging_ends_the_run() -> None:
    released = threading.Event()

    def hang() -> None:
        released.wait(30)

    single = Job(tasks=[hang], finish=lambda: 5, size_bytes=1)
    reader = read_ahead([single], Reading(patience_seconds=0.05))
    with pytest.raises(UserError, match=r"no answer in 0\.05 s, tried 3 times"):
        next(reader)
    released.set()


def test_a_reader_that_is_closed_leaves_no_thread() -> None:
    before = threading.active_count()
    reader = read_ahead((job(n) for n in range(10**9)), Reading(workers=4))
    next(reader)
    reader.close()
    assert threading.active_count() == before
