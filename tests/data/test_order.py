import tracemalloc
from collections import Counter
from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.data import order
from hyperslab.data.frames import Ints, Windows, find_windows
from hyperslab.data.loader import SampleWindows, Sampling
from hyperslab.data.order import Order, sample_at, samples_at
from hyperslab.errors import UserError

SMALL = sorted({1, 2, 3, *(2**power + step for power in range(2, 9) for step in (-1, 0, 1))})


def epoch_of(seed: int, epoch: int, total: int) -> list[int]:
    drawn: list[int] = samples_at(seed, np.arange(epoch * total, (epoch + 1) * total), total).tolist()
    return drawn


def windows_of_one_run(frames: int, span: int = 2) -> Windows:
    return find_windows(np.zeros(frames, np.int64), np.ones(frames, bool), ((0, frames),), span)


@pytest.mark.parametrize("total", SMALL)
@pytest.mark.parametrize("epoch", [0, 1, 1000])
def test_each_epoch_draws_every_window_once(total: int, epoch: int) -> None:
    assert sorted(epoch_of(3, epoch, total)) == list(range(total))


def test_an_epoch_of_five_thousand_draws_every_window_once() -> None:
    assert sorted(epoch_of(11, 2, 5000)) == list(range(5000))


def test_an_epoch_of_a_million_draws_every_window_once() -> None:
    # Half full: 2^19 < 10^6 < 2^20, so some draws are walked.
    drawn = np.asarray(epoch_of(5, 1, 1_000_000))
    np.testing.assert_array_equal(np.bincount(drawn), np.ones(1_000_000))


def test_memory_does_not_grow_with_the_windows() -> None:
    def peak_bytes(total: int) -> int:
        tracemalloc.start()
        samples_at(0, np.arange(64), total)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_bytes(1000)  # what the first call keeps does not count
    assert peak_bytes(2**40) < 2 * peak_bytes(1000)


def test_a_sample_does_not_depend_on_those_it_is_drawn_with() -> None:
    together = samples_at(9, np.arange(500, 2500), 1000)
    assert [sample_at(9, index, 1000) for index in range(500, 2500, 7)] == together[::7].tolist()


@pytest.mark.parametrize(
    ("seed", "total", "drawn"),
    [
        # What the first version drew; a campaign that was begun with it goes on with the same samples.
        (0, 10, [8, 4, 6, 3, 9, 1, 0, 2, 5, 7, 3, 7]),
        (7, 1000, [322, 954, 792, 439, 56, 816, 339, 393]),
    ],
)
def test_the_order_stays_as_it_was(seed: int, total: int, drawn: list[int]) -> None:
    assert samples_at(seed, np.arange(len(drawn)), total).tolist() == drawn


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
    assert int(order._mix(np.asarray([state], np.uint64))[0]) == output


def order_of(*stores: Windows, seed: int = 1, batch: int = 4, weights: tuple[float, ...] | None = None) -> Order:
    return Order(seed=seed, batch=batch, windows=stores, weights=weights or (1.0,) * len(stores))


@given(
    seed=st.integers(0, 2**32),
    frames=st.integers(2, 3000),
    steps=st.integers(1, 60),
    ranks=st.sampled_from([1, 2, 3, 4, 8]),
    data=st.data(),
)
def test_ranks_and_interruptions_do_not_change_what_is_drawn(
    seed: int, frames: int, steps: int, ranks: int, data: st.DataObject
) -> None:
    # 24 samples a step are shared out evenly by each of these numbers of ranks.
    run = order_of(windows_of_one_run(frames), seed=seed, batch=24)
    cuts = sorted(data.draw(st.lists(st.integers(0, steps), max_size=4)))
    drawn = []
    for start, stop in pairwise([0, *cuts, steps]):
        # Each segment of the run may have another number of ranks.
        ranks = data.draw(st.sampled_from([1, 2, 3, 4, 8]))
        share = 24 // ranks
        for step in range(start, stop):
            drawn += [
                window
                for rank in range(ranks)
                for window in run.draw(step, range(rank * share, (rank + 1) * share))[1].tolist()
            ]
    assert drawn == samples_at(seed, np.arange(24 * steps), frames - 1).tolist()


def test_a_mixture_gives_each_store_its_share_of_every_period() -> None:
    # Shares 3 : 1 of 4096 steps.
    run = order_of(windows_of_one_run(50), windows_of_one_run(20), weights=(3.0, 1.0))
    for period in (0, 5):
        turns = [run.turn(step)[0] for step in range(period * order.PERIOD, (period + 1) * order.PERIOD)]
        assert Counter(turns) == {0: 3072, 1: 1024}
    # Shuffled: runs of the same store are short. The chance of 100 steps in a row is 0.75^100.
    assert max(len(list(group)) for _, group in groupby(turns)) < 100


def test_each_store_of_a_mixture_goes_through_epochs_of_its_own() -> None:
    run = order_of(windows_of_one_run(513), windows_of_one_run(257), batch=2, weights=(1.0, 1.0))
    drawn: dict[int, list[int]] = {0: [], 1: []}
    for step in range(order.PERIOD):
        store, windows = run.draw(step, range(2))
        drawn[store] += windows.tolist()
    for store, total in ((0, 512), (1, 256)):
        assert sorted(drawn[store][:total]) == list(range(total))
    # 2048 steps of 2 samples: eight epochs of 512 windows, sixteen of 256.
    assert set(Counter(drawn[0]).values()) == {8}
    assert set(Counter(drawn[1]).values()) == {16}


def test_the_first_store_of_a_mixture_draws_as_by_itself() -> None:
    alone, mixed = order_of(windows_of_one_run(50)), order_of(windows_of_one_run(50), windows_of_one_run(50))
    turns = {step: mixed.turn(step) for step in range(200)}
    for step, (store, turn) in turns.items():
        same = mixed.draw(step, range(4))[1].tolist() == alone.draw(turn, range(4))[1].tolist()
        assert same == (store == 0)


def test_the_turns_of_a_store_are_counted_over_all_periods() -> None:
    run = order_of(windows_of_one_run(50), windows_of_one_run(20), windows_of_one_run(9), weights=(5.0, 2.0, 1.0))
    seen = Counter({0: 0, 1: 0, 2: 0})
    for step in range(2 * order.PERIOD + 100):
        store, turn = run.turn(step)
        assert turn == seen[store]
        seen[store] += 1


def test_an_order_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"order: found batches of 4 from stores of \[49, 0\] windows"):
        order_of(windows_of_one_run(50), windows_of_one_run(1))
    with pytest.raises(UserError, match="order: found batches of 0"):
        order_of(windows_of_one_run(50), batch=0)


@pytest.mark.parametrize("weights", [(1e308, 1e308), (1.0, 0.0), (1.0, -1.0), (1.0, float("nan")), (1.0, 1e-9), (1.0,)])
def test_weights_without_a_meaning_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match="weights: found"):
        order_of(windows_of_one_run(50), windows_of_one_run(50), weights=weights)


def test_equal_orders_have_equal_digests() -> None:
    assert order_of(windows_of_one_run(50)).digest(25) == order_of(windows_of_one_run(50)).digest(25)


def test_weights_of_equal_proportion_are_the_same_order() -> None:
    one = windows_of_one_run(50)
    assert order_of(one, one, weights=(3, 1)).digest(9) == order_of(one, one, weights=(6.0, 2.0)).digest(9)


def test_the_digest_changes_with_all_that_decides_the_order() -> None:
    other_runs = find_windows(np.repeat([0, 1], 25), np.ones(50, bool), ((0, 50),), 2)
    # As many windows in one run, but of other frames.
    shifted = find_windows(np.zeros(51, np.int64), np.ones(51, bool), ((1, 51),), 2)
    one = windows_of_one_run(50)
    digests = [
        order_of(one).digest(25),
        order_of(one, seed=2).digest(25),
        order_of(one).digest(26),
        order_of(one, batch=5).digest(25),
        order_of(windows_of_one_run(51)).digest(25),
        order_of(windows_of_one_run(51, span=3)).digest(25),
        order_of(other_runs).digest(25),
        order_of(shifted).digest(25),
        order_of(one, one).digest(25),
        order_of(one, one, weights=(2.0, 1.0)).digest(25),
    ]
    assert len(set(digests)) == len(digests)


def test_the_digest_changes_with_what_is_taken_of_the_windows() -> None:
    one = windows_of_one_run(50, span=5)
    # All of them span 5 frames: 4 and a target, 2 and a target every other frame, 5 without a target.
    samplings = [Sampling(history=4, lead=1), Sampling(history=2, lead=2), Sampling(history=5, lead=1, rollout=0)]
    assert {sampling.span for sampling in samplings} == {5}
    digests = {
        order_of(SampleWindows(one.starts, one.offsets, one.span, sampling)).digest(25) for sampling in samplings
    }
    assert len(digests) == 3


@pytest.mark.parametrize("changed", [0, 999])
def test_the_digest_notices_a_changed_order_function(changed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = order_of(windows_of_one_run(50))
    before = run.digest(250)

    def other(seed: int, indices: Ints, num_windows: int) -> Ints:
        return np.asarray((samples_at(seed, indices, num_windows) + (indices == changed)) % num_windows, np.int64)

    monkeypatch.setattr(order, "samples_at", other)
    assert run.digest(250) != before
