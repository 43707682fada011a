"""How ranks share the work: pure arithmetic, no process group."""

from dataclasses import dataclass
from typing import Any

from hyperslab.errors import UserError
from hyperslab.parallel.config import ParallelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of the mesh axes, outermost first; ranks are numbered along the innermost axis."""

    replicate: int
    """Copies of the model."""
    shard: int
    """Ranks that share one copy's parameters, gradients and optimizer state out among them."""

    @property
    def num_ranks(self) -> int:
        """Ranks in all."""
        return self.replicate * self.shard

    def slots(self, rank: int, batch: int) -> range:
        """Places in the global batch that a rank computes."""
        per_rank = batch // self.num_ranks
        return range(rank * per_rank, (rank + 1) * per_rank)

    def to_json(self) -> dict[str, Any]:
        """A form that JSON holds."""
        return {"replicate": self.replicate, "shard": self.shard}


def make_layout(settings: ParallelSettings, site_ranks: int, batch: int) -> Layout:
    """The layout that a campaign asks for on a site.

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
    if ranks % settings.replicate:
        raise UserError(f"parallel.replicate: must divide the number of ranks ({ranks}), got {settings.replicate}")
    if batch % ranks:
        nearest = max(1, round(batch / ranks)) * ranks
        raise UserError(f"train.batch: must be a multiple of the number of ranks ({ranks}), got {batch}; try {nearest}")
    return Layout(replicate=settings.replicate, shard=ranks // settings.replicate)
