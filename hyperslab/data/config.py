"""What a campaign says about its data."""

from datetime import date, datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, field_validator

from hyperslab.settings import Settings


def _no_number(value: object) -> object:
    if isinstance(value, int | float):
        raise ValueError("must be a date such as 1990-01-01")
    return value


def _share_or_date(value: object) -> float | date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    if isinstance(value, int | float) and 0 < value < 1:
        return float(value)
    raise ValueError("must be a share between 0 and 1, or a date such as 1990-01-01")


# Pydantic alone would read a number as seconds since 1970: `1990` as 00:33 of that year's first day.
Day = Annotated[date, BeforeValidator(_no_number)]
ShareOrDate = Annotated[
    float | date,
    PlainValidator(_share_or_date),
    PlainSerializer(lambda value: value.isoformat() if isinstance(value, date) else value, when_used="json"),
]


class Period(Settings):
    """A stretch of time; both ends belong to it."""

    start: Day | None = None
    """First day that is taken; the beginning of the record where absent."""
    end: Day | None = None
    """Last day that is taken, to its last second; the end of the record where absent."""


class DataSettings(Settings):
    """Raw files, what is taken from them, and how they are cut for training."""

    source: Literal["era5"] = "era5"
    """Kind of archive: `era5` is netCDF on a regular latitude-longitude grid."""
    files: list[str] = Field(min_length=1)
    """Paths or glob patterns of the raw files, relative to the campaign file."""
    variables: list[str] | None = None
    """Names of the variables to take, as they stand in the files; all of them where absent."""
    levels: list[float] | None = None
    """Levels to take (hPa) of the variables that have any; all of them where absent."""
    period: Period = Period()
    """Part of the record to take."""
    validation: ShareOrDate = 0.1
    """Frames held out to watch training: their share of the record, or their first date."""
    test: ShareOrDate = 0.1
    """Frames held out for the skill table, the last ones: their share of the record, or their first date."""
    shard_mebibytes: float = Field(default=64, gt=0)
    """Size of a shard before compression; one staging task reads and writes one shard at a time."""

    @field_validator("variables", "levels")
    @classmethod
    def _each_once(cls, value: list[str] | list[float] | None) -> list[str] | list[float] | None:
        if value is not None and len(set(value)) != len(value):
            raise ValueError("must name each one once")
        return value
