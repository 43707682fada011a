import re
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from hyperslab.data.frames import seconds
from hyperslab.data.sources.era5.header import Header, read_header
from hyperslab.errors import UserError
from tests.conftest import make_dataset


def write(folder: Path, dataset: xr.Dataset) -> Path:
    path = folder / "raw.nc"
    dataset.to_netcdf(path)
    return path


def header_of(folder: Path, dataset: xr.Dataset) -> Header:
    return read_header(write(folder, dataset))


def with_time(values: list[float], units: str = "hours since 2001-01-01", **attributes: str) -> xr.Dataset:
    """A dataset whose time axis holds these numbers as they stand."""
    dataset = make_dataset(frames=len(values))
    return dataset.assign_coords(time=("time", values, {"units": units, **attributes}))


def with_axis(name: str, values: list[float]) -> xr.Dataset:
    """A dataset whose latitude or longitude holds these numbers."""
    rows, columns = (len(values), 4) if name == "latitude" else (3, len(values))
    dataset = make_dataset(frames=3, rows=rows, columns=columns)
    return dataset.assign_coords({name: (name, np.asarray(values, float), dataset[name].attrs)})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is empty \(0 bytes\); download it again"),
        (b"GRIB\x00\x00\x00\x02 and so on", "is GRIB, not netCDF; convert it"),
        (b"PK\x03\x04 and so on", "is a zip archive, not netCDF; unzip it"),
        (b"<html>Not found", r"is not netCDF \(it starts with b'<html>No'\); name netCDF files"),
        (b"CDF\x01", "its header is cut short; download it again"),
    ],
)
def test_a_file_of_another_kind_is_named_for_what_it_is(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "raw.nc"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"raw\.nc: {message}"):
        read_header(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.nc: no such file; check data\.files"):
        read_header(tmp_path / "absent.nc")


def test_a_directory_is_answered_with_a_pattern(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a directory; name the netCDF files in it, such as dir/\*\.nc"):
        read_header(tmp_path)


def test_a_file_that_cannot_be_opened_is_said_with_the_systems_reason(tmp_path: Path) -> None:
    path = tmp_path / "loop.nc"
    path.symlink_to(path)
    with pytest.raises(UserError, match=r"loop\.nc: cannot be read: Too many levels of symbolic links"):
        read_header(path)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_netcdf4_file_that_was_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    path = write(tmp_path, make_dataset(frames=200))
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UserError, match=r"raw\.nc: starts as netCDF but cannot be read, it may be cut short"):
        read_header(path)


def test_a_netcdf3_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    # The axes come first, as in files of the old Climate Data Store, so that only fields are cut off.
    dataset = make_dataset(frames=200)
    path = tmp_path / "raw.nc"
    fields = list(dataset.data_vars)
    dataset.drop_vars(fields).to_netcdf(path, format="NETCDF3_64BIT")
    dataset[fields].drop_vars(list(dataset.coords)).to_netcdf(path, mode="a", format="NETCDF3_64BIT")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"raw\.nc: .*cut short"):
        read_header(path)


def test_a_file_without_a_time_axis_is_refused_with_its_dimensions(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no time axis \(dimensions: latitude, longitude\).*CF time units"):
        header_of(tmp_path, make_dataset(frames=3).isel(time=0, drop=True))


def test_numbers_without_units_are_no_time_axis(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3).assign_coords(time=("time", [0, 1, 2]))
    with pytest.raises(UserError, match=r"no time axis .*`hours since 1970-01-01`"):
        header_of(tmp_path, dataset)


def test_a_file_of_points_has_no_grid(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no regular latitude-longitude grid \(dimensions: time\); regrid"):
        header_of(tmp_path, make_dataset(frames=3).isel(latitude=0, longitude=0))


def test_a_curvilinear_grid_is_refused(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3).drop_vars(["latitude", "longitude"])
    dataset = dataset.rename(latitude="y", longitude="x")
    corners = np.zeros((3, 4))
    dataset = dataset.assign_coords(latitude=(("y", "x"), corners), longitude=(("y", "x"), corners))
    with pytest.raises(UserError, match=r"no regular latitude-longitude grid \(dimensions: .*y, x"):
        header_of(tmp_path, dataset)


@pytest.mark.parametrize("latitude", [[90, 0, 0], [95, 0, -90]])
def test_latitudes_that_repeat_or_leave_the_sphere_are_refused(tmp_path: Path, latitude: list[float]) -> None:
    with pytest.raises(UserError, match=r"latitudes repeat or leave -90\.\.90; the grid must be regular"):
        header_of(tmp_path, with_axis("latitude", latitude))


@pytest.mark.parametrize("longitude", [[0, 120, 240, 360], [-180, -90, 0, 180], [10, 20, 20, 30]])
def test_longitudes_that_repeat_on_the_circle_are_refused(tmp_path: Path, longitude: list[float]) -> None:
    with pytest.raises(UserError, match=r"longitudes repeat on the circle \(such as 0 and 360\); drop"):
        header_of(tmp_path, with_axis("longitude", longitude))


@pytest.mark.parametrize(("name", "values"), [("latitude", [90, np.nan, -90]), ("longitude", [0, np.nan, 180, 270])])
def test_a_missing_coordinate_is_refused(tmp_path: Path, name: str, values: list[float]) -> None:
    with pytest.raises(UserError, match=name):
        header_of(tmp_path, with_axis(name, values))


@pytest.mark.parametrize("name", ["latitude", "longitude"])
def test_a_grid_without_rows_or_columns_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=name):
        header_of(tmp_path, with_axis(name, []))


@pytest.mark.parametrize("calendar", ["noleap", "360_day"])
def test_another_calendar_is_refused(tmp_path: Path, calendar: str) -> None:
    dataset = with_time([0, 1, 2], units="days since 2001-01-01", calendar=calendar)
    with pytest.raises(UserError, match=f"time uses the calendar '{calendar}'; .*standard \\(Gregorian\\)"):
        header_of(tmp_path, dataset)


@pytest.mark.parametrize("units", ["months since 2001-01-01", "fortnights since 2001-01-01"])
def test_time_units_that_cannot_be_decoded_are_not_taken_for_a_cut_file(tmp_path: Path, units: str) -> None:
    with pytest.raises(UserError, match=units) as caught:
        header_of(tmp_path, with_time([0, 1, 2], units=units))
    assert "cut short" not in str(caught.value)
    assert "download it again" not in str(caught.value)


def test_a_missing_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="time has missing values; every frame needs a time"):
        header_of(tmp_path, with_time([0, np.nan, 12]))


def test_an_empty_time_axis_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the time axis is empty"):
        header_of(tmp_path, make_dataset(frames=0))


@pytest.mark.parametrize(
    ("hours", "position", "where"),
    [
        ([0, 6, 6, 12], 2, "2001-01-01T06:00"),
        ([0, 6, 12, 3], 3, "2001-01-01T03:00"),
        ([18, 12, 6, 0], 1, "2001-01-01T12:00"),
    ],
)
def test_times_that_repeat_or_go_back_are_refused_with_their_place(
    tmp_path: Path, hours: list[float], position: int, where: str
) -> None:
    with pytest.raises(UserError, match=rf"time goes back or repeats at position {position} \({where}\)"):
        header_of(tmp_path, with_time(hours))


def test_axes_are_known_by_their_units_whatever_their_names(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3).rename(time="TIME", latitude="FNOCY", longitude="FNOCX")
    grid = header_of(tmp_path, dataset).grid
    assert (grid.time_dim, grid.latitude_dim, grid.longitude_dim) == ("TIME", "FNOCY", "FNOCX")


def test_axes_are_known_by_their_names_where_units_are_absent(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3).rename(latitude="lat", longitude="lon")
    dataset["lat"].attrs.clear()
    dataset["lon"].attrs.clear()
    grid = header_of(tmp_path, dataset).grid
    assert (grid.latitude_dim, grid.longitude_dim) == ("lat", "lon")


def test_rows_that_ascend_are_turned_north_up(tmp_path: Path) -> None:
    header = header_of(tmp_path, with_axis("latitude", [-90, 0, 45]))
    assert header.grid.latitude.tolist() == [45, 0, -90]
    assert header.grid.rows.tolist() == [2, 1, 0]
    assert header.oddities == ("latitude ascends: stored north-up",)


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
def test_columns_are_turned_eastward(
    tmp_path: Path, longitude: list[float], eastward: list[float], columns: list[int]
) -> None:
    header = header_of(tmp_path, with_axis("longitude", longitude))
    assert header.grid.longitude.tolist() == eastward
    assert header.grid.columns.tolist() == columns
    turned = any(line.startswith("longitude is turned") for line in header.oddities)
    assert turned == (columns != [0, 1, 2, 3])


def test_times_are_seconds_since_1970(tmp_path: Path) -> None:
    header = header_of(tmp_path, with_time([0, 12], units="hours since 1970-01-02"))
    assert header.time.tolist() == [86_400, 129_600]


def test_hours_told_as_fractions_of_a_day_have_no_gaps(tmp_path: Path) -> None:
    # An hour is no binary fraction of a day: decoded to nanoseconds it may lie just before the full hour.
    header = header_of(tmp_path, with_time([59 + hour / 24 for hour in range(1000)], units="days since 1970-01-01"))
    assert header.time.tolist() == [59 * 86_400 + 3600 * hour for hour in range(1000)]


def test_each_level_of_a_variable_is_a_channel(tmp_path: Path) -> None:
    header = header_of(tmp_path, make_dataset(frames=3, variables=["t", "z"], levels=[850, 500.5]))
    found = [(channel.name, channel.variable, channel.level, channel.units) for channel in header.channels]
    assert found == [
        ("t_850", "t", 850, "K"),
        ("t_500.5", "t", 500.5, "K"),
        ("z_850", "z", 850, "m**2 s**-2"),
        ("z_500.5", "z", 500.5, "m**2 s**-2"),
    ]


def test_a_channel_carries_the_long_name_and_the_unit_of_its_variable(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3)
    dataset["t2m"].attrs["long_name"] = "2 metre temperature"
    del dataset["msl"].attrs["units"]
    t2m, msl = header_of(tmp_path, dataset).channels
    assert (t2m.long_name, t2m.units) == ("2 metre temperature", "K")
    assert (msl.long_name, msl.units) == ("msl", "1")


def test_a_variable_that_is_no_field_in_time_is_left_out_with_the_reason(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3)
    dataset["lsm"] = dataset["t2m"].isel(time=0, drop=True)
    dataset["ens"] = dataset["t2m"].expand_dims(number=10)
    dataset["one"] = dataset["t2m"].expand_dims(step=1)
    dataset["words"] = dataset["t2m"].astype(str)
    header = header_of(tmp_path, dataset)
    left_out = dict(header.left_out)
    assert re.fullmatch("its type .+ is no number", left_out.pop("words"))
    assert left_out == {
        "lsm": "it lacks time",
        "ens": "it has the dimension number (10), select one member of it beforehand",
    }
    assert [channel.name for channel in header.channels] == ["t2m", "msl", "one"]


def test_preliminary_data_is_pointed_out(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3).assign_coords(expver=("time", ["0001", "0001", "0005"]))
    assert header_of(tmp_path, dataset).oddities == ("experiment version 0001, 0005: 0005 is preliminary ERA5T",)


def test_final_data_is_not_pointed_out(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3).assign_coords(expver=("time", ["0001"] * 3))
    assert header_of(tmp_path, dataset).oddities == ()


def test_gaps_are_pointed_out_with_the_first_frame_after_one(tmp_path: Path) -> None:
    header = header_of(tmp_path, with_time([0, 6, 12, 24, 30, 48, 54]))
    assert header.oddities == ("time has 2 gap(s), the first before 2001-01-02T00:00: no window reaches over a gap",)


def test_a_single_frame_is_pointed_out(tmp_path: Path) -> None:
    assert header_of(tmp_path, make_dataset(frames=1)).oddities == ("a single frame: alone it makes no window",)


def test_a_level_that_stands_twice_is_refused_or_pointed_out(tmp_path: Path) -> None:
    path = write(tmp_path, make_dataset(frames=3, variables=["t"], levels=[850, 850]))
    try:
        oddities = read_header(path).oddities
    except UserError as error:
        oddities = (str(error),)
    assert any("850" in line for line in oddities)


@pytest.mark.shared
def test_the_calendar_of_real_winds_is_monthly_and_whole(shared_samples: Path) -> None:
    header = read_header(shared_samples / "climate" / "monthly_navy_winds.cdf")
    # The record runs from January 1982 to December 1992: 11 years of 12 months.
    assert len(header.time) == 132
    first = np.datetime64("1982-01-01", "s").astype(int)
    assert first < header.time[0] < first + 31 * 86_400
    assert seconds(date(1992, 12, 1)) < header.time[-1]
    assert header.grid.latitude.tolist() == np.arange(90, -91, -2.5).tolist()
    assert header.grid.longitude.tolist() == np.arange(0, 360, 2.5).tolist()
