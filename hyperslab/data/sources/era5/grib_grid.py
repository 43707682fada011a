"""Grids of GRIB messages: those that are latitude by longitude, and what to do about the others."""

from collections.abc import Iterator
from contextlib import contextmanager

import eccodes
import numpy as np

from hyperslab.data.sources.era5.grid import Floats, Grid, make_grid
from hyperslab.errors import UserError

REGULAR = ("regular_ll", "regular_gg")

# Far above any real grid: a damaged header may state as many rows as it likes.
_MOST_PLACES = 100_000

# Edition 1 rounds to thousandths of a degree.
_ROUNDING_DEGREES = 2e-3

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
    """The grid of a message, by the ends and sizes that its header states.

    eccodes offers the coordinates of every point, but ends the process over some headers that contradict themselves.

    Raises
    ------
    UserError
        When the header contradicts itself, or points run to and fro.
    """
    number, degrees = eccodes.codes_get_long, eccodes.codes_get_double
    if number(handle, "alternativeRowScanning"):
        raise UserError(
            f"{where}: its rows run to and fro (alternativeRowScanning); interpolate the file, with "
            "`cdo remapbil,r360x180 in.grib out.grib`"
        )
    rows, columns = number(handle, "Nj"), number(handle, "Ni")
    if not (0 < rows <= _MOST_PLACES and 0 < columns <= _MOST_PLACES):
        raise UserError(f"{where}: its header states {rows} rows and {columns} columns; download it again")
    first, last = (degrees(handle, f"latitudeOf{end}GridPointInDegrees") for end in ("First", "Last"))
    west, east = (degrees(handle, f"longitudeOf{end}GridPointInDegrees") for end in ("First", "Last"))
    turn = (east - west) % 360 if not number(handle, "iScansNegatively") else -((west - east) % 360)
    longitude = np.linspace(west, west + turn, columns)
    if eccodes.codes_get_string(handle, "gridType") == "regular_gg":
        latitude = _gaussian_latitudes(number(handle, "N"), rows, first, last, where)
    else:
        latitude = np.linspace(first, last, rows)
        _check_step(latitude, _step(handle, "jDirectionIncrementInDegrees"), "latitudes", where)
    _check_step(longitude, _step(handle, "iDirectionIncrementInDegrees"), "longitudes", where)
    return make_grid(latitude, longitude, where)


def _gaussian_latitudes(half: int, rows: int, first: float, last: float, where: str) -> Floats:
    """The latitudes of a Gaussian grid of `half` rows between a pole and the equator, from the first to the last."""
    if not rows <= 2 * half <= _MOST_PLACES:
        raise UserError(f"{where}: its header states {rows} rows of a Gaussian grid of {2 * half}; download it again")
    latitudes = np.asarray(list(eccodes.codes_get_gaussian_latitudes(half)), np.float64)
    start = int(np.abs(latitudes - first).argmin())
    places = start + np.arange(rows) * (1 if last <= first else -1)
    ends = latitudes[places[[0, -1]].clip(0, 2 * half - 1)]
    if places.min() < 0 or places.max() >= 2 * half or np.abs(ends - [first, last]).max() > _ROUNDING_DEGREES:
        raise UserError(
            f"{where}: its header contradicts itself: {rows} rows of a Gaussian grid of {2 * half} do not reach from "
            f"latitude {first:g} to {last:g}; download it again"
        )
    return latitudes[places]


def _step(handle: int, key: str) -> float | None:
    """Degrees from one point to the next, or None where the header leaves them out."""
    if not eccodes.codes_get_long(handle, "ijDirectionIncrementGiven"):
        return None
    return float(eccodes.codes_get_double(handle, key))


def _check_step(values: Floats, step: float | None, name: str, where: str) -> None:
    """Refuse a header whose first, last and step contradict one another by more than a cell."""
    span = abs(float(values[-1] - values[0]))
    if len(values) > 1 and step is not None and abs(step * (len(values) - 1) - span) > max(step, span / len(values)):
        raise UserError(
            f"{where}: its header contradicts itself: {len(values)} {name} from {values[0]:g} to {values[-1]:g} are "
            f"not {step:g} degrees apart; mend it with `grib_set -s "
            "iDirectionIncrementInDegrees=...,jDirectionIncrementInDegrees=... in.grib out.grib`"
        )


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
