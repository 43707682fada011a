"""Files of weather as the Copernicus Climate Data Store writes them, now and in the years before 2024."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import numpy.typing as npt

from hyperslab.data.sources.synthetic.weather import LEVELS_HPA, Grid, Values

Times = npt.NDArray[np.datetime64]
Chunk = bytes

LEVEL = 1
"""Deflate level of the new files, as in the store's own."""
MISSING = -32767
_NAMES: dict[str, tuple[str, str, str]] = {
    "u": ("U component of wind", "eastward_wind", "m s**-1"),
    "v": ("V component of wind", "northward_wind", "m s**-1"),
    "z": ("Geopotential", "geopotential", "m**2 s**-2"),
    "t": ("Temperature", "air_temperature", "K"),
    "lsm": ("Land-sea mask", "land_binary_mask", "(0 - 1)"),
}
_HISTORY = "written by hyperslab simulate: a shallow-water model, not a reanalysis"


def deflated(values: npt.NDArray[Any]) -> Chunk:
    """A chunk as HDF5's shuffle and deflate filters leave it; unlike HDF5's own, this runs on many threads at once."""
    planes = np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.itemsize).T
    return zlib.compress(np.ascontiguousarray(planes).data, LEVEL)


class NewFile:
    """A file of the store as it is since 2024: netCDF-4, float32, deflated, `valid_time` and `pressure_level`."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file

    @classmethod
    @contextmanager
    def create(cls, path: Path, grid: Grid, time: Times, variables: Sequence[str]) -> Iterator["NewFile"]:
        """A file whose frames are still to be written."""
        with netCDF4.Dataset(path, "w") as file:
            _new_header(file, grid, time)
            for name in variables:
                dims = ("valid_time", "pressure_level", "latitude", "longitude")
                _new_variable(file, name, dims, (1, len(LEVELS_HPA), *grid.shape))
        with h5py.File(path, "r+") as opened:
            yield cls(opened)

    def write(self, frame: int, fields: Mapping[str, Chunk]) -> None:
        """Write one frame of each variable, deflated by `deflated`."""
        for name, chunk in fields.items():
            self._file[name].id.write_direct_chunk((frame, 0, 0, 0), chunk)


class OldFile:
    """A file of the store as it was until 2024: int16 with a scale and an offset for the file, `time` and `level`."""

    def __init__(self, file: Any) -> None:
        self._file = file

    @classmethod
    @contextmanager
    def create(
        cls,
        path: Path,
        grid: Grid,
        time: Times,
        bounds: Mapping[str, tuple[float, float]],
        *,
        classic: bool,
    ) -> Iterator["OldFile"]:
        """A file whose frames are still to be written.

        Parameters
        ----------
        bounds
            Least and greatest value that each variable may take, from which its scale and offset follow.
        classic
            Whether to write netCDF-3, without compression.
        """
        with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET" if classic else "NETCDF4") as file:
            _old_header(file, grid, time, LEVELS_HPA)
            for name, limits in bounds.items():
                dims = ("time", "level", "latitude", "longitude")
                _old_variable(file, name, dims, limits, None if classic else (1, len(LEVELS_HPA), *grid.shape))
            yield cls(file)

    def write(self, frame: int, fields: Mapping[str, Values]) -> None:
        """Write one frame of each variable."""
        for name, values in fields.items():
            self._file[name][frame] = _packed(self._file[name], values)


def write_statics(path: Path, grid: Grid, time: Times, fields: Mapping[str, Values], *, old: bool) -> None:
    """Write fields without time, which the store gives as one frame."""
    dims = ("time" if old else "valid_time", "latitude", "longitude")
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET" if old else "NETCDF4") as file:
        if old:
            _old_header(file, grid, time, ())
        else:
            _new_header(file, grid, time, levels=())
        for name, values in fields.items():
            if old:
                _old_variable(file, name, dims, (float(values.min()), float(values.max())), None)
                file[name][0] = _packed(file[name], values)
            else:
                _new_variable(file, name, dims, (1, *grid.shape))
                file[name][0] = values


def _new_header(file: Any, grid: Grid, time: Times, levels: Sequence[float] = LEVELS_HPA) -> None:
    file.setncatts(
        {
            "GRIB_centre": "ecmf",
            "GRIB_subCentre": np.int64(0),
            "Conventions": "CF-1.7",
            "institution": "none: synthetic data",
            "history": _HISTORY,
        }
    )
    number = file.createVariable("number", "i8")
    number.setncatts({"long_name": "ensemble member numerical id", "units": "1", "standard_name": "realization"})
    number[...] = 0
    _coordinate(
        file,
        "valid_time",
        "i8",
        time.astype("datetime64[s]").astype(np.int64),
        units="seconds since 1970-01-01",
        calendar="proleptic_gregorian",
        standard_name="time",
        long_name="time",
    )
    if levels:
        _coordinate(
            file,
            "pressure_level",
            "f8",
            np.asarray(levels),
            units="hPa",
            positive="down",
            stored_direction="decreasing",
            standard_name="air_pressure",
            long_name="pressure",
        )
    _space(file, grid, "f8")
    expver = file.createVariable("expver", str, ("valid_time",))
    expver[:] = np.full(len(time), "0001", object)


def _old_header(file: Any, grid: Grid, time: Times, levels: Sequence[float]) -> None:
    file.setncatts({"Conventions": "CF-1.6", "history": _HISTORY})
    _space(file, grid, "f4")
    if levels:
        _coordinate(file, "level", "i4", np.asarray(levels, np.int32), units="millibars", long_name="pressure_level")
    hours = (time - np.datetime64("1900-01-01", "h")).astype("timedelta64[h]").astype(np.int32)
    _coordinate(
        file, "time", "i4", hours, units="hours since 1900-01-01 00:00:00.0", long_name="time", calendar="gregorian"
    )


def _space(file: Any, grid: Grid, kind: str) -> None:
    for name, values, units in (
        ("latitude", grid.latitude, "degrees_north"),
        ("longitude", grid.longitude, "degrees_east"),
    ):
        _coordinate(file, name, kind, values, units=units, standard_name=name, long_name=name)


def _coordinate(file: Any, name: str, kind: str, values: npt.NDArray[Any], **attributes: str) -> None:
    file.createDimension(name, len(values))
    variable = file.createVariable(name, kind, (name,))
    variable.setncatts(attributes)
    variable[:] = values


def _new_variable(file: Any, name: str, dims: tuple[str, ...], chunk: tuple[int, ...]) -> None:
    variable = file.createVariable(
        name, "f4", dims, zlib=True, complevel=LEVEL, shuffle=True, chunksizes=chunk, fill_value=np.float32(np.nan)
    )
    long_name, standard_name, units = _NAMES[name]
    variable.setncatts(
        {
            "GRIB_shortName": name,
            "GRIB_gridType": "regular_ll",
            "GRIB_stepType": "instant",
            "long_name": long_name,
            "units": units,
            "standard_name": standard_name,
            "coordinates": "number expver",
        }
    )


def _old_variable(
    file: Any, name: str, dims: tuple[str, ...], bounds: tuple[float, float], chunk: tuple[int, ...] | None
) -> None:
    low, high = bounds
    filters = {"zlib": True, "complevel": LEVEL, "shuffle": True, "chunksizes": chunk} if chunk else {}
    variable = file.createVariable(name, "i2", dims, fill_value=MISSING, **filters)
    variable.set_auto_maskandscale(False)
    long_name, standard_name, units = _NAMES[name]
    variable.setncatts(
        {
            "scale_factor": (high - low) / 65532 if high > low else 1.0,
            "add_offset": (high + low) / 2,
            "missing_value": np.int16(MISSING),
            "units": units,
            "long_name": long_name,
            "standard_name": standard_name,
        }
    )


def _packed(variable: Any, values: Values) -> npt.NDArray[np.int16]:
    packed = np.rint((values - np.float32(variable.add_offset)) * np.float32(1 / variable.scale_factor))
    assert np.abs(packed).max() <= 32766, "the bounds hold every value"
    return np.asarray(packed, np.int16)
