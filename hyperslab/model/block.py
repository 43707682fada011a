"""One layer of the Transformer."""

import torch
import torch.nn.functional as F
from torch import nn

from hyperslab.model.attention.dense import DenseAttention


class SwiGLU(nn.Module):
    """Gated feed-forward layer (Shazeer 2020, arXiv 2002.05202), as large as a plain one of 4 x width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = -(-8 * width // 3 // 8) * 8
        self.gate_and_value = nn.Linear(width, 2 * hidden, bias=False)
        self.output = nn.Linear(hidden, width, bias=False)

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Each token transformed by itself; shape unchanged."""
        gate, value = self.gate_and_value(tokens_BND).chunk(2, dim=-1)
        output: torch.Tensor = self.output(F.silu(gate) * value)
        return output


class Block(nn.Module):
    """Attention, then feed-forward, each on normalised tokens and added to them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=1e-6)
        self.attention = DenseAttention(width, heads)
        self.feed_forward_norm = nn.RMSNorm(width, eps=1e-6)
        self.feed_forward = SwiGLU(width)

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Tokens of the same shape."""
        tokens_BND = tokens_BND + self.attention(self.attention_norm(tokens_BND))
        tokens_BND = tokens_BND + self.feed_forward(self.feed_forward_norm(tokens_BND))
        return tokens_BND
