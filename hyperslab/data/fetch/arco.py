"""Part of a Zarr on the network copied into netCDF files, one for each variable and month."""

import difflib
import errno
import shutil
import time
from pathlib import Path
from typing import Any

import aiohttp
import netCDF4
import numpy as np
import numpy.typing as npt
import xarray as xr

from hyperslab.data.fetch.download import Downloads, disk_mistake, target_of
from hyperslab.data.fetch.plan import ArcoRequest, Item, check_names, months, safe_name, shown
from hyperslab.data.files import sha256_of, sync
from hyperslab.errors import Stopped, UserError

NETWORK = (OSError, aiohttp.ClientError, TimeoutError)
"""What reading a Zarr over the network raises."""
LEVEL_DIMS = ("level", "pressure_level", "isobaricInhPa", "plev")
_BLOCK_BYTES = 64 * 2**20
_TIME_UNITS = "seconds since 1970-01-01"


class Arco:
    """A Zarr with the dimension `time`, such as ARCO-ERA5."""

    def __init__(self, request: ArcoRequest) -> None:
        self._request = request
        self._source = shown(request.url) if "://" in request.url else request.url

    def plan(self, downloads: Downloads) -> list[Item]:  # noqa: ARG002
        """Read the Zarr's metadata, and see what of it is asked for."""
        items = []
        with self._open() as dataset:
            for variable in self._request.variables:
                field = self._field(dataset, variable)
                for days in months(self._request.start, self._request.end):
                    month = _month(field, days[0].isoformat(), days[-1].isoformat(), self._request.hours)
                    if month.sizes["time"] == 0:
                        raise UserError(
                            f"{self._source}: {variable} has no frame from {days[0]} to {days[-1]}; it reaches from "
                            f"{_moment(field.time[0])} to {_moment(field.time[-1])}"
                        )
                    name = safe_name(f"{variable}_{days[0]:%Y%m}.nc", self._source)
                    details = {"variable": variable, "first": days[0].isoformat(), "last": days[-1].isoformat()}
                    validator = f"{details['first']}/{details['last']}/{self._request.hours}/{self._request.levels}"
                    items.append(
                        Item(
                            name=name,
                            origin=f"{self._source}:{variable}",
                            estimate_bytes=int(month.size) * month.dtype.itemsize // 2,
                            validator=validator,
                            details=details,
                        )
                    )
        check_names(items)
        return items

    def get(self, item: Item, downloads: Downloads) -> None:
        """Copy one variable's month; one that was cut off begins anew."""
        target = target_of(downloads.out, item)
        part = target.with_name(f"{target.name}.part")
        try:
            with self._open() as dataset:
                field = self._field(dataset, item.details["variable"])
                month = _month(field, item.details["first"], item.details["last"], self._request.hours)
                target.parent.mkdir(parents=True, exist_ok=True)
                missing = _copy(month, part, item.origin, downloads)
            sync(part)
            part.replace(target)
            sync(target.parent)
        except OSError as error:
            raise disk_mistake(error, target, item.estimate_bytes) from None
        downloads.manifest.record(
            item.name,
            "finished",
            origin=item.origin,
            size_bytes=target.stat().st_size,
            sha256=sha256_of(target),
            validator=item.validator,
            verified="",
            missing_values=missing,
        )

    def _open(self) -> xr.Dataset:
        try:
            dataset: xr.Dataset = xr.open_zarr(self._request.url, chunks=None)
        except (*NETWORK, ValueError, KeyError) as error:
            # Where there is no Zarr, its readers differ in what they raise; their words may hold the whole URL.
            reason = "no Zarr is there" if isinstance(error, FileNotFoundError | KeyError) else type(error).__name__
            raise UserError(f"{self._source}: cannot be opened as Zarr ({reason}); check the address") from None
        return dataset

    def _field(self, dataset: xr.Dataset, name: str) -> xr.DataArray:
        if name not in dataset.data_vars:
            held = [str(known) for known in dataset.data_vars]
            near = difflib.get_close_matches(name, held, n=3, cutoff=0.4) or held[:3]
            raise UserError(f"{self._source}: variables: holds no {name!r}; near it are {', '.join(near)}")
        field = dataset[name]
        if "time" not in field.dims or field.time.dtype.kind != "M":
            raise UserError(f"{self._source}: variables: {name} has no time axis of the usual calendar; leave it out")
        dim = next((dim for dim in LEVEL_DIMS if dim in field.dims), None)
        if dim is None or not self._request.levels:
            return field
        held_levels = field[dim].values.tolist()
        for level in self._request.levels:
            if level not in held_levels:
                raise UserError(f"{self._source}: levels: {name} has no level {level:g}; it has {held_levels}")
        return field.sel({dim: self._request.levels})


def _month(field: xr.DataArray, first: str, last: str, hours: list[int]) -> xr.DataArray:
    month = field.sel(time=slice(first, last))
    return month.isel(time=np.flatnonzero(np.isin(month.time.dt.hour.values, hours)))


def _copy(month: xr.DataArray, part: Path, origin: str, downloads: Downloads) -> int:
    """Write a variable's frames to a new file, some at a time; how many values are missing."""
    frame_bytes = max(1, int(month.size) // month.sizes["time"] * month.dtype.itemsize)
    frames = max(1, _BLOCK_BYTES // frame_bytes)
    month = month.transpose("time", ...)
    missing = 0
    part.unlink(missing_ok=True)
    with netCDF4.Dataset(part, "w") as file:
        variable = _header(file, month)
        for first in range(0, month.sizes["time"], frames):
            if downloads.stop.is_set():
                raise Stopped("the fetch was stopped; the same command goes on with it")
            values = _loaded(month.isel(time=slice(first, first + frames)), origin, downloads)
            # HDF5 that meets a full disk may end the process, so it must not come to that.
            if shutil.disk_usage(part.parent).free < values.nbytes + (1 << 20):
                raise OSError(errno.ENOSPC, "no space left")
            variable[first : first + len(values)] = values
            missing += int(np.isnan(values).sum())
    return missing


def _loaded(block: xr.DataArray, origin: str, downloads: Downloads) -> npt.NDArray[np.float32]:
    """The values of some frames, asked for again where the network fails."""
    for wait in downloads.waits():
        try:
            values = np.asarray(block.values, np.float32)
        except NETWORK as error:
            reason = type(error).__name__
            time.sleep(wait)
        else:
            downloads.rate.take(values.nbytes)
            return values
    raise UserError(f"{origin}: the transfer failed again and again ({reason}); try again later")


def _header(file: Any, month: xr.DataArray) -> Any:
    file.Conventions = "CF-1.7"
    for dim in month.dims:
        values = month[dim].values
        file.createDimension(dim, len(values))
        if dim == "time":
            values = values.astype("datetime64[s]").astype(np.int64)
        values = values.astype(values.dtype.newbyteorder("="))
        coordinate = file.createVariable(dim, values.dtype, (dim,))
        coordinate[:] = values
        coordinate.setncatts(_attributes(month[dim]))
    file["time"].setncatts({"units": _TIME_UNITS, "calendar": "proleptic_gregorian", "standard_name": "time"})
    chunk = (1, *month.shape[1:])
    variable = file.createVariable(
        month.name,
        "f4",
        month.dims,
        zlib=True,
        complevel=1,
        shuffle=True,
        chunksizes=chunk,
        fill_value=np.float32("nan"),
    )
    variable.setncatts(_attributes(month))
    return variable


def _attributes(field: xr.DataArray) -> dict[str, str | int | float]:
    return {str(name): value for name, value in field.attrs.items() if isinstance(value, str | int | float)}


def _moment(time: xr.DataArray) -> str:
    return str(time.values.astype("datetime64[h]"))
