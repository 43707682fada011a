"""The header of one netCDF file: which dimension is which, its times, and what can be a channel."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xarray as xr

from hyperslab.data.frames import Ints, find_segments, moment
from hyperslab.data.grid import GRID_TOLERANCE_DEGREES, is_global
from hyperslab.data.sources.era5.classic import classic_size
from hyperslab.data.sources.index import Channel
from hyperslab.errors import UserError

Floats = npt.NDArray[np.float64]

LATITUDE_UNITS = ("degrees_north", "degree_north", "degrees_n", "degreen", "degree_n", "degreesn")
LONGITUDE_UNITS = ("degrees_east", "degree_east", "degrees_e", "degreee", "degree_e", "degreese")
LEVEL_NAMES = ("pressure_level", "level", "isobaricinhpa", "plev", "lev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Which dimension is which in one file, and how its rows and columns are turned to north-up and eastward."""

    time_dim: str
    latitude_dim: str
    longitude_dim: str
    level_dim: str | None
    rows: Ints
    columns: Ints
    latitude: Floats
    longitude: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the header of one file says."""

    path: Path
    grid: Grid
    time: Ints
    channels: tuple[Channel, ...]
    left_out: dict[str, str]
    """Variables that cannot be frames, and why."""
    oddities: tuple[str, ...]


def open_dataset(path: Path, chunks: dict[str, int] | None = None) -> xr.Dataset:
    """The decoded dataset in a netCDF file, lazily."""
    try:
        _check_length(path)
        return xr.open_dataset(path, engine="netcdf4", chunks=chunks)
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check data.files") from None
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path}: {_why_unreadable(path, error)}") from None
    except (ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: cannot be decoded ({reason}); mend the units of its time axis") from None


def _check_length(path: Path) -> None:
    """Refuse a classic file that was cut short: the library would read what is lacking as zeros."""
    try:
        promised = classic_size(path)
    except EOFError:
        raise UserError(f"{path}: its header is cut short; download it again") from None
    found = path.stat().st_size
    if promised is not None and found < promised:
        raise UserError(f"{path}: is cut short: {found:,} bytes of {promised:,}; download it again")


def _why_unreadable(path: Path, error: Exception) -> str:
    if path.is_dir():
        return "is a directory; name the netCDF files in it, such as dir/*.nc"
    try:
        with path.open("rb") as file:
            magic = file.read(8)
    except OSError as problem:
        return f"cannot be read: {problem.strerror}; check its permissions"
    if not magic:
        return "is empty (0 bytes); download it again"
    if magic.startswith(b"GRIB"):
        return "is GRIB, not netCDF; convert it with `grib_to_netcdf`, or download it as netCDF"
    if magic.startswith(b"PK"):
        return "is a zip archive, not netCDF; unzip it and name the netCDF files inside"
    if magic.startswith((b"CDF", b"\x89HDF")):
        return f"starts as netCDF but cannot be read, it may be cut short ({error}); download it again"
    return f"is not netCDF (it starts with {magic!r}); name netCDF files in data.files"


def read_header(path: Path) -> Header:
    """What the header of a file says.

    Raises
    ------
    UserError
        When the file cannot be read, or lacks a time axis or a regular grid.
    """
    with open_dataset(path) as dataset:
        grid = find_grid(dataset, path)
        time = _decode_time(dataset, grid, path)
        channels, left_out = _find_channels(dataset, grid, path)
        return Header(
            path=path,
            grid=grid,
            time=time,
            channels=tuple(channels),
            left_out=left_out,
            oddities=tuple(_oddities(dataset, grid, time)),
        )


def find_grid(dataset: xr.Dataset, path: Path) -> Grid:
    """Which dimension is time, latitude, longitude and level.

    Raises
    ------
    UserError
        When one of the first three is missing or not regular.
    """
    time_dim = _find_dim(dataset, _is_time)
    if time_dim is None:
        dims = ", ".join(str(dim) for dim in dataset.dims) or "none"
        raise UserError(
            f"{path}: no time axis (dimensions: {dims}); frames need a dimension with CF time units, "
            "such as `hours since 1970-01-01`"
        )
    latitude_dim = _find_dim(dataset, lambda c: _has_units(c, LATITUDE_UNITS, ("latitude", "lat")))
    longitude_dim = _find_dim(dataset, lambda c: _has_units(c, LONGITUDE_UNITS, ("longitude", "lon")))
    if latitude_dim is None or longitude_dim is None:
        raise UserError(
            f"{path}: no regular latitude-longitude grid (dimensions: {', '.join(map(str, dataset.dims))}); "
            "regrid the file to one-dimensional latitude and longitude"
        )
    rows, latitude = _north_up(np.asarray(dataset[latitude_dim].values, np.float64), path)
    columns, longitude = _eastward(np.asarray(dataset[longitude_dim].values, np.float64), path)
    return Grid(
        time_dim=time_dim,
        latitude_dim=latitude_dim,
        longitude_dim=longitude_dim,
        level_dim=_find_dim(dataset, lambda c: str(c.name).lower() in LEVEL_NAMES),
        rows=rows,
        columns=columns,
        latitude=latitude,
        longitude=longitude,
    )


def _find_dim(dataset: xr.Dataset, matches: Callable[[xr.DataArray], bool]) -> str | None:
    for dim in dataset.dims:
        if dim in dataset.variables and matches(dataset[dim]):
            return str(dim)
    return None


def _is_time(coordinate: xr.DataArray) -> bool:
    return coordinate.dtype.kind == "M" or " since " in str(coordinate.encoding.get("units", ""))


def _has_units(coordinate: xr.DataArray, units: tuple[str, ...], names: tuple[str, ...]) -> bool:
    return (
        str(coordinate.attrs.get("units", "")).lower() in units
        or str(coordinate.attrs.get("standard_name", "")).lower() in names
        or str(coordinate.name).lower() in names
    )


def _check_coordinates(values: Floats, name: str, path: Path) -> None:
    if len(values) == 0 or not np.isfinite(values).all():
        found = "none" if len(values) == 0 else "missing ones among them"
        raise UserError(f"{path}: needs {name}, found {found}; mend the file")


def _north_up(latitude: Floats, path: Path) -> tuple[Ints, Floats]:
    _check_coordinates(latitude, "latitudes", path)
    order = np.argsort(-latitude, kind="stable").astype(np.int64)
    if len(np.unique(latitude)) != len(latitude) or np.abs(latitude).max() > 90 + GRID_TOLERANCE_DEGREES:
        raise UserError(f"{path}: latitudes repeat or leave -90..90; the grid must be regular, mend the file")
    return order, latitude[order]


def _eastward(longitude: Floats, path: Path) -> tuple[Ints, Floats]:
    """Columns from west to east: 0..360 round the globe; a region stays whole where it crosses 0 degrees."""
    _check_coordinates(longitude, "longitudes", path)
    turned = np.round(longitude % 360, 9) % 360
    order = np.argsort(turned, kind="stable").astype(np.int64)
    turned = turned[order]
    gaps = np.diff(turned, append=turned[0] + 360)
    if len(turned) > 1 and gaps.min() < GRID_TOLERANCE_DEGREES:
        raise UserError(f"{path}: longitudes repeat on the circle (such as 0 and 360); drop the doubled column")
    start = int(np.argmax(gaps)) + 1
    if start < len(turned) and not is_global(turned):
        order, turned = np.roll(order, -start), np.roll(turned, -start)
        turned = np.where(turned >= turned[0], turned - 360, turned)
    return order, turned


def _decode_time(dataset: xr.Dataset, grid: Grid, path: Path) -> Ints:
    values = dataset[grid.time_dim].values
    if values.dtype.kind != "M":
        calendar = dataset[grid.time_dim].encoding.get("calendar", "unknown")
        raise UserError(
            f"{path}: {grid.time_dim} uses the calendar {calendar!r}; "
            "frames need the standard (Gregorian) calendar, convert the file"
        )
    if np.isnat(values).any():
        raise UserError(f"{path}: {grid.time_dim} has missing values; every frame needs a time, mend the file")
    # Hours given as fractions of a day miss the second by a rounding error.
    time = (values.astype("datetime64[ms]") + np.timedelta64(500, "ms")).astype("datetime64[s]").astype(np.int64)
    if len(time) == 0:
        raise UserError(f"{path}: the time axis is empty; download the file again")
    if (np.diff(time) <= 0).any():
        where = int(np.argmax(np.diff(time) <= 0)) + 1
        raise UserError(
            f"{path}: {grid.time_dim} goes back or repeats at position {where} ({moment(time[where])}); "
            "times must ascend, sort the file or drop the doubled frames"
        )
    return time


def _find_channels(dataset: xr.Dataset, grid: Grid, path: Path) -> tuple[list[Channel], dict[str, str]]:
    channels: list[Channel] = []
    left_out: dict[str, str] = {}
    needed = {grid.time_dim, grid.latitude_dim, grid.longitude_dim}
    for name, variable in dataset.data_vars.items():
        others = {str(d) for d in variable.dims if d not in needed and variable.sizes[d] > 1} - {grid.level_dim}
        if not needed <= set(variable.dims):
            missing = ", ".join(sorted(needed - set(map(str, variable.dims))))
            left_out[str(name)] = f"it lacks {missing}"
        elif others:
            sizes = ", ".join(f"{dim} ({variable.sizes[dim]})" for dim in sorted(others))
            left_out[str(name)] = f"it has the dimension {sizes}, select one member of it beforehand"
        elif variable.dtype.kind not in "fiu":
            left_out[str(name)] = f"its type {variable.dtype} is no number"
        else:
            channels += _channels_of_variable(str(name), variable, grid, path)
    return channels, left_out


def _channels_of_variable(name: str, variable: xr.DataArray, grid: Grid, path: Path) -> Iterable[Channel]:
    levels: list[float | None] = [None]
    if grid.level_dim in variable.dims:
        levels = [float(level) for level in variable[grid.level_dim].values]
    if len(set(levels)) != len(levels):
        raise UserError(f"{path}: {name} has a level twice ({levels}); keep each level once")
    for level in levels:
        yield Channel(
            name=name if level is None else f"{name}_{level:g}",
            variable=name,
            level=level,
            units=str(variable.attrs.get("units", "1")),
            long_name=str(variable.attrs.get("long_name", name)),
        )


def _oddities(dataset: xr.Dataset, grid: Grid, time: Ints) -> Iterable[str]:
    if "expver" in dataset.variables:
        versions = sorted({str(value) for value in np.ravel(dataset["expver"].values)})
        if versions != ["0001"] and versions != ["1"]:
            yield f"experiment version {', '.join(versions)}: 0005 is preliminary ERA5T"
    segments = find_segments(time)
    if segments.ids[-1] > 0:
        where = moment(time[int(np.argmax(segments.ids > 0))])
        yield f"time has {segments.ids[-1]} gap(s), the first before {where}: no window reaches over a gap"
    if (np.diff(grid.rows) < 0).any():
        yield "latitude ascends: stored north-up"
    if (np.diff(grid.columns) != 1).any():
        yield "longitude is turned: stored eastward from the westernmost column, within 0..360 where global"
    if segments.step_seconds == 0:
        yield "a single frame: alone it makes no window"
