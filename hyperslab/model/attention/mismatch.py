"""Learning to attend as exact attention does, beside the loss of the model."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Mix = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Mixes values by queries and keys."""


def learn_from_exact(
    mixed: torch.Tensor,
    mix: Mix,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    valid: torch.Tensor | None,
    share: float = 1.0,
) -> torch.Tensor:
    """`mixed` as it is; its backward pass also trains what `mix` depends on to give what exact attention gives.

    The square error of `mix` beside exact attention, relative to the square of that, is added to the loss as far as
    gradients go. Nothing else learns from it: queries, keys and values are taken as they are.

    Parameters
    ----------
    mix
        The approximation.
    query, key, value, valid
        As for `Mixer.forward`.
    share
        How much of the error counts.
    """
    if not torch.is_grad_enabled():
        return mixed
    query, key, value = query.detach(), key.detach(), value.detach()
    exact = F.scaled_dot_product_attention(query, key, value, None if valid is None else valid[:, None, None])
    error = share * relative_error(mix(query, key, value), exact, valid)
    joined: torch.Tensor = _Joined.apply(mixed, error)  # type: ignore[no-untyped-call]
    return joined


def relative_error(mixed: torch.Tensor, exact: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """Mean over samples and heads of the square that two kinds of attention differ by, over that of the exact one.

    Parameters
    ----------
    mixed, exact
        Shape (B, A, N, D).
    valid
        Tokens that count, shape (B, N); None where all do.
    """
    there = 1.0 if valid is None else valid[:, None, :, None]
    difference, size = ((tensor.square() * there).sum((2, 3)) for tensor in (mixed - exact, exact))
    return (difference / size.clamp_min(1e-30)).mean()


class _Joined(torch.autograd.Function):
    """A tensor as it is, to whose gradient that of a second loss is joined."""

    @staticmethod
    def forward(ctx: Any, mixed: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(loss)
        return mixed.view_as(mixed)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (loss,) = ctx.saved_tensors
        return gradients[0], torch.ones_like(loss)
