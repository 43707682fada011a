import numpy as np
import pytest
import xarray as xr

from hyperslab.data.sources.era5.slabs import SLAB_BYTES, chunk_frames, read_slab, slabs


def variable(shape: tuple[int, ...], dims: tuple[str, ...], chunks: tuple[int, ...] | None = None) -> xr.Variable:
    values = np.broadcast_to(np.float32(0), shape)
    return xr.Variable(dims, values, encoding={"chunksizes": chunks} if chunks else {})


FIELD = ("time", "y", "x")


@pytest.mark.parametrize("chunks", [None, (1, 4, 4), (7, 4, 4), (500, 4, 4)])
@pytest.mark.parametrize(("position", "count"), [(0, 100), (13, 40), (99, 1)])
def test_slabs_cover_the_frames_once_and_in_order(chunks: tuple[int, ...] | None, position: int, count: int) -> None:
    found: list[int] = []
    for done, length, places in slabs(variable((100, 4, 4), FIELD, chunks), ("time",), position, count):
        assert done == len(found)
        time = places["time"]
        assert isinstance(time, slice)
        assert time.stop - time.start == length
        found += range(time.start, time.stop)
    assert found == list(range(position, position + count))


def test_a_slab_stays_small_and_ends_with_a_chunk() -> None:
    # A field of 256 x 256 float32 is a quarter of SLAB_BYTES.
    assert SLAB_BYTES == 4 * 256 * 256 * 4
    plain = slabs(variable((20, 256, 256), FIELD), ("time",), 0, 20)
    assert [length for _, length, _ in plain] == [4] * 5
    chunked = slabs(variable((20, 256, 256), FIELD, (3, 64, 64)), ("time",), 2, 18)
    # Chunks begin at 0, 3, 6 and so on.
    assert [length for _, length, _ in chunked] == [1, 3, 3, 3, 3, 3, 2]
    large = slabs(variable((20, 256, 256), FIELD, (10, 256, 256)), ("time",), 0, 20)
    assert [length for _, length, _ in large] == [10, 10]


def test_positions_count_the_last_dimension_first() -> None:
    cube = variable((2, 3, 4, 4), ("number", "time", "y", "x"))
    found = list(slabs(cube, ("number", "time"), 1, 4))
    assert found == [
        (0, 2, {"number": 0, "time": slice(1, 3)}),
        (2, 2, {"number": 1, "time": slice(0, 2)}),
    ]


def test_a_field_without_frames_is_one_slab() -> None:
    assert list(slabs(variable((4, 4), ("y", "x")), (), 0, 1)) == [(0, 1, {})]


def test_a_slab_has_its_dimensions_in_the_order_asked_for() -> None:
    values = np.arange(24).reshape(2, 3, 1, 4)
    found = read_slab(xr.Variable(("x", "time", "one", "y"), values), {"time": slice(1, 3)}, ("time", "y", "x"))
    np.testing.assert_array_equal(found, values[:, 1:, 0].transpose(1, 2, 0))


def test_frames_that_lie_scattered_are_read_together() -> None:
    assert chunk_frames(variable((4, 100, 4), ("y", "time", "x")), ("time",)) == 100
    assert chunk_frames(variable((4, 100, 4), ("y", "time", "x"), (4, 10, 4)), ("time",)) == 10
    assert chunk_frames(variable((5, 100, 4, 4), ("number", *FIELD)), ("number", "time")) == 1
