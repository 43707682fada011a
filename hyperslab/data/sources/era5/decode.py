"""Packed values as float32, equal to what xarray decodes."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

Decoder = Callable[[npt.NDArray[Any], npt.NDArray[np.float32]], None]
"""Writes stored values, decoded, into an array of the same shape."""

_PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")


def decode(values: npt.NDArray[Any], attributes: dict[str, Any]) -> npt.NDArray[Any]:
    """Values as xarray decodes them by the CF attributes of their variable: unpacked, missing ones NaN."""
    dims = [f"dim_{number}" for number in range(values.ndim)]
    packed = xr.Variable(dims, values, {name: attributes[name] for name in _PACKING if name in attributes})
    with warnings.catch_warnings():
        # `_FillValue` and `missing_value` may differ: xarray warns, and takes both for missing.
        warnings.simplefilter("ignore", xr.SerializationWarning)
        decoded = xr.conventions.decode_cf_variable("values", packed, decode_times=False)
    return np.asarray(decoded.values)


def decoder_of(dtype: np.dtype[Any], attributes: dict[str, Any]) -> Decoder:
    """The function that decodes values of one variable into an array of float32.

    Integers of one or two bytes, as the old Climate Data Store packs them, go through a table of all their values:
    faster than arithmetic, and equal to xarray to the last bit.
    """
    if dtype.kind in "iu" and dtype.itemsize <= 2:
        return _table_decoder(dtype, attributes)
    if dtype.kind == "f" and dtype.itemsize == 4 and not any(_alters(name, attributes) for name in _PACKING):
        return _copy
    return lambda raw, out: _copy(decode(raw, attributes), out)


def _table_decoder(dtype: np.dtype[Any], attributes: dict[str, Any]) -> Decoder:
    native, bits = dtype.newbyteorder("="), np.dtype(f"u{dtype.itemsize}")
    every = np.arange(2 ** (8 * dtype.itemsize), dtype=bits).view(native)
    table = decode(every, attributes).astype(np.float32)

    def look_up(raw: npt.NDArray[Any], out: npt.NDArray[np.float32]) -> None:
        places = np.ascontiguousarray(raw, native).view(bits)
        if out.flags.c_contiguous:
            np.take(table, places, out=out, mode="clip")
        else:
            out[...] = table.take(places, mode="clip")

    return look_up


def _copy(values: npt.NDArray[Any], out: npt.NDArray[np.float32]) -> None:
    np.copyto(out, values, casting="unsafe")


def _alters(name: str, attributes: dict[str, Any]) -> bool:
    """Whether a packing attribute of a float32 variable changes any value; a missing NaN is one already."""
    value = attributes.get(name)
    if value is None:
        return False
    if name in ("_FillValue", "missing_value"):
        return not np.isnan(np.asarray(value, np.float64)).all()
    return True
