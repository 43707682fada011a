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
    """Cells beside its own on each side. Around a periodic axis they come from the other end, over and over where there
    are more of them than cells; a border has none."""
    periodic: tuple[bool, ...] = ()
    """Whether each axis closes on itself; none does when empty."""

    def __post_init__(self) -> None:
        """Refuse a halo that no tile has.

        Raises
        ------
        ValueError
            When it is negative, or it is not said of each axis whether it closes.
        """
        if self.halo < 0:
            raise ValueError(f"halo: found {self.halo}; give a number of cells, 0 for none")
        if len(self.periodic) not in (0, len(self.sizes)):
            raise ValueError(f"periodic: found {len(self.periodic)} for {len(self.sizes)} axes; give one for each")

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
            # Around a periodic axis a halo may begin before the first cell, end after the last, and turn several times.
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
            bounds.append((start, stop))
        return bounds


def make_tile(
    sizes: Sequence[int], parts: Sequence[int], number: int, halo: int = 0, periodic: Sequence[bool] = ()
) -> Tile:
    """One of the tiles that space is cut into.

    Chunks are halves of halves of space: 2, 4, 8, … tiles are cut as they are, all of one size but for a shorter last
    one, so that a tile is whole chunks. Other numbers of tiles, and those of which one would be left empty, differ by a
    cell at most, the larger ones first.

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
        own.append(_share(size, count, place))
    return Tile(own=tuple(reversed(own)), sizes=tuple(sizes), halo=halo, periodic=tuple(periodic))


def _share(size: int, count: int, place: int) -> slice:
    """The cells of one of so many tiles along an axis, as `make_tile` says."""
    length = -(-size // count)
    if count & (count - 1) == 0 and (count - 1) * length < size:
        return slice(place * length, min(size, (place + 1) * length))
    length, longer = divmod(size, count)
    start = place * length + min(place, longer)
    return slice(start, start + length + (place < longer))
