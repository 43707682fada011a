"""Times as CF writes them, in seconds since 1970-01-01 of their calendar."""

import cftime
import numpy as np
import numpy.typing as npt

from hyperslab.data.clock import STANDARD, Clock
from hyperslab.data.frames import Ints
from hyperslab.errors import UserError

_UNIT_SECONDS = {
    "nanosecond": 1e-9,
    "ns": 1e-9,
    "microsecond": 1e-6,
    "us": 1e-6,
    "millisecond": 1e-3,
    "ms": 1e-3,
    "second": 1.0,
    "sec": 1.0,
    "s": 1.0,
    "minute": 60.0,
    "min": 60.0,
    "hour": 3600.0,
    "hr": 3600.0,
    "h": 3600.0,
    "day": 86_400.0,
    "d": 86_400.0,
    "week": 604_800.0,
}

CALENDARS = (*STANDARD, "julian", "noleap", "365_day", "360_day", "all_leap", "366_day")

# 1582-10-15, the first day of the Gregorian calendar: before it, `standard` means the Julian one.
_GREGORIAN_START = -12_219_292_800
# 10,000 years: what lies farther from 1970 is damage, and would overflow below.
_FARTHEST = 3.2e11


def unit_seconds(unit: str) -> float | None:
    """Seconds in a unit of time by its CF name, or None where it has no fixed length."""
    name = unit.strip().lower()
    return _UNIT_SECONDS.get(name, _UNIT_SECONDS.get(name.removesuffix("s")))


def decode_times(values: npt.NDArray[np.float64], units: str, calendar: str, where: str) -> tuple[Ints, str]:
    """Seconds since 1970-01-01, rounded to whole ones, and the calendar by which they count.

    Parameters
    ----------
    values
        Times as they stand in the file; NaN where missing.
    units
        CF units, such as `hours since 1900-01-01`.
    calendar
        CF name of the calendar.
    where
        File and variable, said before each mistake.

    Raises
    ------
    UserError
        When times are missing or out of reach, or the unit or the calendar is none of CF's.
    """
    calendar = calendar.strip().lower()
    if calendar not in CALENDARS:
        raise UserError(
            f"{where} has the unknown calendar {calendar!r}; CF knows {', '.join(CALENDARS)}, mend the file"
        )
    unit, _, reference = units.partition(" since ")
    length = unit_seconds(unit)
    if length is None:
        raise UserError(f"{where} cannot be decoded ({units!r} has no unit of a fixed length); mend its units")
    if not np.isfinite(values).all():
        raise UserError(f"{where} has missing values; every frame needs a time, mend the file")
    seconds = _start(reference, calendar, units, where) + np.rint(values * length)
    if len(seconds) and np.abs(seconds).max() > _FARTHEST:
        raise UserError(f"{where} reaches more than 10,000 years from 1970 ({units}); mend the file")
    if calendar in STANDARD:
        if calendar != "proleptic_gregorian" and len(seconds) and seconds.min() < _GREGORIAN_START:
            raise UserError(
                f"{where} begins before 1582-10-15 in the mixed Julian and Gregorian calendar; convert it with "
                "`cdo setcalendar,proleptic_gregorian in.nc out.nc`"
            )
        calendar = "proleptic_gregorian"
    return seconds.astype(np.int64), calendar


def _start(reference: str, calendar: str, units: str, where: str) -> int:
    """The reference date in seconds since 1970-01-01 of the calendar."""
    try:
        date = cftime.num2date(0, f"seconds since {reference}", calendar)
        return int(cftime.date2num(date, Clock(calendar=calendar).units, calendar))
    except (ValueError, OverflowError, TypeError, IndexError) as error:
        reason = str(error).splitlines()[0] if str(error) else "no date"
        raise UserError(f"{where} cannot be decoded ({units!r}: {reason}); mend its units") from None


def check_ascending(time: Ints, where: str, clock: Clock) -> None:
    """Refuse times that do not ascend.

    Raises
    ------
    UserError
        When there are none, one repeats, or one lies before the last.
    """
    if len(time) == 0:
        raise UserError(f"{where} is empty, a time axis needs a time; download the file again")
    if (np.diff(time) <= 0).any():
        position = int(np.argmax(np.diff(time) <= 0)) + 1
        raise UserError(
            f"{where} goes back or repeats at position {position} ({clock.moment(time[position])}); "
            "times must ascend, sort the file or drop the doubled frames"
        )
