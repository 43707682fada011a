import re
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from hyperslab.data.clock import Clock
from hyperslab.data.sources.era5.contents import read_contents
from hyperslab.data.sources.era5.header import NO_MEMBER, Contents, Frames, Header
from hyperslab.errors import UserError
from tests.conftest import make_dataset
from tests.data.sources.era5.raw import write


def contents_of(folder: Path, dataset: xr.Dataset) -> Contents:
    return read_contents(str(write(folder / "raw.nc", dataset)))


def header_of(folder: Path, dataset: xr.Dataset) -> Header:
    (header,) = contents_of(folder, dataset).headers
    return header


def frames_of(folder: Path, dataset: xr.Dataset) -> Frames:
    frames = header_of(folder, dataset).frames
    assert frames is not None
    return frames


def with_time(values: list[float], units: str = "hours since 2001-01-01", **attributes: str) -> xr.Dataset:
    """A dataset whose time axis holds these numbers as they stand."""
    dataset = make_dataset(frames=len(values))
    return dataset.assign_coords(time=("time", values, {"units": units, **attributes}))


START = Clock().seconds(date(2001, 1, 1))


def test_numbers_without_units_are_no_time_axis(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3).assign_coords(time=("time", [0, 1, 2]))
    with pytest.raises(UserError, match=r"no time axis \(dimensions: .*time.*\).*`hours since 1970-01-01`"):
        contents_of(tmp_path, dataset)


def test_a_file_of_points_has_no_grid(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no regular latitude-longitude grid \(dimensions: time\); .*stations"):
        contents_of(tmp_path, make_dataset(frames=3).isel(latitude=0, longitude=0))


def test_a_curvilinear_grid_is_refused_with_a_command(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3).drop_vars(["latitude", "longitude"])
    dataset = dataset.rename(latitude="y", longitude="x")
    corners = np.zeros((3, 4))
    dataset = dataset.assign_coords(latitude=(("y", "x"), corners), longitude=(("y", "x"), corners))
    with pytest.raises(UserError, match=r"no regular latitude-longitude grid \(dimensions: .*y, x.*`cdo remapbil"):
        contents_of(tmp_path, dataset)


def test_a_rotated_pole_is_refused_with_a_command(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3).rename(latitude="rlat", longitude="rlon")
    dataset.rlat.attrs = dataset.rlon.attrs = {"units": "degrees"}
    with pytest.raises(UserError, match=r"interpolate it from its rotated pole, with `cdo remapbil"):
        contents_of(tmp_path, dataset)


def test_a_missing_time_and_times_that_repeat_are_refused_with_the_variables_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"raw\.nc: time has missing values; every frame needs a time"):
        contents_of(tmp_path, with_time([0, np.nan, 12]))
    with pytest.raises(UserError, match=r"raw\.nc: time goes back or repeats at position 2 \(2001-01-01T06:00\)"):
        contents_of(tmp_path, with_time([0, 6, 6]))
    with pytest.raises(UserError, match=r"raw\.nc: time is empty"):
        contents_of(tmp_path, make_dataset(frames=0))


def test_a_fill_value_in_a_time_of_integers_is_a_missing_time(tmp_path: Path) -> None:
    dataset = with_time([0, -1, 12])
    dataset["time"] = dataset.time.astype(np.int32)
    dataset.time.attrs = {"units": "hours since 2001-01-01", "_FillValue": np.int32(-1)}
    with pytest.raises(UserError, match=r"time has missing values"):
        contents_of(tmp_path, dataset)


@pytest.mark.parametrize("calendar", ["noleap", "360_day"])
def test_another_calendar_is_the_clock_of_the_frames(tmp_path: Path, calendar: str) -> None:
    header = header_of(tmp_path, with_time([0, 31, 59], units="days since 2001-01-01", calendar=calendar))
    assert header.clock == Clock(calendar=calendar)
    assert header.frames is not None
    assert header.clock.moment(header.frames.time[0]) == "2001-01-01T00:00"


def test_axes_are_known_by_their_units_whatever_their_names(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3).rename(time="TIME", latitude="FNOCY", longitude="FNOCX")
    assert header_of(tmp_path, dataset).num_frames == 3


def test_axes_are_known_by_their_names_where_units_are_absent(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3).rename(latitude="lat", longitude="lon")
    dataset["lat"].attrs.clear()
    dataset["lon"].attrs.clear()
    assert header_of(tmp_path, dataset).grid.shape == (3, 4)


def test_each_level_of_a_variable_is_a_channel(tmp_path: Path) -> None:
    header = header_of(tmp_path, make_dataset(frames=3, variables=["t", "z"], levels=[850, 500.5]))
    found = [(channel.name, channel.variable, channel.level, channel.units) for channel in header.channels]
    assert found == [
        ("t_850", "t", 850, "K"),
        ("t_500.5", "t", 500.5, "K"),
        ("z_850", "z", 850, "m**2 s**-2"),
        ("z_500.5", "z", 500.5, "m**2 s**-2"),
    ]


def test_levels_in_pascal_are_named_in_hectopascal_and_that_is_said(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3, variables=["t"], levels=[85_000, 50]).rename(pressure_level="plev")
    dataset.plev.attrs["units"] = "Pa"
    header = header_of(tmp_path, dataset)
    assert [(channel.name, channel.level) for channel in header.channels] == [("t_850", 850), ("t_0.5", 0.5)]
    assert header.oddities == ("plev is in Pa: levels are named and chosen in hPa",)


@pytest.mark.parametrize(
    ("dim", "attributes", "names"),
    [
        ("hybrid", {}, ["t_hybrid_1", "t_hybrid_2"]),
        ("level", {"long_name": "model_level_number"}, ["t_hybrid_1", "t_hybrid_2"]),
        ("lev", {"standard_name": "model_level_number"}, ["t_hybrid_1", "t_hybrid_2"]),
        ("depth", {"units": "m"}, ["t_depth_1", "t_depth_2"]),
        ("heightAboveGround", {"units": "m"}, ["t_height_1", "t_height_2"]),
        ("level", {"units": "millibars"}, ["t_1", "t_2"]),
        ("isobaricInhPa", {}, ["t_1", "t_2"]),
    ],
)
def test_the_kind_of_a_level_is_part_of_the_name_unless_it_is_pressure(
    tmp_path: Path, dim: str, attributes: dict[str, str], names: list[str]
) -> None:
    dataset = make_dataset(frames=2, variables=["t"], levels=[1, 2]).rename(pressure_level=dim)
    dataset[dim].attrs = attributes
    assert [channel.name for channel in header_of(tmp_path, dataset).channels] == names


def test_a_channel_carries_the_long_name_and_the_unit_of_its_variable(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3)
    dataset["t2m"].attrs["long_name"] = "2 metre temperature"
    del dataset["msl"].attrs["units"]
    header = header_of(tmp_path, dataset)
    t2m, msl = header.channels
    assert (t2m.long_name, t2m.units) == ("2 metre temperature", "K")
    assert (msl.long_name, msl.units) == ("msl", "1")
    assert header.oddities == ("msl without a unit: taken as 1",)


def test_spaces_in_a_name_are_underscores_in_the_channels(tmp_path: Path) -> None:
    dataset = make_dataset(variables=["t2m"]).rename(t2m="Total precipitation")
    (channel,) = header_of(tmp_path, dataset).channels
    assert (channel.name, channel.variable) == ("Total_precipitation", "Total precipitation")


def test_two_names_that_differ_by_a_space_alone_are_refused(tmp_path: Path) -> None:
    dataset = make_dataset(variables=["t2m", "msl"]).rename(t2m="a b", msl="a_b")
    with pytest.raises(UserError, match=r"'a b' and 'a_b' would both be a_b; rename one"):
        contents_of(tmp_path, dataset)


def test_a_level_that_stands_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"raw\.nc: t has the level 850 twice; keep each level once"):
        contents_of(tmp_path, make_dataset(frames=3, variables=["t"], levels=[850, 850]))


def test_a_variable_that_is_no_field_is_left_out_with_the_reason(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3)
    dataset["spectrum"] = dataset["t2m"].expand_dims(direction=24)
    dataset["one"] = dataset["t2m"].expand_dims(experiment=1)
    dataset["mean"] = dataset["t2m"].mean("longitude")
    dataset["words"] = dataset["t2m"].astype(str)
    contents = contents_of(tmp_path, dataset)
    left_out = dict(contents.left_out)
    assert re.fullmatch("its type .+ is no number", left_out.pop("words"))
    assert left_out == {
        "spectrum": "it has the dimension direction (24), select one place along it beforehand",
        "mean": "it lacks longitude",
    }
    assert [channel.name for channel in contents.headers[0].channels] == ["t2m", "msl", "one"]


def test_a_field_without_time_is_apart_from_those_with_it(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3)
    dataset["lsm"] = dataset["t2m"].isel(time=0, drop=True)
    timed, timeless = contents_of(tmp_path, dataset).headers
    assert timed.num_frames == 3
    assert timeless.frames is None
    assert [channel.name for channel in timeless.channels] == ["lsm"]


def test_a_time_that_is_no_dimension_is_that_of_all_fields(tmp_path: Path) -> None:
    frames = frames_of(tmp_path, make_dataset(frames=3, variables=["t2m"]).isel(time=1))
    assert frames.time.tolist() == [START + 6 * 3600]


def test_members_and_times_are_positions_in_that_order(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3, variables=["t2m"]).expand_dims(number=[4, 7]).transpose("time", ...)
    frames = frames_of(tmp_path, dataset)
    assert frames.member.tolist() == [4, 4, 4, 7, 7, 7]
    assert (frames.time - START).tolist() == [0, 21_600, 43_200] * 2


def test_members_that_are_not_numbered_are_counted(tmp_path: Path) -> None:
    dataset = make_dataset(frames=1, variables=["t2m"]).expand_dims(realization=["r1i1p1", "r2i1p1"])
    assert frames_of(tmp_path, dataset).member.tolist() == [0, 1]


def test_a_file_without_members_says_so(tmp_path: Path) -> None:
    assert frames_of(tmp_path, make_dataset(frames=1)).member.tolist() == [NO_MEMBER]


@pytest.mark.parametrize("name", ["step", "prediction_timedelta", "lead_time"])
def test_a_step_is_added_to_the_initial_time(tmp_path: Path, name: str) -> None:
    dataset = make_dataset(frames=2, step_hours=24, variables=["t2m"]).expand_dims({name: [0, 6, 12]})
    dataset[name].attrs["units"] = "hours"
    frames = frames_of(tmp_path, dataset)
    hours = [0, 6, 12, 24, 30, 36]
    assert (frames.time - START).tolist() == [3600 * hour for hour in hours]
    assert (frames.initial - START).tolist() == [0, 0, 0, 86_400, 86_400, 86_400]


def test_a_step_that_is_a_span_of_time_is_known_by_its_unit(tmp_path: Path) -> None:
    steps = np.asarray([0, 90], "timedelta64[m]").astype("timedelta64[ns]")
    dataset = make_dataset(frames=1, variables=["t2m"]).expand_dims(prediction_timedelta=steps)
    assert (frames_of(tmp_path, dataset).time - START).tolist() == [0, 5400]


def test_a_valid_time_is_not_moved_by_a_step(tmp_path: Path) -> None:
    dataset = make_dataset(frames=2, variables=["t2m"]).rename(time="valid_time")
    dataset = dataset.assign_coords(step=((), 12.0, {"units": "hours"}))
    frames = frames_of(tmp_path, dataset)
    assert (frames.time - START).tolist() == [0, 21_600]
    assert (frames.initial == frames.time).all()


def test_a_scalar_step_moves_the_initial_time(tmp_path: Path) -> None:
    dataset = make_dataset(frames=2, variables=["t2m"]).assign_coords(step=((), 12.0, {"units": "hours"}))
    frames = frames_of(tmp_path, dataset)
    assert (frames.time - frames.initial).tolist() == [43_200, 43_200]


def test_variables_of_other_dimensions_have_frames_of_their_own(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3)
    dataset["ens"] = dataset["t2m"].expand_dims(number=[0, 1])
    alone, ensemble = sorted(contents_of(tmp_path, dataset).headers, key=lambda header: header.num_frames)
    assert [channel.name for channel in alone.channels] == ["t2m", "msl"]
    assert (alone.num_frames, ensemble.num_frames) == (3, 6)


@pytest.mark.parametrize(
    ("units", "attributes", "said"),
    [
        ("m", {}, True),
        ("mm/day", {}, False),
        ("m", {"GRIB_stepType": "accum"}, True),
        ("m", {"GRIB_stepType": "avg"}, False),
        ("kg", {"cell_methods": "time: sum"}, True),
    ],
)
def test_an_accumulation_is_pointed_out(tmp_path: Path, units: str, attributes: dict[str, str], said: bool) -> None:
    dataset = make_dataset(frames=2, variables=["t2m"]).rename(t2m="tp")
    dataset["tp"].attrs = {"units": units, **attributes}
    line = "tp is an accumulation over the time up to each frame: kept as the file has them"
    assert (header_of(tmp_path, dataset).oddities == (line,)) == said


def test_the_end_that_a_growing_archive_states_is_pointed_out(tmp_path: Path) -> None:
    dataset = make_dataset(frames=2).assign_attrs(valid_time_stop="2001-01-01")
    (line,) = header_of(tmp_path, dataset).oddities
    assert line == "its data end at 2001-01-01 by its own account, while its time axis may go on: set data.period"


def test_the_chunks_of_a_file_are_told(tmp_path: Path) -> None:
    dataset = make_dataset(frames=40, variables=["t2m"])
    path = write(tmp_path / "raw.nc", dataset, encoding={"t2m": {"chunksizes": (8, 3, 4)}})
    (header,) = read_contents(str(path)).headers
    # 8 frames of 3 x 4 values of 4 bytes.
    assert (header.chunk_frames, header.chunk_bytes) == (8, 384)


def test_a_classic_file_has_no_chunks_but_frames_scattered_over_it_go_together(tmp_path: Path) -> None:
    dataset = make_dataset(frames=40, variables=["t2m"])
    path = write(tmp_path / "rows.nc", dataset, format="NETCDF3_64BIT")
    assert read_contents(str(path)).headers[0].chunk_frames == 1
    path = write(tmp_path / "columns.nc", dataset.transpose("latitude", "longitude", "time"), format="NETCDF3_64BIT")
    assert read_contents(str(path)).headers[0].chunk_frames == 40
