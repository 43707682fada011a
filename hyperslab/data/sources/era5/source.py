"""ERA5-style netCDF: variables on a regular latitude-longitude grid, a time axis, sometimes levels."""

from collections.abc import Sequence
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from hyperslab.data.config import DataSettings
from hyperslab.data.frames import Ints, find_segments, moment, seconds
from hyperslab.data.grid import GRID_TOLERANCE_DEGREES
from hyperslab.data.sources.era5.header import Grid, Header, find_grid, open_dataset, read_header
from hyperslab.data.sources.index import Channel, Description, Index, RawFile
from hyperslab.errors import UserError


class Era5:
    """Source of frames from ERA5-style netCDF files."""

    def describe(self, path: Path) -> Description:
        """Say what a file is, what would be taken from it, and what is odd in it."""
        header = read_header(path)
        segments = find_segments(header.time)
        latitude, longitude = header.grid.latitude, header.grid.longitude
        with open_dataset(path) as dataset:
            sizes = ", ".join(f"{dim} {size}" for dim, size in dataset.sizes.items())
        taken = [
            f"frames: {len(header.time)}, {moment(header.time[0])} to {moment(header.time[-1])}, "
            + (f"every {segments.cadence}, in {int(segments.ids[-1]) + 1} segment(s)" if len(header.time) > 1 else ""),
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
        # One after another: the netCDF library crashes when two threads open files at a time.
        headers = [read_header(path) for path in paths]
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


SOURCE = Era5()


def _choose_channels(headers: list[Header], settings: DataSettings) -> list[Channel]:
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


def _channels_of(header: Header, channels: list[Channel]) -> list[Channel]:
    names = {channel.name for channel in header.channels}
    return [channel for channel in channels if channel.name in names]


def _check_grids(headers: list[Header]) -> None:
    first = headers[0]
    for header in headers[1:]:
        for axis in ("latitude", "longitude"):
            own, other = getattr(header.grid, axis), getattr(first.grid, axis)
            if own.shape != other.shape or np.abs(own - other).max() > GRID_TOLERANCE_DEGREES:
                raise UserError(
                    f"{header.path}: its {axis} ({len(own)} values, {own[0]:g} to {own[-1]:g}) differs from that of "
                    f"{first.path} ({len(other)}, {other[0]:g} to {other[-1]:g}); all files need one grid, regrid them"
                )


def _time_axis(used: list[tuple[Header, list[Channel]]], settings: DataSettings) -> Ints:
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


def _raw_file(header: Header, channels: list[Channel], time: Ints) -> RawFile:
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
        channels=tuple(channel.name for channel in channels),
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
    with open_dataset(path, chunks={}) as dataset:
        state = path.stat()
        if (state.st_size, state.st_mtime_ns) != (file.size_bytes, file.modified_ns):
            raise UserError(f"{path}: has changed since it was indexed; start a new campaign for the new data")
        grid = find_grid(dataset, path)
        numbers = [n for n, channel in enumerate(index.channels) if channel.name in file.channels]
        fields = [_field(dataset[index.channels[n].variable], index.channels[n], grid) for n in numbers]
        stack = da.stack(fields, axis=1)
        for position, frame, count in pieces:
            try:
                values = stack[position : position + count].compute()
            except (OSError, RuntimeError) as error:
                raise UserError(f"{path}: its data cannot be read ({error}); download it again") from None
            block[frame - start : frame - start + count, numbers] = values
            filled[frame - start : frame - start + count, numbers] = True


def _field(variable: xr.DataArray, channel: Channel, grid: Grid) -> da.Array:
    """One channel of a file as a lazy array of shape (time, latitude, longitude), north-up and eastward."""
    if channel.level is not None and grid.level_dim is not None:
        level = int(np.flatnonzero(variable[grid.level_dim].values == channel.level)[0])
        variable = variable.isel({grid.level_dim: level})
    kept = (grid.time_dim, grid.latitude_dim, grid.longitude_dim)
    variable = variable.isel({dim: 0 for dim in variable.dims if dim not in kept}).transpose(*kept)
    return variable.data.astype(np.float32)[:, grid.rows][:, :, grid.columns]
