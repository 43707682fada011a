"""The tile of space that a rank reads: its own cells, and a halo of its neighbours'."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Space = tuple[slice, ...]
"""A range with a start and a stop along each axis of space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A box of cells in space, with a halo."""

    own: Space
    """The cells that belong to it."""
    sizes: tuple[int, ...]
    """Cells along each axis of the whole."""
    halo: int = 0
    """Cells beside its own on each side. Around a periodic axis they come from the other end; a border has none."""
    periodic: tuple[bool, ...] = ()
    """Whether each axis closes on itself; none does when empty."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each axis, halo included."""
        return tuple(stop - start for start, stop in self._bounds())

    @property
    def inner(self) -> Space:
        """Where its own cells lie among those that are read."""
        return tuple(
            slice(at.start - start, at.stop - start) for at, (start, _) in zip(self.own, self._bounds(), strict=True)
        )

    def boxes(self) -> Iterator[tuple[Space, Space]]:
        """Boxes that make the tile: where each lies in the whole, and where in the tile."""
        axes = []
        for (start, stop), size in zip(self._bounds(), self.sizes, strict=True):
            # Around a periodic axis a halo may begin before the first cell, and end after the last.
            cuts = sorted({start, stop, *(n * size for n in range(start // size + 1, -(-stop // size)))})
            axes.append(
                [
                    (slice(low % size, low % size + high - low), slice(low - start, high - start))
                    for low, high in itertools.pairwise(cuts)
                ]
            )
        for pairs in itertools.product(*axes):
            yield tuple(whole for whole, _ in pairs), tuple(into for _, into in pairs)

    def _bounds(self) -> list[tuple[int, int]]:
        """First and last cell along each axis, halo included; beyond the ends where an axis is periodic."""
        bounds = []
        for number, (at, size) in enumerate(zip(self.own, self.sizes, strict=True)):
            start, stop = at.start - self.halo, at.stop + self.halo
            if not self.periodic or not self.periodic[number]:
                start, stop = max(start, 0), min(stop, size)
            elif stop - start > size:
                start, stop = 0, size
            bounds.append((start, stop))
        return bounds


def make_tile(
    sizes: Sequence[int], parts: Sequence[int], number: int, halo: int = 0, periodic: Sequence[bool] = ()
) -> Tile:
    """One of the tiles that space is cut into, of equal size as far as it goes.

    Parameters
    ----------
    sizes
        Cells along each axis.
    parts
        Tiles along each axis.
    number
        Which of the tiles, the last axis counting fastest.

    Raises
    ------
    IndexError
        When there is no such tile.
    """
    if not 0 <= number < math.prod(parts):
        raise IndexError(f"tile {number} of {math.prod(parts)}")
    own = []
    for size, count in zip(reversed(sizes), reversed(parts), strict=True):
        number, place = divmod(number, count)
        length = -(-size // count)  # as chunks are cut: a tile of half the cells is whole chunks
        own.append(slice(min(size, place * length), min(size, (place + 1) * length)))
    return Tile(own=tuple(reversed(own)), sizes=tuple(sizes), halo=halo, periodic=tuple(periodic))
