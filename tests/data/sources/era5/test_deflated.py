from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.data.sources.era5.deflated import DeflatedFile

ENDIAN: dict[str, Any] = {"<": "little", ">": "big", "|": "native"}


def write(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], **options: Any) -> npt.NDArray[Any]:
    """A netCDF-4 file with one variable `t`; its values."""
    dtype = np.dtype(options.pop("dtype", "f4"))
    values: npt.NDArray[Any] = np.random.default_rng(0).integers(0, 50, shape).astype(dtype)
    with netCDF4.Dataset(path, "w") as dataset:
        dims = [f"d{number}" for number in range(len(shape))]
        for dim, size in zip(dims, shape, strict=True):
            dataset.createDimension(dim, size)
        variable = dataset.createVariable(
            "t", dtype.str[1:], dims, chunksizes=chunks, endian=ENDIAN[dtype.str[0]], **{"zlib": True, **options}
        )
        variable[...] = values
    return values


@given(
    data=st.data(),
    shape=st.tuples(*[st.integers(1, 7)] * 3),
    dtype=st.sampled_from(["f4", "f8", "i2", ">i2", "u1"]),
    shuffle=st.booleans(),
)
def test_a_slab_is_what_the_netcdf_library_reads(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, shape: tuple[int, ...], dtype: str, shuffle: bool
) -> None:
    chunks = tuple(data.draw(st.integers(1, size)) for size in shape)
    path = tmp_path_factory.mktemp("deflated") / "raw.nc"
    values = write(path, shape, chunks, dtype=dtype, shuffle=shuffle)
    places = []
    for size in shape:
        start = data.draw(st.integers(0, size - 1))
        places.append(slice(start, data.draw(st.integers(start + 1, size))))
    file = DeflatedFile(str(path))
    found = file.read("t", tuple(places))
    file.close()
    assert found is not None
    np.testing.assert_array_equal(found, values[tuple(places)])


@pytest.mark.parametrize("options", [{"zlib": False}, {"fletcher32": True}, {"zlib": False, "compression": "zstd"}])
def test_what_is_not_deflated_alone_is_left_to_the_library(tmp_path: Path, options: dict[str, object]) -> None:
    write(tmp_path / "raw.nc", (4, 4), (2, 2), **options)
    assert DeflatedFile(str(tmp_path / "raw.nc")).read("t", (slice(0, 4), slice(0, 4))) is None


def test_a_chunk_that_was_never_written_is_left_to_the_library(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "raw.nc", "w") as file:
        file.create_dataset("t", (4, 4), "f4", chunks=(2, 2), compression="gzip")[:2] = 1.0
    assert DeflatedFile(str(tmp_path / "raw.nc")).read("t", (slice(0, 4), slice(0, 4))) is None


def test_a_link_to_another_file_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "other.nc", (4, 4), (2, 2))
    with h5py.File(tmp_path / "raw.nc", "w") as file:
        file["t"] = h5py.ExternalLink("other.nc", "t")
    assert DeflatedFile(str(tmp_path / "raw.nc")).read("t", (slice(0, 4), slice(0, 4))) is None


def test_a_damaged_chunk_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "raw.nc"
    write(path, (4, 400), (2, 400))
    with h5py.File(path) as file:
        place = file["t"].id.get_chunk_info_by_coord((2, 0)).byte_offset
    content = bytearray(path.read_bytes())
    content[place + 40] ^= 0xFF
    path.write_bytes(content)
    file = DeflatedFile(str(path))
    assert file.read("t", (slice(0, 2), slice(0, 400))) is not None
    with pytest.raises(OSError, match="t: a chunk cannot be inflated"):
        file.read("t", (slice(1, 4), slice(0, 400)))
