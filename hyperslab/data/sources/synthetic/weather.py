"""Weather on a latitude-longitude grid and on pressure levels, made from the shallow-water model's state."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hyperslab.data.sources.synthetic.shallow_water import GRAVITY, ROTATION, ShallowWater, State

Values = npt.NDArray[np.float32]

LEVELS_HPA = (850.0, 500.0, 250.0)
"""From the ground up, as the archive's files have them."""
GROUND = 0.0
"""Stands for the level of the ground."""
QUANTA = {"u": 2.0**-9, "v": 2.0**-9, "z": 2.0**-2, "t": 2.0**-10}
"""Steps of the values: as in ERA5, whose fields hold 16 bits each, most of float32's last bits are zero."""
NOISE = {"wind": 1.5, "t": 0.6}
"""Standard deviation of what is smaller than the model's waves, m s-1 and K."""


@dataclass(frozen=True)
class Grid:
    """A regular grid of the globe, from north to south and from Greenwich to the east."""

    step_degrees: float

    @property
    def latitude(self) -> npt.NDArray[np.float64]:
        """Degrees north, descending from 90 to -90."""
        return np.asarray(90 - self.step_degrees * np.arange(round(180 / self.step_degrees) + 1), np.float64)

    @property
    def longitude(self) -> npt.NDArray[np.float64]:
        """Degrees east, from 0."""
        return np.asarray(self.step_degrees * np.arange(round(360 / self.step_degrees)), np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.latitude), len(self.longitude)


class Weather:
    """Fields of each variable and level on a grid; a pure function of the state and of the number of the frame."""

    def __init__(self, model: ShallowWater, grid: Grid) -> None:
        self.grid = grid
        self._model = model
        self._turbulence = Turbulence.random(grid, np.random.default_rng([model.seed, 4]))
        planet = model.planet
        rows = (grid.latitude + 90) / 180 * planet.rows - 0.5
        columns = grid.longitude / 360 * planet.columns
        # Where the grid's points lie between the values of the C grid, in cells from the first value.
        self._rows = {
            "middle": _cubic(rows, planet.rows, periodic=False),
            "v": _cubic(rows + 0.5, planet.rows + 1, periodic=False),
        }
        self._columns = {
            (name, level): _cubic(at + _tilt(level) * planet.columns / 360, planet.columns, periodic=True).T
            for name, at in {"middle": columns - 0.5, "u": columns}.items()
            for level in (*LEVELS_HPA, GROUND)
        }

    def field(self, state: State, variable: str, level: float, frame: int) -> Values:
        """One variable on one level: `u` and `v` in m s-1, `z` in m2 s-2, `t` in K; shape (latitude, longitude)."""
        rows, columns = {"u": ("middle", "u"), "v": ("v", "middle")}.get(variable, ("middle", "middle"))
        mean, coarse = self._coarse(state, variable, level)
        values = self._on_grid(coarse, rows, columns, level)
        values += self._turbulence.at(variable, level, frame)
        return quantised(values, np.float32(mean), QUANTA[variable])

    def bounds(self, states: Sequence[State], variable: str) -> tuple[float, float]:
        """Values between which a variable of these states lies, on all levels."""
        noise = self._turbulence.largest(variable)
        lows, highs = [], []
        for level in LEVELS_HPA:
            coarse = [self._coarse(state, variable, level) for state in states]
            low = min(mean + values.min() for mean, values in coarse)
            high = max(mean + values.max() for mean, values in coarse)
            # The sizes of the cubic weights add up to at most 1.25 a dimension: over the range by (1.25^2 - 1) / 2.
            lows.append(low - 0.29 * (high - low) - noise)
            highs.append(high + 0.29 * (high - low) + noise)
        return float(min(lows)), float(max(highs))

    def _coarse(self, state: State, variable: str, level: float) -> tuple[float, npt.NDArray[np.float64]]:
        """A level's mean and the model's departure from it, on the model's own cells."""
        share = wind_share(level)
        if variable in ("u", "v"):
            return 0.0, share * (state.u if variable == "u" else state.v)
        if variable == "t":
            return standard_temperature(level), (1.1 - 0.3 * share) * state.tracer
        surface = state.h + self._model.mountains - self._model.planet.mean_depth
        return standard_geopotential(level), GRAVITY * share * surface

    def statics(self) -> dict[str, Values]:
        """`lsm`, share of land, 0 to 1, and `z`, geopotential of the ground in m2 s-2."""
        ground = np.maximum(self._on_grid(self._model.mountains, "middle", "middle", GROUND), 0.0)
        return {
            "lsm": quantised(np.clip(ground / 100, 0, 1), np.float32(0), 2.0**-10),
            "z": quantised(np.float32(GRAVITY) * ground, np.float32(0), 2.0**-2),
        }

    def _on_grid(self, values: npt.NDArray[np.float64], rows: str, columns: str, level: float) -> Values:
        return self._rows[rows] @ (values.astype(np.float32) @ self._columns[columns, level])


def quantised(values: Values, mean: np.float32, quantum: float) -> Values:
    """`values` plus `mean`, rounded to whole quanta (a power of two, so that float32 holds them exactly)."""
    scaled = (values + mean) * np.float32(1 / quantum)
    np.rint(scaled, out=scaled)
    scaled *= np.float32(quantum)
    return scaled


def wind_share(level: float) -> float:
    """Wind on a level over that of the model: strongest at the jet's level of 250 hPa."""
    return float(0.35 + 0.75 * np.exp(-(((level - 250) / 330) ** 2)))


def standard_geopotential(level: float) -> float:
    """m2 s-2 on a level of so many hPa; ICAO Standard Atmosphere (Doc 7488), troposphere and isothermal layer."""
    if level > 226.32:
        return float(GRAVITY * 44330.8 * (1 - (level / 1013.25) ** 0.190263))
    return float(GRAVITY * (11_000 + 6341.62 * np.log(226.32 / level)))


def standard_temperature(level: float) -> float:
    """K on a level of so many hPa; ICAO Standard Atmosphere (Doc 7488)."""
    return float(max(288.15 - 0.0065 * standard_geopotential(level) / GRAVITY, 216.65))


def _tilt(level: float) -> float:
    """Degrees by which waves on a level lag behind those near the ground: they lean to the west with height."""
    return 0.0 if level == GROUND else (1000 - level) / 1000 * 15


@dataclass(frozen=True)
class Turbulence:
    """Small-scale patterns of a realistic spectrum that the mean wind carries eastward.

    Two patterns of each quantity move at different speeds and swap their weights, so that no frame repeats another.
    Wind and geopotential come from one stream function: the wind has no divergence and is in geostrophic balance.
    """

    patterns: dict[str, tuple[Values, Values]]
    """Of each variable, twice round the globe, so that a shifted one is a slice; shape (latitude, 2 x longitude)."""

    @classmethod
    def random(cls, grid: Grid, rng: np.random.Generator) -> "Turbulence":
        """Patterns for a grid: kinetic energy falls with the wave number as k^-5/3 (Nastrom and Gage 1985)."""
        made: dict[str, list[Values]] = {name: [] for name in QUANTA}
        for _ in range(2):
            flow = _stream_function(grid, rng)
            warmth = _filtered(rng.normal(size=grid.shape), _scales(grid) ** (-4 / 3) * _small(grid))
            for name, values in {**flow, "t": NOISE["t"] * warmth / warmth.std()}.items():
                made[name].append(np.tile(values.astype(np.float32), 2))
        return cls({name: (pair[0], pair[1]) for name, pair in made.items()})

    def at(self, variable: str, level: float, frame: int) -> Values:
        """The pattern of a frame; shape (latitude, longitude)."""
        first, second = self.patterns[variable]
        columns = first.shape[1] // 2
        angle = 2 * np.pi * frame / 37 + level
        wind = wind_share(level)
        starts = [int(-(shift * wind * frame + level) * columns / 360) % columns for shift in (4.0, 2.5)]
        pieces = [pattern[:, s : s + columns] for pattern, s in zip((first, second), starts, strict=True)]
        mixed = pieces[0] * np.float32(np.cos(angle))
        mixed += pieces[1] * np.float32(np.sin(angle))
        return np.asarray(mixed, np.float32)

    def largest(self, variable: str) -> float:
        """A size that no value of `at` exceeds."""
        return float(np.sqrt(sum(np.abs(pattern).max() ** 2 for pattern in self.patterns[variable])))


def _stream_function(grid: Grid, rng: np.random.Generator) -> dict[str, npt.NDArray[np.float64]]:
    """Wind and geopotential of a random stream function, whose spectrum is that of the wind over k2."""
    weight = _scales(grid) ** (-7 / 3) * _small(grid)
    transform = np.fft.rfft2(rng.normal(size=grid.shape)) * weight
    rows, columns = _wave_numbers(grid)
    # Rows run to the south, so that the derivative to the north changes sign.
    u = np.fft.irfft2(1j * rows * transform, grid.shape)
    v = np.fft.irfft2(1j * columns * transform, grid.shape)
    stream = np.fft.irfft2(transform, grid.shape)
    scale = NOISE["wind"] / np.hypot(u, v).std()
    metres = grid.step_degrees / 360 * 40_000e3
    return {"u": scale * u, "v": scale * v, "z": scale * stream * metres * 2 * ROTATION * np.sin(np.pi / 4)}


def _wave_numbers(grid: Grid) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Radians a cell, of rows and of columns."""
    rows, columns = np.fft.fftfreq(grid.shape[0]), np.fft.rfftfreq(grid.shape[1])
    return np.asarray(2 * np.pi * rows[:, None], np.float64), np.asarray(2 * np.pi * columns[None, :], np.float64)


def _scales(grid: Grid) -> npt.NDArray[np.float64]:
    length = np.hypot(*_wave_numbers(grid))
    length[0, 0] = np.inf
    return np.asarray(length)


def _small(grid: Grid) -> npt.NDArray[np.float64]:
    """Near one for waves that the model cannot hold, near zero for longer ones."""
    largest = min(24, grid.shape[1] // 6)
    waves = np.hypot(*_wave_numbers(grid)) * grid.shape[1] / (2 * np.pi)
    return np.asarray(-np.expm1(-((waves / largest) ** 4)))


def _filtered(noise: npt.NDArray[np.float64], weight: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # The mean has an infinite scale, and so no weight.
    return np.asarray(np.fft.irfft2(np.fft.rfft2(noise) * weight, noise.shape))


def _cubic(positions: npt.NDArray[np.float64], count: int, *, periodic: bool) -> Values:
    """Weights of Catmull and Rom's cubic interpolation at positions between `count` values; shape (position, value)."""
    below = np.floor(positions).astype(int)
    t = positions - below
    weights = (
        ((2 - t) * t - 1) * t / 2,
        ((3 * t - 5) * t * t + 2) / 2,
        ((4 - 3 * t) * t + 1) * t / 2,
        (t - 1) * t * t / 2,
    )
    matrix = np.zeros((len(positions), count), np.float32)
    for offset, weight in zip((-1, 0, 1, 2), weights, strict=True):
        at = below + offset
        at = at % count if periodic else np.clip(at, 0, count - 1)
        np.add.at(matrix, (np.arange(len(positions)), at), weight.astype(np.float32))
    return matrix
