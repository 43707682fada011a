"""A table of numbers as a file holds it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TABLE_BYTES = 256 << 20
"""A table is read whole: larger ones are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Two axes of numbers, and what the file says of them."""

    values: npt.NDArray[np.float64]
    kind: str
    names: tuple[str, ...] = ()
    """Names along the axis that is not time."""
    time_axis: int | None = None
    evidence: str = ""
    oddities: tuple[str, ...] = ()
