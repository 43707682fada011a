import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.data.tiles import Tile, make_tile


def fill(tile: Tile, whole: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """A tile, put together from its boxes."""
    values = np.full(tile.shape, -1)
    for space, into in tile.boxes():
        assert (values[into] == -1).all(), "boxes overlap"
        values[into] = whole[space]
    return values


@given(
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    parts=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_tiles_cover_space_once(sizes: tuple[int, int], parts: tuple[int, int]) -> None:
    seen = np.zeros(sizes, int)
    for number in range(parts[0] * parts[1]):
        seen[make_tile(sizes, parts, number).own] += 1
    assert (seen == 1).all()


@given(
    sizes=st.tuples(st.integers(2, 12), st.integers(2, 12)),
    parts=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    number=st.integers(0, 8),
    halo=st.integers(0, 5),
    periodic=st.tuples(st.booleans(), st.booleans()),
)
def test_a_tile_with_its_halo_is_the_neighbourhood_of_its_own_cells(
    sizes: tuple[int, int], parts: tuple[int, int], number: int, halo: int, periodic: tuple[bool, bool]
) -> None:
    tile = make_tile(sizes, parts, number % (parts[0] * parts[1]), halo, periodic)
    if min(at.stop - at.start for at in tile.own) == 0:
        return
    whole = np.arange(sizes[0] * sizes[1]).reshape(sizes)
    found = fill(tile, whole)
    np.testing.assert_array_equal(found[tile.inner], whole[tile.own])
    # The cells in reach along each axis, in their order: round the globe, or up to the border.
    axes = []
    for at, size, closes in zip(tile.own, sizes, periodic, strict=True):
        reach = np.arange(at.start - halo, at.stop + halo)
        if closes:
            axes.append(reach % size if len(reach) <= size else np.arange(size))
        else:
            axes.append(reach[(reach >= 0) & (reach < size)])
    np.testing.assert_array_equal(found, whole[np.ix_(*axes)])


def test_a_halo_reaches_round_the_globe_and_ends_at_the_pole() -> None:
    # The western quarter of the northern half of 4 x 8 cells, with one cell around it.
    tile = make_tile((4, 8), (2, 4), 0, halo=1, periodic=(False, True))
    whole = np.arange(32).reshape(4, 8)
    assert fill(tile, whole).tolist() == [[7, 0, 1, 2], [15, 8, 9, 10], [23, 16, 17, 18]]
    assert tile.inner == (slice(0, 2), slice(1, 3))


@pytest.mark.parametrize("halo", [3, 4, 100])
def test_a_halo_that_meets_itself_is_the_whole_axis(halo: int) -> None:
    tile = make_tile((8,), (4,), 1, halo=halo, periodic=(True,))
    assert sorted(fill(tile, np.arange(8)).tolist()) == list(range(8))


@pytest.mark.parametrize("number", [-1, 4])
def test_a_tile_that_there_is_not_is_refused(number: int) -> None:
    with pytest.raises(IndexError, match=f"tile {number} of 4"):
        make_tile((8,), (4,), number)
