"""What a campaign says about its data."""

from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, field_validator, model_validator

from hyperslab.data.sources.era5.config import Era5Settings
from hyperslab.data.sources.fmri.config import FmriSettings
from hyperslab.data.sources.lartpc.config import LartpcSettings
from hyperslab.data.sources.paths import absolute
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
    if isinstance(value, int | float) and 0 <= value < 1:
        return float(value)
    raise ValueError("must be a share between 0 and 1, or a date such as 1990-01-01; 0 holds nothing out")


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

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.start and self.end and self.start > self.end:
            raise ValueError(f"start ({self.start}) must not come after end ({self.end})")
        return self


class DataSettings(Settings):
    """Raw files, what is taken from them, and how they are cut for training."""

    source: Literal["era5", "lartpc", "fmri"] = "era5"
    """Kind of archive: `era5` is fields on a latitude-longitude grid (netCDF, GRIB, Zarr), `lartpc` is hits or images
    of a liquid-argon detector, `fmri` is brain scans or regional time series."""
    files: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    """Paths or glob patterns of the raw files, relative to the campaign file; or URLs."""
    variables: list[str] | None = Field(default=None, min_length=1)
    """Names of the variables to take, as they stand in the files; all of them where absent."""
    levels: list[float] | None = Field(default=None, min_length=1)
    """Levels to take (hPa) of the variables that have any; all of them where absent."""
    period: Period = Period()
    """Part of the record to take."""
    era5: Era5Settings = Era5Settings()
    """Choices that only `era5` files need."""
    lartpc: LartpcSettings = LartpcSettings()
    """Choices that only `lartpc` files need."""
    fmri: FmriSettings = FmriSettings()
    """Choices that only `fmri` files need."""
    validation: ShareOrDate = 0.1
    """Held out to watch training: a share of the frames, events or subjects, or the first date."""
    test: ShareOrDate = 0.1
    """Held out for the skill table, the last ones in time: a share of the frames, events or subjects, or the first
    date."""
    dtype: Literal["float32", "float16", "int16"] = "float32"
    """How values are stored: as they are, as half precision, or as integers with a scale and an offset for each frame
    and channel; the loss is measured and recorded in the store."""
    difference_leads: list[Annotated[int, Field(ge=1)]] = Field(default=[1], min_length=1, max_length=8)
    """Distances in frames over which the standard deviation of the change is measured."""
    shard_mebibytes: float | None = Field(default=None, gt=0)
    """Size of a shard before compression; the site's where absent."""

    @field_validator("variables", "levels", "difference_leads")
    @classmethod
    def _each_once(cls, value: list[Any] | None) -> list[Any] | None:
        if value is not None and len(set(value)) != len(value):
            raise ValueError("must name each one once")
        return value

    @model_validator(mode="after")
    def _of_this_source(self) -> Self:
        for name in ("era5", "lartpc", "fmri"):
            own = getattr(self, name)
            if name != self.source and own != type(own)():
                raise ValueError(f"{name}: is for source {name}, found source {self.source}; leave it out")
        return self

    def located(self, folder: Path) -> "DataSettings":
        """The same settings, with every path taken from a folder.

        Raises
        ------
        UserError
            When a path begins with the home of a user that there is not.
        """
        images = {
            name: absolute(value, folder)
            for name in ("mask", "atlas")
            if (value := getattr(self.fmri, name)) not in (None, "brain")
        }
        files = [absolute(pattern, folder) for pattern in self.files]
        return self.model_copy(update={"files": files, "fmri": self.fmri.model_copy(update=images)})
