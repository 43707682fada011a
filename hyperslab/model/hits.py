"""The stream of an archive of hits: cells of space-time that hold any become tokens."""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from hyperslab.model.block import Place
from hyperslab.model.config import ModelSettings, ObjectiveSettings, TokenSettings
from hyperslab.model.lattice import Lattice, line
from hyperslab.model.part import WHOLE, Part
from hyperslab.model.positions import octaves, rotary_angles

PARTS = 2
"""Parts that a cell is cut into along each axis of space: what is reconstructed is where in the cell hits lie."""
ROUND = 64
"""The number of tokens of a batch is a multiple of this, so that few different numbers come up."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cloud:
    """What a model must know of the hits of an archive."""

    channels: int
    """Features of a hit, such as its charge."""
    low: tuple[float, ...]
    """Lowest coordinate along each axis of space, in the axis's own unit (mm, cm, us)."""
    cell: tuple[float, ...]
    """Size of a cell along each axis."""
    shape: tuple[int, ...]
    """Cells along each axis that the detector takes; hits outside of it count too."""
    tokens: TokenSettings
    objective: ObjectiveSettings
    part: Part = WHOLE
    """Tokens that are held."""

    @property
    def parts(self) -> int:
        """Parts of a cell."""
        return int(PARTS ** len(self.cell))


@dataclass(frozen=True, slots=True, kw_only=True)
class HitSample:
    """Samples of an archive of hits, as the model takes them: cells that hold any, in the order of a space-filling
    curve, padded to the same number.
    """

    values_BNP: torch.Tensor
    """For each part of a cell whether it holds a hit, then the mean features of its hits, 0 where it holds none;
    P = parts x (1 + channels)."""
    position_BNS: torch.Tensor
    """Mean position of a cell's hits in cells from the low end, and the frame; S = 1 + axes, the frame first. Of a
    hidden cell it is the middle."""
    valid_BN: torch.Tensor
    """Tokens that are cells, and no padding."""
    count: int
    """Tokens of a sample, those that are not held here among them."""
    hidden_BN: torch.Tensor | None = None
    """Tokens whose content the model must not see."""
    kept_LB: torch.Tensor | None = None
    """Shares for stochastic depth, by layer; None where every layer counts for every sample."""


def group_hits(
    cloud: Cloud, position: torch.Tensor, feature: torch.Tensor, frame: torch.Tensor, start: torch.Tensor
) -> HitSample:
    """The cells of some samples' hits.

    Parameters
    ----------
    position
        Where each hit lies, in the units of the axes; shape (hit, axis).
    feature
        Normalised features of each hit; shape (hit, channel).
    frame
        Number of each hit's frame in its sample; shape (hit,).
    start
        First hit of each sample, and the number of hits; shape (B + 1,).
    """
    b, axes = len(start) - 1, len(cloud.cell)
    sample = torch.repeat_interleave(torch.arange(b), start.diff())
    in_cells = (position - torch.tensor(cloud.low)) / torch.tensor(cloud.cell)
    # What lies below the low end counts as at it; a detector has fewer than 2^10 cells along an axis.
    in_cells = in_cells.clamp(0, 1024 - 2**-10)
    cells = in_cells.floor().long()
    # The curve runs through frame after frame of sample after sample.
    history = cloud.tokens.history
    key = ((sample * history + frame.long()) << 10 * axes) + morton(cells)
    keys, of_cell = torch.unique(key, return_inverse=True)
    own = (keys >> 10 * axes) // history
    counts = torch.bincount(own, minlength=b)
    number = torch.arange(len(keys)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    rows, columns = own[of_cell], number[of_cell]
    n = max(ROUND, -(-int(counts.max()) // ROUND) * ROUND) if b else ROUND
    part = torch.zeros_like(sample)
    for axis in range(axes):
        part = part * PARTS + ((in_cells[:, axis] - cells[:, axis]) * PARTS).floor().long().clamp(0, PARTS - 1)
    number_hits = torch.zeros(b, n, cloud.parts)
    number_hits.index_put_((rows, columns, part), torch.ones(len(part)), accumulate=True)
    sums = torch.zeros(b, n, cloud.parts, feature.shape[1])
    sums.index_put_((rows, columns, part), feature, accumulate=True)
    places = torch.zeros(b, n, 1 + axes)
    at = torch.cat([frame[:, None].float(), in_cells.float()], dim=1)
    places.index_put_((rows, columns), at, accumulate=True)
    all_hits = number_hits.sum(-1, keepdim=True)
    return HitSample(
        values_BNP=torch.cat(
            [(number_hits > 0).float(), (sums / number_hits[..., None].clamp_min(1)).flatten(2)], dim=-1
        ),
        position_BNS=places / all_hits.clamp_min(1),
        valid_BN=all_hits[..., 0] > 0,
        count=n,
    )


def morton(cells: torch.Tensor) -> torch.Tensor:
    """Place of cells along the Z-order curve, which keeps neighbours mostly together (Morton 1966); shape (cell,).

    Parameters
    ----------
    cells
        Numbers along each axis, from 0 to 1023; shape (cell, axis), at most 4 axes.
    """
    code = torch.zeros(len(cells), dtype=torch.int64)
    for bit in range(9, -1, -1):
        for axis in range(cells.shape[1]):
            code = (code << 1) | ((cells[:, axis] >> bit) & 1)
    return code


def padded(sample: HitSample, count: int) -> HitSample:
    """The same samples with so many tokens."""
    missing = count - sample.count
    return replace(
        sample,
        values_BNP=F.pad(sample.values_BNP, (0, 0, 0, missing)),
        position_BNS=F.pad(sample.position_BNS, (0, 0, 0, missing)),
        valid_BN=F.pad(sample.valid_BN, (0, missing)),
        hidden_BN=None if sample.hidden_BN is None else F.pad(sample.hidden_BN, (0, missing)),
        count=count,
    )


def part_of(sample: HitSample, part: Part) -> HitSample:
    """The tokens of a part of the samples."""
    held = part.run(sample.count)
    return replace(
        sample,
        values_BNP=sample.values_BNP[:, held],
        position_BNS=sample.position_BNS[:, held],
        valid_BN=sample.valid_BN[:, held],
        hidden_BN=None if sample.hidden_BN is None else sample.hidden_BN[:, held],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HitView:
    """What there is to see of samples, before anything is learned."""

    values_BNP: torch.Tensor
    """As in `HitSample`, 0 where hidden."""
    position_BNS: torch.Tensor
    """As in `HitSample`, the middle of the cell where hidden."""
    place: Place


class HitStream(nn.Module):
    """Embedder and head of an archive of hits: of hidden cells it tells which parts hold hits, and their features."""

    def __init__(self, cloud: Cloud, settings: ModelSettings) -> None:
        super().__init__()
        self.cloud = cloud
        self.head_width = settings.width // settings.heads
        width, values = settings.width, cloud.parts * (1 + cloud.channels)
        self.embed = nn.Linear(values, width)
        self.embed_position = nn.Linear(octaves(torch.zeros(len(cloud.cell))).shape[-1], width)
        self.embed_age = nn.Parameter(torch.empty(cloud.tokens.history, width))
        self.embed_hidden = nn.Parameter(torch.empty(width))
        self.head_reconstruction = nn.Linear(width, values)

    def lattice_of(self, sample: HitSample) -> Lattice:
        """Tokens along the curve; the same for all batches of so many tokens."""
        return line(sample.count)

    def see(self, sample: HitSample) -> HitView:
        """What there is to see of samples."""
        values_BNP, position_BNS = sample.values_BNP, sample.position_BNS
        if sample.hidden_BN is not None:
            hidden = sample.hidden_BN[..., None]
            values_BNP = torch.where(hidden, 0.0, values_BNP)
            # Where in a hidden cell its hits lie is what is asked for; its frame is known.
            middle_BNS = position_BNS.floor() + 0.5
            middle_BNS[..., 0] = position_BNS[..., 0]
            position_BNS = torch.where(hidden, middle_BNS, position_BNS)
        angles = rotary_angles(
            position_BNS,
            [float(self.cloud.tokens.history), *map(float, self.cloud.shape)],
            [False] * position_BNS.shape[-1],
            self.head_width,
        )[:, None]
        place = Place(cosine=angles.cos(), sine=angles.sin(), count=sample.count, valid=sample.valid_BN)
        return HitView(values_BNP=values_BNP, position_BNS=position_BNS, place=place)

    def tokens(self, sample: HitSample, view: HitView) -> torch.Tensor:
        """Tokens, shape (B, N, D)."""
        half = self.embed.weight.dtype
        extent = torch.tensor(self.cloud.shape, device=view.position_BNS.device)
        place = octaves(2 * view.position_BNS[..., 1:] / extent - 1).to(half)
        frames = view.position_BNS[..., 0].long()
        tokens_BND: torch.Tensor = (
            self.embed(view.values_BNP.to(half)) + self.embed_position(place) + self.embed_age[frames]
        )
        if sample.hidden_BN is not None:
            tokens_BND = torch.where(sample.hidden_BN[..., None], tokens_BND + self.embed_hidden, tokens_BND)
        return tokens_BND

    def predict(self, tokens_BND: torch.Tensor, view: HitView) -> dict[str, torch.Tensor]:
        """`occupancy`, logits of shape (B, N, parts), and `feature`, normalised, of shape (B, N, parts, channel)."""
        del view
        values = self.head_reconstruction(tokens_BND).float()
        parts = self.cloud.parts
        return {"occupancy": values[..., :parts], "feature": values[..., parts:].reshape(*values.shape[:2], parts, -1)}


def num_cells(low: float, high: float, cell: float) -> int:
    """Cells that a stretch of space takes."""
    return max(1, math.ceil((high - low) / cell))
