"""Which blocks of tokens attend to which: patterns by rule, and patterns that a loss has shown to matter."""

import itertools
from functools import lru_cache
from typing import Literal

import torch

from hyperslab.model.lattice import Lattice

Rule = Literal["static", "learned", "random"]

STANDS_OUT = 3.0
"""Standard deviations above a row's median from which influence is more than chance."""
_NORMAL = 1.4826
"""Standard deviation over median absolute deviation, of normal values."""


def num_blocks(lattice: Lattice, block: int) -> int:
    """Blocks of tokens of a lattice; the last one may be short."""
    return -(-len(lattice) // block)


def neighbours(lattice: Lattice, block: int) -> torch.Tensor:
    """Which blocks touch which in space-time, bool, symmetric; shape (block, block).

    Two blocks touch where a cell of one and a cell of the other share a face. A block touches itself.
    """
    count = num_blocks(lattice, block)
    shape = torch.tensor(lattice.shape)
    strides = torch.tensor([int(shape[axis + 1 :].prod()) for axis in range(len(shape))])
    own = torch.arange(len(lattice)) // block
    block_of = torch.full((int(shape.prod()),), -1)
    block_of[lattice.numbers()] = own
    touching = torch.eye(count, dtype=torch.bool)
    for axis, closes in enumerate(lattice.periodic):
        there = lattice.cells.clone()
        there[:, axis] += 1
        if closes:
            there[:, axis] %= shape[axis]
        inside = there[:, axis] < shape[axis]
        other = block_of[(there[inside] * strides).sum(-1)]
        here = own[inside][other >= 0]
        touching[here, other[other >= 0]] = True
    return touching | touching.T


def hops(touching: torch.Tensor, sources: torch.Tensor | None = None) -> torch.Tensor:
    """Steps from block to touching block to any other, int64; as many as there are blocks where no way leads.

    Parameters
    ----------
    touching
        From `neighbours`.
    sources
        Blocks from which steps are counted, bool, of the same shape; in each row its own block where absent.
    """
    count = len(touching)
    reached = torch.eye(count, dtype=torch.bool) if sources is None else sources.T
    distance = torch.full((count, count), count)
    graph = touching.float().to_sparse()
    step = 0
    while True:
        distance[reached & (distance == count)] = step
        further = (graph @ reached.float()) > 0
        if torch.equal(further, reached):
            return distance.T
        reached, step = further, step + 1


@lru_cache(maxsize=8)
def static_pattern(lattice: Lattice, block: int, seen: int) -> torch.Tensor:
    """Blocks that each block sees: half of them near, a quarter the same for all, the rest at even strides.

    Near blocks come first by steps over the graph of neighbours. (Local, global and strided: Child et al. 2019,
    arXiv 1904.10509; Zaheer et al. 2020, arXiv 2007.14062.)

    Parameters
    ----------
    seen
        Blocks that each block sees, its own among them.

    Returns
    -------
    torch.Tensor
        Blocks in ascending order, int64, shape (block, seen).
    """
    count = num_blocks(lattice, block)
    numbers = torch.arange(count)
    apart = (numbers[:, None] - numbers).abs()
    nearest = (hops(neighbours(lattice, block)) * count + apart).argsort(dim=1, stable=True)
    num_global, num_strided = seen // 4, seen // 4
    shared = (torch.arange(num_global) * count) // max(1, num_global) + count // (2 * max(1, num_global))
    rows = []
    for row in range(count):
        strided = (row + count // 2 + torch.arange(num_strided) * count // max(1, num_strided)) % count
        chosen = dict.fromkeys(nearest[row, : seen - num_global - num_strided].tolist())
        chosen |= dict.fromkeys(shared.tolist() + strided.tolist())
        # Where these fall together, nearer blocks take their places.
        for near in nearest[row].tolist():
            if len(chosen) >= seen:
                break
            chosen[near] = None
        rows.append(sorted(itertools.islice(chosen, seen)))
    return torch.tensor(rows)


def random_pattern(lattice: Lattice, block: int, seen: int, seed: int) -> torch.Tensor:
    """Blocks that each block sees: itself and others drawn at random. Result as for `static_pattern`."""
    count = num_blocks(lattice, block)
    draws = torch.rand(count, count, generator=torch.Generator().manual_seed(seed))
    draws.fill_diagonal_(2.0)
    return draws.topk(seen, dim=1).indices.sort(dim=1).values


def learned_pattern(influence: torch.Tensor, touching: torch.Tensor, seen: int) -> torch.Tensor:
    """Blocks that each block sees: those whose influence stands out, grown over the graph of neighbours.

    After SPION (arXiv 2309.12578), which works on positions in a text: there a diagonal filter, a threshold and a flood
    fill; here the neighbours in space-time. Influence is convolved over the graph, so that a block counts for its
    neighbours. Seeds are a row's own block and the strongest of those that stand out from the row, half of it
    together. From them the row grows over the graph, step by step, of blocks as many steps away the strongest first:
    where nothing stands out, a row sees what lies around it.

    Parameters
    ----------
    influence
        How much the loss depends on what one block (row) sees of another, not negative; shape (block, block).
    touching
        From `neighbours`.

    Returns
    -------
    torch.Tensor
        As for `static_pattern`.
    """
    spread = touching.double() / touching.sum(1, keepdim=True)
    smooth = (influence + spread @ influence.double() @ spread.T) / 2
    smooth.fill_diagonal_(torch.inf)
    median = smooth.median(1, keepdim=True).values
    deviation = _NORMAL * (smooth - median).abs().median(1, keepdim=True).values
    # Of few blocks one at least beside the row's own may be a seed: else influence would have no say.
    most = max(min(2, seen), seen // 2)
    strongest = smooth.argsort(dim=1, descending=True, stable=True)
    seeds = torch.zeros_like(touching).scatter_(1, strongest[:, :most], True)
    seeds &= smooth > median + STANDS_OUT * deviation
    nearest = hops(touching, seeds).gather(1, strongest).argsort(dim=1, stable=True)
    return strongest.gather(1, nearest)[:, :seen].sort(dim=1).values


def token_mask(blocks: torch.Tensor, block: int, tokens: int) -> torch.Tensor:
    """Which token attends to which under a pattern, bool; shape (tokens, tokens)."""
    count = len(blocks)
    pairs = torch.zeros(count, count, dtype=torch.bool).scatter_(1, blocks.cpu(), True)
    return pairs.repeat_interleave(block, 0).repeat_interleave(block, 1)[:tokens, :tokens]
