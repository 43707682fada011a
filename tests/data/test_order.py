from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.data import order
from hyperslab.data.frames import Windows, find_windows
from hyperslab.data.order import order_digest, sample_at

SMALL = sorted({1, 2, 3, *(2**power + step for power in range(2, 9) for step in (-1, 0, 1))})


def epoch_of(seed: int, epoch: int, total: int) -> list[int]:
    return [sample_at(seed, index, total) for index in range(epoch * total, (epoch + 1) * total)]


def windows_of_one_run(frames: int, span: int = 2) -> Windows:
    return find_windows(np.zeros(frames, np.int64), np.ones(frames, bool), ((0, frames),), span)


@pytest.mark.parametrize("total", SMALL)
@pytest.mark.parametrize("epoch", [0, 1, 1000])
def test_each_epoch_draws_every_window_once(total: int, epoch: int) -> None:
    assert sorted(epoch_of(3, epoch, total)) == list(range(total))


def test_an_epoch_of_five_thousand_draws_every_window_once() -> None:
    assert sorted(epoch_of(11, 2, 5000)) == list(range(5000))


def test_an_epoch_of_a_million_repeats_no_window() -> None:
    drawn = [sample_at(5, index, 1_000_000) for index in range(1_000_000, 2_000_000, 97)]
    assert len(set(drawn)) == len(drawn)
    assert min(drawn) >= 0
    assert max(drawn) < 1_000_000


@given(
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 10**6),
    total=st.integers(2, 2**40),
    data=st.data(),
)
def test_two_samples_of_an_epoch_are_two_windows(seed: int, epoch: int, total: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, total - 1))
    second = data.draw(st.integers(0, total - 1).filter(lambda position: position != first))
    drawn = [sample_at(seed, epoch * total + position, total) for position in (first, second)]
    assert drawn[0] != drawn[1]
    assert all(0 <= window < total for window in drawn)


def test_the_order_is_another_one_in_each_epoch_and_for_each_seed() -> None:
    orders = [epoch_of(seed, epoch, 200) for seed in (0, 1, 2) for epoch in (0, 1, 2)]
    assert len({tuple(drawn) for drawn in orders}) == 9


def test_the_order_is_not_that_of_time() -> None:
    # Among 1000 shuffled windows neighbours follow each other about once: 999 pairs, each with chance 1/1000.
    drawn = np.asarray(epoch_of(0, 0, 1000))
    assert np.count_nonzero(np.diff(drawn) == 1) < 10


def test_no_window_is_preferred_as_first_of_an_epoch() -> None:
    # 7000 epochs over 7 windows: each comes first 1000 times, with a deviation of sqrt(7000 x 6/49) = 29.
    first = Counter(sample_at(0, epoch * 7, 7) for epoch in range(7000))
    assert set(first) == set(range(7))
    assert all(abs(count - 1000) < 5 * 29 for count in first.values())


@pytest.mark.parametrize(
    ("state", "output"),
    [
        # First outputs of the reference https://prng.di.unimi.it/splitmix64.c (Vigna) from these states; the
        # second is also the test vector at https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64.
        (0, 0xE220A8397B1DCDAF),
        (1234567, 6457827717110365317),
    ],
)
def test_the_mixing_function_is_splitmix64(state: int, output: int) -> None:
    assert order._mix(state) == output


def test_equal_orders_have_equal_digests() -> None:
    assert order_digest(1, windows_of_one_run(50), 100) == order_digest(1, windows_of_one_run(50), 100)


def test_the_digest_changes_with_the_seed_the_samples_and_the_windows() -> None:
    other_runs = find_windows(np.repeat([0, 1], 25), np.ones(50, bool), ((0, 50),), 2)
    # As many windows in one run, but of other frames.
    shifted = find_windows(np.zeros(51, np.int64), np.ones(51, bool), ((1, 51),), 2)
    digests = [
        order_digest(1, windows_of_one_run(50), 100),
        order_digest(2, windows_of_one_run(50), 100),
        order_digest(1, windows_of_one_run(50), 101),
        order_digest(1, windows_of_one_run(51), 100),
        order_digest(1, windows_of_one_run(51, span=3), 100),
        order_digest(1, other_runs, 100),
        order_digest(1, shifted, 100),
    ]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("changed", [0, 999])
def test_the_digest_notices_a_changed_order_function(changed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = windows_of_one_run(50)
    before = order_digest(1, windows, 1000)

    def other(seed: int, index: int, num_windows: int) -> int:
        return (sample_at(seed, index, num_windows) + (index == changed)) % num_windows

    monkeypatch.setattr(order, "sample_at", other)
    assert order_digest(1, windows, 1000) != before
