"""Which fields a netCDF file or a Zarr store holds, and where in it each one lies."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import xarray as xr

from hyperslab.data.sources.era5.axes import EXPVER, VALID_TIME, Axes, coordinate, find_axes, units_of
from hyperslab.data.sources.era5.grid import Grid, make_grid
from hyperslab.data.sources.era5.header import channel_name, check_names
from hyperslab.data.sources.index import Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One variable, or one level of it."""

    channel: Channel
    level_dim: str | None
    level: int
    """Place along `level_dim`."""
    frame_dims: tuple[str, ...]
    """Dimensions that make frames, outermost first: those of member, time and step that it has."""
    timeless: bool
    """Whether no time goes with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything is in a dataset."""

    axes: Axes
    grid: Grid
    fields: dict[str, Field]
    """By the channel's name."""
    left_out: dict[str, str]
    """Variables that cannot be fields, and why."""


def find_layout(dataset: xr.Dataset, path: str) -> Layout:
    """Where everything is.

    Raises
    ------
    UserError
        When there is no regular grid, or two fields would share a name.
    """
    axes = find_axes(dataset, path)
    grid = make_grid(coordinate(dataset, axes.latitude, path), coordinate(dataset, axes.longitude, path), path)
    levels = {dim: _levels(dataset, dim, path) for dim in axes.levels}
    fields: list[Field] = []
    left_out: dict[str, str] = {}
    known = {axes.time, axes.step, axes.member, axes.latitude, axes.longitude, EXPVER, VALID_TIME, *axes.levels}
    for name, variable in dataset.variables.items():
        if str(name) in known or variable.dims in ((), (name,)):
            continue
        reason = _why_no_field(dataset, variable, axes)
        if reason:
            left_out[str(name)] = reason
        else:
            fields += _fields_of(str(name), variable, axes, levels, _is_timeless(dataset, axes, variable.dims))
    check_names([field.channel for field in fields], path)
    return Layout(axes=axes, grid=grid, fields={field.channel.name: field for field in fields}, left_out=left_out)


def _why_no_field(dataset: xr.Dataset, variable: xr.Variable, axes: Axes) -> str:
    dims = [str(dim) for dim in variable.dims]
    missing = [name for name in (axes.latitude, axes.longitude) if name not in dims]
    if missing:
        return f"it lacks {', '.join(sorted(missing))}"
    if variable.dtype.kind not in "fiu":
        return f"its type {variable.dtype} is no number"
    levels = [dim for dim in dims if dim in axes.levels]
    if len(levels) > 1:
        return f"it has levels of two kinds, {' and '.join(levels)}"
    taken = {axes.latitude, axes.longitude, EXPVER, *axes.frame_dims(tuple(dims)), *levels}
    others = {dim: variable.sizes[dim] for dim in dims if dim not in taken and variable.sizes[dim] > 1}
    if others:
        sizes = ", ".join(f"{dim} ({size})" for dim, size in sorted(others.items()))
        return f"it has the dimension {sizes}, select one place along it beforehand"
    if _is_timeless(dataset, axes, variable.dims) and axes.frame_dims(tuple(dims)):
        return f"it has {', '.join(axes.frame_dims(tuple(dims)))} but no time"
    return ""


def _is_timeless(dataset: xr.Dataset, axes: Axes, dims: tuple[Hashable, ...]) -> bool:
    """Whether no time goes with a variable; one that is no dimension goes with all of them."""
    return axes.time is None or (axes.time in dataset.dims and axes.time not in dims)


def _levels(dataset: xr.Dataset, dim: str, path: str) -> list[float]:
    """Levels along a dimension, those of pressure in hPa."""
    values = coordinate(dataset, dim, path)
    levels: list[float] = (values / 100 if units_of(dataset, dim).lower() == "pa" else values).tolist()
    return levels


def _fields_of(
    name: str, variable: xr.Variable, axes: Axes, levels: dict[str, list[float]], is_timeless: bool
) -> list[Field]:
    dims = tuple(str(dim) for dim in variable.dims)
    level_dim = next((dim for dim in dims if dim in axes.levels), None)
    kind = axes.levels[level_dim] if level_dim else None
    places: Sequence[float | None] = levels[level_dim] if level_dim else [None]
    return [
        Field(
            channel=Channel(
                name=channel_name(name, kind, level),
                variable=name,
                level=level,
                units=str(variable.attrs.get("units", "1")),
                long_name=str(variable.attrs.get("long_name", name)),
                details={"level_kind": kind} if kind else {},
            ),
            level_dim=level_dim,
            level=place,
            frame_dims=axes.frame_dims(dims),
            timeless=is_timeless,
        )
        for place, level in enumerate(places)
    ]


def level_oddities(dataset: xr.Dataset, axes: Axes) -> list[str]:
    """What is done to levels."""
    return [
        f"{dim} is in Pa: levels are named and chosen in hPa"
        for dim in axes.levels
        if units_of(dataset, dim).lower() == "pa"
    ]
