"""Storing values in fewer bits: half precision, or integers with a scale and an offset for each frame and channel."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float32]

MISSING = -32768
LARGEST = 32767
HALF_MAX = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Frames as they are stored."""

    values: npt.NDArray[Any]
    """Shape (frame, channel, *space)."""
    scale: npt.NDArray[np.float32] | None = None
    """What an integer counts, shape (frame, channel)."""
    offset: npt.NDArray[np.float32] | None = None
    """What the integer 0 stands for, shape (frame, channel)."""

    def unpack(self) -> Values:
        """The values, float32, NaN where missing."""
        if self.scale is None or self.offset is None:
            return self.values.astype(np.float32)
        shape = (*self.scale.shape, *([1] * (self.values.ndim - 2)))
        values = self.values.astype(np.float32) * self.scale.reshape(shape) + self.offset.reshape(shape)
        values[self.values == MISSING] = np.nan
        return np.asarray(values, np.float32)


def pack(values: Values, dtype: str) -> Packed:
    """Frames in the type in which they are stored.

    The integers of a frame and channel spread over its own range, as in GRIB: nothing is clipped.

    Raises
    ------
    OverflowError
        When half precision cannot hold a value.
    """
    if dtype == "float32":
        return Packed(values=values)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if (np.isinf(half) & np.isfinite(values)).any():
            raise OverflowError(f"{np.nanmax(np.abs(values)):g} is more than half precision holds ({HALF_MAX:g})")
        return Packed(values=half)
    fields = values.reshape(*values.shape[:2], -1).astype(np.float64)
    there = np.isfinite(fields)
    low = np.where(there, fields, np.inf).min(axis=2)
    high = np.where(there, fields, -np.inf).max(axis=2)
    low, high = np.where(there.any(axis=2), low, 0), np.where(there.any(axis=2), high, 0)
    offset = ((low + high) / 2).astype(np.float32)
    # Rounded up: the rounding of the offset must not push an end of the range past the last integer.
    reach = np.maximum(high - offset, offset - low)
    scale = np.nextafter((reach / LARGEST).astype(np.float32), np.float32(np.inf))
    whole = np.rint((fields - offset[..., None]) / scale[..., None])
    packed = np.where(there, whole, MISSING).astype(np.int16)
    return Packed(values=packed.reshape(values.shape), scale=scale, offset=offset)


def loss_of(values: Values, packed: Packed) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Largest error and sum of squared errors of each channel; both of shape (channel,)."""
    axes = (0, *range(2, values.ndim))
    error = np.nan_to_num(np.abs(packed.unpack().astype(np.float64) - values), nan=0.0)
    return error.max(axis=axes), (error**2).sum(axis=axes)
