"""Grids of GRIB messages: those that are latitude by longitude, and what to do about the others."""

import sqlite3  # noqa: F401  # before eccodes: see messages.py
from collections.abc import Iterator
from contextlib import contextmanager

import eccodes
import numpy as np

from hyperslab.data.sources.era5.grid import Floats, Grid, make_grid
from hyperslab.errors import UserError

REGULAR = ("regular_ll", "regular_gg")

_CONVERSIONS = {
    "reduced_gg": "a reduced Gaussian grid; fill it up with `cdo setgridtype,regular in.grib out.grib`",
    "reduced_ll": "a reduced latitude-longitude grid; fill it up with `cdo setgridtype,regular in.grib out.grib`",
    "sh": "spherical harmonics; transform them with `cdo sp2gpl in.grib out.grib`",
}


def why_no_grid(grid_type: str) -> str:
    """What a grid that is not regular is, and what to do."""
    return "it is on " + _CONVERSIONS.get(
        grid_type, f"the grid {grid_type}; interpolate it with `cdo remapbil,r360x180 in.grib out.grib`"
    )


@contextmanager
def open_message(content: bytes) -> Iterator[int]:
    """The handle of a whole message."""
    handle = eccodes.codes_new_from_message(content)
    try:
        yield handle
    finally:
        eccodes.codes_release(handle)


def grid_digest(handle: int) -> str:
    """Digest of the description of a message's grid; the two editions describe one grid differently."""
    return str(eccodes.codes_get_string(handle, "md5GridSection"))


def grid_of(handle: int, where: str) -> Grid:
    """The grid of a message.

    Raises
    ------
    UserError
        When its points do not lie in rows and columns.
    """
    latitude = _in_rows(handle, eccodes.codes_get_array(handle, "latitudes"))
    longitude = _in_rows(handle, eccodes.codes_get_array(handle, "longitudes"))
    if np.ptp(latitude, axis=1).any() or np.ptp(longitude, axis=0).any():
        raise UserError(
            f"{where}: its points do not lie in rows and columns; order them with "
            "`grib_set -s alternativeRowScanning=0 in.grib out.grib`, or interpolate the file"
        )
    if eccodes.codes_get_string(handle, "gridType") == "regular_ll":
        for name, values in (("latitudes", latitude[:, 0]), ("longitudes", longitude[0])):
            _check_even(values, name, where)
    return make_grid(latitude[:, 0], longitude[0], where)


def field_of(handle: int) -> Floats:
    """Values of a message, shape (row, column) in the order of the message, missing ones NaN."""
    has_gaps = eccodes.codes_get_long(handle, "bitmapPresent") == 1
    if has_gaps:
        # The usual mark, 9999, is a value that a field may hold.
        missing = float(np.finfo(np.float32).min)
        eccodes.codes_set_double(handle, "missingValue", missing)
    values = np.asarray(eccodes.codes_get_array(handle, "values"), np.float64)
    if has_gaps:
        values[values == missing] = np.nan
    return _in_rows(handle, values)


def _in_rows(handle: int, values: Floats) -> Floats:
    columns, rows = (int(eccodes.codes_get_long(handle, key)) for key in ("Ni", "Nj"))
    if rows < 1 or columns < 1 or rows * columns != len(values):
        raise ValueError(f"{len(values)} values on a grid of {rows} x {columns}")
    if eccodes.codes_get_long(handle, "jPointsAreConsecutive"):
        return values.reshape(columns, rows).T
    return values.reshape(rows, columns)


def _check_even(values: Floats, name: str, where: str) -> None:
    """Refuse a header whose first, last and step contradict one another by more than a cell."""
    turned = np.unwrap(values, period=360) if name == "longitudes" else values
    even = np.linspace(turned[0], turned[-1], len(turned))
    if len(turned) > 2 and np.abs(turned - even).max() > abs(even[1] - even[0]):
        raise UserError(
            f"{where}: its header contradicts itself: {len(values)} {name} from {values[0]:g} to {values[-1]:g} are "
            f"not {abs(values[1] - values[0]):g} degrees apart; mend it with `grib_set -s "
            "iDirectionIncrementInDegrees=...,jDirectionIncrementInDegrees=... in.grib out.grib`"
        )
