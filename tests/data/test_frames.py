from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.data.clock import Clock
from hyperslab.data.frames import (
    Bools,
    Ints,
    find_segments,
    find_windows,
    mask_of,
    measure_segments,
    ranges_of,
)

HOUR = 3600
DAY = 24 * HOUR


def at(*moments: str) -> Ints:
    return np.asarray(moments, "datetime64[s]").astype(np.int64)


def daily(frames: int, start: str = "2001-01-01") -> Ints:
    return at(start) + DAY * np.arange(frames)


def test_hourly_frames_are_cut_where_hours_are_missing() -> None:
    segments = find_segments(HOUR * np.asarray([0, 1, 2, 5, 6, 7, 9]))
    assert segments.ids.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert segments.step == HOUR
    assert not segments.monthly


def test_frames_that_come_too_early_are_cut_off_as_well() -> None:
    # Every 6 hours, but for one frame after 3: the steps are 6, 6, 3, 3, 6, and 6 is the most common.
    segments = find_segments(HOUR * np.asarray([0, 6, 12, 15, 18, 24]))
    assert segments.ids.tolist() == [0, 0, 0, 1, 2, 2]


def test_months_of_any_length_follow_one_another() -> None:
    # Steps of 30, 31, 31 and 29 days, the last over the leap day of 2000.
    segments = find_segments(at("1999-11-01", "1999-12-01", "2000-01-01", "2000-02-01", "2000-03-01"))
    assert segments.monthly
    assert segments.ids.tolist() == [0, 0, 0, 0, 0]


def test_months_may_be_stamped_anywhere_inside_them() -> None:
    segments = find_segments(at("1982-01-16T20", "1982-02-15T07", "1982-03-17T17", "1982-04-17T04"))
    assert segments.monthly
    assert segments.ids.tolist() == [0, 0, 0, 0]


def test_a_missing_or_doubled_month_cuts_the_record() -> None:
    time = at("2000-01-01", "2000-02-01", "2000-04-01", "2000-05-01", "2000-05-31", "2000-06-30")
    assert find_segments(time).ids.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_december_is_followed_by_the_january_of_the_next_year_only() -> None:
    assert find_segments(at("2000-11-01", "2000-12-01", "2002-01-01")).ids.tolist() == [0, 0, 1]


@pytest.mark.parametrize("frames", [0, 1])
def test_a_record_without_two_frames_is_one_segment(frames: int) -> None:
    segments = find_segments(daily(frames))
    assert segments.ids.tolist() == [0] * frames
    assert segments.step == 0
    assert not segments.monthly


@pytest.mark.parametrize(
    ("step_seconds", "words"),
    [
        (HOUR, "1 h"),
        (6 * HOUR, "6 h"),
        (36 * HOUR, "36 h"),
        (DAY, "1 d"),
        (5 * DAY, "5 d"),
        (1800, "30 min"),
        (45, "45 s"),
    ],
)
def test_the_cadence_is_said_in_its_largest_whole_unit(step_seconds: int, words: str) -> None:
    assert find_segments(step_seconds * np.arange(4)).cadence == words


def test_the_cadence_of_months_is_a_month() -> None:
    assert find_segments(at("2001-01-01", "2001-02-01", "2001-03-01")).cadence == "1 month"


def brute_force(segment: Ints, valid: Bools, bounds: tuple[int, int], span: int) -> list[int]:
    """First frames of all windows, found by looking at every frame of every candidate."""
    start, stop = bounds
    return [
        first
        for first in range(start, stop - span + 1)
        if all(valid[first : first + span]) and len(set(segment[first : first + span].tolist())) == 1
    ]


@st.composite
def records(draw: st.DrawFn) -> tuple[Ints, Bools, tuple[int, int]]:
    total = draw(st.integers(1, 30))
    breaks = draw(st.lists(st.sampled_from([0, 0, 0, 1]), min_size=total, max_size=total))
    valid = draw(st.lists(st.sampled_from([True, True, True, False]), min_size=total, max_size=total))
    start = draw(st.integers(0, total))
    stop = draw(st.integers(start, total))
    return np.cumsum(breaks), np.asarray(valid, bool), (start, stop)


@given(record=records(), span=st.integers(1, 8))
def test_windows_never_reach_over_a_gap_a_split_or_an_invalid_frame(
    record: tuple[Ints, Bools, tuple[int, int]], span: int
) -> None:
    segment, valid, bounds = record
    windows = find_windows(segment, valid, (bounds,), span)
    expected = brute_force(segment, valid, bounds, span)
    assert len(windows) == len(expected)
    assert windows.first_frames(np.arange(len(windows))).tolist() == expected


def test_windows_are_counted_in_each_unbroken_run() -> None:
    # Frames 0-4 | 5-9 in two segments, frame 7 invalid: runs of 5, 2 and 2 frames hold 3, 0 and 0 windows.
    segment = np.repeat([0, 1], 5)
    valid = np.arange(10) != 7
    windows = find_windows(segment, valid, ((0, 10),), 3)
    assert windows.first_frames(np.arange(len(windows))).tolist() == [0, 1, 2]


def test_windows_of_several_ranges_never_reach_from_one_to_the_next() -> None:
    # Ranges of 3 and 4 frames hold 2 and 3 windows of 2 frames.
    windows = find_windows(np.zeros(9, np.int64), np.ones(9, bool), ((0, 3), (4, 8)), 2)
    assert windows.first_frames(np.arange(len(windows))).tolist() == [0, 1, 4, 5, 6]


def test_a_split_without_frames_has_no_windows() -> None:
    assert len(find_windows(np.zeros(4, np.int64), np.ones(4, bool), ((2, 2),), 1)) == 0


@pytest.mark.parametrize("window", [-1, 3])
def test_a_window_that_does_not_exist_is_refused(window: int) -> None:
    windows = find_windows(np.zeros(5, np.int64), np.ones(5, bool), ((0, 5),), 3)
    with pytest.raises(IndexError, match=f"window {window} of 3"):
        windows.first_frames(np.asarray([0, window]))


def test_the_step_of_known_segments_is_measured_inside_them() -> None:
    # Two scans of 4 and 3 volumes, 1.35 s apart; between the scans time begins again.
    clock = Clock(kind="elapsed")
    time = 1_350_000 * np.asarray([0, 1, 2, 3, 0, 1, 2])
    segments = measure_segments(time, np.asarray([0, 0, 0, 0, 1, 1, 1]), clock)
    assert segments.step == 1_350_000
    assert segments.cadence == "1350 ms"


def test_months_of_a_calendar_of_30_days_each_follow_one_another() -> None:
    clock = Clock(calendar="360_day")
    segments = find_segments(30 * DAY * np.asarray([0, 1, 2, 4]), clock)
    assert segments.cadence == "1 month"
    assert segments.ids.tolist() == [0, 0, 0, 1]


def test_events_have_no_cadence() -> None:
    assert measure_segments(np.arange(3), np.arange(3), Clock(kind="event")).cadence == "none"


@given(mask=st.lists(st.booleans(), max_size=30))
def test_ranges_and_masks_say_the_same(mask: list[bool]) -> None:
    array = np.asarray(mask, bool)
    ranges = ranges_of(array)
    assert mask_of(ranges, len(mask)).tolist() == mask
    assert all(stop < start for (_, stop), (start, _) in pairwise(ranges))
