"""How ranks share the work: pure arithmetic, no process group."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from hyperslab.errors import UserError
from hyperslab.model.config import ModelSettings, hidden_width
from hyperslab.model.part import Part
from hyperslab.parallel.config import ParallelSettings

AXES = ("pipeline", "replicate", "shard", "domain", "tensor")
"""Axes of the mesh, outermost first; ranks are numbered along the innermost one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of the axes of the mesh."""

    pipeline: int = 1
    """Stages, each of which holds some of the layers."""
    replicate: int = 1
    """Copies of the model, which average their gradients."""
    shard: int = 1
    """Ranks that compute other samples, and share one copy's parameters, gradients and optimizer state out."""
    domain: int = 1
    """Ranks that share the space-time of a sample out, and parameters as those of `shard` do."""
    tensor: int = 1
    """Ranks that share the features and heads of a layer out, and between layers the tokens of their part."""
    pieces: int = 1
    """Pieces that the samples of a group are computed in, one after another; no axis."""

    @property
    def num_ranks(self) -> int:
        """Ranks in all."""
        return math.prod(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes in the order of `AXES`."""
        return tuple(getattr(self, name) for name in AXES)

    @property
    def data(self) -> int:
        """Groups of ranks that compute samples of their own."""
        return self.replicate * self.shard

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands along each axis."""
        places = {}
        for name, size in zip(reversed(AXES), reversed(self.sizes), strict=True):
            rank, places[name] = divmod(rank, size)
        return {name: places[name] for name in AXES}

    def data_rank(self, rank: int) -> int:
        """Number of the group that a rank computes samples in."""
        at = self.coordinates(rank)
        return at["replicate"] * self.shard + at["shard"]

    def slots(self, rank: int, batch: int) -> range:
        """Places in the global batch that a rank computes, maybe together with others."""
        each = batch // self.data
        return range(self.data_rank(rank) * each, (self.data_rank(rank) + 1) * each)

    def pieces_of(self, rank: int, batch: int) -> list[range]:
        """The same, piece by piece."""
        own = self.slots(rank, batch)
        return [own[start : start + len(own) // self.pieces] for start in range(0, len(own), len(own) // self.pieces)]

    def part(self, rank: int) -> Part:
        """Which of a sample's tokens a rank holds between layers."""
        at = self.coordinates(rank)
        return Part(number=at["domain"] * self.tensor + at["tensor"], count=self.domain * self.tensor)

    def to_json(self) -> dict[str, Any]:
        """A form that JSON holds."""
        return asdict(self)

    def __str__(self) -> str:
        """Axes that are more than one, as in `2 replicate x 4 shard`."""
        named = [f"{size} {name}" for name, size in zip(AXES, self.sizes, strict=True) if size > 1]
        return " x ".join(named) or "1 rank"


def make_layout(settings: ParallelSettings, site_ranks: int, batch: int) -> Layout:
    """The layout that a campaign asks for on a site: `shard` takes the ranks that the other axes leave.

    Parameters
    ----------
    site_ranks
        Ranks that the site's nodes hold together, taken where the campaign names no number.
    batch
        Samples in a global batch.

    Raises
    ------
    UserError
        When the numbers do not divide one another.
    """
    ranks = settings.ranks or site_ranks
    others = settings.pipeline * settings.replicate * settings.domain * settings.tensor
    if ranks % others:
        raise UserError(
            f"parallel: pipeline {settings.pipeline} x replicate {settings.replicate} x domain {settings.domain} x "
            f"tensor {settings.tensor} = {others} must divide the number of ranks ({ranks}); change one of them, or "
            "parallel.ranks"
        )
    layout = Layout(
        pipeline=settings.pipeline,
        replicate=settings.replicate,
        shard=ranks // others,
        domain=settings.domain,
        tensor=settings.tensor,
        pieces=settings.pieces or settings.pipeline,
    )
    if layout.pieces < layout.pipeline:
        raise UserError(
            f"parallel.pieces: found {layout.pieces} for a pipeline of {layout.pipeline} stages, which would wait for "
            "one another; give at least as many as stages"
        )
    smallest = layout.data * layout.pieces
    if batch % smallest:
        nearest = max(1, round(batch / smallest)) * smallest
        raise UserError(
            f"train.batch: must be a multiple of replicate {layout.replicate} x shard {layout.shard} x pieces "
            f"{layout.pieces} = {smallest}, got {batch}; try {nearest}"
        )
    return layout


def check_model(layout: Layout, settings: ModelSettings, rollout: int = 1) -> None:
    """Refuse a layout that a model cannot have.

    Parameters
    ----------
    rollout
        Forecasts that are made one from another, at most.

    Raises
    ------
    UserError
        When heads, features or layers cannot be shared out.
    """
    team = layout.domain * layout.tensor
    if settings.heads % team:
        raise UserError(
            f"parallel: domain {layout.domain} x tensor {layout.tensor} = {team} must divide model.heads "
            f"({settings.heads}), as each rank mixes the tokens of some heads; change one of them"
        )
    hidden = hidden_width(settings.width)
    if hidden % layout.tensor:
        raise UserError(
            f"parallel.tensor: must divide the {hidden} features of the feed-forward layer, got {layout.tensor}"
        )
    if layout.pipeline > 1 and rollout > 1:
        raise UserError(
            f"parallel.pipeline: found {layout.pipeline} with objective.rollout {rollout}; each forecast of a roll-out "
            "would wait for all stages: use other axes"
        )
    if layout.pipeline > settings.depth:
        raise UserError(
            f"parallel.pipeline: found {layout.pipeline} stages for model.depth {settings.depth}; give at most that"
        )
