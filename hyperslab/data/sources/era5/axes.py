"""Which dimension of a dataset is time, step, member, level, latitude and longitude, whatever their names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from hyperslab.data.sources.era5.decode import decode
from hyperslab.data.sources.era5.header import PRESSURE
from hyperslab.data.sources.era5.time import unit_seconds
from hyperslab.errors import UserError

LATITUDE_UNITS = ("degrees_north", "degree_north", "degrees_n", "degreen", "degree_n", "degreesn")
LONGITUDE_UNITS = ("degrees_east", "degree_east", "degrees_e", "degreee", "degree_e", "degreese")
MEMBER_NAMES = ("number", "member", "realization", "realisation", "ensemble", "ensemble_member")
STEP_NAMES = ("step", "prediction_timedelta", "forecast_period", "lead_time", "leadtime")
VALID_TIME = "valid_time"
EXPVER = "expver"
PRESSURE_UNITS = ("hpa", "millibars", "millibar", "mbar", "mb", "pa")

# Names that the Climate Data Store, cfgrib, WeatherBench 2 and CMIP give to levels.
LEVEL_KINDS = {
    "pressure_level": PRESSURE,
    "level": PRESSURE,
    "isobaricinhpa": PRESSURE,
    "isobaricinpa": PRESSURE,
    "plev": PRESSURE,
    "lev": PRESSURE,
    "hybrid": "hybrid",
    "model_level": "hybrid",
    "depth": "depth",
    "depthbelowland": "depth",
    "depthbelowlandlayer": "depth",
    "heightaboveground": "height",
    "height": "height",
    "isentropic": "theta",
    "theta": "theta",
    "potentialvorticity": "pv",
}
_STANDARD_NAMES = {
    "air_pressure": PRESSURE,
    "model_level_number": "hybrid",
    "atmosphere_hybrid_sigma_pressure_coordinate": "hybrid",
    "depth": "depth",
    "height": "height",
    "air_potential_temperature": "theta",
}

Attributes = dict[Any, Any]

# Far above any real axis: a damaged header may ask for as much memory as it likes.
_MOST_PLACES = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Names of the coordinates of a dataset; those of time, step and member may be scalars, or None where absent."""

    time: str | None
    step: str | None
    member: str | None
    latitude: str
    longitude: str
    levels: dict[str, str]
    """Kind of level of each dimension of levels."""

    def frame_dims(self, dims: tuple[str, ...]) -> tuple[str, ...]:
        """Those of a variable's dimensions that make frames, outermost first."""
        return tuple(name for name in (self.member, self.time, self.step) if name is not None and name in dims)


def find_axes(dataset: xr.Dataset, path: str) -> Axes:
    """Which coordinate is which.

    Raises
    ------
    UserError
        When there is no regular grid of latitudes and longitudes.
    """
    dims = _dims(dataset)
    latitude = _first(dataset, dims, lambda name, a: _is_horizontal(name, a, LATITUDE_UNITS, ("latitude", "lat")))
    longitude = _first(dataset, dims, lambda name, a: _is_horizontal(name, a, LONGITUDE_UNITS, ("longitude", "lon")))
    if latitude is None or longitude is None:
        raise UserError(f"{path}: {_why_no_grid(dataset)}")
    names = [*dims, *(str(name) for name, variable in dataset.variables.items() if variable.dims == ())]
    time, step = _find_time(dataset, dims, names)
    return Axes(
        time=time,
        step=step,
        member=_first(dataset, names, _is_member),
        latitude=latitude,
        longitude=longitude,
        levels={name: kind for name in dims if (kind := _level_kind(name, dataset.variables[name].attrs)) is not None},
    )


def coordinate(dataset: xr.Dataset, name: str, path: str) -> npt.NDArray[np.float64]:
    """The numbers of a coordinate, missing ones NaN.

    Raises
    ------
    UserError
        When there are more of them than any real file has.
    """
    variable = dataset.variables[name]
    if variable.size > _MOST_PLACES:
        raise UserError(f"{path}: {name} has {variable.size:,} places; its header is damaged, download it again")
    return np.asarray(decode(np.asarray(variable.values), variable.attrs), np.float64)


def units_of(dataset: xr.Dataset, name: str) -> str:
    """Units of a coordinate; empty where it states none."""
    return str(dataset.variables[name].attrs.get("units", ""))


def _dims(dataset: xr.Dataset) -> list[str]:
    """Dimensions that have a coordinate."""
    return [str(dim) for dim in dataset.dims if dim in dataset.variables and dataset.variables[dim].dims == (dim,)]


def _first(dataset: xr.Dataset, names: list[str], matches: Callable[[str, Attributes], bool]) -> str | None:
    return next((name for name in names if matches(name, dataset.variables[name].attrs)), None)


def _is_horizontal(name: str, attributes: Attributes, units: tuple[str, ...], names: tuple[str, ...]) -> bool:
    return (
        str(attributes.get("units", "")).lower() in units
        or str(attributes.get("standard_name", "")).lower() in names
        or name.lower() in names
    )


def _is_time(attributes: Attributes) -> bool:
    return " since " in str(attributes.get("units", ""))


def _is_step(name: str, attributes: Attributes) -> bool:
    known = name.lower() in STEP_NAMES or attributes.get("standard_name") == "forecast_period"
    return known and unit_seconds(str(attributes.get("units", ""))) is not None


def _is_member(name: str, attributes: Attributes) -> bool:
    return name.lower() in MEMBER_NAMES or attributes.get("standard_name") == "realization"


def _find_time(dataset: xr.Dataset, dims: list[str], names: list[str]) -> tuple[str | None, str | None]:
    """Names of the coordinates of time and of step; a frame's time is the sum of the two."""
    times = [name for name in names if _is_time(dataset.variables[name].attrs)]
    step = _first(dataset, names, _is_step)
    if step is not None and not (VALID_TIME in times and VALID_TIME in dims):
        # `valid_time` is the sum already.
        starts = [name for name in times if name != VALID_TIME]
        if starts:
            return starts[0], step
    along = [name for name in times if name in dims]
    scalars = [name for name in (VALID_TIME, *times) if name in times and name not in dims]
    return next(iter([*along, *scalars]), None), None


def _level_kind(name: str, attributes: Attributes) -> str | None:
    standard_name, long_name = (str(attributes.get(key, "")).lower() for key in ("standard_name", "long_name"))
    if "model_level" in long_name or "model level" in long_name or "hybrid" in long_name:
        return "hybrid"
    if str(attributes.get("units", "")).lower() in PRESSURE_UNITS:
        return PRESSURE
    return _STANDARD_NAMES.get(standard_name) or LEVEL_KINDS.get(name.lower())


def _why_no_grid(dataset: xr.Dataset) -> str:
    dims = ", ".join(map(str, dataset.dims)) or "none"
    lost = f"no regular latitude-longitude grid (dimensions: {dims}); "
    if {"rlat", "rlon"} <= {str(dim).lower() for dim in dataset.dims}:
        return lost + "interpolate it from its rotated pole, with `cdo remapbil,r360x180 in.nc out.nc`"
    if {str(name).lower() for name in dataset.variables} & {"lat", "latitude", "nav_lat", "xlat"}:
        return lost + (
            "regrid the file to one-dimensional latitude and longitude, with `cdo remapbil,r360x180 in.nc out.nc`; "
            "stations and single points make no field"
        )
    return lost + "a frame is a field on latitudes and longitudes, name such files in data.files"
