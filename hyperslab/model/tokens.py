"""Frames to patch tokens and back.

Shape suffixes in `model/`: B batch, T time, C channel, S axes of space (one suffix for all of them), N tokens, D width
or features of a head, A heads, P values in a patch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

MAX_AUTOMATIC_TOKENS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Patches:
    """How frames are cut into patches of space-time."""

    sizes: tuple[int, ...]
    """Frames, then places along each axis of space."""
    patch: tuple[int, ...]
    """Frames and places in a patch."""
    periodic: tuple[bool, ...]
    """Whether each axis closes on itself; time does not."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Patches along each axis; the last ones may reach over the edge."""
        return tuple(-(-size // side) for size, side in zip(self.sizes, self.patch, strict=True))

    def cut(self, frames_BTCS: torch.Tensor) -> torch.Tensor:
        """Patches of frames, the last axis counting fastest; shape (B, N, P), P = channel x frames x places.

        Patches that reach over the edge see the edge's own value there, or what lies across it where an axis closes;
        `join` drops these again.
        """
        b, _, c = frames_BTCS.shape[:3]
        frames = frames_BTCS
        for axis, (size, side, count) in enumerate(zip(self.sizes, self.patch, self.shape, strict=True)):
            places = torch.arange(count * side, device=frames.device)
            places = places % size if self.periodic[axis] else places.clamp(max=size - 1)
            if len(places) != size:
                frames = frames.index_select(self._dim(axis), places)
        split = frames.movedim(2, 1).reshape(
            b, c, *(n for pair in zip(self.shape, self.patch, strict=True) for n in pair)
        )
        axes = range(len(self.sizes))
        order = (0, *(2 + 2 * axis for axis in axes), 1, *(3 + 2 * axis for axis in axes))
        return split.permute(order).reshape(b, math.prod(self.shape), -1)

    def join(self, patches_BNP: torch.Tensor) -> torch.Tensor:
        """Put patches together again, shape (B, T, C, *S)."""
        b, axes = len(patches_BNP), len(self.sizes)
        split = patches_BNP.reshape(b, *self.shape, -1, *self.patch)
        order = (0, 1 + axes, *(n for axis in range(axes) for n in (1 + axis, 2 + axes + axis)))
        whole = [count * side for count, side in zip(self.shape, self.patch, strict=True)]
        frames = split.permute(order).reshape(b, -1, *whole).movedim(1, 2)
        for axis, size in enumerate(self.sizes):
            frames = frames.narrow(self._dim(axis), 0, size)
        return frames

    @staticmethod
    def _dim(axis: int) -> int:
        """Dimension of (B, T, C, *S) that an axis is: channels stand between time and space."""
        return 1 if axis == 0 else 2 + axis

    def centres(self, axis: int, values: torch.Tensor) -> torch.Tensor:
        """Mean coordinate of the places of each patch along an axis."""
        return torch.stack([piece.mean() for piece in torch.split(values, self.patch[axis])])


def automatic_patch(sizes: Sequence[int]) -> int:
    """The smallest side of a patch that keeps a frame within `MAX_AUTOMATIC_TOKENS` tokens."""
    patch = max(1, int((math.prod(sizes) / MAX_AUTOMATIC_TOKENS) ** (1 / len(sizes))) - 1)
    while math.prod(-(-size // patch) for size in sizes) > MAX_AUTOMATIC_TOKENS:
        patch += 1
    return patch
