import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.model.positions import NUM_FREQUENCIES, Axis, fourier_features, octaves, rotary_angles, rotate
from hyperslab.model.tokens import Patches

GLOBE_LATITUDE = torch.arange(85.0, -86.0, -10.0)
GLOBE_LONGITUDE = torch.arange(0.0, 360.0, 10.0)


def on_the_sphere(
    latitude: torch.Tensor, longitude: torch.Tensor, *, patch: int = 1, whole_sphere: bool
) -> torch.Tensor:
    """Features of the centres of square patches."""
    values = [latitude.double(), longitude.double()]
    patches = Patches(sizes=(1, *map(len, values)), patch=(1, patch, patch), periodic=(False, False, whole_sphere))
    axes = [Axis(name=name, values=()) for name in ("latitude", "longitude")]
    centres = [patches.centres(number, own) for number, own in enumerate(values, start=1)]
    return fourier_features(axes, centres, whole_sphere=whole_sphere)


def along(*names: str, **coordinates: list[float]) -> torch.Tensor:
    """Features of places along axes that are no sphere."""
    axes = [Axis(name=name, values=()) for name in names or coordinates]
    centres = [torch.tensor(coordinates[axis.name], dtype=torch.float64) for axis in axes]
    return fourier_features(axes, centres, whole_sphere=False)


def smallest_distance(features: torch.Tensor) -> float:
    distance = torch.cdist(features.double(), features.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return float((distance + torch.eye(len(features)) * 1e9).min())


def by_formula(*points: tuple[float, ...]) -> torch.Tensor:
    """Sines, then cosines, of pi/2 x 2^k times each coordinate, the coordinate varying slowest."""
    rows = []
    for point in points:
        angles = [math.pi / 2 * 2**k * coordinate for coordinate in point for k in range(NUM_FREQUENCIES)]
        rows.append([math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles])
    return torch.tensor(rows)


@pytest.mark.parametrize("patch", [1, 3, 4])
def test_every_token_of_the_globe_has_its_own_features(patch):
    features = on_the_sphere(GLOBE_LATITUDE, GLOBE_LONGITUDE, patch=patch, whole_sphere=True)

    assert features.shape == (-(-18 // patch) * -(-36 // patch), 6 * NUM_FREQUENCIES)
    # The closest tokens, of patch 1, lie 10 degrees apart on the circle of radius cos(85) = 0.087: 0.0152.
    # The finest octave turns by pi/2 x 32 x 0.0152 = 0.76 radians over them, 2 sin(0.38) = 0.74 apart.
    assert smallest_distance(features) > 0.7


def test_all_longitudes_are_one_place_at_a_pole():
    features = on_the_sphere(torch.tensor([90.0, 0.0]), GLOBE_LONGITUDE, whole_sphere=True).view(2, 36, -1)

    # cos(90 degrees) is 6e-17 in float64: x and y are zero.
    torch.testing.assert_close(features[0], by_formula((0.0, 0.0, 1.0)).expand(36, -1), rtol=0, atol=1e-6)
    assert smallest_distance(features[1]) > 0.7


@pytest.mark.parametrize("longitude", [torch.arange(10.0, 15.0, 0.25), torch.arange(-2.0, 2.1, 0.25)])
def test_every_token_of_a_small_region_has_its_own_features(longitude):
    features = on_the_sphere(torch.arange(2.0, -2.1, -0.25), longitude, whole_sphere=False)

    # Neighbouring rows lie 1/16 of the region's height apart, 1/8 of the stretched length of 2: the octave of
    # 2^4 turns by pi/2 x 16 / 8 = pi, so 2 apart. Without the stretch the finest turns by pi/2 x 32 x 0.0044
    # = 0.22 only.
    assert smallest_distance(features) > 1.9


def test_whole_turns_of_longitude_change_nothing():
    features = on_the_sphere(GLOBE_LATITUDE, GLOBE_LONGITUDE, patch=3, whole_sphere=True)

    for turn in (-360.0, 360.0):
        turned = on_the_sphere(GLOBE_LATITUDE, GLOBE_LONGITUDE + turn, patch=3, whole_sphere=True)
        # cos and sin of angles up to 4 pi are exact to 1e-15, times a slope of 50, then rounded to float32
        # (1.2e-7).
        torch.testing.assert_close(turned, features, rtol=0, atol=3e-7)


def test_the_globe_has_no_seam_between_its_last_and_first_columns():
    features = on_the_sphere(GLOBE_LATITUDE, GLOBE_LONGITUDE, whole_sphere=True).view(18, 36, -1)
    # Sines of the coarsest octave of each coordinate: smooth in space.
    coarse = features[..., 0 : 3 * NUM_FREQUENCIES : NUM_FREQUENCIES]

    step = (coarse - coarse.roll(1, dims=1)).norm(dim=-1)

    # On a sphere two neighbours of a row are 2 sin(5 degrees) cos(latitude) apart, the same all the way
    # round; the slope of sin(pi/2 x) lies between 0 and pi/2. A seam would jump by about 2.
    bound = math.pi / 2 * 2 * math.sin(math.radians(5))
    assert float(step.max()) <= bound


def test_features_follow_the_formula_at_a_known_point():
    # A patch of two rows and two columns: its centre is 30 N, 90 E, on the sphere (0, sqrt(3)/2, 1/2).
    features = on_the_sphere(torch.tensor([40.0, 20.0]), torch.tensor([80.0, 100.0]), patch=2, whole_sphere=True)

    torch.testing.assert_close(features, by_formula((0.0, math.sqrt(3) / 2, 0.5)), rtol=0, atol=1e-6)


def test_coordinates_of_a_region_fill_minus_one_to_one():
    # Row 0 N alone; longitudes 30, 45 and 60 E: x = cos falls, y = sin rises, z is constant and stays at the
    # low end.
    features = on_the_sphere(torch.tensor([0.0]), torch.tensor([30.0, 45.0, 60.0]), whole_sphere=False)

    # 45 E, by hand: x = y = sqrt(1/2) between sin 30 = 1/2 and cos 30 = sqrt(3)/2.
    middle = 2 * (math.sqrt(0.5) - 0.5) / (math.sqrt(3) / 2 - 0.5) - 1
    expected = by_formula((1.0, -1.0, -1.0), (middle, middle, -1.0), (-1.0, 1.0, -1.0))
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-5)


def test_a_last_patch_that_reaches_over_the_edge_is_centred_on_its_own_points():
    # Columns 0, 10, 20, patch 2: centres at 5 and 20 east.
    features = on_the_sphere(torch.tensor([0.0]), torch.tensor([0.0, 10.0, 20.0]), patch=2, whole_sphere=True)

    points = [(math.cos(a), math.sin(a), 0.0) for a in (math.radians(5), math.radians(20))]
    torch.testing.assert_close(features, by_formula(*points), rtol=0, atol=1e-6)


def test_axes_that_are_no_sphere_are_stretched_each_by_itself_whatever_their_units():
    # x 0, 10, 40 mm: -1, -1/2, 1. z 5 and 6: -1 and 1. The last axis counts fastest.
    expected = by_formula((-1, -1), (-1, 1), (-0.5, -1), (-0.5, 1), (1, -1), (1, 1))

    torch.testing.assert_close(along(x=[0.0, 10.0, 40.0], z=[5.0, 6.0]), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(along(x=[0.0, 1e4, 4e4], z=[5e-6, 6e-6]), expected, rtol=0, atol=1e-6)


def test_levels_stand_beside_the_sphere_wherever_their_axis_stands():
    # Level, latitude, longitude: the point on the sphere comes first, (cos 60, 0, sin 60) at 60 N 0 E; then
    # the level, -1 or 1.
    axes = [Axis(name=name, values=()) for name in ("level", "latitude", "longitude")]
    centres = [torch.tensor(values, dtype=torch.float64) for values in ([500.0, 850.0], [60.0], [0.0])]

    features = fourier_features(axes, centres, whole_sphere=True)

    x, z = math.cos(math.radians(60)), math.sin(math.radians(60))
    torch.testing.assert_close(features, by_formula((x, 0, z, -1), (x, 0, z, 1)), rtol=0, atol=1e-6)


def test_an_axis_of_a_single_place_has_finite_features():
    torch.testing.assert_close(along(x=[7.0]), by_formula((-1.0,)), rtol=0, atol=1e-6)


def test_the_finest_octave_turns_once_in_an_eighth_of_the_radius():
    # 4 / 2^5 = 1/8, as said beside NUM_FREQUENCIES.
    finest = [NUM_FREQUENCIES - 1, 2 * NUM_FREQUENCIES - 1]
    here, there, halfway = octaves(torch.tensor([[0.3], [0.3 + 4 / 2**5], [0.3 + 2 / 2**5]], dtype=torch.float64))

    torch.testing.assert_close(there[finest], here[finest], rtol=0, atol=1e-12)
    torch.testing.assert_close(halfway[finest], -here[finest], rtol=0, atol=1e-12)


def scores(angles_of_query: torch.Tensor, angles_of_key: torch.Tensor) -> torch.Tensor:
    """Products of one query and one key, turned by each of some angles."""
    generator = torch.Generator().manual_seed(1)
    width = 2 * angles_of_query.shape[-1]
    query, key = torch.randn(2, 1, width, dtype=torch.float64, generator=generator)
    turned_query = rotate(query, angles_of_query.cos(), angles_of_query.sin())
    turned_key = rotate(key, angles_of_key.cos(), angles_of_key.sin())
    return (turned_query * turned_key).sum(-1)


def test_scores_depend_on_the_difference_of_coordinates_only():
    generator = torch.Generator().manual_seed(2)
    query, key = 20 * torch.rand(2, 50, 3, dtype=torch.float64, generator=generator)
    shift = 7 * torch.randn(1, 3, dtype=torch.float64, generator=generator)

    def turned(coordinates: torch.Tensor) -> torch.Tensor:
        return rotary_angles(coordinates, [2.0, 20.0, 30.0], [False, False, True], 24)

    before = scores(turned(query), turned(key))
    after = scores(turned(query + shift), turned(key + shift))
    apart = scores(turned(query + shift), turned(key))

    torch.testing.assert_close(after, before, rtol=0, atol=1e-9)
    assert (apart - before).abs().max() > 0.1


@pytest.mark.parametrize("length", [1, 2, 5, 36])
def test_a_whole_turn_of_a_periodic_axis_changes_nothing(length):
    places = torch.arange(length, dtype=torch.float64)[:, None] + 0.3

    def turned(coordinates: torch.Tensor) -> torch.Tensor:
        return rotary_angles(coordinates, [float(length)], [True], 16)

    here = scores(turned(places), turned(torch.zeros(1, 1, dtype=torch.float64)))

    for turns in (-1, 1, 3):
        there = scores(turned(places + turns * length), turned(torch.zeros(1, 1, dtype=torch.float64)))
        torch.testing.assert_close(there, here, rtol=0, atol=1e-9)


def test_the_last_and_first_places_of_a_periodic_axis_are_neighbours():
    angles = rotary_angles(torch.arange(12.0, dtype=torch.float64)[:, None], [12.0], [True], 16)

    step = scores(angles, angles.roll(1, dims=0))

    # All twelve neighbours, over the seam too, have the same score.
    torch.testing.assert_close(step, step[:1].expand(12), rtol=0, atol=1e-9)
    # And the first and the last place of an axis that does not close do not.
    open_ = rotary_angles(torch.arange(12.0, dtype=torch.float64)[:, None], [12.0], [False], 16)
    step = scores(open_, open_.roll(1, dims=0))
    assert (step[0] - step[1]).abs() > 0.1


def test_rates_fall_in_equal_ratios_from_a_radian_a_cell_to_a_radian_the_axis():
    # Head width 6: three pairs along an axis of 100 cells: 1, 1/10 and 1/100 radians a cell.
    angles = rotary_angles(torch.tensor([[2.0]], dtype=torch.float64), [100.0], [False], 6)

    torch.testing.assert_close(angles, torch.tensor([[2.0, 0.2, 0.02]], dtype=torch.float64))


def test_rates_round_a_periodic_axis_are_whole_turns_and_at_least_one():
    # 100 cells, a turn is 2 pi / 100 = 0.0628 a cell: 1 is 15.9 turns, so 16; 1/10 is 1.59, so 2; 1/100 is
    # 0.16, so 1.
    angles = rotary_angles(torch.tensor([[1.0]], dtype=torch.float64), [100.0], [True], 6)

    torch.testing.assert_close(angles, 2 * math.pi / 100 * torch.tensor([[16.0, 2.0, 1.0]], dtype=torch.float64))


def test_pairs_that_are_left_over_go_to_the_first_axes():
    # Seven pairs over two axes: four and three; rates from 1 to 1/100 in four steps have a ratio of 100^(1/3) = 4.64.
    angles = rotary_angles(torch.tensor([[5.0, 7.0]], dtype=torch.float64), [100.0, 100.0], [False, False], 14)

    first = [5.0, 5.0 / 100 ** (1 / 3), 5.0 / 100 ** (2 / 3), 0.05]
    expected = torch.tensor([[*first, 7.0, 0.7, 0.07]], dtype=torch.float64)
    torch.testing.assert_close(angles, expected)


def test_fewer_pairs_than_axes_turn_by_the_first_axes():
    # The only pair turns a radian a cell along the first of three axes.
    angles = rotary_angles(torch.full((4, 3), 5.0), [9.0, 9.0, 9.0], [False, True, False], 2)

    assert angles.tolist() == [[5.0]] * 4


def test_an_axis_with_a_single_pair_turns_a_radian_a_cell():
    assert rotary_angles(torch.tensor([[3.0]]), [50.0], [False], 2).tolist() == [[3.0]]


def test_no_axes_turn_nothing():
    assert rotary_angles(torch.zeros(5, 0), [], [], 4).tolist() == [[0.0, 0.0]] * 5


@given(seed=st.integers(0, 1000), pairs=st.integers(1, 9))
def test_turning_keeps_lengths_and_pairs_apart(seed, pairs):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(2, 3, 5, 2 * pairs, dtype=torch.float64, generator=generator)
    angles = 10 * torch.randn(5, pairs, dtype=torch.float64, generator=generator)

    turned = rotate(tensor, angles.cos(), angles.sin())

    # A pair is a feature of the first half and one of the second.
    before = torch.complex(tensor[..., :pairs], tensor[..., pairs:])
    after = torch.complex(turned[..., :pairs], turned[..., pairs:])
    torch.testing.assert_close(after, before * torch.polar(torch.ones_like(angles), angles), rtol=0, atol=1e-12)
    torch.testing.assert_close(after.abs(), before.abs(), rtol=0, atol=1e-12)


def test_turning_by_angles_of_each_sample_leaves_heads_together():
    # Shape (B, 1, N, D / 2): each sample has its own angles, all heads the same.
    generator = torch.Generator().manual_seed(3)
    tensor, angles = torch.randn(2, 3, 5, 4, generator=generator), torch.randn(2, 1, 5, 2, generator=generator)

    turned = rotate(tensor, angles.cos(), angles.sin())

    for sample in range(2):
        for head in range(3):
            own = rotate(tensor[sample, head], angles[sample, 0].cos(), angles[sample, 0].sin())
            torch.testing.assert_close(turned[sample, head], own)
