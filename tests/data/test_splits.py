from datetime import date

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.data.clock import Clock
from hyperslab.data.frames import SPLITS, Ints, Ranges, mask_of
from hyperslab.data.splits import extend_splits, split_frames
from hyperslab.errors import UserError
from tests.conftest import make_index

HOUR = 3600
DAY = 24 * HOUR


def at(*moments: str) -> Ints:
    return np.asarray(moments, "datetime64[s]").astype(np.int64)


def daily(frames: int, start: str = "2001-01-01") -> Ints:
    return at(start) + DAY * np.arange(frames)


def split_bounds(time: Ints, validation: float | date, test: float | date) -> dict[str, tuple[int, int]]:
    """The splits of a single record, each of them one range."""
    splits = split_frames(make_index(time=time), validation, test)
    assert all(len(ranges) == 1 for ranges in splits.values())
    return {name: ranges[0] for name, ranges in splits.items()}


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


def runs(*subjects: str, frames: int = 3) -> dict[str, object]:
    """Options of an index with one run of some frames for each subject named."""
    return {
        "clock": Clock(kind="elapsed"),
        "time": np.tile(np.arange(frames), len(subjects)),
        "segment": np.repeat(np.arange(len(subjects)), frames),
        "segment_labels": {"subject": subjects},
        "split_by": "subject",
    }


def splits_of_subjects(splits: dict[str, Ranges], subjects: tuple[str, ...], frames: int = 3) -> dict[str, str]:
    """The split of each subject; all of a subject's frames are in it."""
    found: dict[str, set[str]] = {}
    for name in SPLITS:
        for frame in np.flatnonzero(mask_of(splits[name], len(subjects) * frames)):
            found.setdefault(subjects[frame // frames], set()).add(name)
    assert all(len(names) == 1 for names in found.values())
    return {subject: names.pop() for subject, names in found.items()}


def test_all_runs_of_a_subject_are_in_one_split() -> None:
    subjects = ("a", "a", "b", "c", "c", "d", "e", "f", "g", "h", "i", "j")
    held = splits_of_subjects(split_frames(make_index(**runs(*subjects)), 0.2, 0.3), subjects)
    # 10 subjects: 2 in validation, 3 in test, 5 in training.
    assert sorted(held.values()) == ["test"] * 3 + ["train"] * 5 + ["validation"] * 2


def test_subjects_are_drawn_by_their_names_and_not_by_the_order_of_their_files() -> None:
    subjects = tuple(f"{number:02d}" for number in range(20))
    forwards = splits_of_subjects(split_frames(make_index(**runs(*subjects)), 0.2, 0.2), subjects)
    backwards = splits_of_subjects(split_frames(make_index(**runs(*subjects[::-1])), 0.2, 0.2), subjects[::-1])
    assert forwards == backwards
    # Drawn: the last four by name are not the four that are held out.
    assert {name for name, split in forwards.items() if split == "test"} != set(subjects[-4:])


def test_two_subjects_cannot_be_split_in_three() -> None:
    with pytest.raises(UserError, match=r"for 2 subject\(s\); each of training, validation and test needs one whole"):
        split_frames(make_index(**runs("a", "b")), 0.1, 0.1)


def test_events_are_held_out_whole_in_the_order_of_the_store() -> None:
    # 10 events of one frame each: one in validation, two in test.
    index = make_index(clock=Clock(kind="event"), time=np.arange(10), segment=np.arange(10), split_by="segment")
    assert split_frames(index, 0.1, 0.2) == {"train": ((0, 7),), "validation": ((7, 8),), "test": ((8, 10),)}


def test_events_cannot_be_held_out_by_date() -> None:
    index = make_index(clock=Clock(kind="event"), time=np.arange(10), segment=np.arange(10), split_by="segment")
    with pytest.raises(UserError, match="the date 2001-01-01, but era5 data is held out by segment; give a share"):
        split_frames(index, 0.1, date(2001, 1, 1))


def test_members_of_an_ensemble_are_cut_at_the_same_moment() -> None:
    # Two members of 10 days each, one after the other; the last 2 days of both are the test split.
    index = make_index(time=np.tile(daily(10), 2), segment=np.repeat([0, 1], 10))
    splits = split_frames(index, 0.1, 0.2)
    assert splits["test"] == ((8, 10), (18, 20))
    assert splits["validation"] == ((7, 8), (17, 18))
    assert splits["train"] == ((0, 7), (10, 17))


def test_a_date_is_one_of_the_archives_own_calendar() -> None:
    # 360-day calendar, monthly from 1970-01-01: 1971-01-01 is 360 days later, frame 12.
    index = make_index(clock=Clock(calendar="360_day"), time=30 * DAY * np.arange(36))
    splits = split_frames(index, date(1971, 1, 1), date(1972, 1, 1))
    assert splits == {"train": ((0, 12),), "validation": ((12, 24),), "test": ((24, 36),)}


def test_later_months_never_move_the_boundaries() -> None:
    old = split_frames(make_index(time=daily(10)), 0.1, 0.2)
    assert extend_splits(old, make_index(time=daily(15)), 10, 0.1, 0.2) == {
        "train": ((0, 7),), "validation": ((7, 8),), "test": ((8, 15),),
    }  # fmt: skip


def test_new_subjects_are_cut_among_themselves_and_known_ones_stay_where_they_are() -> None:
    first = tuple(f"{number:02d}" for number in range(10))
    more = ("03", *(f"{number:02d}" for number in range(10, 20)))
    old = split_frames(make_index(**runs(*first)), 0.2, 0.2)
    before = splits_of_subjects(old, first)
    extended = extend_splits(old, make_index(**runs(*first, *more)), len(first) * 3, 0.2, 0.2)
    after = splits_of_subjects(extended, first + more)
    assert {name: after[name] for name in first} == before
    # 10 new ones, of which 2 and 2 are held out.
    assert sorted(after[name] for name in more[1:]) == ["test"] * 2 + ["train"] * 6 + ["validation"] * 2


def test_a_single_new_subject_is_trained_on() -> None:
    first = tuple(f"{number:02d}" for number in range(10))
    old = split_frames(make_index(**runs(*first)), 0.2, 0.2)
    extended = extend_splits(old, make_index(**runs(*first, "new")), 30, 0.2, 0.2)
    assert splits_of_subjects(extended, (*first, "new"))["new"] == "train"


def test_a_share_of_zero_holds_nothing_out() -> None:
    index = make_index(**runs("only"))
    assert split_frames(index, 0, 0) == {"train": ((0, 3),), "validation": (), "test": ()}
    assert split_frames(make_index(time=daily(10)), 0, 0.2) == {
        "train": ((0, 8),),
        "validation": (),
        "test": ((8, 10),),
    }


def test_what_is_appended_to_a_store_without_a_test_split_is_trained_on() -> None:
    old = split_frames(make_index(time=daily(10)), 0, 0)
    assert extend_splits(old, make_index(time=daily(15)), 10, 0, 0)["train"] == ((0, 15),)
