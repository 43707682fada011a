"""Exact attention over all tokens."""

import torch
import torch.nn.functional as F
from torch import nn


class DenseAttention(nn.Module):
    """Multi-head attention of every token to every token, with normalised queries and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.query_norm = nn.RMSNorm(width // heads, eps=1e-6)
        self.key_norm = nn.RMSNorm(width // heads, eps=1e-6)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        """Tokens of the same shape, each a mixture of the values of all."""
        b, n, d = tokens_BND.shape
        qkv = self.query_key_value(tokens_BND).view(b, n, 3, self.heads, d // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed_BAND = F.scaled_dot_product_attention(self.query_norm(query), self.key_norm(key), value)
        output: torch.Tensor = self.output(mixed_BAND.transpose(1, 2).reshape(b, n, d))
        return output
