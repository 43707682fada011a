"""What the time of a frame counts: seconds of a calendar, a scan's own time, or events."""

from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import cftime
import numpy as np
import numpy.typing as npt

DAY_SECONDS = 86_400
STANDARD = ("standard", "gregorian", "proleptic_gregorian")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """What the time of a frame counts."""

    kind: Literal["calendar", "elapsed", "event"] = "calendar"
    """`calendar`: seconds since 1970-01-01 in a calendar. `elapsed`: microseconds since the segment began.
    `event`: the number of the event, without a unit."""
    calendar: str = "proleptic_gregorian"
    """CF name of the calendar, where time is of one."""

    @property
    def units(self) -> str:
        """CF units of `time`."""
        return {"calendar": "seconds since 1970-01-01", "elapsed": "microseconds", "event": "1"}[self.kind]

    @property
    def ticks_per_second(self) -> int:
        """Counts of `time` in a second."""
        return 1_000_000 if self.kind == "elapsed" else 1

    @property
    def is_standard(self) -> bool:
        """Whether time is of the calendar that people use."""
        return self.kind == "calendar" and self.calendar in STANDARD

    @property
    def year_days(self) -> float:
        """Days of a mean year."""
        return {"360_day": 360.0, "noleap": 365.0, "365_day": 365.0, "all_leap": 366.0, "366_day": 366.0}.get(
            self.calendar, 365.2425
        )

    def moment(self, time: int | np.integer[Any]) -> str:
        """A frame's time in words, such as `1982-01-16T20:00`, `12.6 s` or `event 7`."""
        if self.kind == "event":
            return f"event {int(time)}"
        if self.kind == "elapsed":
            return f"{int(time) / self.ticks_per_second:g} s"
        if self.is_standard:
            return str(np.datetime64(int(time), "s").astype("datetime64[m]"))
        return str(cftime.num2date(int(time), self.units, self.calendar).strftime("%Y-%m-%dT%H:%M"))

    def months(self, time: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Calendar months since 1970-01 of each time; for a clock of a calendar."""
        if self.is_standard:
            return time.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64)
        dates = cftime.num2date(time, self.units, self.calendar)
        return np.asarray([(date.year - 1970) * 12 + date.month - 1 for date in np.atleast_1d(dates)], np.int64)

    def seconds(self, day: date, *, day_end: bool = False) -> int:
        """Time of a day's first second, or of its last; the 31st is the 30th in a calendar that has no such day."""
        for number in range(day.day, 0, -1):
            try:
                start = cftime.datetime(day.year, day.month, number, calendar=self.calendar)
            except ValueError:
                continue
            return int(cftime.date2num(start, self.units)) + (DAY_SECONDS - 1 if day_end else 0)
        raise AssertionError("every month has a first day")
