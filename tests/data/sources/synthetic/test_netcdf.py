import zlib
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

from hyperslab.data.sources.synthetic.netcdf import NewFile, OldFile, deflated, write_statics
from hyperslab.data.sources.synthetic.weather import LEVELS_HPA, Grid

GRID = Grid(10.0)
TIME = np.array(["2000-01-31T18", "2000-02-01T00"], "datetime64[h]")


def frame(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (np.rint(rng.normal(250, 20, (len(LEVELS_HPA), *GRID.shape)) * 512) / 512).astype(np.float32)


def test_a_deflated_chunk_is_what_the_filters_of_hdf5_make(tmp_path: Path) -> None:
    values = frame(0)
    with h5py.File(tmp_path / "direct.h5", "w") as file:
        made = file.create_dataset("x", values.shape, "f4", chunks=values.shape, compression="gzip", shuffle=True)
        made.id.write_direct_chunk((0, 0, 0), deflated(values))
        np.testing.assert_array_equal(made[:], values)
    assert len(zlib.decompress(deflated(values))) == values.nbytes


def test_a_new_file_reads_as_one_of_the_store(tmp_path: Path) -> None:
    with NewFile.create(tmp_path / "new.nc", GRID, TIME, ["t"]) as file:
        for position in range(2):
            file.write(position, {"t": deflated(frame(position))})
    with xr.open_dataset(tmp_path / "new.nc") as found:
        assert found.t.dims == ("valid_time", "pressure_level", "latitude", "longitude")
        assert found.t.dtype == np.float32
        assert found.t.attrs["units"] == "K"
        np.testing.assert_array_equal(found.t[0], frame(0))
        np.testing.assert_array_equal(found.t[1], frame(1))
        np.testing.assert_array_equal(found.valid_time, TIME.astype("datetime64[ns]"))
        assert found.pressure_level.values.tolist() == list(LEVELS_HPA)
        assert found.expver.values.tolist() == ["0001", "0001"]
        assert int(found.number) == 0
    with netCDF4.Dataset(tmp_path / "new.nc") as raw:
        filters = raw["t"].filters()
        assert (filters["zlib"], filters["shuffle"], filters["complevel"]) == (True, True, 1)
        assert raw["t"].chunking() == [1, 3, 19, 36]


@pytest.mark.parametrize(("classic", "model"), [(True, "NETCDF3_64BIT_OFFSET"), (False, "NETCDF4")])
def test_an_old_file_is_packed_within_half_a_step(classic: bool, model: str, tmp_path: Path) -> None:
    low, high = 100.0, 400.0
    with OldFile.create(tmp_path / "old.nc", GRID, TIME, {"t": (low, high)}, classic=classic) as file:
        for position in range(2):
            file.write(position, {"t": frame(position)})
    with netCDF4.Dataset(tmp_path / "old.nc") as raw:
        assert raw.data_model == model
        assert raw["t"].dtype == np.int16
        assert raw["time"].units == "hours since 1900-01-01 00:00:00.0"
    with xr.open_dataset(tmp_path / "old.nc") as found:
        assert found.t.dims == ("time", "level", "latitude", "longitude")
        # 65532 steps over the bounds; float32 arithmetic adds a little to half a step.
        np.testing.assert_allclose(found.t[1], frame(1), atol=0.51 * (high - low) / 65532)
        np.testing.assert_array_equal(found.time, TIME.astype("datetime64[ns]"))


@pytest.mark.parametrize("old", [False, True])
def test_static_fields_stand_in_one_frame(old: bool, tmp_path: Path) -> None:
    land = np.zeros(GRID.shape, np.float32)
    land[3:6] = 1
    write_statics(tmp_path / "static.nc", GRID, TIME[:1], {"lsm": land, "z": land * 900}, old=old)
    with xr.open_dataset(tmp_path / "static.nc") as found:
        assert found.lsm.shape == (1, 19, 36)
        np.testing.assert_allclose(found.lsm[0], land, atol=1e-5)
        np.testing.assert_allclose(found.z[0], land * 900, atol=0.01)
