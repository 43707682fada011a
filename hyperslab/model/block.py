"""One layer of the Transformer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from hyperslab.model.attention import Mixer, Plan
from hyperslab.model.config import hidden_width
from hyperslab.model.positions import rotate

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A module of a block whose features, or heads, can be shared out over ranks.

    It takes tokens (B, N, D) first, which all must be there, and maybe a `Place`; and gives as many, of which each rank
    works out a summand.
    """

    columns: tuple[str, ...]
    """Its linear layers, by name, that take all features of tokens, and give some of the region's own, or heads."""
    rows: tuple[str, ...]
    """Those that take these, and give a summand of all features of tokens. They have no bias."""
    whole: tuple[str, ...] = ()
    """Modules, by name, that mix the tokens of whole samples, head by head: called with queries, keys and values
    (B, A, N, D) first, they give (B, A, N, D)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What layers must know of tokens beside what they hold."""

    cosine: torch.Tensor
    """Of the angles that queries and keys are turned by: shape (N, D / 2), or (B, 1, N, D / 2)."""
    sine: torch.Tensor
    """Of the same angles."""
    count: int
    """Tokens of a sample, those that are not held here among them."""
    valid: torch.Tensor | None = None
    """Tokens that hold data, shape (B, N); None where all do."""


class SwiGLU(nn.Module):
    """Gated feed-forward layer (Shazeer 2020, arXiv 2002.05202), as large as a plain one of 4 x width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = hidden_width(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.value = nn.Linear(width, hidden, bias=False)
        self.output = nn.Linear(hidden, width, bias=False)

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Each token transformed by itself; shape unchanged."""
        output: torch.Tensor = self.output(F.silu(self.gate(tokens_BND)) * self.value(tokens_BND))
        return output


class Attention(nn.Module):
    """Multi-head attention with normalised queries and keys, turned by where tokens lie."""

    def __init__(self, width: int, heads: int, mixer: Mixer) -> None:
        super().__init__()
        self.head_width = width // heads
        # Rows head after head, so that a run of them is some heads' queries, keys and values.
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.query_norm = nn.RMSNorm(width // heads, eps=1e-6)
        self.key_norm = nn.RMSNorm(width // heads, eps=1e-6)
        self.mixer = mixer
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, tokens_BND: torch.Tensor, place: Place, plan: Plan) -> torch.Tensor:
        """Tokens of the same shape, each a mixture of the values of others."""
        mixed_BAND = self.mixer(*self.project(tokens_BND, place), place.valid, plan)
        output: torch.Tensor = self.output(mixed_BAND.transpose(1, 2).flatten(2))
        return output

    def project(self, tokens_BND: torch.Tensor, place: Place) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, each of shape (B, A, N, D)."""
        qkv = self.query_key_value(tokens_BND).unflatten(-1, (-1, 3, self.head_width))
        query, key, value = qkv.permute(3, 0, 2, 1, 4)
        cosine, sine = place.cosine.to(value.dtype), place.sine.to(value.dtype)
        return rotate(self.query_norm(query), cosine, sine), rotate(self.key_norm(key), cosine, sine), value


class Block(nn.Module):
    """Attention, then feed-forward, each on normalised tokens and added to them."""

    regions: ClassVar[Mapping[str, Region]] = {
        "attention": Region(columns=("query_key_value",), rows=("output",), whole=("mixer",)),
        "feed_forward": Region(columns=("gate", "value"), rows=("output",)),
    }
    """Parts that ranks share the features, or heads, of."""

    def __init__(self, width: int, heads: int, mixer: Mixer, recompute: Recompute = "none") -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=1e-6)
        self.attention = Attention(width, heads, mixer)
        self.feed_forward_norm = nn.RMSNorm(width, eps=1e-6)
        self.feed_forward = SwiGLU(width)
        self.recompute = recompute

    def forward(
        self, tokens_BND: torch.Tensor, place: Place, plan: Plan, kept_B: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Tokens of the same shape.

        Parameters
        ----------
        plan
            Of this block's kind of attention, for the tokens' lattice.
        kept_B
            What the block's output is multiplied by, for stochastic depth: 0 for a sample that leaves it out. None
            where all samples keep it.
        """
        if self.recompute == "full" and torch.is_grad_enabled():
            output: torch.Tensor = checkpoint(self._layers, tokens_BND, place, plan, kept_B, use_reentrant=False)
            return output
        return self._layers(tokens_BND, place, plan, kept_B)

    def _layers(self, tokens_BND: torch.Tensor, place: Place, plan: Plan, kept_B: torch.Tensor | None) -> torch.Tensor:
        share = 1.0 if kept_B is None else kept_B[:, None, None].to(tokens_BND.dtype)
        tokens_BND = tokens_BND + share * self.attention(self.attention_norm(tokens_BND), place, plan)
        if self.recompute == "selective" and torch.is_grad_enabled():
            transformed: torch.Tensor = checkpoint(self._transformed, tokens_BND, use_reentrant=False)
        else:
            transformed = self._transformed(tokens_BND)
        return tokens_BND + share * transformed

    def _transformed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.feed_forward(self.feed_forward_norm(tokens_BND))
        return output
