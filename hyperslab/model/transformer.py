"""The space-time Transformer: past frames in, the change to the next frame out."""

from dataclasses import dataclass

import torch
from torch import nn

from hyperslab.model.block import Block
from hyperslab.model.config import ModelSettings
from hyperslab.model.positions import sphere_features
from hyperslab.model.tokens import PatchGrid, automatic_patch

CALENDAR_FEATURES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What a model must know of the frames it will see."""

    channels: int
    latitude: tuple[float, ...]
    longitude: tuple[float, ...]
    periodic: bool
    """Whether longitude closes the circle."""


class SpaceTimeTransformer(nn.Module):
    """Patch Transformer over the tokens of all past frames together.

    It forecasts the change from the last input frame. Its head begins at zero, so an untrained model forecasts
    persistence.
    """

    def __init__(self, settings: ModelSettings, frame: Frame) -> None:
        super().__init__()
        self.grid = patch_grid(settings, frame)
        self.channels = frame.channels
        width, values = settings.width, frame.channels * self.grid.patch**2
        features = sphere_features(self.grid, torch.tensor(frame.latitude), torch.tensor(frame.longitude))
        self.register_buffer("position_features", features, persistent=False)
        self.embed = nn.Linear(values, width)
        self.embed_position = nn.Linear(features.shape[1], width)
        self.embed_calendar = nn.Linear(CALENDAR_FEATURES, width)
        self.embed_age = nn.Parameter(torch.empty(settings.history, width))
        self.blocks = nn.ModuleList(Block(width, settings.heads) for _ in range(settings.depth))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, values)
        self.reset_parameters(settings.depth)

    def reset_parameters(self, depth: int) -> None:
        """Initialise: normal weights by fan-in, residual branches scaled by depth, the head zero."""
        for name, parameter in self.named_parameters():
            if name.startswith("head.") or name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:
                scale = (2 * depth) ** -0.5 if name.endswith("output.weight") else 1.0
                nn.init.normal_(parameter, std=scale * parameter.shape[1] ** -0.5)

    def forward(self, inputs_BTCHW: torch.Tensor, calendar_BF: torch.Tensor) -> torch.Tensor:
        """The next frame, normalised, shape (B, C, H, W).

        Parameters
        ----------
        inputs_BTCHW
            Past frames, normalised; missing values count as the channel's mean.
        calendar_BF
            Phase of the year and of the day at the target: `loader.calendar_phases`.
        """
        inputs_BTCHW = torch.where(torch.isfinite(inputs_BTCHW), inputs_BTCHW, 0.0)
        # Parameters may be gathered in half precision, while the frames themselves are never rounded.
        half = self.embed.weight.dtype
        tokens = self.embed(self.grid.patchify(inputs_BTCHW).to(half))
        place = self.embed_position(self.position_features.to(half))
        tokens = tokens + place + self.embed_age[:, None] + self.embed_calendar(calendar_BF.to(half))[:, None, None]
        tokens_BND = tokens.flatten(1, 2)
        for block in self.blocks:
            tokens_BND = block(tokens_BND)
        last = self.norm(tokens_BND[:, -self.grid.num_patches :])
        change = self.grid.unpatchify(self.head(last), self.channels)
        return inputs_BTCHW[:, -1] + change.to(inputs_BTCHW.dtype)


def patch_grid(settings: ModelSettings, frame: Frame) -> PatchGrid:
    """How the model cuts a frame into patches."""
    rows, columns = len(frame.latitude), len(frame.longitude)
    patch = settings.patch or automatic_patch(rows, columns)
    return PatchGrid(rows=rows, columns=columns, patch=patch, periodic=frame.periodic)


def count_parameters(settings: ModelSettings, frame: Frame) -> int:
    """Parameters of the model, counted on the meta device: nothing is allocated."""
    with torch.device("meta"):
        return sum(p.numel() for p in SpaceTimeTransformer(settings, frame).parameters())
