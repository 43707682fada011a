"""Latitude-longitude grids: turned north-up and eastward, and compared between files."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperslab.data.frames import Ints
from hyperslab.data.grid import GRID_TOLERANCE_DEGREES, is_global
from hyperslab.errors import UserError

Floats = npt.NDArray[np.float64]

Write = Callable[[npt.NDArray[Any], npt.NDArray[np.float32]], None]

Stretches = tuple[tuple[slice, slice], ...]
"""Where each unbroken stretch of a turned axis lies in the file, and in the store; a reversed axis is one."""


def copy(values: npt.NDArray[Any], out: npt.NDArray[np.float32]) -> None:
    """Write values as float32."""
    np.copyto(out, values, casting="same_kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The grid of a file as it is stored, north-up and eastward, and which row and column of the file is where."""

    latitude: Floats
    longitude: Floats
    rows: Ints
    """Row of the file that each stored row is; shape (latitude,)."""
    columns: Ints
    """Column of the file that each stored column is; shape (longitude,)."""
    row_stretches: Stretches
    column_stretches: Stretches

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.latitude), len(self.longitude)

    def turn(self, field: npt.NDArray[Any], out: npt.NDArray[np.float32], write: Write = copy) -> None:
        """Write a field of the file into its place in the store, stretch by stretch.

        Parameters
        ----------
        field
            Shape (..., row, column), as the file has them.
        out
            Shape (..., latitude, longitude).
        write
            Called with each part of the field and the part of `out` that it goes to; a plain copy where absent.
        """
        for rows, to_rows in self.row_stretches:
            for columns, to_columns in self.column_stretches:
                write(field[..., rows, columns], out[..., to_rows, to_columns])

    def oddities(self) -> Iterable[str]:
        """What was turned."""
        if (np.diff(self.rows) < 0).any():
            yield "latitude ascends: stored north-up"
        if (np.diff(self.columns) != 1).any():
            yield "longitude is turned: stored eastward from the westernmost column, within 0..360 where global"

    def words(self) -> str:
        """Size and extent."""
        latitude, longitude = self.latitude, self.longitude
        return (
            f"{len(latitude)} x {len(longitude)}, latitude {latitude[0]:g} to {latitude[-1]:g}, "
            f"longitude {longitude[0]:g} to {longitude[-1]:g}"
        )


def make_grid(latitude: Floats, longitude: Floats, path: str) -> Grid:
    """The grid of these coordinates, in whatever order they are.

    Raises
    ------
    UserError
        When coordinates repeat, are missing or leave the sphere, or there is just one point.
    """
    rows, north_up = _north_up(latitude, path)
    columns, eastward = _eastward(longitude, path)
    if len(rows) == len(columns) == 1:
        raise UserError(
            f"{path}: holds a single grid point (latitude {latitude[0]:g}, longitude {longitude[0]:g}); a frame is a "
            "field, name files of a region or of the globe in data.files"
        )
    return Grid(
        latitude=north_up,
        longitude=eastward,
        rows=rows,
        columns=columns,
        row_stretches=tuple(_stretches(rows)),
        column_stretches=tuple(_stretches(columns)),
    )


def is_same(grid: Grid, other: Grid) -> bool:
    """Whether two grids are one but for the rounding of float32."""
    return not any(_differs(grid, other, axis) for axis in ("latitude", "longitude"))


def check_same(grid: Grid, path: str, first: Grid, first_path: str) -> None:
    """Refuse a second grid.

    Raises
    ------
    UserError
        When the two differ by more than the rounding of float32.
    """
    for axis in ("latitude", "longitude"):
        if _differs(grid, first, axis):
            own, other = getattr(grid, axis), getattr(first, axis)
            raise UserError(
                f"{path}: its {axis} ({len(own)} values, {own[0]:g} to {own[-1]:g}) differs from that of "
                f"{first_path} ({len(other)}, {other[0]:g} to {other[-1]:g}); all files need one grid, regrid them"
            )


def _differs(grid: Grid, other: Grid, axis: str) -> bool:
    own, known = getattr(grid, axis), getattr(other, axis)
    return own.shape != known.shape or bool(np.abs(own - known).max() > GRID_TOLERANCE_DEGREES)


def _stretches(order: Ints) -> Iterable[tuple[slice, slice]]:
    if len(order) > 1 and (np.diff(order) == -1).all():
        last = int(order[-1])
        yield slice(int(order[0]), last - 1 if last else None, -1), slice(0, len(order))
        return
    breaks = np.flatnonzero(np.diff(order) != 1) + 1
    for places in np.split(np.arange(len(order)), breaks):
        first = int(order[places[0]])
        yield slice(first, first + len(places)), slice(int(places[0]), int(places[-1]) + 1)


def _check_coordinates(values: Floats, name: str, path: str) -> None:
    if len(values) == 0 or not np.isfinite(values).all():
        found = "none" if len(values) == 0 else "missing ones among them"
        raise UserError(f"{path}: needs {name}, found {found}; mend the file")


def _north_up(latitude: Floats, path: str) -> tuple[Ints, Floats]:
    _check_coordinates(latitude, "latitudes", path)
    order = np.argsort(-latitude, kind="stable").astype(np.int64)
    if len(np.unique(latitude)) != len(latitude) or np.abs(latitude).max() > 90 + GRID_TOLERANCE_DEGREES:
        raise UserError(f"{path}: latitudes repeat or leave -90..90; the grid must be regular, mend the file")
    return order, latitude[order]


def _eastward(longitude: Floats, path: str) -> tuple[Ints, Floats]:
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
