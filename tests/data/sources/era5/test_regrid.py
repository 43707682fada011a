from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
from pydantic import ValidationError

from hyperslab.data.sources.era5.config import Regrid
from hyperslab.data.sources.era5.grid import Grid, make_grid
from hyperslab.data.sources.era5.regrid import regrid_attributes, regrid_fields, target_grid
from hyperslab.data.sources.era5.source import Era5
from hyperslab.errors import UserError
from tests.conftest import make_dataset
from tests.data.sources.era5.raw import read_all, scan, write

Floats = npt.NDArray[np.floating[Any]]


def globe(spacing: float, *, poles: bool = True) -> Grid:
    """A grid round the globe, with rows at the poles or beside them."""
    first = 90 if poles else 90 - spacing / 2
    return make_grid(np.arange(first, -90.01, -spacing), np.arange(0, 360, spacing), "raw.nc")


def region(north: float, west: float, size: float, spacing: float) -> Grid:
    places = np.arange(0, size + spacing / 2, spacing)
    return make_grid(north - places, west + places, "raw.nc")


def regrid(
    grid: Grid, fields: Floats, size: float, method: Literal["conservative", "bilinear"]
) -> tuple[Floats, Floats, Floats]:
    settings = Regrid(resolution_degrees=size, method=method)
    latitude, longitude = target_grid(grid, settings)
    values = regrid_fields(
        fields.astype(np.float32),
        regrid_attributes(grid, settings),
        tuple(latitude.tolist()),
        tuple(longitude.tolist()),
    )
    return values, latitude, longitude


def test_cells_meet_at_the_poles_and_begin_at_greenwich() -> None:
    latitude, longitude = target_grid(globe(1), Regrid(resolution_degrees=45))
    assert latitude.tolist() == [67.5, 22.5, -22.5, -67.5]
    assert longitude.tolist() == [0, 45, 90, 135, 180, 225, 270, 315]


def test_of_a_region_the_whole_cells_inside_are_taken() -> None:
    # Rows at 50 to 40 and columns at 5 to 15, each a degree wide: edges at 50.5, 39.5, 4.5 and 15.5.
    latitude, longitude = target_grid(region(50, 5, 10, 1), Regrid(resolution_degrees=3))
    # Cells of 3 degrees in rows 48 to 51, 45 to 48, 42 to 45, 39 to 42; columns 4.5 to 7.5 and so on, centres 6, 9, 12.
    assert latitude.tolist() == [46.5, 43.5]
    assert longitude.tolist() == [6, 9, 12]


def test_a_region_over_greenwich_stays_whole() -> None:
    latitude, longitude = target_grid(region(10, -10, 20, 1), Regrid(resolution_degrees=5))
    assert latitude.tolist() == [7.5, 2.5, -2.5, -7.5]
    assert longitude.tolist() == [-5, 0, 5]


@pytest.mark.parametrize(
    ("grid", "size", "message"),
    [
        (globe(1), 7, "found 7; it must divide 180, such as 1 or 1.5"),
        (globe(2), 1, "found 1, finer than the files' 2; regridding makes fields coarser"),
        (region(50, 5, 10, 1), 9, "found 9; fewer than 2 x 2 cells of that size lie whole in the files' region"),
    ],
)
def test_a_resolution_that_does_not_suit_is_refused(grid: Grid, size: float, message: str) -> None:
    with pytest.raises(UserError, match=rf"data\.era5\.regrid\.resolution_degrees: {message}"):
        target_grid(grid, Regrid(resolution_degrees=size))


@pytest.mark.parametrize("size", [0, -1, 90])
def test_a_resolution_out_of_bounds_is_refused(size: float) -> None:
    with pytest.raises(ValidationError, match="resolution_degrees"):
        Regrid(resolution_degrees=size)


@pytest.mark.parametrize("method", ["conservative", "bilinear"])
@pytest.mark.parametrize("poles", [True, False])
def test_a_constant_stays_what_it_is_everywhere(method: Literal["conservative", "bilinear"], poles: bool) -> None:
    grid = globe(2, poles=poles)
    values, *_ = regrid(grid, np.full((2, *grid.shape), 280.0), 6, method)
    assert values.shape == (2, 30, 60)
    np.testing.assert_allclose(values, 280, rtol=1e-6)


@pytest.mark.parametrize("method", ["conservative", "bilinear"])
def test_a_smooth_field_keeps_its_place_north_up_and_round_the_globe(
    method: Literal["conservative", "bilinear"],
) -> None:
    grid = globe(1)

    def wave(latitude: Floats, longitude: Floats) -> Floats:
        return np.sin(np.radians(latitude))[:, None] * 10 + np.cos(np.radians(longitude - 30))[None, :]

    values, latitude, longitude = regrid(grid, wave(grid.latitude, grid.longitude)[None], 5, method)
    # The mean of a wave over 5 degrees is its value at the centre times sin(x) / x with x = 2.5 degrees: 3e-4 off.
    # Beside the pole the mean by area lies a little south of the centre.
    np.testing.assert_allclose(values[0], wave(latitude, longitude), atol=2e-2)


def test_areas_keep_their_mean() -> None:
    # Half-degree shifts apart, cells of 2 degrees take 1, 1/2 and 1/2 of the columns of 1 degree around their centre.
    grid = globe(1, poles=False)
    fields = np.random.default_rng(0).normal(0, 1, (1, *grid.shape))
    values, latitude, _ = regrid(grid, fields, 2, "conservative")
    before = np.average(fields[0].mean(axis=1), weights=np.cos(np.radians(grid.latitude)))
    after = np.average(values[0].mean(axis=1), weights=np.cos(np.radians(latitude)))
    assert after == pytest.approx(before, abs=1e-5)


def test_a_cell_is_missing_where_more_than_half_of_it_is() -> None:
    grid = globe(1, poles=False)
    fields = np.ones((1, *grid.shape))
    # Of the cell with edges 89 to 91 east, centred at 90, columns 89 (half), 90 (whole) and 91 (half) are parts.
    fields[:, :, 90] = np.nan
    values, _, longitude = regrid(grid, fields, 2, "conservative")
    column = longitude.tolist().index(90)
    assert not np.isnan(values[0, :, column]).any()
    fields[:, :, 91] = np.nan
    values, *_ = regrid(grid, fields, 2, "conservative")
    assert np.isnan(values[0, :, column]).all()
    assert not np.isnan(np.delete(values[0], column, axis=1)).any()


def test_bilinear_values_beside_a_gap_are_missing() -> None:
    grid = globe(1)
    fields = np.ones((1, *grid.shape))
    fields[:, :, 90] = np.nan
    values, _, longitude = regrid(grid, fields, 2, "bilinear")
    assert np.isnan(values[0, :, longitude.tolist().index(90)]).all()
    assert np.isnan(values).mean() == pytest.approx(1 / 180)


@pytest.mark.parametrize("method", ["conservative", "bilinear"])
def test_an_archive_is_stored_on_the_new_grid(tmp_path: Path, method: str) -> None:
    dataset = make_dataset(frames=6, rows=19, columns=36, variables=["t2m", "msl"])
    dataset["lsm"] = (("latitude", "longitude"), np.ones((19, 36), np.float32), {"units": "1"})
    path = write(tmp_path / "raw.nc", dataset.sortby("latitude"))
    index = scan([path], era5={"regrid": {"resolution_degrees": 30, "method": method}})
    assert index.space_shape == (6, 12)
    assert index.attributes["regrid"]["method"] == method
    assert index.attributes["regrid"]["library"].startswith("xarray-regrid ")
    assert any(line.startswith(f"regridded ({method}) from 19 x 36 to 6 x 12 cells") for line in index.oddities)
    values = read_all(index)
    assert values.shape == (6, 2, 6, 12)
    assert not np.isnan(values).any()
    np.testing.assert_allclose(Era5().read_statics(index), np.ones((1, 6, 12)), rtol=1e-6)
    np.testing.assert_array_equal(Era5().read(index, 2, 4)["values"], values[2:4])


def test_a_frame_does_not_depend_on_those_that_are_read_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "raw.nc", make_dataset(frames=5, rows=19, columns=36))
    index = scan([path], era5={"regrid": {"resolution_degrees": 30}})
    whole = read_all(index)
    monkeypatch.setattr("hyperslab.data.sources.era5.source._REGRID_BYTES", 2 * 2 * 4 * 19 * 36)
    np.testing.assert_array_equal(read_all(index), whole)
    np.testing.assert_array_equal(Era5().read(index, 3, 4)["values"], whole[3:4])


def test_xarray_gives_the_same_bilinear_values(tmp_path: Path) -> None:
    dataset = make_dataset(frames=2, rows=19, columns=36, variables=["t2m"])
    index = scan(
        [write(tmp_path / "raw.nc", dataset)], era5={"regrid": {"resolution_degrees": 30, "method": "bilinear"}}
    )
    latitude, longitude = (list(axis.values) for axis in index.space)
    expected = dataset["t2m"].interp(latitude=latitude, longitude=longitude)
    assert isinstance(expected, xr.DataArray)
    np.testing.assert_allclose(read_all(index)[:, 0], expected.values, rtol=1e-6)
