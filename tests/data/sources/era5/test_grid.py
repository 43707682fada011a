import numpy as np
import pytest

from hyperslab.data.sources.era5.grid import Grid, check_same, make_grid
from hyperslab.errors import UserError


def grid_of(latitude: list[float], longitude: list[float]) -> Grid:
    return make_grid(np.asarray(latitude, float), np.asarray(longitude, float), "raw.nc")


ROUND = [0.0, 90, 180, 270]


@pytest.mark.parametrize("latitude", [[90, 0, 0], [95, 0, -90]])
def test_latitudes_that_repeat_or_leave_the_sphere_are_refused(latitude: list[float]) -> None:
    with pytest.raises(UserError, match=r"raw\.nc: latitudes repeat or leave -90\.\.90; the grid must be regular"):
        grid_of(latitude, ROUND)


@pytest.mark.parametrize("longitude", [[0, 120, 240, 360], [-180, -90, 0, 180], [10, 20, 20, 30]])
def test_longitudes_that_repeat_on_the_circle_are_refused(longitude: list[float]) -> None:
    with pytest.raises(UserError, match=r"longitudes repeat on the circle \(such as 0 and 360\); drop"):
        grid_of([1, 0], longitude)


def test_a_missing_coordinate_is_refused() -> None:
    with pytest.raises(UserError, match="needs latitudes, found missing ones among them"):
        grid_of([90, np.nan, -90], ROUND)
    with pytest.raises(UserError, match="needs longitudes, found none"):
        grid_of([90, 0, -90], [])


def test_a_single_point_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        UserError, match=r"a single grid point \(latitude 54.25, longitude 9\); .* name files of a region"
    ):
        grid_of([54.25], [9])


def test_a_row_of_points_is_a_grid() -> None:
    assert grid_of([54.25], [9, 9.25]).shape == (1, 2)


def test_rows_that_ascend_are_turned_north_up() -> None:
    grid = grid_of([-90, 0, 45], ROUND)
    assert grid.latitude.tolist() == [45, 0, -90]
    assert grid.rows.tolist() == [2, 1, 0]
    assert list(grid.oddities()) == ["latitude ascends: stored north-up"]


@pytest.mark.parametrize(
    ("longitude", "eastward", "columns"),
    [
        # Round the globe: from 0 up.
        ([0, 90, 180, 270], [0, 90, 180, 270], [0, 1, 2, 3]),
        ([-180, -90, 0, 90], [0, 90, 180, 270], [2, 3, 0, 1]),
        ([20, 110, 200, 290], [20, 110, 200, 290], [0, 1, 2, 3]),
        ([90, 180, 270, 360], [0, 90, 180, 270], [3, 0, 1, 2]),
        ([270, 180, 90, 0], [0, 90, 180, 270], [3, 2, 1, 0]),
        # A region: whole, even where it crosses 0 or 180 degrees.
        ([-10, -5, 0, 5], [-10, -5, 0, 5], [0, 1, 2, 3]),
        ([350, 355, 0, 5], [-10, -5, 0, 5], [0, 1, 2, 3]),
        ([0, 5, 350, 355], [-10, -5, 0, 5], [2, 3, 0, 1]),
        ([170, 175, -180, -175], [170, 175, 180, 185], [0, 1, 2, 3]),
        ([-30, -25, -20, -15], [330, 335, 340, 345], [0, 1, 2, 3]),
    ],
)
def test_columns_are_turned_eastward(longitude: list[float], eastward: list[float], columns: list[int]) -> None:
    grid = grid_of([1, 0], longitude)
    assert grid.longitude.tolist() == eastward
    assert grid.columns.tolist() == columns
    turned = any(line.startswith("longitude is turned") for line in grid.oddities())
    assert turned == (columns != [0, 1, 2, 3])


@pytest.mark.parametrize("latitude", [[90, 0, -90], [-90, 0, 90], [0, 90, -90]])
@pytest.mark.parametrize("longitude", [[0, 90, 180, 270], [270, 180, 90, 0], [180, 270, 0, 90], [90, 0, 270, 180]])
def test_a_field_is_turned_as_its_rows_and_columns_are(latitude: list[float], longitude: list[float]) -> None:
    grid = grid_of(latitude, longitude)
    field = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    out = np.full((2, 3, 4), np.nan, np.float32)
    grid.turn(field, out)
    np.testing.assert_array_equal(out, field[:, grid.rows][:, :, grid.columns])


def test_grids_of_two_sizes_or_places_are_told_apart_and_rounding_is_not() -> None:
    first = grid_of([10.6, 10.5, 10.4], [0, 1])
    noisy = make_grid(np.asarray([10.6, 10.5, 10.4], np.float32).astype(float), np.asarray([0.0, 1]), "noisy.nc")
    check_same(noisy, "noisy.nc", first, "first.nc")
    with pytest.raises(UserError, match=r"b\.nc: its latitude \(3 values, 10.7 to 10.5\) differs from that of a\.nc"):
        check_same(grid_of([10.7, 10.6, 10.5], [0, 1]), "b.nc", first, "a.nc")
    with pytest.raises(UserError, match=r"b\.nc: its longitude \(3 values, 0 to 2\) differs .*all files need one grid"):
        check_same(grid_of([10.6, 10.5, 10.4], [0, 1, 2]), "b.nc", first, "a.nc")
