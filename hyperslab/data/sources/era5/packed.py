"""Long rows of integers in a short text, for an index that JSON holds."""

import base64
import zlib
from collections.abc import Sequence

import numpy as np

from hyperslab.data.frames import Ints


def pack(rows: Sequence[Sequence[int]]) -> str:
    """A text for rows of equal length; steps between neighbours are mostly the same, and compress well."""
    values = np.asarray(rows, "<i8")
    steps = np.diff(values, axis=1, prepend=0)
    return base64.b64encode(zlib.compress(steps.tobytes())).decode()


def unpack(text: str, rows: int) -> Ints:
    """The inverse of `pack`, shape (rows, length)."""
    steps = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8").reshape(rows, -1)
    return np.cumsum(steps, axis=1).astype(np.int64)
