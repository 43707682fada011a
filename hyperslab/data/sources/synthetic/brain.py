"""A brain of regions that drive one another, and the blood's slow answer that a scanner sees."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NEURAL_STEP_SECONDS = 0.1
_DECAY_SECONDS = 0.8
"""Time in which the activity of a region fades by itself."""
_REACH_MM = 35.0
"""Distance over which the coupling of two regions falls to 1/e."""
_FEEDBACK = 0.9
"""Largest eigenvalue of the coupling: just short of 1, above which activity would grow without end."""


@dataclass(frozen=True)
class Brain:
    """An ellipsoid of voxels, divided into regions, and the coupling of those."""

    labels: npt.NDArray[np.int16]
    """Region of each voxel from 1, or 0 outside of the brain; shape (x, y, z)."""
    voxel_mm: float
    """Side of a voxel."""
    coupling: Floats
    """How strongly each region (row) is driven by each other (column)."""

    @property
    def num_regions(self) -> int:
        """Number of regions."""
        return len(self.coupling)


def make_brain(shape: tuple[int, int, int], voxel_mm: float, num_regions: int, rng: np.random.Generator) -> Brain:
    """A brain that fills most of a grid of voxels; its regions are the voxels nearest to random seeds."""
    grid = np.stack(np.meshgrid(*(np.arange(n) for n in shape), indexing="ij"), axis=-1)
    middle = (np.array(shape) - 1) / 2
    inside = (((grid - middle) / (0.46 * np.array(shape))) ** 2).sum(axis=-1) <= 1
    voxels = grid[inside]
    seeds = voxels[rng.choice(len(voxels), min(num_regions, len(voxels)), replace=False)].astype(np.float64)
    nearest = np.concatenate(
        [
            ((part[:, None, :] - seeds) ** 2).sum(axis=-1).argmin(axis=1)
            for part in np.array_split(voxels, max(1, len(voxels) // 4096))
        ]
    )
    labels = np.zeros(shape, np.int16)
    labels[inside] = 1 + nearest
    return Brain(labels, voxel_mm, _coupling(seeds * voxel_mm, rng))


def _coupling(places_mm: Floats, rng: np.random.Generator) -> Floats:
    """Near regions drive each other most, and each has a twin far away; scaled so that activity dies out slowly."""
    apart = np.linalg.norm(places_mm[:, None] - places_mm, axis=-1)
    weights = np.exp(-apart / _REACH_MM) * rng.uniform(0.5, 1.5, apart.shape)
    twin = np.argmax(apart, axis=1)
    weights[np.arange(len(twin)), twin] += weights.max()
    np.fill_diagonal(weights, 0.0)
    return np.asarray(weights * (_FEEDBACK / np.abs(np.linalg.eigvals(weights)).max()))


def activity(brain: Brain, seconds: float, rng: np.random.Generator) -> Floats:
    """Neural activity of each region, every tenth of a second; shape (moment, region).

    The linear stochastic model of a network: dx = (C x - x) dt / decay + noise, integrated by Euler and Maruyama.
    """
    steps = int(np.ceil(seconds / NEURAL_STEP_SECONDS))
    share = NEURAL_STEP_SECONDS / _DECAY_SECONDS
    forward = (np.eye(brain.num_regions) * (1 - share) + share * brain.coupling).T
    noise = rng.standard_normal((steps, brain.num_regions)) * np.sqrt(2 * share)
    states: Floats = np.empty_like(noise)
    state = noise[0]
    for step in range(steps):
        state = state @ forward + noise[step]
        states[step] = state
    return states


def haemodynamic_response(seconds: Floats) -> Floats:
    """The blood's answer to a short burst of activity, so many seconds later, per second.

    The canonical difference of two gamma densities of SPM (Friston et al. (1998), NeuroImage 7, 30): a rise of shape 6
    and a sixth of an undershoot of shape 16, both with a scale of one second.
    """
    late = np.maximum(seconds, 0.0)
    rise = late**5 * np.exp(-late) / 120
    undershoot = late**15 * np.exp(-late) / 1_307_674_368_000
    return np.asarray(rise - undershoot / 6)


def bold(neural: Floats, repetition_seconds: float, num_volumes: int, warm_up_seconds: float) -> Floats:
    """The blood's answer to neural activity at the time of each volume, unit variance; shape (volume, region)."""
    response = haemodynamic_response(np.arange(0, 32, NEURAL_STEP_SECONDS))
    size = 2 ** int(np.ceil(np.log2(len(neural) + len(response))))
    transformed = np.fft.rfft(neural, size, axis=0) * np.fft.rfft(response, size)[:, None]
    answer = np.fft.irfft(transformed, size, axis=0)[: len(neural)]
    moments = warm_up_seconds + repetition_seconds * np.arange(num_volumes)
    chosen = answer[np.minimum((moments / NEURAL_STEP_SECONDS).astype(int), len(answer) - 1)]
    return np.asarray(chosen / chosen.std())
