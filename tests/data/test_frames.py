from datetime import date

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.data.frames import (
    Bools,
    Ints,
    find_segments,
    find_windows,
    moment,
    seconds,
    split_bounds,
)
from hyperslab.errors import UserError

HOUR = 3600
DAY = 24 * HOUR


def at(*moments: str) -> Ints:
    return np.asarray(moments, "datetime64[s]").astype(np.int64)


def daily(frames: int, start: str = "2001-01-01") -> Ints:
    return at(start) + DAY * np.arange(frames)


def test_hourly_frames_are_cut_where_hours_are_missing() -> None:
    segments = find_segments(HOUR * np.asarray([0, 1, 2, 5, 6, 7, 9]))
    assert segments.ids.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert segments.step_seconds == HOUR
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
    assert segments.step_seconds == 0
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


def test_splits_by_share_are_cut_from_the_end() -> None:
    # Test: the last 20 of 100. Validation: the 10 before them.
    assert split_bounds(daily(100), 0.1, 0.2) == {"train": (0, 70), "validation": (70, 80), "test": (80, 100)}


def test_a_share_too_small_for_a_frame_still_gets_one() -> None:
    assert split_bounds(daily(10), 0.001, 0.001) == {"train": (0, 8), "validation": (8, 9), "test": (9, 10)}


def test_splits_by_date_begin_with_the_first_frame_of_that_date() -> None:
    # 6-hourly from 2001-01-01: 4 frames a day, so the 3rd day begins at frame 8 and the 5th at 16.
    time = at("2001-01-01") + 6 * HOUR * np.arange(20)
    bounds = split_bounds(time, date(2001, 1, 3), date(2001, 1, 5))
    assert bounds == {"train": (0, 8), "validation": (8, 16), "test": (16, 20)}


def test_a_date_that_has_no_frame_means_the_next_one() -> None:
    time = at("2001-01-01", "2001-01-02", "2001-01-09", "2001-01-10")
    assert split_bounds(time, date(2001, 1, 5), date(2001, 1, 10))["validation"] == (2, 3)


def test_a_share_and_a_date_go_together() -> None:
    # The 11th day is frame 10; validation takes 0.25 x 20 = 5 frames before it.
    bounds = split_bounds(daily(20), 0.25, date(2001, 1, 11))
    assert bounds == {"train": (0, 5), "validation": (5, 10), "test": (10, 20)}


@pytest.mark.parametrize(
    ("validation", "test"),
    [
        (date(2001, 1, 8), date(2001, 1, 4)),
        (date(2001, 1, 4), date(2001, 1, 4)),
        (date(2001, 1, 1), date(2001, 1, 4)),
        (date(2001, 1, 4), date(2002, 1, 1)),
        (date(1990, 1, 1), date(1991, 1, 1)),
        (0.5, 0.5),
        (0.9, 0.9),
        (date(2001, 1, 8), 0.5),
    ],
)
def test_splits_that_leave_one_of_them_empty_are_refused(validation: float | date, test: float | date) -> None:
    with pytest.raises(UserError, match=r"for 10 frames from 2001-01-01T00:00 to 2001-01-10T00:00") as caught:
        split_bounds(daily(10), validation, test)
    assert f"data.validation, data.test: found {validation} and {test}" in str(caught.value)
    assert "choose other dates or shares" in str(caught.value)


def test_a_record_of_two_frames_cannot_be_split_in_three() -> None:
    with pytest.raises(UserError, match="each of training, validation and test needs a frame"):
        split_bounds(daily(2), 0.1, 0.1)


@given(
    total=st.integers(3, 400),
    validation=st.floats(0.001, 0.999),
    test=st.floats(0.001, 0.999),
)
def test_splits_cover_the_record_without_overlap_or_are_refused(total: int, validation: float, test: float) -> None:
    try:
        bounds = split_bounds(daily(total), validation, test)
    except UserError:
        # Rounding may add half a frame to each share, and an empty share is lifted to one frame.
        assert (validation + test) * total > total - 3
        return
    edges = [bounds["train"][0], bounds["train"][1], bounds["validation"][1], bounds["test"][1]]
    assert edges[0] == 0
    assert edges[-1] == total
    assert edges == sorted(set(edges))
    assert bounds["validation"][0] == bounds["train"][1]
    assert bounds["test"][0] == bounds["validation"][1]


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
    windows = find_windows(segment, valid, bounds, span)
    expected = brute_force(segment, valid, bounds, span)
    assert len(windows) == len(expected)
    assert [windows.first_frame(number) for number in range(len(windows))] == expected


def test_windows_are_counted_in_each_unbroken_run() -> None:
    # Frames 0-4 | 5-9 in two segments, frame 7 invalid: runs of 5, 2 and 2 frames hold 3, 0 and 0 windows.
    segment = np.repeat([0, 1], 5)
    valid = np.arange(10) != 7
    windows = find_windows(segment, valid, (0, 10), 3)
    assert [windows.first_frame(number) for number in range(len(windows))] == [0, 1, 2]


def test_a_split_without_frames_has_no_windows() -> None:
    assert len(find_windows(np.zeros(4, np.int64), np.ones(4, bool), (2, 2), 1)) == 0


@pytest.mark.parametrize("window", [-1, 3])
def test_a_window_that_does_not_exist_is_refused(window: int) -> None:
    windows = find_windows(np.zeros(5, np.int64), np.ones(5, bool), (0, 5), 3)
    with pytest.raises(IndexError, match=f"window {window} of 3"):
        windows.first_frame(window)


def test_a_date_begins_with_its_first_second_and_ends_with_its_last() -> None:
    # 1970-01-02 begins one day after the epoch.
    assert seconds(date(1970, 1, 2)) == 86_400
    assert seconds(date(1970, 1, 2), day_end=True) == 2 * 86_400 - 1


def test_moments_before_1970_are_negative() -> None:
    assert seconds(date(1969, 12, 31)) == -86_400


def test_a_frames_time_is_said_to_the_minute() -> None:
    # 1982-01-16 is day 4398 since 1970: 12 years of 365 days, 3 leap days (1972, 1976, 1980) and 15 days.
    assert moment(4398 * DAY + 20 * HOUR) == "1982-01-16T20:00"
