"""Which tokens of a sample are hidden, drawn from a generator of the sample's own."""

import math

import torch

from hyperslab.model.config import MaskSettings
from hyperslab.model.lattice import Lattice, box_of

BOXES = 8
"""Boxes that what is hidden would fill, if none of them met another."""


def hide(settings: MaskSettings, lattice: Lattice, generator: torch.Generator) -> torch.Tensor:
    """Tokens to hide, bool, shape (N,): as many of them in every sample, at least one, and never all.

    Tubes hide whole places, so that as many tokens are hidden as they hold; where there is one place only, its times
    are hidden at random. A token by itself is never hidden.
    """
    count = len(lattice)
    wanted = _wanted(settings.ratio, count)
    if settings.kind == "tube":
        places, of_token = torch.unique(lattice.cells[:, 1:], dim=0, return_inverse=True)
        if len(places) > 1:
            return _drawn(_wanted(settings.ratio, len(places)), len(places), generator)[of_token]
    if settings.kind != "block" or count < 2:
        return _drawn(wanted, count, generator)
    # Boxes about tokens drawn at random, one after another; what the last one has too much is left visible.
    reach = [side // 2 for side in box_of(lattice.shape, max(1, math.ceil(wanted / BOXES)))]
    hidden = torch.zeros(count, dtype=torch.bool)
    for centre in torch.randperm(count, generator=generator).tolist():
        box = lattice.near(lattice.cells[centre][None], reach)[:, 0] & ~hidden
        hidden[box.nonzero()[: wanted - int(hidden.sum()), 0]] = True
        if int(hidden.sum()) == wanted:
            break
    return hidden


def _wanted(ratio: float, count: int) -> int:
    return min(max(1, round(ratio * count)), max(0, count - 1))


def _drawn(wanted: int, count: int, generator: torch.Generator) -> torch.Tensor:
    drawn = torch.zeros(count, dtype=torch.bool)
    drawn[torch.randperm(count, generator=generator)[:wanted]] = True
    return drawn


def kept_layers(rate: float, depth: int, generator: torch.Generator) -> torch.Tensor:
    """Share of each layer for one sample, shape (depth,): 0 where it is left out, else what keeps the mean at one.

    Layers are left out at rates that rise from 0 to `rate` (Huang et al. 2016, arXiv 1603.09382).
    """
    rates = rate * torch.arange(depth) / max(1, depth - 1)
    return (torch.rand(depth, generator=generator) >= rates).float() / (1 - rates)


def generator_of(*numbers: int) -> torch.Generator:
    """A generator whose draws depend on these numbers alone, such as a seed and a sample's number."""
    seed = 0
    for number in numbers:
        # Multiplication by an odd number and a shift mix the bits (SplitMix64's constants).
        seed = ((seed ^ (number & 0xFFFF_FFFF_FFFF_FFFF)) * 0x9E37_79B9_7F4A_7C15 + 0xBF58_476D_1CE4_E5B9) % 2**64
        seed ^= seed >> 31
    return torch.Generator().manual_seed(seed % 2**63)
