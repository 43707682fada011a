"""What a campaign says about its data."""

from datetime import date, datetime
from typing import Literal

from pydantic import Field, field_validator

from hyperslab.settings import Settings


class Period(Settings):
    """A stretch of time; both ends belong to it."""

    start: date | datetime | None = None
    """First moment that is taken; the beginning of the record where absent."""
    end: date | datetime | None = None
    """Last moment that is taken (a date counts to its last second); the end of the record where absent."""


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
    validation: float | date = 0.1
    """Frames held out to watch training: their share of the record, or their first date."""
    test: float | date = 0.1
    """Frames held out for the skill table, the last ones: their share of the record, or their first date."""
    shard_mebibytes: float = Field(default=64, gt=0)
    """Size of a shard before compression; one staging task reads and writes one shard at a time."""

    @field_validator("validation", "test")
    @classmethod
    def _share_or_date(cls, value: float | date) -> float | date:
        if isinstance(value, float | int) and not 0 < value < 1:
            raise ValueError("must be a share between 0 and 1, or a date such as 1990-01-01")
        return value
