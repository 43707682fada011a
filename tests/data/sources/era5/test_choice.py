from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from hyperslab.data.sources.era5.source import Era5
from hyperslab.errors import UserError
from tests.conftest import make_dataset, write_netcdf
from tests.data.sources.era5.raw import read_all, scan, write


def with_mask(frames: int = 5) -> xr.Dataset:
    """A dataset with a land-sea mask that has no time."""
    dataset = make_dataset(frames=frames, variables=["t2m"])
    dataset["lsm"] = (("latitude", "longitude"), np.arange(12, dtype=np.float32).reshape(3, 4), {"units": "1"})
    return dataset


def test_a_field_without_time_is_static(tmp_path: Path) -> None:
    dataset = with_mask().sortby("latitude")
    index = scan([write(tmp_path / "raw.nc", dataset)])
    assert [channel.name for channel in index.statics] == ["lsm"]
    assert [channel.name for channel in index.channels] == ["t2m"]
    np.testing.assert_array_equal(Era5().read_statics(index), np.arange(12).reshape(1, 3, 4))
    np.testing.assert_array_equal(read_all(index)[:, 0], make_dataset(frames=5, variables=["t2m"])["t2m"])


def test_a_file_of_fields_without_time_is_static(tmp_path: Path) -> None:
    frames = write_netcdf(tmp_path / "t2m.nc", frames=5, variables=["t2m"])
    fixed = write(tmp_path / "fixed.nc", with_mask()[["lsm"]])
    index = scan([frames, fixed])
    np.testing.assert_array_equal(Era5().read_statics(index), np.arange(12).reshape(1, 3, 4))


def test_a_single_time_beside_a_longer_record_is_static_and_that_is_said(tmp_path: Path) -> None:
    # As the Climate Data Store sends invariants: with a time of their own.
    frames = write_netcdf(tmp_path / "t2m.nc", frames=5, variables=["t2m"])
    fixed = make_dataset(frames=1, variables=["z", "lsm"], start="1979-01-01")
    index = scan([frames, write(tmp_path / "fixed.nc", fixed)])
    assert [channel.name for channel in index.statics] == ["z", "lsm"]
    assert len(index.time) == 5
    assert "z, lsm with a single time: kept as fields without time" in index.oddities
    np.testing.assert_array_equal(Era5().read_statics(index), np.stack([fixed["z"][0], fixed["lsm"][0]]))


def test_files_of_one_frame_each_make_a_record(tmp_path: Path) -> None:
    dataset = make_dataset(frames=4, variables=["t2m"])
    paths = [write(tmp_path / f"{n}.nc", dataset.isel(time=[n])) for n in range(4)]
    fixed = write_netcdf(tmp_path / "fixed.nc", frames=1, variables=["lsm"])
    index = scan([*paths, fixed])
    assert len(index.time) == 4
    assert [channel.name for channel in index.statics] == ["lsm"]


def test_a_single_frame_alone_is_a_frame_unless_it_is_named_as_static(tmp_path: Path) -> None:
    path = write_netcdf(tmp_path / "raw.nc", frames=1)
    assert [channel.name for channel in scan([path]).channels] == ["msl", "t2m"]
    index = scan([path], era5={"static": ["msl"]})
    assert [channel.name for channel in index.channels] == ["t2m"]
    assert [channel.name for channel in index.statics] == ["msl"]


def test_a_surface_field_and_levels_of_one_name_may_be_static_and_not(tmp_path: Path) -> None:
    upper = write_netcdf(tmp_path / "upper.nc", frames=5, variables=["z"], levels=[500])
    surface = write_netcdf(tmp_path / "surface.nc", frames=1, variables=["z"])
    index = scan([upper, surface])
    assert [channel.name for channel in index.channels] == ["z_500"]
    assert [channel.name for channel in index.statics] == ["z"]


def test_static_fields_may_be_chosen(tmp_path: Path) -> None:
    dataset = with_mask()
    dataset["slope"] = dataset["lsm"] + 1
    path = write(tmp_path / "raw.nc", dataset)
    assert [channel.name for channel in scan([path]).statics] == ["lsm", "slope"]
    assert [channel.name for channel in scan([path], era5={"static": ["slope"]}).statics] == ["slope"]
    assert scan([path], era5={"static": []}).statics == ()
    assert scan([path], variables=["t2m"]).statics == ()
    assert [channel.name for channel in scan([path], variables=["t2m", "lsm"]).statics] == ["lsm"]
    index = scan([path], variables=["t2m"], era5={"static": ["slope"]})
    np.testing.assert_array_equal(Era5().read_statics(index), np.arange(12).reshape(1, 3, 4) + 1)


def test_an_unknown_static_field_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "raw.nc", with_mask())
    with pytest.raises(UserError, match=r"data\.era5\.static: unknown variable 'orography'; the files hold lsm"):
        scan([path], era5={"static": ["orography"]})


def test_a_field_with_many_frames_is_no_static_one(tmp_path: Path) -> None:
    path = write(tmp_path / "raw.nc", with_mask())
    with pytest.raises(UserError, match=r"data\.era5\.static: t2m has 5 frames \(.*raw\.nc\); a static field has one"):
        scan([path], era5={"static": ["t2m"]})


def test_static_fields_alone_are_no_record(tmp_path: Path) -> None:
    path = write(tmp_path / "raw.nc", with_mask()[["lsm"]])
    with pytest.raises(
        UserError, match=r"raw\.nc: no variable has a time axis \(static: lsm\); name files with frames"
    ):
        scan([path])


def test_only_static_fields_asked_for_are_no_record(tmp_path: Path) -> None:
    path = write(tmp_path / "raw.nc", with_mask())
    with pytest.raises(UserError, match=r"data\.variables: lsm have no frames in time; the files hold t2m"):
        scan([path], variables=["lsm"])


def test_a_static_field_in_every_file_is_taken_once(tmp_path: Path) -> None:
    dataset = with_mask(frames=6)
    paths = [write(tmp_path / f"{n}.nc", dataset.isel(time=slice(3 * n, 3 * n + 3))) for n in range(2)]
    index = scan(paths)
    np.testing.assert_array_equal(Era5().read_statics(index), np.arange(12).reshape(1, 3, 4))
    assert len(index.time) == 6


def test_one_field_with_time_here_and_without_there_is_refused(tmp_path: Path) -> None:
    timed = write_netcdf(tmp_path / "timed.nc", variables=["lsm"], frames=3)
    fixed = write(tmp_path / "fixed.nc", with_mask()[["lsm"]])
    with pytest.raises(UserError, match=r"fixed\.nc and .*timed\.nc: one holds lsm with time, the other without"):
        scan([timed, fixed])


def test_one_name_on_two_kinds_of_level_is_refused(tmp_path: Path) -> None:
    first = make_dataset(frames=2, variables=["a_hybrid"], levels=[1])
    second = make_dataset(frames=2, variables=["a"], levels=[1]).rename(pressure_level="hybrid")
    second["a"].attrs["units"] = first["a_hybrid"].attrs["units"]
    del second["hybrid"].attrs["units"]
    with pytest.raises(UserError, match=r"second\.nc: a_hybrid_1 is 'a' on .*hybrid.*, in .*first\.nc 'a_hybrid' on"):
        scan([write(tmp_path / "first.nc", first), write(tmp_path / "second.nc", second)])


def test_a_static_file_on_another_grid_is_refused(tmp_path: Path) -> None:
    frames = write_netcdf(tmp_path / "t2m.nc", frames=5, variables=["t2m"])
    fixed = write_netcdf(tmp_path / "fixed.nc", frames=1, variables=["lsm"], rows=7)
    with pytest.raises(UserError, match=r"fixed\.nc: its latitude \(7 values.*all files need one grid"):
        scan([frames, fixed])


def test_a_static_file_that_changed_is_refused(tmp_path: Path) -> None:
    frames = write_netcdf(tmp_path / "t2m.nc", frames=5, variables=["t2m"])
    fixed = write_netcdf(tmp_path / "fixed.nc", frames=1, variables=["lsm"])
    index = scan([frames, fixed])
    write_netcdf(fixed, frames=1, variables=["lsm", "z"])
    with pytest.raises(UserError, match=r"fixed\.nc: has changed since it was indexed; start a new campaign"):
        Era5().read_statics(index)
