"""Charged particles in liquid argon: straight tracks, the energy they lose, and the electrons they set free."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MUON, PROTON = 13, 2212
"""Particle numbers of the PDG."""
STEP_CM = 0.5
"""Longest segment of a track."""
SEGMENTS = np.dtype(
    [
        ("event_id", "u4"),
        ("vertex_id", "u8"),
        ("file_vertex_id", "u8"),
        ("segment_id", "u4"),
        ("z_end", "f4"),
        ("traj_id", "u4"),
        ("file_traj_id", "u4"),
        ("tran_diff", "f4"),
        ("z_start", "f4"),
        ("x_end", "f4"),
        ("y_end", "f4"),
        ("n_electrons", "u4"),
        ("pdg_id", "i4"),
        ("x_start", "f4"),
        ("y_start", "f4"),
        ("t_start", "f4"),
        ("t0_start", "f8"),
        ("t0_end", "f8"),
        ("t0", "f8"),
        ("dx", "f4"),
        ("long_diff", "f4"),
        ("pixel_plane", "i4"),
        ("t_end", "f4"),
        ("dEdx", "f4"),
        ("dE", "f4"),
        ("t", "f4"),
        ("y", "f4"),
        ("x", "f4"),
        ("z", "f4"),
        ("n_photons", "f4"),
    ],
    align=True,
)
"""A row of `segments` as DUNE/larnd-sim (cli/dumpTree.py) writes it: cm, MeV, microseconds."""

_DENSITY = 1.38
"""g cm-3, of liquid argon."""
_FIELD = 0.5
"""kV cm-1."""
_WORK_EV = 23.6
"""Energy for one electron and its ion; Miyajima et al. (1974)."""
_LIGHT_CM_PER_US = 29979.2458
_MUON_LOSS, _MUON_SPREAD = 1.7, 0.1
"""Most probable loss of a fast muon, MeV cm-1 (PDG, argon), and the width of its spread over half a centimetre."""
_RANGE_FACTOR, _RANGE_POWER = 0.0022, 1.77
"""Range of a proton: factor x energy^power, cm and MeV; Bragg and Kleeman's rule with Bortfeld's (1997) numbers for
water, which stops protons about as liquid argon does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """The active volume, with the cathode in the middle plane `x = 0` and an anode at either end of x."""

    x: float = 30.27
    """Half of its width, cm: the longest drift."""
    y: float = 62.0
    """Half of its height, cm."""
    z: float = 31.0
    """Half of its length, cm."""

    @property
    def half(self) -> Floats:
        """Half of each side, cm; shape (axis,)."""
        return np.array([self.x, self.y, self.z])


@dataclass(frozen=True, slots=True)
class Tracks:
    """Straight tracks, those of an event one after another."""

    event: Ints
    start: Floats
    """cm; shape (track, axis)."""
    end: Floats
    particle: Ints
    residual_cm: Floats
    """What is left of the range where the track ends; zero for one that stops inside."""


def draw_tracks(box: Box, first_event: int, num_events: int, rng: np.random.Generator) -> Tracks:
    """Muons of cosmic rays that cross the box, and now and then a proton that stops in it."""
    counts = 1 + rng.poisson(3.0, num_events)
    event = np.repeat(first_event + np.arange(num_events), counts)
    particle = np.where(rng.random(len(event)) < 0.25, PROTON, MUON)
    point = rng.uniform(-1, 1, (len(event), 3)) * box.half
    direction = np.where((particle == MUON)[:, None], _downward(len(event), rng), _any_way(len(event), rng))
    back, ahead = _to_the_walls(box, point, direction)
    length = rng.uniform(2, 20, len(event))
    start = np.where((particle == MUON)[:, None], point - back[:, None] * direction, point)
    run = np.where(particle == MUON, ahead, np.minimum(ahead, length))
    residual = np.where(particle == MUON, np.inf, length - run)
    return Tracks(event, start, point + run[:, None] * direction, particle, residual)


def segments_of(tracks: Tracks, first_id: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """The tracks cut into steps of half a centimetre at most, with their energy and electrons, as `SEGMENTS`."""
    length = np.linalg.norm(tracks.end - tracks.start, axis=1)
    counts = np.maximum(1, np.ceil(length / STEP_CM)).astype(int)
    track = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    way = tracks.end - tracks.start
    start = tracks.start[track] + way[track] * (number / counts[track])[:, None]
    end = tracks.start[track] + way[track] * ((number + 1) / counts[track])[:, None]
    dx = (length / counts)[track]
    left = tracks.residual_cm[track] + length[track] - number * dx
    energy = np.where(tracks.particle[track] == MUON, _muon_energy(dx, rng), _proton_energy(left, dx))
    rows = np.zeros(len(track), SEGMENTS)
    for name, places in {"start": start, "end": end, "": (start + end) / 2}.items():
        for axis, values in zip("xyz", places.T, strict=True):
            rows[f"{axis}_{name}".rstrip("_")] = values
    for name, run in {"t0_start": number * dx, "t0_end": (number + 1) * dx, "t0": (number + 0.5) * dx}.items():
        rows[name] = run / _LIGHT_CM_PER_US
    rows["event_id"] = tracks.event[track]
    rows["vertex_id"] = rows["file_vertex_id"] = tracks.event[track]
    rows["segment_id"] = first_id + np.arange(len(track))
    rows["traj_id"] = track - np.searchsorted(tracks.event, tracks.event[track])
    rows["file_traj_id"] = rows["traj_id"]
    rows["pdg_id"] = tracks.particle[track]
    rows["dx"], rows["dE"], rows["dEdx"] = dx, energy, energy / dx
    rows["n_electrons"] = np.rint(energy * 1e6 / _WORK_EV * recombination(energy / dx))
    return rows


def recombination(loss: Floats) -> Floats:
    """Share of the electrons that escape their ions where a particle loses so many MeV cm-1; Birks' law.

    A = 0.8 and k = 0.0486 kV/cm (g/cm2)/MeV are ICARUS's (Amoruso et al. (2004), NIM A 523, 275).
    """
    return np.asarray(0.8 / (1 + 0.0486 * loss / (_FIELD * _DENSITY)))


def energy_of(charge_ke: Floats) -> Floats:
    """MeV behind so many thousand electrons, as for a particle that loses 2 MeV cm-1."""
    return np.asarray(charge_ke * 1e3 * _WORK_EV * 1e-6 / recombination(np.array(2.0)))


def _downward(count: int, rng: np.random.Generator) -> Floats:
    """Directions of cosmic muons, whose number falls with the zenith angle as cos2; y points up."""
    cosine = rng.random(count) ** (1 / 3)
    return _direction(-cosine, rng.uniform(0, 2 * np.pi, count))


def _any_way(count: int, rng: np.random.Generator) -> Floats:
    return _direction(rng.uniform(-1, 1, count), rng.uniform(0, 2 * np.pi, count))


def _direction(y: Floats, around: Floats) -> Floats:
    flat = np.sqrt(1 - y**2)
    return np.stack([flat * np.cos(around), y, flat * np.sin(around)], axis=1)


def _to_the_walls(box: Box, point: Floats, direction: Floats) -> tuple[Floats, Floats]:
    """Centimetres from points inside to the wall behind them and to the wall ahead."""
    with np.errstate(divide="ignore"):
        low, high = (-box.half - point) / direction, (box.half - point) / direction
    return -np.minimum(low, high).max(axis=1), np.maximum(low, high).min(axis=1)


def _muon_energy(dx: Floats, rng: np.random.Generator) -> Floats:
    """MeV lost on each step, spread as Moyal's (1955) form of Landau's law: minus the logarithm of a chi-squared."""
    spread = -np.log(np.maximum(rng.standard_normal(len(dx)) ** 2, 1e-30))
    return dx * np.minimum(_MUON_LOSS + _MUON_SPREAD * spread, 20.0)


def _proton_energy(left: Floats, dx: Floats) -> Floats:
    """MeV lost on each step by a proton with so many centimetres left to go: most just before it stops."""
    with np.errstate(invalid="ignore"):
        after = np.maximum(left - dx, 0.0)
        return np.asarray((left / _RANGE_FACTOR) ** (1 / _RANGE_POWER) - (after / _RANGE_FACTOR) ** (1 / _RANGE_POWER))
