from itertools import pairwise

import numpy as np
import pytest

from hyperslab.data.sources.synthetic.shallow_water import Planet, ShallowWater, State
from hyperslab.data.sources.synthetic.weather import (
    LEVELS_HPA,
    QUANTA,
    Grid,
    Turbulence,
    Weather,
    standard_geopotential,
    standard_temperature,
)

PLANET = Planet(columns=48, rows=24)


@pytest.fixture(scope="module")
def model() -> ShallowWater:
    return ShallowWater(PLANET, seed=0)


@pytest.fixture(scope="module")
def state(model: ShallowWater) -> State:
    return next(model.states(3600.0, spin_up_days=1))


def test_the_grid_is_that_of_the_store() -> None:
    grid = Grid(0.25)
    assert grid.shape == (721, 1440)
    assert (grid.latitude[0], grid.latitude[-1]) == (90, -90)
    assert (grid.longitude[0], grid.longitude[-1]) == (0, 359.75)


def test_the_standard_atmosphere_is_met() -> None:
    # ICAO Standard Atmosphere: 500 hPa at 5574 m and -21.2 C, 250 hPa at 10363 m and -52.3 C; 9.80665 m s-2.
    assert standard_geopotential(500) / 9.80665 == pytest.approx(5574, rel=1e-3)
    assert standard_geopotential(250) / 9.80665 == pytest.approx(10363, rel=1e-3)
    assert standard_geopotential(100) / 9.80665 == pytest.approx(16180, rel=2e-3)
    assert standard_temperature(500) == pytest.approx(251.9, abs=0.1)
    assert standard_temperature(100) == 216.65


def test_fields_lie_where_those_of_the_air_do(model: ShallowWater, state: State) -> None:
    weather = Weather(model, Grid(3.0))
    for level in LEVELS_HPA:
        fields = {name: weather.field(state, name, level, frame=0) for name in QUANTA}
        assert all(field.dtype == np.float32 and field.shape == (61, 120) for field in fields.values())
        assert np.abs(fields["u"]).max() < 120
        assert fields["z"].mean() == pytest.approx(standard_geopotential(level), abs=1500)
        assert fields["t"].mean() == pytest.approx(standard_temperature(level), abs=5)
        # The westerlies of both hemispheres stand at 42 degrees, rows 16 and 44.
        assert fields["u"][16].mean() > 5
        assert fields["u"][44].mean() > 5


def test_pressure_falls_towards_the_poles_where_westerlies_blow(model: ShallowWater, state: State) -> None:
    z = Weather(model, Grid(3.0)).field(state, "z", 500.0, frame=0)
    # Geostrophic balance: low to the left of the wind in the north, to its right in the south.
    assert z[8].mean() < z[24].mean()
    assert z[52].mean() < z[36].mean()


def test_values_are_whole_quanta_that_float32_holds(model: ShallowWater, state: State) -> None:
    weather = Weather(model, Grid(5.0))
    for name, quantum in QUANTA.items():
        steps = weather.field(state, name, 250.0, frame=3).astype(np.float64) / quantum
        assert np.array_equal(steps, np.rint(steps))


def test_bounds_hold_every_value(model: ShallowWater) -> None:
    weather = Weather(model, Grid(2.0))
    states = [state for state, _ in zip(model.states(86400.0, spin_up_days=2), range(5), strict=False)]
    for name in QUANTA:
        low, high = weather.bounds(states, name)
        for frame, state in enumerate(states):
            for level in LEVELS_HPA:
                values = weather.field(state, name, level, frame)
                assert low <= values.min()
                assert values.max() <= high


def test_static_fields_are_a_share_and_a_height(model: ShallowWater) -> None:
    statics = Weather(model, Grid(2.0)).statics()
    assert statics["lsm"].min() == 0
    assert statics["lsm"].max() == 1
    assert 0.1 < statics["lsm"].mean() < 0.6
    assert 0 <= statics["z"].min() < statics["z"].max() < 1700 * 9.80665


def test_kinetic_energy_falls_as_the_five_thirds_power_of_the_wave_number() -> None:
    grid = Grid(0.5)
    turbulence = Turbulence.random(grid, np.random.default_rng(0))
    rows, columns = grid.shape
    transforms = [np.fft.fft2(turbulence.patterns[name][0][:, :columns]) for name in ("u", "v")]
    energy = np.sum(np.abs(transforms) ** 2, axis=0)
    number = np.hypot(np.fft.fftfreq(rows)[:, None], np.fft.fftfreq(columns)) * columns
    edges = np.geomspace(60, 300, 12)
    shells = [energy[(number >= low) & (number < high)].mean() * low for low, high in pairwise(edges)]
    slope = np.polyfit(np.log(edges[:-1]), np.log(shells), 1)[0]
    assert slope == pytest.approx(-5 / 3, abs=0.15)


def test_small_scale_wind_has_no_divergence() -> None:
    grid = Grid(2.0)
    turbulence = Turbulence.random(grid, np.random.default_rng(0))
    rows, columns = grid.shape
    u, v = (np.fft.rfft2(turbulence.patterns[name][0][:, :columns].astype(float)) for name in ("u", "v"))
    east, north = 1j * np.fft.rfftfreq(columns), -1j * np.fft.fftfreq(rows)[:, None]
    divergence, rotation = east * u + north * v, east * v - north * u
    # The highest wave of an even number of cells has no derivative of its own, and is left out.
    assert np.abs(divergence[:, :-1]).max() < 1e-5 * np.abs(rotation).max()


def test_no_frame_repeats_another() -> None:
    turbulence = Turbulence.random(Grid(5.0), np.random.default_rng(0))
    frames = [turbulence.at("t", 500.0, frame) for frame in range(80)]
    together = np.corrcoef([frame.ravel() for frame in frames])
    assert np.abs(together - np.eye(80)).max() < 0.999
