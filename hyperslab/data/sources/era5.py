"""ERA5-style netCDF: variables on a regular latitude-longitude grid, a time axis, sometimes levels."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from hyperslab.data.config import DataSettings
from hyperslab.data.frames import Ints, find_segments, moment, seconds
from hyperslab.data.sources.index import Channel, Description, Index, RawFile
from hyperslab.errors import UserError

Floats = npt.NDArray[np.float64]

LATITUDE_UNITS = ("degrees_north", "degree_north", "degrees_n", "degreen", "degree_n", "degreesn")
LONGITUDE_UNITS = ("degrees_east", "degree_east", "degrees_e", "degreee", "degree_e", "degreese")
LEVEL_NAMES = ("pressure_level", "level", "isobaricinhpa", "plev", "lev")
# Float32 coordinates carry rounding noise: 10.6 reads as 10.600000381.
GRID_TOLERANCE_DEGREES = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
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
class _Header:
    """What the header of one file says."""

    path: Path
    grid: _Grid
    time: Ints
    channels: tuple[Channel, ...]
    left_out: dict[str, str]
    """Variables that cannot be frames, and why."""
    oddities: tuple[str, ...]


class Era5:
    """Source of frames from ERA5-style netCDF files."""

    def describe(self, path: Path) -> Description:
        """Say what a file is, what would be taken from it, and what is odd in it."""
        header = _read_header(path)
        segments = find_segments(header.time)
        latitude, longitude = header.grid.latitude, header.grid.longitude
        with _open(path) as dataset:
            sizes = ", ".join(f"{dim} {size}" for dim, size in dataset.sizes.items())
        taken = [
            f"frames: {len(header.time)}, {moment(header.time[0])} to {moment(header.time[-1])}, "
            f"every {segments.cadence}, in {int(segments.ids[-1]) + 1} segment(s)",
            f"grid: {len(latitude)} x {len(longitude)}, latitude {latitude[0]:g} to {latitude[-1]:g}, "
            f"longitude {longitude[0]:g} to {longitude[-1]:g}",
            *(f"channel {c.name}: {c.long_name} [{c.units}]" for c in header.channels),
        ]
        left_out = [f"{name} is left out: {reason}" for name, reason in header.left_out.items()]
        return Description(
            path=str(path),
            kind=f"netCDF, {path.stat().st_size:,} bytes ({sizes})",
            taken=tuple(taken),
            oddities=(*header.oddities, *left_out),
        )

    def scan(self, paths: Sequence[Path], settings: DataSettings) -> Index:
        """Read all headers and say which frame and channel lies where.

        Raises
        ------
        UserError
            When a file cannot be used, files overlap or disagree, or the campaign asks for what no file has.
        """
        with ThreadPoolExecutor(4) as pool:
            headers = list(pool.map(_read_header, paths))
        channels = _choose_channels(headers, settings)
        chosen = [(header, _channels_of(header, channels)) for header in headers]
        used = [(header, own) for header, own in chosen if own]
        _check_grids([header for header, _ in used])
        time = _time_axis(used, settings)
        grid = used[0][0].grid
        oddities = [f"{header.path.name}: {line}" for header, _ in used for line in header.oddities]
        oddities += [f"{header.path.name}: holds nothing that was asked for" for header, own in chosen if not own]
        return Index(
            source="era5",
            time=tuple(time.tolist()),
            channels=tuple(channels),
            latitude=tuple(grid.latitude.tolist()),
            longitude=tuple(grid.longitude.tolist()),
            files=tuple(file for header, own in used if (file := _raw_file(header, own, time)).runs),
            oddities=tuple(oddities),
        )

    def read(self, index: Index, start: int, stop: int, threads: int) -> npt.NDArray[np.float32]:
        """Frames `[start, stop)`, shape (frame, channel, latitude, longitude), north-up and eastward.

        Raises
        ------
        UserError
            When a raw file has changed since the scan, or its data cannot be read.
        """
        block = np.empty((stop - start, *index.shape[1:]), np.float32)
        filled = np.zeros((stop - start, len(index.channels)), bool)
        with dask.config.set(scheduler="threads", num_workers=threads):
            for file in index.files:
                pieces = [_overlap(run, start, stop) for run in file.runs]
                if any(count > 0 for _, _, count in pieces):
                    _read_file(file, index, [p for p in pieces if p[2] > 0], start, block, filled)
        assert filled.all(), "the index covers every frame of every channel"
        return block


def _open(path: Path, chunks: dict[str, int] | None = None) -> xr.Dataset:
    """The decoded dataset in a netCDF file, lazily."""
    try:
        return xr.open_dataset(path, engine="netcdf4", chunks=chunks)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check data.files") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{path}: {_why_unreadable(path, error)}") from None


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


def _read_header(path: Path) -> _Header:
    with _open(path) as dataset:
        grid = _find_grid(dataset, path)
        time = _decode_time(dataset, grid, path)
        channels, left_out = _find_channels(dataset, grid)
        return _Header(
            path=path,
            grid=grid,
            time=time,
            channels=tuple(channels),
            left_out=left_out,
            oddities=tuple(_oddities(dataset, grid, time)),
        )


def _find_grid(dataset: xr.Dataset, path: Path) -> _Grid:
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
    return _Grid(
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


def _north_up(latitude: Floats, path: Path) -> tuple[Ints, Floats]:
    order = np.argsort(-latitude, kind="stable").astype(np.int64)
    if len(np.unique(latitude)) != len(latitude) or np.abs(latitude).max() > 90 + GRID_TOLERANCE_DEGREES:
        raise UserError(f"{path}: latitudes repeat or leave -90..90; the grid must be regular, mend the file")
    return order, latitude[order]


def _eastward(longitude: Floats, path: Path) -> tuple[Ints, Floats]:
    """Columns from west to east: 0..360 round the globe; a region stays whole where it crosses 0 degrees."""
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


def is_global(longitude: Floats) -> bool:
    """Whether evenly spaced, ascending longitudes close the circle."""
    gaps = np.diff(longitude, append=longitude[0] + 360)
    return len(longitude) > 1 and bool(np.ptp(gaps) < GRID_TOLERANCE_DEGREES * len(longitude))


def _decode_time(dataset: xr.Dataset, grid: _Grid, path: Path) -> Ints:
    values = dataset[grid.time_dim].values
    if values.dtype.kind != "M":
        calendar = dataset[grid.time_dim].encoding.get("calendar", "unknown")
        raise UserError(
            f"{path}: {grid.time_dim} uses the calendar {calendar!r}; "
            "frames need the standard (Gregorian) calendar, convert the file"
        )
    if np.isnat(values).any():
        raise UserError(f"{path}: {grid.time_dim} has missing values; every frame needs a time, mend the file")
    time = values.astype("datetime64[s]").astype(np.int64)
    if len(time) == 0:
        raise UserError(f"{path}: the time axis is empty; download the file again")
    if (np.diff(time) <= 0).any():
        where = int(np.argmax(np.diff(time) <= 0)) + 1
        raise UserError(
            f"{path}: {grid.time_dim} goes back or repeats at position {where} ({moment(time[where])}); "
            "times must ascend, sort the file or drop the doubled frames"
        )
    return time


def _find_channels(dataset: xr.Dataset, grid: _Grid) -> tuple[list[Channel], dict[str, str]]:
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
            channels += _channels_of_variable(str(name), variable, grid)
    return channels, left_out


def _channels_of_variable(name: str, variable: xr.DataArray, grid: _Grid) -> Iterable[Channel]:
    levels: list[float | None] = [None]
    if grid.level_dim in variable.dims:
        levels = [float(level) for level in variable[grid.level_dim].values]
    for level in levels:
        yield Channel(
            name=name if level is None else f"{name}_{level:g}",
            variable=name,
            level=level,
            units=str(variable.attrs.get("units", "1")),
            long_name=str(variable.attrs.get("long_name", name)),
        )


def _oddities(dataset: xr.Dataset, grid: _Grid, time: Ints) -> Iterable[str]:
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


def _choose_channels(headers: list[_Header], settings: DataSettings) -> list[Channel]:
    known: dict[str, Channel] = {}
    for header in headers:
        for channel in header.channels:
            first = known.setdefault(channel.name, channel)
            if first.units != channel.units:
                raise UserError(
                    f"{header.path}: {channel.name} is in {channel.units!r}, in other files in {first.units!r}; "
                    "one variable must have one unit, convert the file"
                )
    names = sorted({channel.variable for channel in known.values()})
    left_out = {name: reason for header in headers for name, reason in header.left_out.items()}
    for name in settings.variables or []:
        if name in names:
            continue
        if name in left_out:
            raise UserError(f"data.variables: {name} cannot be taken: {left_out[name]}")
        raise UserError(f"data.variables: unknown variable {name!r}; the files hold {', '.join(names) or 'none'}")
    if not names:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise UserError(f"{headers[0].path}: no variable can be taken ({reasons or 'the file holds none'})")
    levels = sorted({channel.level for channel in known.values() if channel.level is not None})
    for level in settings.levels or []:
        if level not in levels:
            held = ", ".join(f"{value:g}" for value in levels) or "none"
            raise UserError(f"data.levels: unknown level {level:g}; the files hold {held}")
    wanted = settings.variables or names
    return [
        channel
        for variable in wanted
        for channel in known.values()
        if channel.variable == variable
        and (channel.level is None or settings.levels is None or channel.level in settings.levels)
    ]


def _channels_of(header: _Header, channels: list[Channel]) -> list[Channel]:
    names = {channel.name for channel in header.channels}
    return [channel for channel in channels if channel.name in names]


def _check_grids(headers: list[_Header]) -> None:
    first = headers[0]
    for header in headers[1:]:
        for axis in ("latitude", "longitude"):
            own, other = getattr(header.grid, axis), getattr(first.grid, axis)
            if own.shape != other.shape or np.abs(own - other).max() > GRID_TOLERANCE_DEGREES:
                raise UserError(
                    f"{header.path}: its {axis} ({len(own)} values, {own[0]:g} to {own[-1]:g}) differs from that of "
                    f"{first.path} ({len(other)}, {other[0]:g} to {other[-1]:g}); all files need one grid, regrid them"
                )


def _time_axis(used: list[tuple[_Header, list[Channel]]], settings: DataSettings) -> Ints:
    """The common time axis: every channel has every frame exactly once."""
    pieces: dict[str, list[tuple[Ints, Path]]] = {}
    for header, channels in used:
        time = _in_period(header.time, settings)
        for channel in channels:
            pieces.setdefault(channel.name, []).append((time, header.path))
    axes = {name: _join(name, held) for name, held in pieces.items()}
    union = np.unique(np.concatenate(list(axes.values())))
    if len(union) == 0:
        raise UserError(f"data.period: no frame lies in {settings.period.start} to {settings.period.end}; widen it")
    for name, axis in axes.items():
        if len(axis) != len(union):
            lacking = np.setdiff1d(union, axis)
            raise UserError(
                f"data.files: {name} has no frame at {moment(lacking[0])} ({len(lacking)} of {len(union)} frames are "
                "missing) where other variables have one; add its files, or narrow data.period or data.variables"
            )
    return union


def _in_period(time: Ints, settings: DataSettings) -> Ints:
    start, end = settings.period.start, settings.period.end
    keep = np.ones(len(time), bool)
    if start is not None:
        keep &= time >= seconds(start)
    if end is not None:
        keep &= time <= seconds(end, day_end=True)
    return time[keep]


def _join(name: str, held: list[tuple[Ints, Path]]) -> Ints:
    """All times of one channel; none may stand in two files."""
    time = np.concatenate([times for times, _ in held])
    owner = np.concatenate([np.full(len(times), number) for number, (times, _) in enumerate(held)])
    order = np.argsort(time, kind="stable")
    repeated = np.flatnonzero(np.diff(time[order]) == 0)
    if len(repeated):
        first, second = (held[owner[order[repeated[0] + k]]][1] for k in (0, 1))
        raise UserError(
            f"data.files: {first} and {second} overlap: both hold {name} at {moment(time[order[repeated[0]]])} "
            f"({len(repeated)} frames in all); name each frame once"
        )
    return time[order]


def _raw_file(header: _Header, channels: list[Channel], time: Ints) -> RawFile:
    positions = np.flatnonzero(np.isin(header.time, time))
    frames = np.searchsorted(time, header.time[positions])
    breaks = np.flatnonzero((np.diff(positions) != 1) | (np.diff(frames) != 1)) + 1
    runs = [
        (int(p[0]), int(f[0]), len(p))
        for p, f in zip(np.split(positions, breaks), np.split(frames, breaks), strict=True)
        if len(p)
    ]
    state = header.path.stat()
    return RawFile(
        path=str(header.path),
        size_bytes=state.st_size,
        modified_ns=state.st_mtime_ns,
        variables=tuple(dict.fromkeys(channel.variable for channel in channels)),
        runs=tuple(runs),
    )


def _overlap(run: tuple[int, int, int], start: int, stop: int) -> tuple[int, int, int]:
    position, frame, count = run
    first, last = max(frame, start), min(frame + count, stop)
    return position + first - frame, first, last - first


def _read_file(
    file: RawFile,
    index: Index,
    pieces: list[tuple[int, int, int]],
    start: int,
    block: npt.NDArray[np.float32],
    filled: npt.NDArray[np.bool_],
) -> None:
    path = Path(file.path)
    with _open(path, chunks={}) as dataset:
        state = path.stat()
        if (state.st_size, state.st_mtime_ns) != (file.size_bytes, file.modified_ns):
            raise UserError(f"{path}: has changed since it was indexed; start a new campaign for the new data")
        grid = _find_grid(dataset, path)
        numbers = [n for n, channel in enumerate(index.channels) if channel.variable in file.variables]
        fields = [_field(dataset[index.channels[n].variable], index.channels[n], grid) for n in numbers]
        stack = da.stack(fields, axis=1)
        for position, frame, count in pieces:
            try:
                values = stack[position : position + count].compute()
            except (OSError, RuntimeError) as error:
                raise UserError(f"{path}: its data cannot be read ({error}); download it again") from None
            block[frame - start : frame - start + count, numbers] = values
            filled[frame - start : frame - start + count, numbers] = True


def _field(variable: xr.DataArray, channel: Channel, grid: _Grid) -> da.Array:
    """One channel of a file as a lazy array of shape (time, latitude, longitude), north-up and eastward."""
    if channel.level is not None and grid.level_dim is not None:
        level = int(np.flatnonzero(variable[grid.level_dim].values == channel.level)[0])
        variable = variable.isel({grid.level_dim: level})
    kept = (grid.time_dim, grid.latitude_dim, grid.longitude_dim)
    variable = variable.isel({dim: 0 for dim in variable.dims if dim not in kept}).transpose(*kept)
    return variable.data.astype(np.float32)[:, grid.rows][:, :, grid.columns]
