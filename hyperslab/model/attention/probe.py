"""What attention looks at: measured by its own backward pass, and beside exact attention."""

from typing import Any

import torch
import torch.nn.functional as F

PROBED_ROWS = 64
"""Rows of weights that are worked out at a time where all are."""
PROBED_EVERY = 4
"""Of so many queries one tells what its block depends on: what is near is alike, and each costs a row of weights."""


def probed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    valid: torch.Tensor | None,
    influence: torch.Tensor,
    block: int,
    weight: float = 1.0,
) -> torch.Tensor:
    """Dense attention whose backward pass adds to the influence of each block on each other one.

    The influence of a key on a query is the size of the loss's gradient by their score, |dL/ds| = p |dL/dp - mean|:
    how much the loss would change by looking at this key more, or less. It is summed over the keys of a block, over
    every fourth query of one, over heads and samples.

    Parameters
    ----------
    query, key, value, valid
        As for `Mixer.forward`.
    influence
        What is added to, in the backward pass; shape (block, block).
    block
        Tokens in a block.
    weight
        What the influence is multiplied by before it is added.
    """
    mask = None if valid is None else valid[:, None, None]
    mixed = F.scaled_dot_product_attention(query, key, value, mask)
    if not torch.is_grad_enabled():
        return mixed
    noted: torch.Tensor = _Noted.apply(  # type: ignore[no-untyped-call]
        mixed, query.detach(), key.detach(), value.detach(), valid, influence, block, weight
    )
    return noted


class _Noted(torch.autograd.Function):
    """The mixed values as they are; their gradient tells the influence."""

    @staticmethod
    def forward(ctx: Any, mixed: torch.Tensor, *rest: Any) -> torch.Tensor:
        query, key, value, valid, influence, block, weight = rest
        ctx.save_for_backward(mixed, query, key, value, valid)
        ctx.influence, ctx.block, ctx.weight = influence, block, weight
        return mixed.view_as(mixed)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = gradients
        mixed, query, key, value, valid = ctx.saved_tensors
        mean = (gradient * mixed).sum(-1, keepdim=True)
        for row in range(len(ctx.influence)):
            at = slice(row * ctx.block, (row + 1) * ctx.block, PROBED_EVERY)
            weights = attention_weights(query[:, :, at], key, valid)
            change = gradient[:, :, at] @ value.transpose(-1, -2) - mean[:, :, at]
            by_key = (weights * change).abs().sum((0, 1, 2))
            # What is not finite, of a step that will be skipped, would spoil all that was added up before.
            ctx.influence[row] += ctx.weight * sum_blocks(by_key, ctx.block).nan_to_num(nan=0.0, posinf=0.0)
        return gradient, None, None, None, None, None, None, None


def attention_weights(query: torch.Tensor, key: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """Exact attention's weights, shape (B, A, rows, N)."""
    scores: torch.Tensor = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if valid is not None:
        scores = scores.masked_fill(~valid[:, None, None], torch.finfo(scores.dtype).min)
    return scores.softmax(-1)


def sum_blocks(values: torch.Tensor, block: int) -> torch.Tensor:
    """Sums over runs of `block` along the last dimension, the last run maybe short."""
    *others, length = values.shape
    return F.pad(values, (0, -length % block)).view(*others, -1, block).sum(-1)


def covered_mass(
    query: torch.Tensor, key: torch.Tensor, valid: torch.Tensor | None, allowed: torch.Tensor
) -> torch.Tensor:
    """Share of exact attention's weights that lies on pairs which a mask allows; a scalar, 1 where it allows all.

    Parameters
    ----------
    query, key, valid
        As for `Mixer.forward`.
    allowed
        From `Mixer.allowed`.
    """
    total, count = query.new_zeros((), dtype=torch.float64), 0
    for start in range(0, query.shape[2], PROBED_ROWS):
        at = slice(start, start + PROBED_ROWS)
        own = (attention_weights(query[:, :, at], key, valid) * allowed[at]).sum(-1, dtype=torch.float64)
        rows = own.new_ones(own.shape, dtype=torch.bool) if valid is None else valid[:, None, at].expand_as(own)
        total = total + own[rows].sum()
        count += int(rows.sum())
    return total / max(1, count)
