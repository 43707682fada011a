"""Where a token lies: continuous coordinates as Fourier features."""

import math

import torch

from hyperslab.model.tokens import PatchGrid

NUM_FREQUENCIES = 6
"""Octaves: the finest feature turns once in 2 / 2^5 of the sphere's radius, about 400 km on Earth."""


def sphere_features(grid: PatchGrid, latitude: torch.Tensor, longitude: torch.Tensor) -> torch.Tensor:
    """Fourier features of each patch's centre, shape (N, 6 x NUM_FREQUENCIES).

    The centre is taken as a point on the unit sphere, so that poles and the date line have no seam. On a region the
    three coordinates are stretched to fill -1..1, so that its tokens can be told apart.

    Parameters
    ----------
    latitude, longitude
        Degrees of the rows (H,) and columns (W,) of grid points.
    """
    rows = _centres(torch.deg2rad(latitude.double()), grid.patch)
    columns = _centres(torch.deg2rad(longitude.double()), grid.patch)
    latitude_N, longitude_N = (x.flatten() for x in torch.meshgrid(rows, columns, indexing="ij"))
    points_N3 = torch.stack(
        [latitude_N.cos() * longitude_N.cos(), latitude_N.cos() * longitude_N.sin(), latitude_N.sin()], dim=-1
    )
    if not grid.periodic:
        low, high = points_N3.amin(0), points_N3.amax(0)
        points_N3 = 2 * (points_N3 - low) / (high - low).clamp_min(1e-12) - 1
    octaves = math.pi / 2 * 2.0 ** torch.arange(NUM_FREQUENCIES, dtype=torch.float64)
    angles = (points_N3[:, :, None] * octaves).flatten(1)
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


def _centres(coordinates: torch.Tensor, patch: int) -> torch.Tensor:
    return torch.stack([piece.mean() for piece in torch.split(coordinates, patch)])
