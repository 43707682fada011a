"""Where and when a token lies: continuous coordinates as Fourier features, and as rotations of queries and keys."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

NUM_FREQUENCIES = 6
"""Octaves: on the sphere the finest feature turns once in 4 / 2^5 of its radius, about 800 km on Earth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of space of a stream."""

    name: str
    """Such as `latitude`, `longitude`, `x`, `wire` or `parcel`."""
    values: tuple[float, ...]
    """Coordinate of each place along the axis, in its own unit (degrees, mm, cm, us)."""
    periodic: bool = False
    """Whether the axis closes on itself, as longitude does round the globe."""
    nominal: bool = False
    """Whether its places are only names, as parcels are: their order says nothing."""


def fourier_features(axes: Sequence[Axis], centres: Sequence[torch.Tensor], *, whole_sphere: bool) -> torch.Tensor:
    """Sines and cosines of each place's coordinates in octaves, shape (places, 2 x coordinates x NUM_FREQUENCIES).

    Latitude and longitude count as a point on the unit sphere, so that poles and the date line have no seam. All other
    coordinates, and those of a region of the sphere, are stretched to fill -1..1, so that places can be told apart.

    Parameters
    ----------
    axes
        Axes of space; places are all combinations, the last axis counting fastest.
    centres
        Coordinates along each axis, float64.
    whole_sphere
        Whether the sphere is covered all round.
    """
    columns = [grid.flatten() for grid in torch.meshgrid(*centres, indexing="ij")]
    named = dict(zip((axis.name for axis in axes), columns, strict=True))
    points: list[torch.Tensor] = []
    if {"latitude", "longitude"} <= named.keys():
        latitude, longitude = torch.deg2rad(named.pop("latitude")), torch.deg2rad(named.pop("longitude"))
        sphere = [latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()]
        points += sphere if whole_sphere else [_stretched(coordinate) for coordinate in sphere]
    points += [_stretched(coordinate) for coordinate in named.values()]
    return octaves(torch.stack(points, dim=-1)).float()


def octaves(coordinates: torch.Tensor) -> torch.Tensor:
    """Sines, then cosines, of pi/2 x 2^k times each coordinate; shape (..., coordinate) to (..., features)."""
    factors = math.pi / 2 * 2.0 ** torch.arange(NUM_FREQUENCIES, dtype=coordinates.dtype, device=coordinates.device)
    angles = (coordinates[..., None] * factors).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def _stretched(coordinate: torch.Tensor) -> torch.Tensor:
    low, high = coordinate.min(), coordinate.max()
    return 2 * (coordinate - low) / (high - low).clamp_min(1e-12) - 1


def rotary_angles(
    coordinates: torch.Tensor, lengths: Sequence[float], periodic: Sequence[bool], head_width: int
) -> torch.Tensor:
    """Angles by which pairs of features of queries and keys are turned, shape (..., head_width / 2).

    Scores then depend on the difference of two tokens' coordinates (Su et al. 2021, arXiv 2104.09864); pairs are
    shared out over the axes. Along an axis they turn at rates from one radian a cell down to one radian over its whole
    length, in equal ratios; round a periodic axis at whole numbers of turns, so that there is no seam.

    Parameters
    ----------
    coordinates
        Continuous coordinates of tokens, in cells; shape (..., axis).
    lengths
        Length of each axis, in cells.
    periodic
        Whether each axis closes on itself.
    """
    pairs = head_width // 2
    first = 0
    angles = coordinates.new_zeros((*coordinates.shape[:-1], pairs))
    for axis, (length, closes) in enumerate(zip(lengths, periodic, strict=True)):
        own = pairs // len(lengths) + (axis < pairs % len(lengths))
        steps = torch.arange(own, dtype=torch.float64, device=coordinates.device) / max(1, own - 1)
        rates = max(length, 1.0) ** -steps
        if closes:
            turn = 2 * math.pi / length
            rates = (rates / turn).round().clamp_min(1.0) * turn
        angles[..., first : first + own] = coordinates[..., axis, None] * rates.to(coordinates.dtype)
        first += own
    return angles


def rotate(tensor_BAND: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Turn pairs of features, the first half of them against the second.

    Parameters
    ----------
    cosine, sine
        Of the angles, shape (N, D / 2), or (B, 1, N, D / 2).
    """
    first, second = tensor_BAND.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
