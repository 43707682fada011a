import threading
import time

import pytest

from hyperslab.data.fetch.rate import Rate


def test_bytes_come_no_faster_than_the_limit() -> None:
    rate = Rate(1_000_000)
    began = time.monotonic()
    for _ in range(15):
        rate.take(100_000)
    # 1.5 MB at 1 MB/s, of which the first second's worth is there at once.
    assert time.monotonic() - began == pytest.approx(0.5, abs=0.15)


def test_the_limit_is_shared_by_all_who_take() -> None:
    rate = Rate(1_000_000)

    def take() -> None:
        for _ in range(10):
            rate.take(50_000)

    threads = [threading.Thread(target=take) for _ in range(4)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # 2 MB in all, one at once.
    assert time.monotonic() - began == pytest.approx(1.0, abs=0.3)


def test_without_a_limit_nobody_waits() -> None:
    began = time.monotonic()
    Rate(None).take(10**15)
    assert time.monotonic() - began < 0.1
    assert Rate(None).block_bytes == 1 << 20


def test_blocks_are_small_where_the_rate_is_low() -> None:
    assert Rate(50_000).block_bytes == 5_000
    assert Rate(10).block_bytes == 1 << 10
