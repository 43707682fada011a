"""What the header of a netCDF file or a Zarr store says."""

from collections.abc import Iterator

import numpy as np
import xarray as xr

from hyperslab.data.clock import Clock
from hyperslab.data.frames import Ints
from hyperslab.data.sources.era5.accumulation import accumulation_line, is_accumulated
from hyperslab.data.sources.era5.axes import coordinate, units_of
from hyperslab.data.sources.era5.expver import frame_versions, is_stacked
from hyperslab.data.sources.era5.header import NO_MEMBER, Contents, Frames, Header
from hyperslab.data.sources.era5.layout import Field, Layout, find_layout, level_oddities
from hyperslab.data.sources.era5.slabs import chunk_bytes, chunk_frames, frame_sizes
from hyperslab.data.sources.era5.time import check_ascending, decode_times, unit_seconds
from hyperslab.errors import UserError


def read_contents(dataset: xr.Dataset, path: str, part: str, kind: str) -> Contents:
    """What the header of a dataset says.

    Parameters
    ----------
    dataset
        As `open_raw` gives it.
    path, part
        The raw file, and the member of it where it is a zip archive.
    kind
        Name of the format.

    Raises
    ------
    UserError
        When it lacks a regular grid, or holds times that cannot be used.
    """
    where = f"{path} ({part})" if part else path
    layout = find_layout(dataset, where)
    if not layout.fields and layout.axes.time is None:
        dims = ", ".join(str(dim) for dim in dataset.dims) or "none"
        raise UserError(
            f"{where}: no time axis (dimensions: {dims}); frames need a dimension with CF time units, "
            "such as `hours since 1970-01-01`"
        )
    sizes = ", ".join(f"{dim} {size}" for dim, size in dataset.sizes.items())
    groups: dict[tuple[tuple[str, ...], bool], list[Field]] = {}
    for field in layout.fields.values():
        groups.setdefault((field.frame_dims, field.timeless), []).append(field)
    headers = []
    for (frame_dims, timeless), fields in groups.items():
        variables = [dataset.variables[name] for name in {field.channel.variable: None for field in fields}]
        clock, frames = (Clock(), None) if timeless else _find_frames(dataset, layout, frame_dims, fields, where)
        headers.append(
            Header(
                path=path,
                part=part,
                grid=layout.grid,
                clock=clock,
                frames=frames,
                channels=tuple(field.channel for field in fields),
                oddities=tuple(_oddities(dataset, layout, fields)),
                chunk_frames=max(chunk_frames(variable, frame_dims) for variable in variables),
                chunk_bytes=max(chunk_bytes(variable) for variable in variables),
            )
        )
    return Contents(path=path, words=f"{kind} ({sizes})", headers=tuple(headers), left_out=layout.left_out)


def _find_frames(
    dataset: xr.Dataset, layout: Layout, frame_dims: tuple[str, ...], fields: list[Field], where: str
) -> tuple[Clock, Frames]:
    axes = layout.axes
    assert axes.time is not None, "fields without a time have no frames"
    # A dimension that these fields lack says nothing of them; a scalar does.
    step_name, member_name = (
        name if name in frame_dims or (name is not None and name not in dataset.dims) else None
        for name in (axes.step, axes.member)
    )
    sizes = frame_sizes(dataset, frame_dims)
    times, clock = _times(dataset, axes.time, where)
    steps = _steps(dataset, step_name, where) if step_name else np.zeros(1, np.int64)
    initial = _spread(times, axes.time, frame_dims, sizes)
    return clock, Frames(
        time=initial + _spread(steps, step_name, frame_dims, sizes),
        initial=initial,
        member=_spread(_members(dataset, member_name, where), member_name, frame_dims, sizes),
        expver=frame_versions(
            dataset,
            list({field.channel.variable: None for field in fields}),
            frame_dims,
            (axes.latitude, axes.longitude),
        ),
    )


def _times(dataset: xr.Dataset, name: str, where: str) -> tuple[Ints, Clock]:
    calendar = str(dataset.variables[name].attrs.get("calendar", "standard"))
    values = np.atleast_1d(coordinate(dataset, name, where))
    time, calendar = decode_times(values, units_of(dataset, name), calendar, f"{where}: {name}")
    clock = Clock(calendar=calendar)
    check_ascending(time, f"{where}: {name}", clock)
    return time, clock


def _steps(dataset: xr.Dataset, name: str, where: str) -> Ints:
    length = unit_seconds(units_of(dataset, name))
    values = np.atleast_1d(coordinate(dataset, name, where)) * (length or 1.0)
    if not np.isfinite(values).all() or np.abs(values).max(initial=0) > 1e12:
        raise UserError(f"{where}: {name} has missing or endless steps; every frame needs a time, mend the file")
    steps = np.rint(values).astype(np.int64)
    check_ascending(steps, f"{where}: {name}", Clock(kind="event"))
    return steps


def _members(dataset: xr.Dataset, name: str | None, where: str) -> Ints:
    """Numbers of the members; their places where the file numbers them by something else."""
    if name is None:
        return np.full(1, NO_MEMBER)
    values = dataset.variables[name].values
    if values.dtype.kind not in "iuf":
        return np.arange(np.size(values))
    numbers = np.atleast_1d(coordinate(dataset, name, where))
    if not np.isfinite(numbers).all() or len(np.unique(numbers)) != len(numbers) or (numbers % 1 != 0).any():
        raise UserError(f"{where}: {name} repeats or skips numbers of members; number each member once")
    return numbers.astype(np.int64)


def _spread(values: Ints, name: str | None, frame_dims: tuple[str, ...], sizes: tuple[int, ...]) -> Ints:
    """Values along one dimension (or one value) at each position of a file."""
    shape = [-1 if dim == name else 1 for dim in frame_dims]
    return np.broadcast_to(values.reshape(shape), sizes).ravel().astype(np.int64)


def _oddities(dataset: xr.Dataset, layout: Layout, fields: list[Field]) -> Iterator[str]:
    yield from layout.grid.oddities()
    yield from level_oddities(dataset, layout.axes)
    variables = {field.channel.variable: dataset.variables[field.channel.variable] for field in fields}
    if any(is_stacked(dataset, variable) for variable in variables.values()):
        yield "ERA5 and ERA5T are stacked along expver: each frame is taken from the one that has data"
    sums = [name for name, v in variables.items() if is_accumulated(name, str(v.attrs.get("units", "")), v.attrs)]
    if sums:
        yield accumulation_line(sums)
    bare = [name for name, variable in variables.items() if "units" not in variable.attrs]
    if bare:
        yield f"{', '.join(bare)} without a unit: taken as 1"
    end = dataset.attrs.get("valid_time_stop")
    if end is not None:
        yield f"its data end at {end} by its own account, while its time axis may go on: set data.period"
