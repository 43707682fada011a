"""Small raw files for the tests of this folder, and the short way to an index of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import eccodes
import numpy as np
import numpy.typing as npt
import xarray as xr

from hyperslab.data.config import DataSettings
from hyperslab.data.sources.era5.source import Era5
from hyperslab.data.sources.index import Index

Floats = npt.NDArray[np.float32]


def scan(paths: Sequence[Path | str], **settings: Any) -> Index:
    """The index of these files, as a worker gets it: by way of JSON."""
    index = Era5().scan([str(path) for path in paths], DataSettings(files=["*"], **settings))
    return Index.from_json(json.loads(json.dumps(index.to_json())))


def read_all(index: Index) -> Floats:
    """All frames."""
    values: Floats = Era5().read(index, 0, len(index.time))["values"]
    return values


def write(path: Path, dataset: xr.Dataset, **options: Any) -> Path:
    """Write a dataset as netCDF."""
    dataset.to_netcdf(path, **options)
    return path


def write_grib(path: Path, *messages: dict[str, Any], sample: str = "regular_ll_pl_grib1") -> Path:
    """Write messages with these keys; `values` are rows from 60 N to 0, columns from 0 eastward, 20 degrees apart."""
    with path.open("wb") as file:
        for keys in messages:
            handle = eccodes.codes_grib_new_from_samples(keys.get("sample", sample))
            values = np.asarray(keys["values"], float)
            rows, columns = values.shape
            grid = {
                "Ni": columns,
                "Nj": rows,
                "latitudeOfFirstGridPointInDegrees": 60,
                "latitudeOfLastGridPointInDegrees": 60 - 20 * (rows - 1),
                "longitudeOfFirstGridPointInDegrees": 0,
                "longitudeOfLastGridPointInDegrees": 20 * (columns - 1),
                "iDirectionIncrementInDegrees": 20,
                "jDirectionIncrementInDegrees": 20,
            }
            # The level goes last: setting its type sets a level too.
            for key in sorted({**grid, **keys}, key=lambda key: key in ("level", "number")):
                if key not in ("values", "sample"):
                    eccodes.codes_set(handle, key, {**grid, **keys}[key])
            if np.isnan(values).any():
                eccodes.codes_set(handle, "bitmapPresent", 1)
                eccodes.codes_set(handle, "missingValue", -999.0)
                values = np.where(np.isnan(values), -999.0, values)
            eccodes.codes_set(handle, "bitsPerValue", 24)
            eccodes.codes_set_values(handle, values.ravel())
            eccodes.codes_write(handle, file)
            eccodes.codes_release(handle)
    return path
