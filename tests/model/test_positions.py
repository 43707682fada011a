import math

import pytest
import torch

from hyperslab.model.positions import NUM_FREQUENCIES, sphere_features
from hyperslab.model.tokens import PatchGrid

GLOBE_LATITUDE = torch.arange(85.0, -86.0, -10.0)
GLOBE_LONGITUDE = torch.arange(0.0, 360.0, 10.0)


def grid_of(latitude: torch.Tensor, longitude: torch.Tensor, patch: int, periodic: bool) -> PatchGrid:
    return PatchGrid(rows=len(latitude), columns=len(longitude), patch=patch, periodic=periodic)


def smallest_distance(features: torch.Tensor) -> float:
    distance = torch.cdist(features.double(), features.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return float((distance + torch.eye(len(features)) * 1e9).min())


def features_by_formula(point: tuple[float, float, float]) -> list[float]:
    """Sines, then cosines, of pi/2 x 2^k times each coordinate, the coordinate varying slowest."""
    angles = [math.pi / 2 * 2**k * coordinate for coordinate in point for k in range(NUM_FREQUENCIES)]
    return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]


@pytest.mark.parametrize("patch", [1, 3, 4])
def test_every_token_of_the_globe_has_its_own_features(patch):
    grid = grid_of(GLOBE_LATITUDE, GLOBE_LONGITUDE, patch, periodic=True)

    features = sphere_features(grid, GLOBE_LATITUDE, GLOBE_LONGITUDE)

    assert features.shape == (grid.num_patches, 6 * NUM_FREQUENCIES)
    # The closest tokens, of patch 1, lie 10 degrees apart on the circle of radius cos(85) = 0.087: 0.0152.
    # The finest octave turns by pi/2 x 32 x 0.0152 = 0.76 radians over them, 2 sin(0.38) = 0.74 apart.
    assert smallest_distance(features) > 0.7


@pytest.mark.parametrize("longitude", [torch.arange(10.0, 15.0, 0.25), torch.arange(-2.0, 2.1, 0.25)])
def test_every_token_of_a_small_region_has_its_own_features(longitude):
    latitude = torch.arange(2.0, -2.1, -0.25)
    grid = grid_of(latitude, longitude, 1, periodic=False)

    features = sphere_features(grid, latitude, longitude)

    # Neighbouring rows lie 1/16 of the region's height apart, 1/8 of the stretched length of 2: the octave of
    # 2^4 turns by pi/2 x 16 / 8 = pi, so 2 apart. Without the stretch the finest turns by pi/2 x 32 x 0.0044
    # = 0.22 only.
    assert smallest_distance(features) > 1.9


def test_whole_turns_of_longitude_change_nothing():
    grid = grid_of(GLOBE_LATITUDE, GLOBE_LONGITUDE, 3, periodic=True)
    features = sphere_features(grid, GLOBE_LATITUDE, GLOBE_LONGITUDE)

    for turn in (-360.0, 360.0):
        turned = sphere_features(grid, GLOBE_LATITUDE, GLOBE_LONGITUDE + turn)
        # cos and sin of angles up to 4 pi are exact to 1e-15, times a slope of 50, then rounded to float32
        # (1.2e-7).
        torch.testing.assert_close(turned, features, rtol=0, atol=3e-7)


def test_the_globe_has_no_seam_between_its_last_and_first_columns():
    grid = grid_of(GLOBE_LATITUDE, GLOBE_LONGITUDE, 1, periodic=True)
    features = sphere_features(grid, GLOBE_LATITUDE, GLOBE_LONGITUDE).view(*grid.shape, -1)
    # Sines of the coarsest octave of each coordinate: smooth in space.
    coarse = features[..., 0 : 3 * NUM_FREQUENCIES : NUM_FREQUENCIES]

    step = (coarse - coarse.roll(1, dims=1)).norm(dim=-1)

    # On a sphere two neighbours of a row are 2 sin(5 degrees) cos(latitude) apart, the same all the way
    # round; the slope of sin(pi/2 x) lies between 0 and pi/2. A seam would jump by about 2.
    bound = math.pi / 2 * 2 * math.sin(math.radians(5))
    assert float(step.max()) <= bound


def test_features_follow_the_formula_at_a_known_point():
    # A patch of two rows and two columns: its centre is 30 N, 90 E, on the sphere (0, sqrt(3)/2, 1/2).
    latitude, longitude = torch.tensor([40.0, 20.0]), torch.tensor([80.0, 100.0])

    features = sphere_features(grid_of(latitude, longitude, 2, periodic=True), latitude, longitude)

    expected = torch.tensor([features_by_formula((0.0, math.sqrt(3) / 2, 0.5))])
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-6)


def test_coordinates_of_a_region_fill_minus_one_to_one():
    # Row 0 N alone; longitudes 30, 45 and 60 E: x = cos falls, y = sin rises, z is constant and stays at the
    # low end.
    latitude, longitude = torch.tensor([0.0]), torch.tensor([30.0, 45.0, 60.0])

    features = sphere_features(grid_of(latitude, longitude, 1, periodic=False), latitude, longitude)

    # 45 E, by hand: x = y = sqrt(1/2) between sin 30 = 1/2 and cos 30 = sqrt(3)/2.
    middle = 2 * (math.sqrt(0.5) - 0.5) / (math.sqrt(3) / 2 - 0.5) - 1
    points = [(1.0, -1.0, -1.0), (middle, middle, -1.0), (-1.0, 1.0, -1.0)]
    torch.testing.assert_close(
        features, torch.tensor([features_by_formula(point) for point in points]), rtol=0, atol=1e-5
    )


def test_a_last_patch_that_reaches_over_the_edge_is_centred_on_its_own_points():
    # Columns 0, 10, 20, patch 2: centres at 5 and 20 east.
    latitude = torch.tensor([0.0])

    features = sphere_features(
        PatchGrid(rows=1, columns=3, patch=2, periodic=True), latitude, torch.tensor([0.0, 10.0, 20.0])
    )

    points = [(math.cos(a), math.sin(a), 0.0) for a in (math.radians(5), math.radians(20))]
    torch.testing.assert_close(
        features, torch.tensor([features_by_formula(point) for point in points]), rtol=0, atol=1e-6
    )
