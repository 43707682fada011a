"""Rotating shallow water over mountains: one layer of fluid whose height, wind and tracer stand for weather.

The channel reaches round the globe and from pole to pole, with walls there. Its cells are all of one size (there is no
metric of a sphere), and the Coriolis parameter is that of the latitude. Arakawa's C grid: `u` lies on western faces,
`v` on southern faces, `h` and `tracer` in the middle of cells; rows go from south to north.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Field = npt.NDArray[np.float64]

GRAVITY = 9.80665
"""m s-2, standard gravity (CGPM 1901)."""
ROTATION = 7.292e-5
"""s-1, of the Earth."""
DAY_SECONDS = 86400.0
_EARTH_METRES = 40_000e3
"""Length of the equator, and of a whole meridian."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planet:
    """The channel and what drives it."""

    columns: int = 96
    rows: int = 48
    mean_depth: float = 4000.0
    """m; waves run at sqrt(gravity x depth)."""
    jet: float = 60.0
    """m s-1; strength of the westerlies, narrow enough to be unstable."""
    relaxation_days: float = 8.0
    """Time in which wind, height and tracer fall back to the jets; infinite, with no stirring and
    no friction, mass and energy are conserved."""
    stirring: float = 2e-3
    """m s-1; how fast travelling patterns of heat raise and lower the fluid, without which the flow would settle."""
    friction: float = 0.005
    """Share of the shortest wave that a step takes away."""

    @property
    def dx(self) -> float:
        """Width of a cell, m."""
        return _EARTH_METRES / self.columns

    @property
    def dy(self) -> float:
        """Height of a cell, m."""
        return _EARTH_METRES / 2 / self.rows

    @property
    def step_seconds(self) -> float:
        """Longest step that divides an hour and that Runge-Kutta's fourth-order scheme bears, with a margin.

        On the C grid the fastest wave turns by 2 sqrt(gravity x depth) sqrt(1/dx2 + 1/dy2) a second; the scheme is
        stable up to 2.8 a step.
        """
        speed = np.sqrt(GRAVITY * self.mean_depth) + self.jet
        longest = 2.5 / (2 * speed * np.hypot(1 / self.dx, 1 / self.dy))
        return float(3600.0 / np.ceil(3600.0 / longest))


@dataclass(frozen=True, slots=True)
class State:
    """The fluid at one moment."""

    u: Field
    """Eastward wind on western faces, m s-1; shape (row, column)."""
    v: Field
    """Northward wind on southern faces, m s-1; shape (row + 1, column), zero at both walls."""
    h: Field
    """Depth of the fluid, m; shape (row, column)."""
    tracer: Field
    """What the wind carries, K from the mean; shape (row, column)."""
    seconds: float = 0.0
    """Time since the start."""

    def plus(self, other: "State", factor: float) -> "State":
        """The state moved by `factor` of a tendency."""
        return State(
            self.u + factor * other.u,
            self.v + factor * other.v,
            self.h + factor * other.h,
            self.tracer + factor * other.tracer,
            self.seconds,
        )


@dataclass(frozen=True)
class Heating:
    """Waves of heat that travel round the globe, each with a middle latitude and a period of its own."""

    patterns: Field
    """Cosine and sine of each wave; shape (2 x wave, row x column)."""
    frequency: Field
    """s-1, of each wave."""

    @classmethod
    def random(cls, planet: Planet, rng: np.random.Generator, waves: int = 16) -> "Heating":
        """Some waves of 2 to 7 crests, on either side of the equator, with periods of 2 to 9 days."""
        longitude = 2 * np.pi * np.arange(planet.columns) / planet.columns
        crests = rng.integers(2, 8, waves)[:, None]
        middle = rng.choice([-1, 1], waves) * rng.uniform(15, 60, waves)
        belt = np.exp(-(((latitudes(planet) - middle[:, None]) / 12) ** 2))[:, :, None]
        phase = crests * longitude + rng.uniform(0, 2 * np.pi, (waves, 1))
        waves_of_both = np.concatenate([belt * np.cos(phase)[:, None], belt * np.sin(phase)[:, None]])
        frequency = 2 * np.pi / (DAY_SECONDS * rng.uniform(2, 9, waves))
        return cls(waves_of_both.reshape(2 * waves, -1) * np.sqrt(2 / waves), frequency)

    def at(self, seconds: float) -> Field:
        """Heat at a moment, about one at its strongest places; shape (row x column,)."""
        turn = self.frequency * seconds
        return np.concatenate([np.cos(turn), np.sin(turn)]) @ self.patterns


class ShallowWater:
    """The model of a planet with random mountains.

    The scheme is the one that conserves energy, of Sadourny (1975), J. Atmos. Sci. 32, 680, equations 5 to 9.
    """

    def __init__(self, planet: Planet, seed: int) -> None:
        self.planet = planet
        self.seed = seed
        self.mountains = _mountains(planet, np.random.default_rng([seed, 1]))
        """Height of the ground, m; shape (row, column)."""
        self.balance = _balance(planet, self.mountains)
        """The jets in balance with the height, without eddies."""
        self._heating = Heating.random(planet, np.random.default_rng([seed, 3]))

    def start(self) -> State:
        """The jets with small disturbances of height and tracer."""
        rng = np.random.default_rng([self.seed, 2])
        rough = _smooth(rng.normal(size=self.balance.h.shape), passes=20)
        disturbance = 60.0 * (rough - rough.mean()) / rough.std()
        balance = self.balance
        return State(balance.u, balance.v, balance.h + disturbance, balance.tracer + 0.05 * disturbance)

    def states(self, every_seconds: float, spin_up_days: float = 10.0) -> Iterator[State]:
        """The state at regular intervals, without end, from the end of the spin-up on."""
        state = self.start()
        for _ in range(round(spin_up_days * DAY_SECONDS / self.planet.step_seconds)):
            state = self.step(state)
        while True:
            yield state
            for _ in range(round(every_seconds / self.planet.step_seconds)):
                state = self.step(state)

    def step(self, state: State) -> State:
        """The state one step later."""
        dt = self.planet.step_seconds
        first = self._tendency(state)
        second = self._tendency(state.plus(first, dt / 2))
        third = self._tendency(state.plus(second, dt / 2))
        fourth = self._tendency(state.plus(third, dt))
        moved = state.plus(first, dt / 6).plus(second, dt / 3).plus(third, dt / 3).plus(fourth, dt / 6)
        return self._forced(moved, dt)

    def mass(self, state: State) -> float:
        """Volume of the fluid, m3."""
        return float(state.h.sum() * self.planet.dx * self.planet.dy)

    def energy(self, state: State) -> float:
        """Kinetic and potential energy over density, m5 s-2, above that of a fluid at rest with a flat surface."""
        kinetic = 0.5 * (_west(state.h) * state.u**2).sum() + 0.5 * (_south(state.h) * state.v**2).sum()
        surface = state.h + self.mountains
        potential = 0.5 * GRAVITY * ((surface - surface.mean()) ** 2).sum()
        return float((kinetic + potential) * self.planet.dx * self.planet.dy)

    def _tendency(self, state: State) -> State:
        u, v, h = state.u, state.v, state.h
        dx, dy = self.planet.dx, self.planet.dy
        flux_x, flux_y = _west(h) * u, _south(h) * v
        # Potential vorticity at the south-western corners; the walls slip, so that only rotation counts there.
        vorticity = _coriolis(self.planet) + (v - np.roll(v, 1, axis=1)) / dx
        vorticity[1:-1] -= np.diff(u, axis=0) / dy
        potential = vorticity / _west(_south(h))
        head = GRAVITY * (h + self.mountains) + 0.5 * (_east(u**2) + _north(v**2))
        swirl_u, swirl_v = potential * _west(flux_y), potential * _south(flux_x)
        du = _north(swirl_u) - (head - np.roll(head, 1, axis=1)) / dx
        dv = -_east(swirl_v)
        dv[1:-1] -= np.diff(head, axis=0) / dy
        dv[0] = dv[-1] = 0.0
        dh = -_divergence(flux_x, flux_y, dx, dy)
        carried = -_divergence(flux_x * _west(state.tracer), flux_y * _south(state.tracer), dx, dy)
        return State(du, dv, dh, (carried - state.tracer * dh) / h)

    def _forced(self, state: State, dt: float) -> State:
        share = dt / (self.planet.relaxation_days * DAY_SECONDS)
        friction, balance = self.planet.friction, self.balance
        heat = self.planet.stirring * dt * self._heating.at(state.seconds).reshape(state.h.shape)
        v = _damped(state.v, friction)
        v[0] = v[-1] = 0.0
        return State(
            _damped(state.u, friction) + share * (balance.u - state.u),
            v - share * state.v,
            state.h + share * (balance.h - state.h) + heat,
            _damped(state.tracer, friction) + share * (balance.tracer - state.tracer),
            state.seconds + dt,
        )


def latitudes(planet: Planet) -> Field:
    """Latitude of the middle of each row, degrees north."""
    return (np.arange(planet.rows) + 0.5) * 180 / planet.rows - 90


def _coriolis(planet: Planet) -> Field:
    latitude = np.deg2rad(np.linspace(-90, 90, planet.rows + 1))
    return (2 * ROTATION * np.sin(latitude))[:, None]


def _mountains(planet: Planet, rng: np.random.Generator) -> Field:
    """Random continents: smooth, never steep, flat for more than half of the globe."""
    rough = _smooth(rng.normal(size=(planet.rows, planet.columns)), passes=30)
    height = np.maximum(rough / rough.std() - 0.6, 0.0) * 800.0
    away_from_walls = np.cos(np.deg2rad(latitudes(planet)))[:, None]
    return np.asarray(np.minimum(height, 1600.0) * away_from_walls)


def _balance(planet: Planet, mountains: Field) -> State:
    """Two westerly jets and weak easterlies, with the height that holds them: f u = -g dh/dy."""
    latitude = latitudes(planet)
    wind = -6.0 * np.exp(-((latitude / 15) ** 2))
    for middle in (-42, 42):
        wind = wind + planet.jet * np.exp(-(((latitude - middle) / 9) ** 2))
    slope = -_coriolis(planet)[1:-1, 0] * 0.5 * (wind[1:] + wind[:-1]) / GRAVITY
    surface = np.concatenate([[0.0], np.cumsum(slope)]) * planet.dy
    shape = (planet.rows, planet.columns)
    height = np.broadcast_to((surface - surface.mean())[:, None], shape) - mountains
    warmth = 30.0 * (1 / 2 - np.sin(np.deg2rad(latitude)) ** 2)
    return State(
        np.broadcast_to(wind[:, None], shape).copy(),
        np.zeros((planet.rows + 1, planet.columns)),
        height - height.mean() + planet.mean_depth,
        np.broadcast_to(warmth[:, None], shape).copy(),
    )


def _west(values: Field) -> Field:
    """Mean of each value and its western neighbour: middles to western faces."""
    return 0.5 * (values + np.roll(values, 1, axis=1))


def _east(values: Field) -> Field:
    """Mean of each value and its eastern neighbour: western faces to middles."""
    return 0.5 * (values + np.roll(values, -1, axis=1))


def _south(values: Field) -> Field:
    """Middles to southern faces, one row more; at a wall the only neighbour."""
    faces = np.empty((values.shape[0] + 1, values.shape[1]))
    faces[1:-1] = 0.5 * (values[1:] + values[:-1])
    faces[0], faces[-1] = values[0], values[-1]
    return faces


def _north(faces: Field) -> Field:
    """Southern faces to middles, one row less."""
    return 0.5 * (faces[1:] + faces[:-1])


def _divergence(flux_x: Field, flux_y: Field, dx: float, dy: float) -> Field:
    return (np.roll(flux_x, -1, axis=1) - flux_x) / dx + np.diff(flux_y, axis=0) / dy


def _laplace(values: Field) -> Field:
    """Second differences; none across a wall."""
    result = np.roll(values, 1, axis=1) + np.roll(values, -1, axis=1) - 2 * values
    slope = np.diff(values, axis=0)
    result[:-1] += slope
    result[1:] -= slope
    return np.asarray(result)


def _damped(values: Field, share: float) -> Field:
    # The shortest wave has -8 for its second differences, 64 for its fourth.
    return np.asarray(values - share / 64 * _laplace(_laplace(values)))


def _smooth(values: Field, passes: int) -> Field:
    for _ in range(passes):
        values = values + 0.125 * _laplace(values)
    return values
