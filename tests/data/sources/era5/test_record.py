from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from hyperslab.data.clock import Clock
from hyperslab.data.sources.era5.source import Era5
from hyperslab.errors import UserError
from tests.conftest import make_dataset, write_netcdf
from tests.data.sources.era5.raw import read_all, scan, write


def make_ensemble(members: list[int], frames: int = 3) -> xr.Dataset:
    """A dataset of noise with members between time and latitude."""
    parts = [make_dataset(variables=["t2m"], frames=frames, seed=member) for member in members]
    return xr.concat(parts, xr.Variable("number", members)).transpose("time", "number", ...)


def make_forecasts(starts: int, steps: list[int], hours: int = 12) -> xr.Dataset:
    """Forecasts that begin every `hours` hours."""
    dataset = make_dataset(variables=["t2m"], frames=starts * len(steps))
    values = dataset["t2m"].values.reshape(starts, len(steps), 3, 4)
    time = dataset.time.values[0] + np.arange(starts) * np.timedelta64(hours, "h")
    return xr.Dataset(
        {"t2m": (("time", "step", "latitude", "longitude"), values, {"units": "K"})},
        coords={
            "time": time,
            "step": ("step", steps, {"units": "hours"}),
            "latitude": dataset.latitude,
            "longitude": dataset.longitude,
        },
    )


def test_each_member_is_a_segment_of_its_own(tmp_path: Path) -> None:
    dataset = make_ensemble([2, 0, 1])
    index = scan([write(tmp_path / "raw.nc", dataset)])
    assert index.segment == (0, 0, 0, 1, 1, 1, 2, 2, 2)
    assert index.segment_labels == {"member": (0, 1, 2)}
    expected = np.concatenate([dataset["t2m"].sel(number=member).values for member in (0, 1, 2)])
    np.testing.assert_array_equal(read_all(index)[:, 0], expected)


def test_members_may_be_chosen(tmp_path: Path) -> None:
    dataset = make_ensemble([0, 1, 2])
    path = write(tmp_path / "raw.nc", dataset)
    index = scan([path], era5={"members": [2, 1]})
    assert index.segment_labels == {"member": (1, 2)}
    expected = np.concatenate([dataset["t2m"].sel(number=member).values for member in (1, 2)])
    np.testing.assert_array_equal(read_all(index)[:, 0], expected)
    with pytest.raises(UserError, match=r"data\.era5\.members: unknown member 7; the files hold 0, 1, 2"):
        scan([path], era5={"members": [7]})


def test_members_may_lie_in_files_of_their_own(tmp_path: Path) -> None:
    paths = []
    for member in (1, 0):
        dataset = make_dataset(variables=["t2m"], frames=3, seed=member).assign_coords(number=member)
        paths.append(write(tmp_path / f"{member}.nc", dataset))
    index = scan(paths)
    assert index.segment_labels == {"member": (0, 1)}
    expected = np.concatenate([make_dataset(variables=["t2m"], frames=3, seed=member)["t2m"] for member in (0, 1)])
    np.testing.assert_array_equal(read_all(index)[:, 0], expected)


def test_one_member_alone_is_no_ensemble(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3).assign_coords(number=0)
    other = write_netcdf(tmp_path / "later.nc", frames=3, start="2001-01-01T18")
    index = scan([write(tmp_path / "raw.nc", dataset), other])
    assert index.segment_labels == {}
    assert index.segment == (0,) * 6


def test_fields_without_members_beside_an_ensemble_are_refused(tmp_path: Path) -> None:
    ensemble = write(tmp_path / "ensemble.nc", make_ensemble([0, 1]))
    single = write_netcdf(tmp_path / "single.nc", variables=["msl"], frames=3)
    with pytest.raises(
        UserError, match=r"single\.nc: holds msl of no ensemble member, .* members 0 to 1; choose variables"
    ):
        scan([ensemble, single])
    assert scan([ensemble, single], variables=["msl"]).segment_labels == {}


def test_a_gap_breaks_each_member(tmp_path: Path) -> None:
    dataset = make_ensemble([0, 1], frames=5).isel(time=[0, 1, 3, 4])
    index = scan([write(tmp_path / "raw.nc", dataset)])
    assert index.segment == (0, 0, 1, 1, 2, 2, 3, 3)
    assert index.segment_labels == {"member": (0, 0, 1, 1)}
    assert "time has 2 gap(s), the first before 2001-01-01T18:00: no window reaches over a gap" in index.oddities


def test_each_forecast_is_a_segment_at_its_valid_times(tmp_path: Path) -> None:
    dataset = make_forecasts(2, [0, 6, 12, 18])
    index = scan([write(tmp_path / "raw.nc", dataset)])
    start = index.time[0]
    hours = [(time - start) // 3600 for time in index.time]
    assert hours == [0, 6, 12, 18, 12, 18, 24, 30]
    assert index.segment == (0, 0, 0, 0, 1, 1, 1, 1)
    assert index.segment_labels == {"initial_time": ("2001-01-01T00:00", "2001-01-01T12:00")}
    np.testing.assert_array_equal(read_all(index)[:, 0], dataset["t2m"].values.reshape(8, 3, 4))
    np.testing.assert_array_equal(Era5().read(index, 3, 6)["values"][:, 0], dataset["t2m"].values.reshape(8, 3, 4)[3:6])


def test_forecasts_of_an_ensemble_carry_both_labels(tmp_path: Path) -> None:
    dataset = xr.concat([make_forecasts(2, [0, 6]), make_forecasts(2, [0, 6]) + 1], xr.Variable("number", [0, 1]))
    dataset["t2m"].attrs["units"] = "K"
    index = scan([write(tmp_path / "raw.nc", dataset.transpose("step", "latitude", "number", "time", "longitude"))])
    assert index.segment_labels == {
        "member": (0, 0, 1, 1),
        "initial_time": ("2001-01-01T00:00", "2001-01-01T12:00") * 2,
    }
    expected = dataset["t2m"].transpose("number", "time", "step", ...).values.reshape(8, 3, 4)
    np.testing.assert_array_equal(read_all(index)[:, 0], expected)


def test_initial_times_of_one_step_make_an_ordinary_record(tmp_path: Path) -> None:
    dataset = make_forecasts(4, [6], hours=6)
    index = scan([write(tmp_path / "raw.nc", dataset)])
    assert index.segment == (0, 0, 0, 0)
    assert index.segment_labels == {}
    assert index.clock.moment(index.time[0]) == "2001-01-01T06:00"


def test_steps_of_a_forecast_may_lie_in_several_files(tmp_path: Path) -> None:
    dataset = make_forecasts(1, [0, 6, 12])
    paths = [write(tmp_path / f"{n}.nc", dataset.isel(step=n, time=0)) for n in range(3)]
    index = scan(paths)
    assert index.segment_labels == {"initial_time": ("2001-01-01T00:00",)}
    np.testing.assert_array_equal(read_all(index)[:, 0], dataset["t2m"].values[0])


def test_short_forecasts_beside_analyses_stand_at_their_valid_times(tmp_path: Path) -> None:
    # As ERA5's GRIB has them: precipitation from forecasts of 6 and 12 hours, temperature from analyses.
    short = make_forecasts(2, [6, 12], hours=12).rename(t2m="tp")
    analyses = write_netcdf(tmp_path / "t2m.nc", variables=["t2m"], frames=4, start="2001-01-01T06")
    index = scan([analyses, write(tmp_path / "tp.nc", short)])
    assert index.segment == (0, 0, 0, 0)
    assert [channel.name for channel in index.channels] == ["t2m", "tp"]
    np.testing.assert_array_equal(read_all(index)[:, 1], short["tp"].values.reshape(4, 3, 4))
    assert any(line.startswith("short forecasts stand at their valid times beside analyses") for line in index.oddities)


def test_another_calendar_may_have_a_period_that_ends_on_a_day_it_lacks(tmp_path: Path) -> None:
    dataset = make_dataset(frames=60)
    dataset = dataset.assign_coords(
        time=("time", np.arange(60.0), {"units": "days since 2001-01-01", "calendar": "360_day"})
    )
    path = write(tmp_path / "raw.nc", dataset)
    index = scan([path], period={"end": "2001-01-31"})
    assert index.clock == Clock(calendar="360_day")
    # The months have 30 days each.
    assert len(index.time) == 30
    np.testing.assert_array_equal(read_all(index)[:, 1], dataset["t2m"].values[:30])


def test_months_of_another_calendar_follow_one_another(tmp_path: Path) -> None:
    days = [15.0 + 30 * month for month in range(24)]
    dataset = make_dataset(frames=24)
    dataset = dataset.assign_coords(time=("time", days, {"units": "days since 2001-01-01", "calendar": "360_day"}))
    assert set(scan([write(tmp_path / "raw.nc", dataset)]).segment) == {0}


def test_two_calendars_are_refused_with_both_files(tmp_path: Path) -> None:
    plain = write_netcdf(tmp_path / "plain.nc", frames=3)
    dataset = make_dataset(frames=3)
    dataset = dataset.assign_coords(
        time=("time", [0.0, 1, 2], {"units": "days since 2002-01-01", "calendar": "noleap"})
    )
    with pytest.raises(
        UserError,
        match=r"noleap\.nc: its calendar is noleap, that of .*plain\.nc is proleptic_gregorian; .*cdo setcalendar",
    ):
        scan([plain, write(tmp_path / "noleap.nc", dataset)])


def test_an_overlap_of_forecasts_names_the_member_and_the_start(tmp_path: Path) -> None:
    dataset = make_forecasts(2, [0, 6, 12])
    paths = [write(tmp_path / f"{n}.nc", dataset) for n in range(2)]
    with pytest.raises(UserError, match=r"both hold t2m at 2001-01-01T00:00 of the forecast from 2001-01-01T00:00"):
        scan(paths)
