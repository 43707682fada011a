"""Attention through a few landmarks: its cost grows with the number of tokens, not with its square."""

import torch
import torch.nn.functional as F

from hyperslab.model.attention.mixer import Mixer, Plan

ITERATIONS = 8
"""Steps of the iteration for the inverse. Directions in which landmarks hardly differ are not inverted yet, and so
add no noise."""


class Nystrom(Mixer):
    """Attention through landmarks (Xiong et al. 2021, arXiv 2102.03902).

    The landmarks of queries and keys are the means over runs of tokens, which are compact pieces of space-time. The
    matrix of weights is taken to be of their rank: softmax(q k~) softmax(q~ k~)^-1 softmax(q~ k) (equation 13).
    """

    def __init__(self, num_landmarks: int) -> None:
        super().__init__()
        self.num_landmarks = num_landmarks

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, valid: torch.Tensor | None, plan: Plan
    ) -> torch.Tensor:
        """As `Mixer.forward`."""
        del plan
        n, d = query.shape[2:]
        if self.num_landmarks >= n:
            return F.scaled_dot_product_attention(query, key, value, None if valid is None else valid[:, None, None])
        near_query, there = self._landmarks(query, valid)
        near_key, _ = self._landmarks(key, valid)
        scale = d**-0.5
        landmark_bias = None if there is None else _bias(there, query.dtype)
        to_landmarks = _softmax(query @ near_key.transpose(-1, -2) * scale, landmark_bias)
        between = _softmax(near_query @ near_key.transpose(-1, -2) * scale, landmark_bias)
        if there is not None:  # a landmark of no token stands by itself, seen by none
            lone = ~there[:, None, :, None]
            between = torch.where(lone, torch.eye(between.shape[-1]).to(between), between)
        # A softmax over all tokens, row by row: exact attention of a few queries.
        mixed = F.scaled_dot_product_attention(near_query, key, value, None if valid is None else valid[:, None, None])
        return to_landmarks @ (inverse(between) @ mixed)

    def _landmarks(self, tensor: torch.Tensor, valid: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Means over runs of tokens, shape (B, A, landmark, D); and which runs have any, shape (B, landmark)."""
        b, a, n, d = tensor.shape
        run = -(-n // self.num_landmarks)
        missing = -n % run
        if missing and valid is None:
            valid = tensor.new_ones(b, n, dtype=torch.bool)
        if valid is None:
            return tensor.reshape(b, a, -1, run, d).mean(3), None
        there = F.pad(valid, (0, missing)).view(b, -1, run)
        kept = F.pad(tensor * valid[:, None, :, None], (0, 0, 0, missing)).view(b, a, -1, run, d)
        counts = there.sum(2)
        return kept.sum(3) / counts.clamp_min(1)[:, None, :, None], counts > 0


def inverse(matrices: torch.Tensor) -> torch.Tensor:
    """The pseudo-inverse of matrices of weights, near it in all but their smallest singular values; shape (..., m, m).

    Z' = Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4 from Z = A^T / (|A|_1 |A|_inf) (arXiv 2102.03902, equation 11).
    """
    identity = torch.eye(matrices.shape[-1]).to(matrices)
    sizes = matrices.abs().sum(-2).amax(-1) * matrices.abs().sum(-1).amax(-1)
    found = matrices.transpose(-1, -2) / sizes[..., None, None]
    for _ in range(ITERATIONS):
        product = matrices @ found
        found = found @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    return found


def _bias(there: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where there is something and the lowest number elsewhere, shape (B, 1, 1, n)."""
    return torch.zeros(there.shape, dtype=dtype, device=there.device).masked_fill_(~there, torch.finfo(dtype).min)[
        :, None, None
    ]


def _softmax(scores: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return (scores if bias is None else scores + bias).softmax(-1)
