"""Latitude-longitude grids."""

import numpy as np
import numpy.typing as npt

# Float32 coordinates carry rounding noise: 10.6 reads as 10.600000381.
GRID_TOLERANCE_DEGREES = 1e-4


def is_global(longitude: npt.NDArray[np.float64]) -> bool:
    """Whether evenly spaced, ascending longitudes close the circle."""
    gaps = np.diff(longitude, append=longitude[0] + 360)
    return len(longitude) > 1 and bool(np.ptp(gaps) < GRID_TOLERANCE_DEGREES * len(longitude))
