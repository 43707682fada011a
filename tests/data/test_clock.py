from datetime import date

import numpy as np
import pytest

from hyperslab.data.clock import DAY_SECONDS, Clock


def test_a_date_begins_with_its_first_second_and_ends_with_its_last() -> None:
    # 1970-01-02 begins one day after the epoch.
    assert Clock().seconds(date(1970, 1, 2)) == DAY_SECONDS
    assert Clock().seconds(date(1970, 1, 2), day_end=True) == 2 * DAY_SECONDS - 1


def test_moments_before_1970_are_negative() -> None:
    assert Clock().seconds(date(1969, 12, 31)) == -DAY_SECONDS


def test_a_frames_time_is_said_to_the_minute() -> None:
    # 1982-01-16 is day 4398 since 1970: 12 years of 365 days, 3 leap days (1972, 1976, 1980) and 15 days.
    assert Clock().moment(4398 * DAY_SECONDS + 20 * 3600) == "1982-01-16T20:00"


def test_a_calendar_counts_its_own_days() -> None:
    # In a year of 12 months of 30 days, 1971-02-30 is 360 + 30 + 29 days after 1970-01-01.
    clock = Clock(calendar="360_day")
    assert clock.moment((360 + 59) * DAY_SECONDS) == "1971-02-30T00:00"
    assert clock.seconds(date(1971, 3, 1)) == (360 + 60) * DAY_SECONDS
    assert clock.months(np.asarray([0, 59 * DAY_SECONDS, 360 * DAY_SECONDS])).tolist() == [0, 1, 12]
    assert clock.year_days == 360


def test_a_31st_is_the_30th_where_months_have_30_days() -> None:
    assert Clock(calendar="360_day").seconds(date(1970, 1, 31)) == 29 * DAY_SECONDS


def test_a_calendar_without_leap_years_has_no_29th_of_february() -> None:
    # 1972-02-28 is 2 x 365 + 31 + 27 days after 1970-01-01.
    assert Clock(calendar="noleap").seconds(date(1972, 2, 29)) == (2 * 365 + 58) * DAY_SECONDS


@pytest.mark.parametrize(
    ("kind", "time", "words"), [("elapsed", 1_350_000, "1.35 s"), ("elapsed", 0, "0 s"), ("event", 7, "event 7")]
)
def test_time_without_a_calendar_is_said_as_what_it_is(kind: str, time: int, words: str) -> None:
    assert Clock(kind=kind).moment(time) == words  # type: ignore[arg-type]
