"""What is to be fetched: requests as they stand in a file, and the files that follow from them."""

import calendar
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import Field, model_validator

from hyperslab.data.config import Day
from hyperslab.errors import UserError
from hyperslab.settings import Settings, matching, parse, read_yaml

ARCO_URL = "https://storage.googleapis.com/gcp-public-data-arco-era5/ar/full_37-1h-0p25deg-chunk-1.zarr-v3"
"""ERA5 as a Zarr that Google keeps for anyone."""
OPENNEURO_BUCKET = "openneuro.org"

Names = Annotated[list[str], Field(min_length=1)]
Hour = Annotated[int, Field(ge=0, le=23)]


class _Period(Settings):
    start: Day
    """First day."""
    end: Day
    """Last day."""

    @model_validator(mode="after")
    def _in_order(self) -> "_Period":
        if self.end < self.start:
            raise ValueError(f"end: {self.end} lies before start, {self.start}; swap them")
        return self


class CdsRequest(_Period):
    """Fields of the Copernicus Climate Data Store: one request to it for each variable and month."""

    archive: Literal["cds"]
    """Always `cds`."""
    dataset: Annotated[str, matching(r"[A-Za-z0-9_.-]+", "must be letters, digits, dots, dashes and underscores")]
    """Name of the dataset, such as `reanalysis-era5-pressure-levels`."""
    variables: Names
    """Variables by the store's long names, such as `temperature`."""
    levels: list[Annotated[int, Field(gt=0)]] = Field(default=[])
    """Pressure levels, hPa; none for a dataset of single levels."""
    hours: list[Hour] = Field(default=list(range(24)), min_length=1)
    """Hours of the day, UTC."""
    area: Annotated[list[float], Field(min_length=4, max_length=4)] | None = None
    """North, west, south and east edge, degrees; the globe where absent."""
    product_type: str | None = "reanalysis"
    """Kind of product; null for datasets without one."""
    data_format: Literal["netcdf", "grib"] = "netcdf"
    """Format of the files."""

    @model_validator(mode="after")
    def _sound(self) -> "CdsRequest":
        if self.area is not None and not -90 <= self.area[2] < self.area[0] <= 90:
            raise ValueError(f"area: found {self.area}; must be north, west, south, east, with south below north")
        if "pressure-levels" in self.dataset and not self.levels:
            raise ValueError(f"levels: missing; {self.dataset} needs some, such as [500, 850]")
        if "single-levels" in self.dataset and self.levels:
            raise ValueError(f"levels: found {self.levels}; {self.dataset} has none, leave them out")
        return self


class ArcoRequest(_Period):
    """Part of a Zarr that is read over the network, such as ARCO-ERA5: one file for each variable and month."""

    archive: Literal["arco"]
    """Always `arco`."""
    url: str = ARCO_URL
    """URL or path of the Zarr."""
    variables: Names
    """Variables by their names in it."""
    levels: list[float] = Field(default=[])
    """Levels, in its own unit; all of them where empty."""
    hours: list[Hour] = Field(default=list(range(24)), min_length=1)
    """Hours of the day, UTC."""


class OpenneuroRequest(Settings):
    """Files of an OpenNeuro dataset."""

    archive: Literal["openneuro"]
    """Always `openneuro`."""
    dataset: Annotated[str, matching(r"ds\d{6}", "must be ds and six digits, such as ds000030")]
    """Accession number, such as `ds000001`."""
    include: list[str] = Field(default=["*"], min_length=1)
    """Patterns of the paths to take, such as `sub-0[1-4]/*` or `*_bold.nii.gz`."""
    exclude: list[str] = Field(default=[])
    """Patterns of paths to leave out of those."""


class UrlsRequest(Settings):
    """Single files by their URLs."""

    archive: Literal["urls"]
    """Always `urls`."""
    urls: Names
    """URLs that begin with https, http or s3."""


Request = CdsRequest | ArcoRequest | OpenneuroRequest | UrlsRequest
REQUESTS: dict[str, type[CdsRequest | ArcoRequest | OpenneuroRequest | UrlsRequest]] = {
    "cds": CdsRequest,
    "arco": ArcoRequest,
    "openneuro": OpenneuroRequest,
    "urls": UrlsRequest,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One file to be fetched."""

    name: str
    """Its path below the output directory, with slashes."""
    origin: str
    """Where it comes from, without anything secret, for people and the record."""
    size_bytes: int | None = None
    """Its size, where known before."""
    estimate_bytes: int | None = None
    """About how large it will be, where that alone is known."""
    validator: str = ""
    """What changes when the content does: an ETag, or a date of change."""
    details: dict[str, Any] = field(default_factory=dict)
    """What else its archive needs to fetch it."""


def load_request(path: Path) -> Request:
    """The request that a YAML file holds.

    Raises
    ------
    UserError
        One line for each mistake in it.
    """
    content = read_yaml(path)
    archive = content.get("archive")
    if not isinstance(archive, str) or archive not in REQUESTS:
        raise UserError(f"{path}: archive: found {archive!r}; known are {', '.join(REQUESTS)}")
    return parse(REQUESTS[archive], content, str(path))


def cds_items(request: CdsRequest) -> list[Item]:
    """One file, and one request to the store, for each variable and month."""
    suffix = {"netcdf": "nc", "grib": "grib"}[request.data_format]
    return [
        Item(
            name=f"{request.dataset}_{variable}_{days[0]:%Y%m}.{suffix}",
            origin=f"cds:{request.dataset}",
            estimate_bytes=_cds_bytes(request, len(days)),
            details={"dataset": request.dataset, "request": _cds_request(request, variable, days)},
        )
        for variable in request.variables
        for days in months(request.start, request.end)
    ]


def months(start: date, end: date) -> Iterator[list[date]]:
    """The days of a period, month by month."""
    day = start
    while day <= end:
        last = min(end, day.replace(day=calendar.monthrange(day.year, day.month)[1]))
        yield [day + timedelta(n) for n in range((last - day).days + 1)]
        day = last + timedelta(1)


def chosen(names: Iterable[str], include: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """Paths that fit a pattern of `include` and none of `exclude`; a `*` also stands for slashes."""
    return [
        name
        for name in names
        if any(fnmatchcase(name, pattern) for pattern in include)
        and not any(fnmatchcase(name, pattern) for pattern in exclude)
    ]


def safe_name(name: str, origin: str) -> str:
    """`name` itself, if it is a path that stays below the directory it is put in.

    Raises
    ------
    UserError
        When it would lead elsewhere, or is no name that a file can have.
    """
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or re.search(r"[\x00-\x1f\\]", name):
        raise UserError(f"{origin}: the path {name!r} leads out of the output directory, or is none; it is refused")
    if any(part.startswith(".fetch") or part.endswith(".part") for part in parts) or len(name.encode()) > 1000:
        raise UserError(f"{origin}: the path {name!r} cannot be used here: it is kept for downloads, or too long")
    return name


def url_name(url: str) -> str:
    """The name of a file after the last slash of its URL, safe to use.

    Raises
    ------
    UserError
        When the URL is of no known kind, or ends without a name.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "s3") or not parts.netloc:
        raise UserError(f"{shown(url)}: not a URL that can be fetched; it must begin with https://, http:// or s3://")
    name = PurePosixPath(unquote(parts.path)).name
    return safe_name(name or "", shown(url))


def shown(url: str) -> str:
    """A URL without what may be secret in it: user, password, query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def check_names(items: Sequence[Item]) -> None:
    """Refuse files that would overwrite one another.

    Raises
    ------
    UserError
        When a path stands twice, or is a directory of another.
    """
    seen: dict[str, Item] = {}
    for item in items:
        first = seen.setdefault(item.name, item)
        if first is not item:
            raise UserError(f"{item.name}: would come from {first.origin} and from {item.origin}; fetch one of them")
    for item in items:
        for parent in PurePosixPath(item.name).parents:
            if str(parent) in seen:
                raise UserError(f"{item.name}: {parent} is a file of its own; the archive cannot be laid out on a disk")


def _cds_request(request: CdsRequest, variable: str, days: Sequence[date]) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "variable": [variable],
        "year": [f"{days[0]:%Y}"],
        "month": [f"{days[0]:%m}"],
        "day": [f"{day:%d}" for day in days],
        "time": [f"{hour:02d}:00" for hour in request.hours],
        "data_format": request.data_format,
        "download_format": "unarchived",
    }
    if request.product_type is not None:
        asked["product_type"] = [request.product_type]
    if request.levels:
        asked["pressure_level"] = [str(level) for level in request.levels]
    if request.area is not None:
        asked["area"] = request.area
    return asked


def _cds_bytes(request: CdsRequest, num_days: int) -> int:
    """About two bytes a value on ERA5's grid of a quarter of a degree."""
    north, west, south, east = request.area or [90.0, 0.0, -90.0, 359.75]
    columns = round(((east - west) % 360) * 4) + 1
    rows = round((north - south) * 4) + 1
    return 2 * rows * columns * max(1, len(request.levels)) * len(request.hours) * num_days
