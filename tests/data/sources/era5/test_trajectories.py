import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.data.sources.era5.header import NO_MEMBER, Frames
from hyperslab.data.sources.era5.trajectories import find_trajectories, has_steps, overlaps

HOUR = 3600


def frames(*rows: tuple[int, int, int]) -> Frames:
    """Frames of (member, initial time, step), both in hours."""
    member, initial, step = np.asarray(rows, np.int64).reshape(-1, 3).T
    return Frames(time=HOUR * (initial + step), initial=HOUR * initial, member=member, expver=np.full(len(member), ""))


def test_analyses_have_no_steps() -> None:
    assert not has_steps([frames((0, 0, 0), (0, 6, 0)), frames((0, 12, 0))])


def test_steps_are_found_across_files() -> None:
    assert has_steps([frames((0, 0, 0)), frames((0, 0, 6))])
    assert not has_steps([frames((0, 0, 0)), frames((1, 0, 6))])


def test_one_frame_in_two_files_is_no_step_and_no_overlap_of_forecasts() -> None:
    assert not has_steps([frames((0, 0, 0)), frames((0, 0, 0))])
    assert not overlaps([frames((0, 0, 0)), frames((0, 0, 0))])


@pytest.mark.parametrize(("steps", "found"), [((1, 12), False), ((0, 12), True)])
def test_forecasts_that_reach_over_the_next_start_overlap(steps: tuple[int, int], found: bool) -> None:
    rows = [(0, start, step) for start in (0, 12) for step in steps]
    assert overlaps([frames(*rows)]) == found


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(-1000, 10**6), st.integers(0, 400)), min_size=1, max_size=30))
def test_a_key_gives_back_member_start_and_time_and_orders_them(rows: list[tuple[int, int, int]]) -> None:
    piece = frames(*rows)
    found = find_trajectories([piece], has_members=True, has_starts=True)
    keys = found.keys(piece)
    times, ranks = found.times(keys).tolist(), found.ranks(keys).tolist()
    back = [(found.member(rank), found.start(rank), time) for rank, time in zip(ranks, times, strict=True)]
    expected = list(zip(piece.member.tolist(), piece.initial.tolist(), piece.time.tolist(), strict=True))
    assert back == expected
    assert [expected[place] for place in np.argsort(keys, kind="stable")] == sorted(expected)


def test_without_members_and_starts_all_frames_are_one_trajectory() -> None:
    piece = frames((NO_MEMBER, 0, 0), (NO_MEMBER, 6, 0))
    found = find_trajectories([piece], has_members=False, has_starts=False)
    assert found.ranks(found.keys(piece)).tolist() == [0, 0]
