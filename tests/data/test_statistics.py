import json

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hyperslab.data.statistics import Histogram, Moments, pairs

Frames = npt.NDArray[np.float32]

VALUES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    elements=st.one_of(st.floats(-1e4, 1e4, width=32), st.just(float("nan"))),
)


def frames_of(*values: float) -> Frames:
    """Frames of one channel and one row."""
    return np.asarray(values, np.float32).reshape(1, 1, 1, -1)


def test_the_moments_of_a_handful_of_values() -> None:
    # Mean (1 + 2 + 6) / 3 = 3; squares 4 + 1 + 9 = 14; variance 14 / 3.
    moments = Moments.of(frames_of(1, 2, 6))
    assert moments.count.tolist() == [3]
    assert moments.mean.tolist() == [3]
    assert moments.squares.tolist() == [14]
    assert moments.std == pytest.approx([np.sqrt(14 / 3)], rel=1e-15)
    assert (moments.minimum.tolist(), moments.maximum.tolist()) == ([1], [6])


def test_missing_values_do_not_count() -> None:
    # Of 1, NaN, 5: mean 3, squares 4 + 4.
    moments = Moments.of(frames_of(1, np.nan, 5))
    assert moments.count.tolist() == [2]
    assert moments.mean.tolist() == [3]
    assert moments.squares.tolist() == [8]


def test_each_channel_has_its_own_moments() -> None:
    values = np.asarray([[[1, 3]], [[10, np.nan]]], np.float32)[None]
    moments = Moments.of(values)
    assert moments.count.tolist() == [2, 1]
    assert moments.mean.tolist() == [2, 10]
    assert moments.std.tolist() == [1, 0]


def test_a_channel_without_a_value_has_no_spread() -> None:
    moments = Moments.of(frames_of(np.nan, np.nan))
    assert moments.count.tolist() == [0]
    assert np.isnan(moments.std).all()


def assert_fits(moments: Moments, values: Frames) -> None:
    """Compare with numpy over the values that are there, channel by channel, in two passes."""
    for channel in range(values.shape[1]):
        flat = values[:, channel].astype(np.float64).ravel()
        there = flat[~np.isnan(flat)]
        assert moments.count[channel] == len(there)
        if len(there):
            assert moments.mean[channel] == pytest.approx(there.mean(), rel=1e-12, abs=1e-8)
            assert moments.std[channel] == pytest.approx(there.std(), rel=1e-9, abs=1e-6)
            assert moments.minimum[channel] == there.min()
            assert moments.maximum[channel] == there.max()


@given(VALUES)
def test_moments_are_those_of_numpy_without_the_missing_values(values: Frames) -> None:
    assert_fits(Moments.of(values), values)


@given(values=VALUES, cut=st.integers(0, 5))
def test_merged_moments_are_those_of_the_whole(values: Frames, cut: int) -> None:
    first, second = Moments.of(values[:cut]), Moments.of(values[cut:])
    assert_fits(first.merge(second), values)
    assert_fits(second.merge(first), values)


def test_a_small_spread_far_from_zero_is_not_lost() -> None:
    # Surface pressure in Pa: 1e5 apart from zero, spread 1. In float32 sums nothing of it would be left.
    values = frames_of(*(100_000 + np.tile([-1, 1], 5000)))
    halves = Moments.of(values[..., :1234]).merge(Moments.of(values[..., 1234:]))
    assert halves.std.tolist() == pytest.approx([1], rel=1e-12)


def test_a_constant_channel_has_no_spread_however_it_is_cut() -> None:
    # 0.1 is no binary fraction, so a careless mean would differ from it.
    values = np.full((7, 1, 3, 5), 0.1, np.float32)
    assert Moments.of(values[:3]).merge(Moments.of(values[3:])).std.tolist() == [0]


def test_no_values_change_nothing() -> None:
    moments = Moments.of(frames_of(1, 2, 6))
    assert moments.merge(Moments.none(1)).to_json() == moments.to_json()
    assert Moments.none(1).merge(moments).to_json() == moments.to_json()


def test_json_keeps_every_bit() -> None:
    # Thirds and tenths have no finite binary or decimal form; the untouched channel holds infinities.
    moments = Moments.of(np.asarray([[[1 / 3, 0.1, 1e-30]], [[np.nan] * 3]], np.float32)[None])
    copy = Moments.from_json(json.loads(json.dumps(moments.to_json())))
    for name in Moments.__slots__:
        assert getattr(copy, name).tobytes() == getattr(moments, name).tobytes()


def test_a_pair_is_of_frames_of_one_segment_that_are_both_taken() -> None:
    # Segments of 3 and 2 frames; the first frame is not taken.
    segment = np.asarray([0, 0, 0, 1, 1])
    taken = np.asarray([False, True, True, True, True])
    assert pairs(segment, taken, 1).tolist() == [1, 3]
    assert pairs(segment, taken, 2).tolist() == []
    assert pairs(segment, taken, 9).tolist() == []


def test_the_moments_of_a_change() -> None:
    # Changes 1, NaN and 4: mean 2.5, squares 2 x 1.5^2.
    moments = Moments.of(frames_of(2, np.nan, 9), minus=frames_of(1, 3, 5))
    assert moments.count.tolist() == [2]
    assert moments.mean.tolist() == [2.5]
    assert moments.squares.tolist() == [4.5]


def spread(values: Frames) -> float:
    low, high = np.quantile(values.astype(np.float64), [0.25, 0.75], method="inverted_cdf")
    return float(high - low) or float(np.ptp(values.astype(np.float64)))


@given(
    values=hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(-(2.0**40), 2.0**40, width=32)),
    share=st.sampled_from([0.25, 0.5, 0.75]),
    cut=st.integers(0, 200),
)
def test_a_quantile_is_off_by_a_bin_of_the_widest_part_at_most(values: Frames, share: float, cut: int) -> None:
    parts = [part for part in (values[:cut], values[cut:]) if len(part)]
    merged = Histogram.none()
    for part in parts:
        merged = merged.merge(Histogram.of(part))
    exact = float(np.quantile(values, share, method="inverted_cdf"))
    # Half a bin; where all values of a part are equal, its bins are a 4096th of the value itself.
    bound = max((spread(part) or abs(float(part[0])) or 1.0) / 4096 for part in parts)
    assert merged.quantile(share) == pytest.approx(exact, abs=bound + float(np.abs(values).max()) * 2.0**-50)


def test_the_spread_of_values_far_from_zero_is_found() -> None:
    # A scan scaled to a mean of 10000, with noise of 0.3: an interquartile range of 1.349 x 0.3 = 0.405.
    rng = np.random.default_rng(0)
    values = (10_000 + 0.3 * rng.standard_normal(100_000)).astype(np.float32)
    histogram = Histogram.of(values[:30_000]).merge(Histogram.of(values[30_000:]))
    low, middle, high = np.quantile(values.astype(np.float64), [0.25, 0.5, 0.75])
    assert histogram.quantile(0.75) - histogram.quantile(0.25) == pytest.approx(high - low, rel=1e-2)
    assert histogram.quantile(0.5) == pytest.approx(middle, abs=1e-3)


def test_values_far_apart_take_a_bounded_number_of_bins() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=200_000), 1e30 * rng.normal(size=1000)]).astype(np.float32)
    assert len(Histogram.of(values).bins) <= 1 << 16


def test_missing_values_are_in_no_bin() -> None:
    histogram = Histogram.of(np.asarray([np.nan, 3, np.inf], np.float32))
    assert histogram.counts.tolist() == [1]
    assert np.isnan(Histogram.of(np.empty(0, np.float32)).quantile(0.5))
    assert Histogram.from_json(json.loads(json.dumps(histogram.to_json()))).quantile(0.5) == pytest.approx(
        3, rel=2**-12
    )
