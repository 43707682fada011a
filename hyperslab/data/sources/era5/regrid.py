"""Fields on a coarser grid, by the library xarray-regrid."""

from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from hyperslab.data.grid import GRID_TOLERANCE_DEGREES, is_global
from hyperslab.data.sources.era5.config import Regrid
from hyperslab.data.sources.era5.grid import Floats, Grid
from hyperslab.errors import UserError

# A cell of which more than half is missing is missing: coasts neither grow nor shrink.
MOST_MISSING = 0.5


def target_grid(grid: Grid, regrid: Regrid) -> tuple[Floats, Floats]:
    """Latitudes and longitudes of the centres of the new cells, north-up and eastward.

    Cells meet at the poles and at the equator, so that no centre is at a pole; longitudes are multiples of the
    resolution, from 0. Of a region, the cells that lie inside it whole.

    Raises
    ------
    UserError
        When cells would not close at the poles, would be finer than those of the files, or too few lie in the region.
    """
    size = regrid.resolution_degrees
    if abs(180 / size - round(180 / size)) > 1e-6:
        raise UserError(f"data.era5.regrid.resolution_degrees: found {size:g}; it must divide 180, such as 1 or 1.5")
    rows, columns = (float(np.abs(np.diff(axis)).max(initial=0)) for axis in (grid.latitude, grid.longitude))
    if size < max(rows, columns) - GRID_TOLERANCE_DEGREES:
        raise UserError(
            f"data.era5.regrid.resolution_degrees: found {size:g}, finer than the files' {max(rows, columns):g}; "
            "regridding makes fields coarser"
        )
    latitude = 90 - size * (np.arange(round(180 / size)) + 0.5)
    latitude = _inside(latitude, size, max(-90, grid.latitude[-1] - rows / 2), min(90, grid.latitude[0] + rows / 2))
    if is_global(grid.longitude):
        longitude = np.arange(round(360 / size), dtype=np.float64) * size
    else:
        west, east = grid.longitude[0] - columns / 2, grid.longitude[-1] + columns / 2
        longitude = _inside(size * np.arange(int(west // size), int(east // size) + 2), size, west, east)
    if len(latitude) < 2 or len(longitude) < 2:
        raise UserError(
            f"data.era5.regrid.resolution_degrees: found {size:g}; fewer than 2 x 2 cells of that size lie whole in "
            f"the files' region ({grid.words()}); take a finer one"
        )
    return latitude, longitude


def _inside(centres: npt.NDArray[np.floating[Any]], size: float, low: float, high: float) -> Floats:
    tolerance = GRID_TOLERANCE_DEGREES
    keep = (centres - size / 2 >= low - tolerance) & (centres + size / 2 <= high + tolerance)
    return np.asarray(centres[keep], np.float64)


def regrid_attributes(grid: Grid, regrid: Regrid) -> dict[str, Any]:
    """What reproduces the regridding, and what `regrid_fields` needs."""
    return {
        "method": regrid.method,
        "resolution_degrees": regrid.resolution_degrees,
        "library": f"xarray-regrid {version('xarray-regrid')}",
        "most_missing": MOST_MISSING if regrid.method == "conservative" else 0.0,
        "latitude": grid.latitude.tolist(),
        "longitude": grid.longitude.tolist(),
    }


def regrid_line(grid: Grid, latitude: Floats, longitude: Floats, regrid: Regrid) -> str:
    """What to say of the new grid."""
    rule = "missing where more than half of a cell is" if regrid.method == "conservative" else "missing beside a gap"
    return (
        f"regridded ({regrid.method}) from {len(grid.latitude)} x {len(grid.longitude)} to {len(latitude)} x "
        f"{len(longitude)} cells of {regrid.resolution_degrees:g} degrees, centres from {latitude[0]:g} to "
        f"{latitude[-1]:g} and {longitude[0]:g} to {longitude[-1]:g}; {rule}"
    )


def regrid_fields(
    fields: npt.NDArray[np.float32],
    attributes: dict[str, Any],
    latitude: tuple[float, ...],
    longitude: tuple[float, ...],
) -> npt.NDArray[np.float32]:
    """Fields on the new grid.

    Parameters
    ----------
    fields
        Shape (..., latitude, longitude), north-up and eastward.
    attributes
        As `regrid_attributes` gives them.
    latitude, longitude
        Centres of the new cells.
    """
    flat = fields.reshape(-1, *fields.shape[-2:])
    source = xr.DataArray(
        flat,
        dims=("field", "latitude", "longitude"),
        coords={"latitude": attributes["latitude"], "longitude": attributes["longitude"]},
    )
    target = xr.Dataset(coords={"latitude": list(latitude), "longitude": list(longitude)})
    # Loading it takes most of a second, which only those pay who regrid.
    from xarray_regrid import Regridder

    if attributes["method"] == "conservative":
        result = Regridder(source).conservative(
            target, latitude_coord="latitude", time_dim=None, nan_threshold=attributes["most_missing"]
        )
    else:
        result = Regridder(source).linear(target, time_dim=None)
    values = result.transpose("field", "latitude", "longitude").values.astype(np.float32)
    return np.asarray(values.reshape(*fields.shape[:-2], len(latitude), len(longitude)))
