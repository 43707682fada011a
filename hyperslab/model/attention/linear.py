"""Attention by features: its cost grows with the number of tokens, not with its square."""

from collections.abc import Callable
from itertools import repeat
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hyperslab.model.attention.mismatch import learn_from_exact
from hyperslab.model.attention.mixer import Mixer, Plan

MOST_PIECES = 16
"""Pieces that tokens are worked on in, at most; each makes its features again in the backward pass."""
SMALLEST_PIECE = 256
"""Tokens of a piece, at least, so that what a piece costs by itself does not show."""


class Linear(Mixer):
    """Attention by positive features of queries and keys (FAVOR+: Choromanski et al. 2020, arXiv 2009.14794).

    exp(q k / sqrt D) is the mean over random directions w of f(q) f(k) with f(x) = exp(w x - |x|^2 / 2), for q and k
    scaled by D^-1/4 (lemma 1). Directions are drawn orthogonal to one another, for less variance (section 2.4).

    Learned directions begin as random ones. While `probing`, the backward pass also trains them, and them alone, to
    give what exact attention gives.
    """

    def __init__(self, head_width: int, num_features: int, *, learned: bool) -> None:
        """Make a mixer.

        Parameters
        ----------
        head_width
            Features of a head.
        num_features
            Directions; more of them are nearer to exact attention.
        """
        super().__init__()
        self.learned = learned
        self.probing = False
        self.share = 1.0
        """How much of what it learns by itself counts, where others with the same directions mix other heads."""
        directions = torch.empty(num_features, head_width)
        if learned:
            self.directions = nn.Parameter(directions)
        else:
            self.register_buffer("directions", directions)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the directions anew."""
        with torch.no_grad():
            self.directions.copy_(orthogonal_directions(*self.directions.shape).to(self.directions))

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, valid: torch.Tensor | None, plan: Plan
    ) -> torch.Tensor:
        """As `Mixer.forward`."""
        del plan
        mixed = self._mix(query, key, value, valid, self.directions.detach())
        if self.learned and self.probing:
            return learn_from_exact(
                mixed, lambda q, k, v: self._mix(q, k, v, valid, self.directions), query, key, value, valid, self.share
            )
        return mixed

    def _mix(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        valid: torch.Tensor | None,
        directions: torch.Tensor,
    ) -> torch.Tensor:
        pieces = max(1, min(MOST_PIECES, query.shape[2] // SMALLEST_PIECE))
        work = _work_again if pieces > 1 else _work
        there = repeat(None) if valid is None else valid.chunk(pieces, 1)
        keys = zip(key.chunk(pieces, 2), value.chunk(pieces, 2), there, strict=False)
        sums, heights = zip(*(work(_summed, *given, directions) for given in keys), strict=True)
        highest = torch.stack(heights).amax(0)
        weighted = [part * (height - highest).exp() for part, height in zip(sums, heights, strict=True)]
        summed = torch.stack(weighted).sum(0)
        return torch.cat([work(_mixed, queries, summed, directions) for queries in query.chunk(pieces, 2)], dim=2)


def _work(function: Callable[..., Any], *given: torch.Tensor | None) -> Any:
    return function(*given)


def _work_again(function: Callable[..., Any], *given: torch.Tensor | None) -> Any:
    """The same, once more in the backward pass: features of all tokens are many times what tokens are."""
    return checkpoint(function, *given, use_reentrant=False, preserve_rng_state=False)


def _summed(
    key: torch.Tensor, value: torch.Tensor, valid: torch.Tensor | None, directions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values, and ones, summed by the features of their keys, shape (B, A, direction, D + 1); and their height.

    Features are relative to the exponential of the height, shape (B, A, 1, 1), which keeps them near one.
    """
    scaled = _scaled(key)
    exponents = scaled @ directions.to(scaled).T - scaled.square().sum(-1, keepdim=True) / 2
    if valid is not None:
        exponents = exponents.masked_fill(~valid[:, None, :, None], torch.finfo(exponents.dtype).min)
    height = exponents.detach().amax((-2, -1), keepdim=True)
    features = exponents.sub_(height).exp_()
    if valid is not None:
        features = features * valid[:, None, :, None]
    return torch.cat([features.transpose(-1, -2) @ value, features.sum(-2).unsqueeze(-1)], dim=-1), height


def _mixed(query: torch.Tensor, summed: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """Values mixed by the features of some queries."""
    scaled = _scaled(query)
    # A factor common to all features of a query falls out, its norm among them: they are as well made to sum to one.
    mixed = (scaled @ directions.to(scaled).T).softmax(-1) @ summed
    values, norm = mixed[..., :-1], mixed[..., -1:]
    # Where no key is left the numerator is zero: divided by one, its gradient is finite as well.
    return values / torch.where(norm > 0, norm, 1.0)


def _scaled(tensor: torch.Tensor) -> torch.Tensor:
    scaled: torch.Tensor = tensor * tensor.shape[-1] ** -0.25
    return scaled


def orthogonal_directions(count: int, width: int) -> torch.Tensor:
    """Random directions as long as normal vectors are, orthogonal in every run of `width`; shape (count, width)."""
    # Not the Q of a factorisation alone: its signs lean one way (Mezzadri 2007, arXiv math-ph/0609050).
    blocks = [nn.init.orthogonal_(torch.empty(width, width)) for _ in range(-(-count // width))]
    lengths: torch.Tensor = torch.randn(count, width).norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:count] * lengths
