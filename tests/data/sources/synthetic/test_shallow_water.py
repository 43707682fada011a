import math
from itertools import islice

import numpy as np
import pytest

from hyperslab.data.sources.synthetic.shallow_water import (
    DAY_SECONDS,
    GRAVITY,
    ROTATION,
    Planet,
    ShallowWater,
    State,
    latitudes,
)

FREE = Planet(columns=48, rows=24, relaxation_days=math.inf, stirring=0.0, friction=0.0)


def days(model: ShallowWater, state: State, count: float) -> State:
    for _ in range(round(count * DAY_SECONDS / model.planet.step_seconds)):
        state = model.step(state)
    return state


def test_without_forcing_mass_is_kept_and_energy_nearly() -> None:
    model = ShallowWater(FREE, seed=3)
    start = model.start()
    end = days(model, start, 10)
    # Mass moves from cell to cell: only rounding changes it. The scheme of Sadourny keeps energy; what the fourth-order
    # steps in time lose of the fastest waves is some thousandths in ten days.
    assert model.mass(end) == pytest.approx(model.mass(start), rel=1e-12)
    assert model.energy(end) == pytest.approx(model.energy(start), rel=3e-3)
    assert np.abs(end.h - start.h).max() > 50


def test_without_forcing_the_amount_of_tracer_is_kept() -> None:
    model = ShallowWater(FREE, seed=1)
    start = model.start()
    end = days(model, start, 5)
    amount, later = ((state.h * state.tracer).sum() for state in (start, end))
    # What leaves a cell enters its neighbour, up to the steps in time.
    assert later == pytest.approx(amount, abs=1e-5 * (start.h * np.abs(start.tracer)).sum())


def test_a_balanced_jet_without_mountains_or_eddies_stays_as_it_is() -> None:
    model = ShallowWater(FREE, seed=0)
    model.mountains = np.zeros_like(model.mountains)
    balance = model.balance
    flat = State(balance.u, balance.v, balance.h + ShallowWater(FREE, seed=0).mountains, balance.tracer)
    later = days(model, flat, 1)
    # The balance f u = -g dh/dy is that of the equations at rest; the cells' size leaves some metres a second.
    assert np.abs(later.u - flat.u).max() < 5
    assert np.abs(later.v).max() < 2


def test_a_ripple_runs_as_fast_as_the_depth_lets_it() -> None:
    model = ShallowWater(Planet(relaxation_days=math.inf, stirring=0.0, friction=0.0), seed=0)
    planet = model.planet
    model.mountains = np.zeros_like(model.mountains)
    # At the equator rotation hardly counts: a low hump of water splits into two that run east and west.
    x = (np.arange(planet.columns) - 48) * planet.dx
    hump = np.exp(-((x / 1.5e6) ** 2)) * np.exp(-((latitudes(planet)[:, None] / 15) ** 2))
    still = np.zeros((planet.rows, planet.columns))
    state = State(still, np.zeros((planet.rows + 1, planet.columns)), planet.mean_depth + hump, still)
    seconds = 12 * 3600.0
    later = days(model, state, 0.5)
    crest = x[int(np.argmax(later.h[planet.rows // 2, 48:])) + 48]
    # A Kelvin wave runs east along the equator at sqrt(9.80665 x 4000) = 198 m/s: 8556 km in 12 hours.
    assert crest == pytest.approx(math.sqrt(GRAVITY * planet.mean_depth) * seconds, rel=0.1)


def test_the_weather_is_lively_and_bounded_for_weeks() -> None:
    model = ShallowWater(Planet(), seed=5)
    states = list(islice(model.states(2 * DAY_SECONDS), 16))
    speed = [float(np.abs(state.u).max()) for state in states]
    eddies = [float(state.v.std()) for state in states]
    assert min(speed) > 30
    assert max(speed) < 120
    assert min(eddies) > 3
    assert all(state.h.min() > 1000 for state in states)
    change = np.std([state.v for state in states], axis=0).mean()
    assert change > 1


def test_steps_divide_an_hour_and_fit_the_fastest_wave() -> None:
    for columns in (48, 96, 192):
        planet = Planet(columns=columns, rows=columns // 2)
        assert 3600 % planet.step_seconds == 0
        fastest = 2 * math.sqrt(GRAVITY * planet.mean_depth) * math.hypot(1 / planet.dx, 1 / planet.dy)
        # Fourth-order Runge-Kutta bears 2 sqrt(2) = 2.83 radians a step.
        assert fastest * planet.step_seconds < 2.83


def test_the_jets_are_in_geostrophic_balance() -> None:
    model = ShallowWater(Planet(), seed=0)
    surface = (model.balance.h + model.mountains)[:, 0]
    faces = np.deg2rad(np.linspace(-90, 90, model.planet.rows + 1)[1:-1])
    slope = np.diff(surface) / model.planet.dy
    wind = (model.balance.u[1:, 0] + model.balance.u[:-1, 0]) / 2
    expected = -2 * ROTATION * np.sin(faces) * wind / GRAVITY
    np.testing.assert_allclose(slope, expected, atol=1e-12)


def test_the_same_seed_gives_the_same_weather_and_another_seed_other() -> None:
    def first(seed: int) -> State:
        return next(ShallowWater(FREE, seed).states(3600.0, spin_up_days=0.1))

    assert np.array_equal(first(1).h, first(1).h)
    assert not np.array_equal(first(1).h, first(2).h)
