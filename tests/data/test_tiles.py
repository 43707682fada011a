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


def lengths(size: int, count: int) -> list[int]:
    tiles = [make_tile((size,), (count,), number).own[0] for number in range(count)]
    assert [tile.start for tile in tiles[1:]] == [tile.stop for tile in tiles[:-1]]
    return [tile.stop - tile.start for tile in tiles]


@pytest.mark.parametrize(
    ("size", "count", "expected"),
    [
        # Halves of halves, as chunks are: 721 rows in chunks of 181 (half of half, rounded up) are 181, 181, 181, 178.
        (721, 4, [181, 181, 181, 178]),
        (721, 2, [361, 360]),
        (64, 8, [8] * 8),
        # Tiles of 2 cells, as halves of halves of halves, would be over after five of eight.
        (9, 8, [2, 1, 1, 1, 1, 1, 1, 1]),
        # No chunks are thirds or fifths.
        (10, 3, [4, 3, 3]),
        (12, 5, [3, 3, 2, 2, 2]),
        # There are not enough cells.
        (2, 4, [1, 1, 0, 0]),
    ],
)
def test_tiles_are_cut_as_chunks_are_or_evenly(size: int, count: int, expected: list[int]) -> None:
    assert lengths(size, count) == expected


@given(size=st.integers(1, 300), count=st.integers(1, 300))
def test_no_tile_is_empty_while_there_are_cells(size: int, count: int) -> None:
    found = lengths(size, count)
    assert sum(found) == size
    assert (min(found) > 0) == (size >= count)


@given(
    sizes=st.tuples(st.integers(2, 12), st.integers(2, 12)),
    parts=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    number=st.integers(0, 8),
    halo=st.integers(0, 30),
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
            axes.append(reach % size)
        else:
            axes.append(reach[(reach >= 0) & (reach < size)])
    np.testing.assert_array_equal(found, whole[np.ix_(*axes)])


def test_a_halo_reaches_round_the_globe_and_ends_at_the_pole() -> None:
    # The western quarter of the northern half of 4 x 8 cells, with one cell around it.
    tile = make_tile((4, 8), (2, 4), 0, halo=1, periodic=(False, True))
    whole = np.arange(32).reshape(4, 8)
    assert fill(tile, whole).tolist() == [[7, 0, 1, 2], [15, 8, 9, 10], [23, 16, 17, 18]]
    assert tile.inner == (slice(0, 2), slice(1, 3))


@pytest.mark.parametrize(
    ("halo", "expected"),
    [
        # Around the second quarter of 8 cells, which is 2 and 3.
        (3, [7, 0, 1, 2, 3, 4, 5, 6]),
        (4, [6, 7, 0, 1, 2, 3, 4, 5, 6, 7]),
        (9, [1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4]),
    ],
)
def test_a_halo_that_meets_itself_goes_on_round_on_both_sides(halo: int, expected: list[int]) -> None:
    tile = make_tile((8,), (4,), 1, halo=halo, periodic=(True,))
    assert fill(tile, np.arange(8)).tolist() == expected
    assert tile.inner == (slice(halo, halo + 2),)


def test_a_halo_that_no_tile_has_is_refused() -> None:
    with pytest.raises(ValueError, match="halo: found -1; give a number of cells, 0 for none"):
        make_tile((8,), (4,), 1, halo=-1)
    with pytest.raises(ValueError, match="periodic: found 1 for 2 axes; give one for each"):
        make_tile((8, 8), (4, 1), 1, halo=1, periodic=(True,))


@pytest.mark.parametrize("number", [-1, 4])
def test_a_tile_that_there_is_not_is_refused(number: int) -> None:
    with pytest.raises(IndexError, match=f"tile {number} of 4"):
        make_tile((8,), (4,), number)
