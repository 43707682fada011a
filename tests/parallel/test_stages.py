import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.parallel.stages import split_layers


def most(costs: list[int], bounds: tuple[int, ...], before: int, after: int) -> int:
    """What the most costly stage costs."""
    stages = [sum(costs[start:stop]) for start, stop in itertools.pairwise(bounds)]
    stages[0] += before
    stages[-1] += after
    return max(stages)


@given(
    costs=st.lists(st.integers(1, 20), min_size=1, max_size=7),
    before=st.integers(0, 20),
    after=st.integers(0, 20),
    data=st.data(),
)
def test_no_other_cut_has_a_less_costly_worst_stage(costs, before, after, data):
    stages = data.draw(st.integers(1, len(costs)))

    found = split_layers(costs, stages, before, after)

    bounds = (0, *(own.stop for own in found))
    assert [layer for own in found for layer in own] == list(range(len(costs)))
    assert len(found) == stages
    assert all(found)
    others = itertools.combinations(range(1, len(costs)), stages - 1)
    best = min(most(costs, (0, *cuts, len(costs)), before, after) for cuts in others)
    assert most(costs, bounds, before, after) == best


def test_equal_layers_are_shared_out_evenly():
    assert [len(own) for own in split_layers([1.0] * 8, 4)] == [2, 2, 2, 2]


def test_a_stage_with_costly_layers_has_fewer_of_them():
    # Dense layers of 4 beside windows of 1: 4 | 1 1 1 1 4 would be 8; 4 1 1 | 1 1 4 is 6 both ways.
    assert split_layers([4, 1, 1, 1, 1, 4], 2) == [range(0, 3), range(3, 6)]


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="found 3 for 2 layers"):
        split_layers([1, 1], 3)
