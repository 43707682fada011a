"""Where the tokens of a sample lie: cells of a lattice of space-time, and the order in which the model holds them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

BLOCK = 64
"""Tokens that lie close together and follow one another in the order of tokens, unless a lattice says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Lattice:
    """Tokens as cells of a lattice, its first axis time.

    Two lattices are the same only when they are one object: what is worked out from one is kept by it.
    """

    shape: tuple[int, ...]
    """Cells along each axis: time, then space."""
    periodic: tuple[bool, ...]
    """Whether each axis closes on itself."""
    cells: torch.Tensor
    """Cell of each token along each axis, int64; shape (N, axis)."""

    def __post_init__(self) -> None:
        assert self.cells.shape[1] == len(self.shape) == len(self.periodic)

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def is_whole(self) -> bool:
        """Whether every cell of the lattice is a token."""
        return len(self) == math.prod(self.shape)

    def numbers(self) -> torch.Tensor:
        """Number of each token's cell, the last axis counting fastest; shape (N,)."""
        return cell_numbers(self.cells, self.shape)

    def near(self, others: torch.Tensor, reach: Sequence[int]) -> torch.Tensor:
        """Whether each token lies within so many cells of each of some cells, along every axis; shape (N, M).

        Parameters
        ----------
        others
            Cells, shape (M, axis).
        reach
            Cells along each axis; round a periodic axis both ways.
        """
        close = torch.ones(len(self), len(others), dtype=torch.bool)
        for axis, (size, closes) in enumerate(zip(self.shape, self.periodic, strict=True)):
            distance = (self.cells[:, None, axis] - others[None, :, axis]).abs()
            if closes:
                distance = torch.minimum(distance, size - distance)
            close &= distance <= reach[axis]
        return close


def make_lattice(
    shape: Sequence[int], periodic: Sequence[bool], present: torch.Tensor | None = None, block: int = BLOCK
) -> Lattice:
    """The lattice of all cells, or of those that are present, in an order that keeps neighbours together.

    The lattice is cut into boxes of about `block` cells, as compact as it allows. Tokens come box after box, so that
    every run of `block` tokens is a compact piece of space-time; the times of a place follow one another, in a box
    and from box to box, so that a long run is a piece of space.

    Parameters
    ----------
    shape, periodic
        Cells along each axis, time first; and whether each closes on itself.
    present
        Cells that are tokens, bool, of that shape.
    """
    space_first = [*range(1, len(shape)), 0]
    axes = [torch.arange(shape[axis]) for axis in space_first]
    cells = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)
    cells = torch.cat([cells[:, -1:], cells[:, :-1]], dim=1)
    if present is not None:
        cells = cells[present[cells.unbind(1)]]
    sides = torch.tensor(box_of(shape, block))
    counts = [-(-shape[axis] // int(sides[axis])) for axis in space_first]
    boxes = cell_numbers((cells // sides)[:, space_first], counts)
    order = boxes.argsort(stable=True)
    return Lattice(shape=tuple(shape), periodic=tuple(periodic), cells=cells[order])


@lru_cache(maxsize=64)
def line(length: int) -> Lattice:
    """Tokens one after another, as points are along a curve that fills space; time is not told apart."""
    cells = torch.stack([torch.zeros(length, dtype=torch.int64), torch.arange(length)], dim=-1)
    return Lattice(shape=(1, length), periodic=(False, False), cells=cells)


def box_of(shape: Sequence[int], tokens: int) -> tuple[int, ...]:
    """Sides of a compact box of at most `tokens` cells: powers of two, as equal as the lattice allows."""
    sides = [1] * len(shape)
    while True:
        free = [axis for axis, size in enumerate(shape) if sides[axis] < size]
        if not free or 2 * math.prod(sides) > tokens:
            return tuple(min(side, size) for side, size in zip(sides, shape, strict=True))
        # The shortest side grows; of equals that along the longest axis, of these the last one.
        sides[min(free, key=lambda axis: (sides[axis], -shape[axis], -axis))] *= 2


def cell_numbers(cells: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Number of each cell of a lattice of that shape, the last axis counting fastest; (N, axis) to (N,)."""
    numbers = torch.zeros(len(cells), dtype=torch.int64)
    for axis, size in enumerate(shape):
        numbers = numbers * size + cells[:, axis]
    return numbers
