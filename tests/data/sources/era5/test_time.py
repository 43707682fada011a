from datetime import date

import cftime
import numpy as np
import pytest

from hyperslab.data.clock import Clock
from hyperslab.data.sources.era5.time import check_ascending, decode_times, unit_seconds
from hyperslab.errors import UserError


def decode(values: list[float], units: str, calendar: str = "standard") -> tuple[list[int], str]:
    time, calendar = decode_times(np.asarray(values, float), units, calendar, "raw.nc: time")
    return time.tolist(), calendar


@pytest.mark.parametrize(
    ("units", "values", "seconds"),
    [
        ("hours since 1970-01-02", [0, 12], [86_400, 129_600]),
        ("days since 1970-01-01", [1, 1.5], [86_400, 129_600]),
        ("minutes since 1970-01-01T00:00:00Z", [0, 10], [0, 600]),
        ("seconds since 1970-01-01 00:00:00", [7], [7]),
        ("nanoseconds since 1970-01-01", [6e9], [6]),
        ("hour since 1969-12-31 23:00:00.0", [0, 1, 2], [-3600, 0, 3600]),
        # 1900 to 1970 are 70 x 365 days and 17 leap days (1904 to 1968): 25,567 days.
        ("hours since 1900-01-01 00:00:0.0", [25_567 * 24], [0]),
    ],
)
def test_times_are_seconds_since_1970(units: str, values: list[float], seconds: list[int]) -> None:
    assert decode(values, units) == (seconds, "proleptic_gregorian")


def test_hours_told_as_fractions_of_a_day_have_no_gaps() -> None:
    # An hour is no binary fraction of a day: it may lie just before the full hour.
    seconds, _ = decode([59 + hour / 24 for hour in range(1000)], "days since 1970-01-01")
    assert seconds == [59 * 86_400 + 3600 * hour for hour in range(1000)]


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "all_leap", "julian"])
def test_other_calendars_count_by_their_own_days(calendar: str) -> None:
    seconds, found = decode([0, 31, 365], "days since 2001-01-01", calendar)
    dates = cftime.num2date([0, 31, 365], "days since 2001-01-01", calendar)
    assert seconds == cftime.date2num(dates, "seconds since 1970-01-01", calendar).tolist()
    assert found == calendar


def test_a_month_of_30_days_is_told_by_its_own_calendar() -> None:
    # A year of twelve months of 30 days: 60 days after 2001-01-01 is the first of March.
    (seconds,), calendar = decode([60], "days since 2001-01-01", "360_day")
    clock = Clock(calendar=calendar)
    assert clock.moment(seconds) == "2001-03-01T00:00"
    assert clock.seconds(date(2001, 3, 1)) == seconds


def test_the_gregorian_calendar_has_one_name() -> None:
    assert decode([0], "days since 2001-01-01", "gregorian")[1] == "proleptic_gregorian"
    assert decode([0], "days since 2001-01-01", "Standard")[1] == "proleptic_gregorian"


def test_a_reference_long_ago_counts_the_days_left_out_in_1582() -> None:
    # CMIP counts from the year 1: cftime knows of the ten days that the mixed calendar leaves out.
    seconds, _ = decode([711_858], "days since 0001-01-01", "standard")
    moment = cftime.num2date(711_858, "days since 0001-01-01", "standard")
    assert Clock().moment(seconds[0]) == moment.strftime("%Y-%m-%dT%H:%M")


def test_dates_before_1582_in_the_mixed_calendar_are_refused_with_what_to_do() -> None:
    with pytest.raises(UserError, match=r"begins before 1582-10-15 .*`cdo setcalendar,proleptic_gregorian"):
        decode([0], "days since 0850-01-01", "standard")
    assert decode([0], "days since 0850-01-01", "proleptic_gregorian")[1] == "proleptic_gregorian"


@pytest.mark.parametrize("units", ["months since 2001-01-01", "fortnights since 2001-01-01", "hours since yesterday"])
def test_units_that_cannot_be_decoded_are_said(units: str) -> None:
    with pytest.raises(UserError, match=rf"raw\.nc: time cannot be decoded \('{units}'.*mend its units"):
        decode([0, 1], units)


def test_an_unknown_calendar_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"raw\.nc: time has the unknown calendar 'martian'; CF knows standard, "):
        decode([0], "days since 2001-01-01", "martian")


def test_missing_and_endless_times_are_refused() -> None:
    with pytest.raises(UserError, match=r"raw\.nc: time has missing values; every frame needs a time"):
        decode([0, np.nan], "hours since 2001-01-01")
    with pytest.raises(UserError, match="reaches more than 10,000 years from 1970"):
        decode([1e18], "hours since 2001-01-01")


@pytest.mark.parametrize(
    ("hours", "position", "where"),
    [
        ([0, 6, 6, 12], 2, "1970-01-01T06:00"),
        ([0, 6, 12, 3], 3, "1970-01-01T03:00"),
        ([18, 12, 6, 0], 1, "1970-01-01T12:00"),
    ],
)
def test_times_that_repeat_or_go_back_are_refused_with_their_place(hours: list[int], position: int, where: str) -> None:
    with pytest.raises(UserError, match=rf"raw\.nc: time goes back or repeats at position {position} \({where}\)"):
        check_ascending(3600 * np.asarray(hours), "raw.nc: time", Clock())


def test_an_empty_time_axis_is_refused() -> None:
    with pytest.raises(UserError, match=r"raw\.nc: time is empty"):
        check_ascending(np.zeros(0, np.int64), "raw.nc: time", Clock())


@pytest.mark.parametrize(("unit", "seconds"), [("hours", 3600), ("h", 3600), ("days", 86_400), ("s", 1), ("ms", 1e-3)])
def test_units_of_time_have_their_length(unit: str, seconds: float) -> None:
    assert unit_seconds(unit) == seconds


@pytest.mark.parametrize("unit", ["", "month", "years", "K"])
def test_what_has_no_fixed_length_is_no_unit_of_time(unit: str) -> None:
    assert unit_seconds(unit) is None


def test_a_million_times_of_another_calendar_take_no_more_than_a_moment() -> None:
    # Decoded one by one with cftime, these took a minute.
    time, _ = decode_times(np.arange(1_000_000.0), "hours since 1850-01-01", "noleap", "raw.nc: time")
    assert np.diff(time).tolist() == [3600] * 999_999
