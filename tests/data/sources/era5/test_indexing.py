from pathlib import Path

import numpy as np
import pytest

from tests.conftest import make_dataset, write_netcdf
from tests.data.sources.era5.raw import scan, write, write_grib


def test_a_block_is_a_chunk_of_the_raw_files(tmp_path: Path) -> None:
    dataset = make_dataset(frames=40)
    encoding = {name: {"chunksizes": (8, 3, 4)} for name in dataset.data_vars}
    assert scan([write(tmp_path / "chunked.nc", dataset, encoding=encoding)]).block_frames == 8
    assert scan([write(tmp_path / "classic.nc", dataset, format="NETCDF3_64BIT")]).block_frames == 1
    dataset.to_zarr(
        tmp_path / "raw.zarr", zarr_format=2, encoding={n: {"chunks": (5, 3, 4)} for n in dataset.data_vars}
    )
    assert scan([tmp_path / "raw.zarr"]).block_frames == 5


def test_a_block_is_an_even_part_of_a_chunk_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make_dataset(frames=40, variables=["t2m"])
    path = write(tmp_path / "raw.nc", dataset, encoding={"t2m": {"chunksizes": (40, 1, 1)}})
    # A frame is 3 x 4 values of 4 bytes; 15 frames fit, and so 40 are cut into 3 parts of at most 14.
    monkeypatch.setattr("hyperslab.data.sources.era5.indexing._BLOCK_BYTES", 15 * 48)
    assert scan([path]).block_frames == 14


def test_a_chunk_of_whole_fields_is_read_at_once_however_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make_dataset(frames=40, variables=["t2m"])
    path = write(tmp_path / "raw.nc", dataset, encoding={"t2m": {"chunksizes": (20, 3, 4)}})
    monkeypatch.setattr("hyperslab.data.sources.era5.indexing._BLOCK_BYTES", 15 * 48)
    assert scan([path]).block_frames == 20


def test_one_thing_odd_in_many_files_is_said_once(tmp_path: Path) -> None:
    dataset = make_dataset(frames=9).sortby("latitude")
    paths = [write(tmp_path / f"{n}.nc", dataset.isel(time=slice(3 * n, 3 * n + 3))) for n in range(3)]
    assert scan(paths).oddities == ("0.nc and 2 more: latitude ascends: stored north-up",)


def test_gaps_are_said_of_the_record_with_the_first_frame_after_one(tmp_path: Path) -> None:
    dataset = make_dataset(frames=10).isel(time=[0, 1, 2, 4, 5, 8, 9])
    index = scan([write(tmp_path / "raw.nc", dataset)])
    assert index.oddities == ("time has 2 gap(s), the first before 2001-01-02T00:00: no window reaches over a gap",)
    assert index.segment == (0, 0, 0, 1, 1, 2, 2)


def test_files_that_follow_one_another_have_no_gap(tmp_path: Path) -> None:
    first = write_netcdf(tmp_path / "a.nc", frames=4)
    second = write_netcdf(tmp_path / "b.nc", frames=4, start="2001-01-02")
    assert scan([first, second]).oddities == ()


def test_a_single_frame_is_pointed_out(tmp_path: Path) -> None:
    index = scan([write_netcdf(tmp_path / "raw.nc", frames=1)])
    assert index.oddities == ("a single frame: alone it makes no window",)


def test_of_a_grib_file_only_the_places_that_are_read_are_kept(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(280, 5, (3, 4))
    messages = [
        {"shortName": name, "level": 500, "dataDate": 20200101, "dataTime": time, "values": values}
        for name in ("t", "u")
        for time in (0, 600)
    ]
    (file,) = scan([write_grib(tmp_path / "raw.grib", *messages)], variables=["u"]).files
    assert set(file.details["messages"]) == {"u_500"}
    assert file.runs == ((0, 0, 2),)


def test_the_axes_of_space_carry_their_units(tmp_path: Path) -> None:
    latitude, longitude = scan([write_netcdf(tmp_path / "raw.nc", frames=2)]).space
    assert (latitude.name, latitude.units, latitude.values) == ("latitude", "degrees_north", (90, 0, -90))
    assert (longitude.name, longitude.units, longitude.values) == ("longitude", "degrees_east", (0, 90, 180, 270))
