import numpy as np
import pytest

from hyperslab.data.grid import is_global


@pytest.mark.parametrize(
    ("longitude", "closes"),
    [
        ([0, 90, 180, 270], True),
        ([20, 110, 200, 290], True),
        # 270 -> 360 is a gap of 90 degrees where the others are 80.
        ([0, 80, 160, 240], False),
        ([-10, 0, 10], False),
        ([0, 180], True),
        ([5], False),
    ],
)
def test_a_grid_is_global_when_its_longitudes_close_the_circle(longitude: list[float], closes: bool) -> None:
    assert is_global(np.asarray(longitude, np.float64)) is closes


def test_the_rounding_noise_of_float32_does_not_break_the_circle() -> None:
    # 0.1 degrees is no binary fraction: in float32 the steps differ by up to 3e-5 degrees near 360.
    longitude = (np.arange(3600) / 10).astype(np.float32).astype(np.float64)
    assert is_global(longitude)
