"""Which blocks of tokens attend to which: patterns by rule, and patterns that a loss has shown to matter."""

import itertools
from typing import Literal

import torch

from hyperslab.model.lattice import Lattice

Rule = Literal["static", "learned", "random"]


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


def hops(touching: torch.Tensor) -> torch.Tensor:
    """Steps from block to touching block between any two, int64; as many as there are blocks where no way leads."""
    count = len(touching)
    distance = torch.full((count, count), count)
    reached, step = torch.eye(count, dtype=torch.bool), 0
    graph = touching.float()
    while True:
        distance[reached & (distance == count)] = step
        further = (reached.float() @ graph) > 0
        if torch.equal(further, reached):
            return distance
        reached, step = further, step + 1


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
    """Blocks that each block sees: those of most influence, grown over the graph of neighbours.

    After SPION (arXiv 2309.12578), which works on positions in a text: there a diagonal filter and a flood fill, here
    the neighbours in space-time. Influence is convolved over the graph, so that a block counts for its neighbours;
    a row's own block and the strongest others, half of it together, are seeds; then the strongest block that touches a
    chosen one is added, again and again.

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
    # Of few blocks one at least beside the row's own is a seed: else influence would have no say.
    seeds = smooth.topk(max(min(2, seen), seen // 2), dim=1).indices
    chosen = torch.zeros_like(touching).scatter_(1, seeds, True)
    while int(chosen[0].sum()) < seen:
        edge = (chosen.float() @ touching.float() > 0) & ~chosen
        # Once a region has no edge left it goes on from the strongest block elsewhere.
        open_ = torch.where(edge.any(1, keepdim=True), edge, ~chosen)
        best = smooth.masked_fill(~open_, -1.0).argmax(1, keepdim=True)
        chosen.scatter_(1, best, True)
    return chosen.nonzero()[:, 1].view(-1, seen)


def token_mask(blocks: torch.Tensor, block: int, tokens: int) -> torch.Tensor:
    """Which token attends to which under a pattern, bool; shape (tokens, tokens)."""
    count = len(blocks)
    pairs = torch.zeros(count, count, dtype=torch.bool).scatter_(1, blocks.cpu(), True)
    return pairs.repeat_interleave(block, 0).repeat_interleave(block, 1)[:tokens, :tokens]
