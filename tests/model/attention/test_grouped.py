import itertools

import pytest
import torch

from hyperslab.model.attention.grouped import Axial, Window, attend_in_groups, group
from hyperslab.model.attention.mixer import Dense, masked_attention
from hyperslab.model.lattice import Lattice, line, make_lattice
from tests.model.attention.test_mixer import (
    CPU,
    LATTICES,
    assert_equals_masked_attention,
    assert_finite_without_data,
    assert_same,
    gradients_fit,
    leaves,
    make_qkv,
    make_valid,
    outcome,
)

SIDES = (2, 3, 2, 9)
"""Sides of boxes along four axes: odd ones, and one longer than its axis."""


def make_window(lattice: Lattice, by: str, shifted: bool) -> Window:
    return Window(8 if by == "tokens" else SIDES[: len(lattice.shape)], shifted=shifted)


def boxes_along(size: int, side: int, begin: int, closes: bool) -> list[set[int]]:
    """Cells of each box along an axis, where the first box begins at `begin`, 0 or below."""
    if closes:
        # Round the axis once, from the first box on; the last one ends where the first begins.
        around = [(begin + step) % size for step in range(size)]
        return [set(around[first : first + side]) for first in range(0, size, side)]
    return [set(range(first, first + side)) & set(range(size)) for first in range(begin, size, side)]


def together(lattice: Lattice, sides: tuple[int, ...], shifted: bool) -> list[list[bool]]:
    """Which tokens lie in a box together, axis by axis and pair by pair."""
    boxes = [
        # A box as long as its axis has nowhere to be shifted to.
        boxes_along(size, side, -(side // 2) if shifted and side < size else 0, closes)
        for size, side, closes in zip(lattice.shape, sides, lattice.periodic, strict=True)
    ]
    cells = lattice.cells.tolist()
    return [
        [
            all(any(a in box and b in box for box in along) for a, b, along in zip(one, other, boxes, strict=True))
            for other in cells
        ]
        for one in cells
    ]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("by", ["tokens", "sides"])
@pytest.mark.parametrize("name", LATTICES)
def test_windows_are_attention_under_their_mask(name, by, shifted, batch, masked):
    mixer = make_window(LATTICES[name], by, shifted)

    assert_equals_masked_attention(mixer, LATTICES[name], batch, masked)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("by", ["tokens", "sides"])
@pytest.mark.parametrize("name", LATTICES)
def test_tokens_of_one_box_see_one_another_and_nothing_else(name, by, shifted):
    lattice = LATTICES[name]
    mixer = make_window(lattice, by, shifted)

    assert mixer.allowed(lattice).tolist() == together(lattice, mixer.sides(lattice), shifted)


@pytest.mark.parametrize(
    ("closes", "shifted", "boxes"),
    [
        # Ten cells in boxes of four; shifted boxes begin two cells earlier. Round the globe the first one reaches
        # over the seam, at a border it is cut off there.
        (True, False, ["0123", "4567", "89"]),
        (True, True, ["8901", "2345", "67"]),
        (False, False, ["0123", "4567", "89"]),
        (False, True, ["01", "2345", "6789"]),
    ],
)
def test_boxes_of_ten_cells(closes, shifted, boxes):
    lattice = make_lattice((1, 10), (False, closes), block=16)
    expected = [[any(str(a) in box and str(b) in box for box in boxes) for b in range(10)] for a in range(10)]

    assert Window((1, 4), shifted=shifted).allowed(lattice).tolist() == expected


def test_what_one_layer_keeps_apart_the_shifted_one_joins():
    # Along time, 0 1 | 2 3; half a box later, 0 | 1 2 | 3.
    lattice = make_lattice((4, 1), (False, False))
    plain, shifted = (Window((2, 1), shifted=shifted).allowed(lattice) for shifted in (False, True))

    assert not plain[1, 2]
    assert shifted[1, 2]


def test_a_number_of_tokens_gives_as_compact_a_box_as_the_lattice_allows():
    # As in test_lattice: the last axis, the second, time, then the last again: 2 x 2 x 4 = 16.
    assert Window(16, shifted=False).sides(make_lattice((3, 7, 10), (False, False, True))) == (2, 2, 4)


def test_sides_for_another_number_of_axes_are_refused():
    with pytest.raises(ValueError, match=r"model.attention.window: found \[2, 4\] for tokens along 3 axes.*each axis"):
        Window((2, 4), shifted=False).sides(make_lattice((2, 3, 4), (False, False, False)))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shifted", [False, True])
def test_gradients_of_windows_fit_finite_differences(shifted, masked):
    # Five cells in boxes of two: the last box is shorter, so that places are left over.
    assert gradients_fit(Window((1, 2), shifted=shifted), line(5), masked)


@pytest.mark.parametrize("masked", [False, True])
def test_windows_in_half_precision_attend_within_half_precision(masked):
    lattice, mixer = LATTICES["holes"], Window(8, shifted=True)
    halves = leaves(make_qkv(2, len(lattice)), torch.bfloat16)
    exact = leaves(halves, torch.float32)
    valid = make_valid(2, len(lattice), mixer.allowed(lattice)[0]) if masked else None
    plan = mixer.plan(lattice, CPU)

    actual = outcome(mixer(*halves, valid, plan), halves)

    assert all(tensor.dtype == torch.bfloat16 for tensor in actual)
    # bfloat16 has 8 bits: roundings of 2^-9 = 0.002 of values and gradients up to 5 or so.
    assert_same(actual, outcome(mixer(*exact, valid, plan), exact), tolerance=0.03)


@pytest.mark.parametrize("mixer", [Window(8, shifted=False), Window(8, shifted=True), Axial()])
@pytest.mark.parametrize("name", LATTICES)
def test_groups_of_a_sample_without_data_are_finite(name, mixer):
    assert_finite_without_data(mixer, LATTICES[name])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", LATTICES)
def test_axial_attention_is_attention_along_time_then_over_space(name, batch, masked):
    lattice = LATTICES[name]
    cells = lattice.cells.tolist()
    same_place, same_time = (
        torch.tensor([[one[part] == other[part] for other in cells] for one in cells])
        for part in (slice(1, None), slice(0, 1))
    )
    tensors = make_qkv(batch, len(lattice))
    exact = leaves(tensors, torch.float64)
    valid = make_valid(batch, len(lattice), same_time[0]) if masked else None
    query, key, value = exact
    mixer = Axial()

    actual = outcome(mixer(*tensors, valid, mixer.plan(lattice, CPU)), tensors)

    along_time = masked_attention(query, key, value, valid, same_place)
    expected = masked_attention(query, key, along_time, valid, same_time)
    assert_same(actual, outcome(expected, exact), tolerance=1e-5)


def test_axial_attention_of_tokens_without_time_is_dense():
    tensors, mixer = make_qkv(2, 37), Axial()

    actual = outcome(mixer(*tensors, None, mixer.plan(line(37), CPU)), tensors)

    assert_same(actual, outcome(Dense()(*tensors, None, ()), tensors), tolerance=1e-5)


def test_axial_attention_has_no_mask_that_makes_it_exact():
    assert Axial().allowed(line(3)) is None


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "present",
    [
        # Rows are times, columns places: as many tokens in each time, or place, or both, or neither.
        [[1, 1, 1], [1, 1, 1]],
        [[1, 1, 0], [1, 0, 1]],
        [[1, 1, 0], [0, 0, 1]],
        [[1, 1, 0], [1, 0, 0]],
    ],
)
def test_gradients_of_axial_attention_fit_finite_differences(present, masked):
    lattice = make_lattice((2, 3), (False, False), torch.tensor(present).bool())

    assert gradients_fit(Axial(), lattice, masked)


def test_tokens_are_grouped_in_their_order_and_places_are_left_over_where_a_group_is_shorter():
    # Group 3 holds tokens 1 2 4, group 5 holds 0 3 and leaves a place over.
    tokens, places, filled = group(torch.tensor([5, 3, 3, 5, 3]))

    assert tokens.tolist() == [[1, 2, 4], [0, 3, 0]]
    assert places.tolist() == [3, 0, 1, 4, 2]
    assert filled.tolist() == [[True, True, True], [True, True, False]]


def test_groups_of_one_length_leave_no_place_over():
    # Tokens 0 3 and 1 2.
    tokens, places = group(torch.tensor([0, 1, 1, 0]))

    assert tokens.tolist() == [[0, 3], [1, 2]]
    assert places.tolist() == [0, 2, 3, 1]


def test_a_group_is_indifferent_to_the_tokens_of_others():
    tensors, plan = make_qkv(1, 6), group(torch.tensor([0, 1, 0, 1, 1, 0]))
    factor = torch.tensor([1, 1e3, 1, 1e3, 1e3, 1])[:, None]
    query, key, value = tensors

    one = attend_in_groups(query, key, value, None, plan)
    other = attend_in_groups(factor * query, factor * key, factor * value, None, plan)

    assert torch.equal(one[:, :, [0, 2, 5]], other[:, :, [0, 2, 5]])
    assert not torch.allclose(one[:, :, [1, 3, 4]], other[:, :, [1, 3, 4]])


def test_box_numbers_do_not_run_into_one_another():
    # Shifted boxes reach one further along every axis: 27 combinations of three boxes each, all different.
    lattice = make_lattice((4, 4, 4), (False, False, False), block=8)
    boxes = Window((2, 2, 2), shifted=True).boxes(lattice)

    # Cells 0 | 1 2 | 3 along every axis.
    of_cell = [0, 1, 1, 2]
    by_cell = {tuple(cell): int(box) for cell, box in zip(lattice.cells.tolist(), boxes, strict=True)}
    for one, other in itertools.product(by_cell, repeat=2):
        same = [of_cell[a] for a in one] == [of_cell[b] for b in other]
        assert (by_cell[one] == by_cell[other]) == same
