"""Frames to patch tokens and back.

Shape suffixes in `model/`: B batch, T time, C channel, H rows of grid points, W columns, N tokens, D width, A heads,
P values in a patch.
"""

import math
from dataclasses import dataclass

import torch

MAX_AUTOMATIC_TOKENS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchGrid:
    """How a frame of `rows` x `columns` grid points is cut into square patches."""

    rows: int
    columns: int
    patch: int
    periodic: bool
    """Whether the columns close a circle (longitude round the globe)."""

    @property
    def shape(self) -> tuple[int, int]:
        """Patches down and across; the last ones may reach over the edge."""
        return -(-self.rows // self.patch), -(-self.columns // self.patch)

    @property
    def num_patches(self) -> int:
        """Tokens of a frame."""
        return self.shape[0] * self.shape[1]

    def patchify(self, frames_BTCHW: torch.Tensor) -> torch.Tensor:
        """Cut frames into patches, shape (B, T, N, P) with P = channel x patch x patch.

        Patches that reach over the edge see the edge's own value there, or what lies across it where columns close
        a circle; `unpatchify` drops these points again.
        """
        b, t, c, _, _ = frames_BTCHW.shape
        down, across = self.shape
        rows = torch.arange(down * self.patch, device=frames_BTCHW.device).clamp(max=self.rows - 1)
        columns = torch.arange(across * self.patch, device=frames_BTCHW.device)
        columns = columns % self.columns if self.periodic else columns.clamp(max=self.columns - 1)
        flat = frames_BTCHW.index_select(-2, rows).index_select(-1, columns)
        patches = flat.view(b, t, c, down, self.patch, across, self.patch)
        return patches.permute(0, 1, 3, 5, 2, 4, 6).reshape(b, t, self.num_patches, -1)

    def unpatchify(self, patches_BNP: torch.Tensor, channels: int) -> torch.Tensor:
        """Put the patches of one frame together, shape (B, C, H, W)."""
        b = patches_BNP.shape[0]
        down, across = self.shape
        patches = patches_BNP.view(b, down, across, channels, self.patch, self.patch)
        frames = patches.permute(0, 3, 1, 4, 2, 5).reshape(b, channels, down * self.patch, across * self.patch)
        return frames[:, :, : self.rows, : self.columns]


def automatic_patch(rows: int, columns: int) -> int:
    """The smallest patch that keeps a frame within `MAX_AUTOMATIC_TOKENS` tokens."""
    patch = max(1, math.isqrt(max(0, rows * columns - 1) // MAX_AUTOMATIC_TOKENS))
    while -(-rows // patch) * -(-columns // patch) > MAX_AUTOMATIC_TOKENS:
        patch += 1
    return patch
