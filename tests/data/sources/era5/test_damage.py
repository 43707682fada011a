"""Whatever bytes are in a file: a result, or one clear line. Never a traceback, never a crash."""

import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperslab.data.sources.era5.source import Era5
from hyperslab.data.sources.index import Description, Index
from hyperslab.errors import UserError
from tests.conftest import make_dataset
from tests.data.sources.era5.raw import Floats, read_all, scan, write_grib


def classic(folder: Path) -> Path:
    path = folder / "raw.nc"
    packing = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32767}
    make_dataset(frames=6).to_netcdf(path, format="NETCDF3_64BIT", encoding={"t2m": packing})
    return path


def hierarchical(folder: Path) -> Path:
    path = folder / "raw.nc"
    dataset = make_dataset(variables=["t"], levels=[850, 500], frames=6).assign_coords(expver="0001")
    dataset.to_netcdf(path, encoding={"t": {"zlib": True, "chunksizes": (3, 1, 3, 4)}})
    return path


def grib(folder: Path) -> Path:
    values = np.random.default_rng(0).normal(280, 5, (4, 5))
    messages = [{"shortName": "t", "level": 500, "dataDate": 20200101 + n, "values": values} for n in range(2)]
    other = {**messages[0], "shortName": "u", "sample": "regular_ll_pl_grib2"}
    return write_grib(folder / "raw.grib", *messages, other, {**other, "dataDate": 20200102})


def zipped(folder: Path) -> Path:
    path = folder / "raw.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(classic(folder), "data.nc")
    return path


def use(path: Path) -> None:
    """Do all that can be done with a file, and see that what comes out hangs together."""
    try:
        description = Era5().describe(str(path))
        index = scan([path])
        values = read_all(index)
        statics = Era5().read_statics(index)
    except UserError as error:
        message = str(error)
    else:
        _check(description, index, values, statics)
        return
    assert message.startswith((str(path), "data."))
    assert "\n" not in message


def _check(description: Description, index: Index, values: Floats, statics: Floats) -> None:
    assert description.taken
    assert values.shape == index.shape
    assert values.dtype == np.float32
    assert statics.shape == (len(index.statics), *index.space_shape)
    assert len(index.segment) == len(index.time)


FORMATS = (classic, hierarchical, grib, zipped)


@pytest.mark.parametrize("make", FORMATS)
def test_each_file_is_good_to_begin_with(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    assert len(scan([make(tmp_path)]).time) in (2, 6)


@pytest.mark.parametrize("make", FORMATS)
@settings(max_examples=150)
@given(data=st.data())
def test_a_file_with_flipped_bytes_never_gives_a_traceback(make: Callable[[Path], Path], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = make(Path(folder))
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 8))):
            place = data.draw(st.integers(0, len(content) - 1))
            content[place] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        use(path)


@pytest.mark.parametrize("make", FORMATS)
@settings(max_examples=60)
@given(share=st.floats(0, 1))
def test_a_file_that_was_cut_never_gives_a_traceback(make: Callable[[Path], Path], share: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = make(Path(folder))
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        use(path)


@pytest.mark.parametrize("make", FORMATS)
@settings(max_examples=60)
@given(data=st.data())
def test_a_file_with_a_stretch_overwritten_never_gives_a_traceback(
    make: Callable[[Path], Path], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = make(Path(folder))
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        stretch = data.draw(st.binary(min_size=1, max_size=64))
        content[place : place + len(stretch)] = stretch
        path.write_bytes(content)
        use(path)


@settings(max_examples=60)
@given(
    content=st.binary(max_size=200),
    start=st.sampled_from([b"", b"CDF\x01", b"CDF\x02", b"CDF\x05", b"GRIB", b"PK\x03\x04"]),
)
def test_any_bytes_are_refused(content: bytes, start: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "raw.nc"
        path.write_bytes(start + content)
        with pytest.raises(UserError, match=r"raw\.nc"):
            Era5().describe(str(path))
