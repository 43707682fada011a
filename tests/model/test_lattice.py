import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.model.lattice import Lattice, box_of, line, make_lattice


def cells_of(lattice: Lattice) -> list[tuple[int, ...]]:
    return [tuple(cell) for cell in lattice.cells.tolist()]


@given(shape=st.lists(st.integers(1, 7), min_size=1, max_size=4), block=st.integers(1, 40))
def test_every_cell_is_a_token_once(shape, block):
    lattice = make_lattice(shape, [False] * len(shape), block=block)

    assert sorted(cells_of(lattice)) == list(itertools.product(*map(range, shape)))
    assert len(lattice) == math.prod(shape)
    assert lattice.is_whole


@given(shape=st.lists(st.integers(1, 6), min_size=2, max_size=4), seed=st.integers(0, 100))
def test_cells_that_are_absent_are_no_tokens(shape, seed):
    present = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.4
    present[(0,) * len(shape)] = False

    lattice = make_lattice(shape, [False] * len(shape), present, block=8)

    assert sorted(cells_of(lattice)) == [tuple(cell) for cell in present.nonzero().tolist()]
    assert not lattice.is_whole


@pytest.mark.parametrize(
    ("shape", "block", "sides"),
    [
        # From box_of below: sides that divide the lattice and whose product is the block.
        ((4, 8, 8), 64, (4, 4, 4)),
        ((2, 8, 8), 32, (2, 4, 4)),
        ((4, 4, 4, 4), 16, (2, 2, 2, 2)),
        ((1, 8, 8), 16, (1, 4, 4)),
        ((1, 96), 32, (1, 32)),
    ],
)
def test_a_run_of_tokens_fills_a_box_of_an_even_lattice(shape, block, sides):
    lattice = make_lattice(shape, [False] * len(shape), block=block)

    for run in torch.split(lattice.cells, block):
        first = run.amin(0)
        # As many different cells as the box holds, none outside it: all of the box.
        assert len({tuple(cell) for cell in run.tolist()}) == block == math.prod(sides)
        assert (run - first < torch.tensor(sides)).all()
        assert (first % torch.tensor(sides) == 0).all()


@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=4), block=st.integers(1, 40))
def test_boxes_of_an_uneven_lattice_stay_apart(shape, block):
    sides = box_of(shape, block)

    def box_then_cell(cell: tuple[int, ...]) -> tuple[list[int], tuple[int, ...]]:
        time, *space = [number // side for number, side in zip(cell, sides, strict=True)]
        return [*space, time], (*cell[1:], cell[0])

    cells = itertools.product(*map(range, shape))
    assert cells_of(make_lattice(shape, [False] * len(shape), block=block)) == sorted(cells, key=box_then_cell)


def test_tokens_run_box_after_box_and_row_after_row_within_one():
    # 4 times x 4 places in boxes of 2 x 2: the first places at the first times, then the same ones later.
    lattice = make_lattice((4, 4), (False, False), block=4)

    assert cells_of(lattice)[:8] == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)]
    assert lattice.numbers().tolist()[:8] == [0, 4, 1, 5, 8, 12, 9, 13]


def test_boxes_run_through_space_row_after_row():
    # One time, 4 x 4 places in boxes of 2 x 2: the upper left box first, the one to its right next.
    lattice = make_lattice((1, 4, 4), (False, False, False), block=4)

    assert cells_of(lattice)[:8] == [
        (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 0, 2), (0, 0, 3), (0, 1, 2), (0, 1, 3)
    ]  # fmt: skip


def test_absent_cells_leave_their_boxes_shorter_and_the_order_as_it_was():
    present = torch.ones(4, 4, dtype=torch.bool)
    present[0, 1] = present[1, 2] = False

    lattice = make_lattice((4, 4), (False, False), present, block=4)

    assert cells_of(lattice)[:7] == [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)]
    assert cells_of(lattice)[7:10] == [(0, 2), (0, 3), (1, 3)]


@pytest.mark.parametrize(
    ("shape", "tokens", "sides"),
    [
        # The last axis grows first, as the longest, then the second, then time; twice round: 4 x 4 x 4 = 64.
        ((4, 8, 16), 64, (4, 4, 4)),
        # 1 2 2, then time 2: 8; then the last axis 4: 16. Growing once more would be 32.
        ((3, 7, 10), 16, (2, 2, 4)),
        # 2 2 2, then 2 2 4, 2 4 4, 4 4 4: time has three cells only, so 3 x 4 x 4 = 48.
        ((3, 7, 10), 64, (3, 4, 4)),
        # Nothing but one axis can grow.
        ((1, 100), 64, (1, 64)),
        # 100 is no power of two: 64.
        ((1, 100), 100, (1, 64)),
        # All of a small lattice.
        ((2, 3), 64, (2, 3)),
        # A box of one cell.
        ((5, 5), 1, (1, 1)),
        # Of equals the longest axis: the second one here.
        ((3, 9, 4), 2, (1, 2, 1)),
        # Of equally long ones the last.
        ((4, 4), 2, (1, 2)),
    ],
)
def test_the_box_of_known_lattices(shape, tokens, sides):
    assert box_of(shape, tokens) == sides


@given(shape=st.lists(st.integers(1, 50), min_size=1, max_size=4), tokens=st.integers(1, 300))
def test_a_box_keeps_within_its_tokens_and_within_the_lattice(shape, tokens):
    sides = box_of(shape, tokens)

    assert math.prod(sides) <= tokens
    assert all(1 <= side <= size for side, size in zip(sides, shape, strict=True))


@pytest.mark.parametrize("periodic", list(itertools.product([False, True], repeat=3)))
def test_cells_are_near_within_their_reach_and_round_periodic_axes(periodic):
    shape, reach = (2, 5, 6), (0, 1, 2)
    lattice = make_lattice(shape, periodic, block=8)
    others = torch.tensor([[0, 0, 0], [1, 4, 5], [1, 2, 3]])

    def far(here: int, there: int, axis: int) -> int:
        """Cells between two places: the least over turns to both sides."""
        turns = (-shape[axis], 0, shape[axis]) if periodic[axis] else (0,)
        return min(abs(here - there + turn) for turn in turns)

    expected = [
        [all(far(cell[axis], other[axis], axis) <= reach[axis] for axis in range(3)) for other in others.tolist()]
        for cell in cells_of(lattice)
    ]
    assert lattice.near(others, reach).tolist() == expected


def test_a_line_is_tokens_one_after_another():
    lattice = line(5)

    assert cells_of(lattice) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]
    assert lattice.shape == (1, 5)
    assert lattice.periodic == (False, False)


def test_a_line_asked_for_twice_is_one_lattice():
    assert line(6) is line(6)
    assert line(6) is not line(7)


def test_lattices_made_alike_are_not_the_same():
    # What is worked out from a lattice is kept by the object: an equal one has its own.
    first, second = make_lattice((2, 3), (False, False)), make_lattice((2, 3), (False, False))

    assert first != second
    assert len({first, second}) == 2
