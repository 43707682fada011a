"""What every kind of attention is: values of tokens mixed by their queries and keys."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import nn

from hyperslab.model.lattice import Lattice

Plan = tuple[torch.Tensor, ...]
"""Index tensors that follow from where tokens lie, and not from what they hold."""


class Mixer(nn.Module, ABC):
    """One kind of attention, without the projections before and after it.

    Shape suffixes: B batch, A heads, N tokens, D features of a head.
    """

    def __init__(self) -> None:
        super().__init__()
        self._plans: WeakKeyDictionary[Lattice, dict[torch.device, Plan]] = WeakKeyDictionary()

    def plan(self, lattice: Lattice, device: torch.device) -> Plan:
        """What `forward` needs to know of the lattice; worked out once for each, and for each device."""
        plans = self._plans.setdefault(lattice, {})
        if device not in plans:
            plans[device] = tuple(tensor.to(device) for tensor in self.make_plan(lattice))
        return plans[device]

    def make_plan(self, lattice: Lattice) -> Plan:  # noqa: ARG002
        """Work out the plan; most kinds that know no neighbours need none."""
        return ()

    @abstractmethod
    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, valid: torch.Tensor | None, plan: Plan
    ) -> torch.Tensor:
        """Mixed values, shape (B, A, N, D); those of tokens that are not valid mean nothing.

        Parameters
        ----------
        query, key, value
            Shape (B, A, N, D).
        valid
            Tokens that hold data, shape (B, N); None where all do.
        plan
            That of the tokens' lattice.
        """

    def allowed(self, lattice: Lattice) -> torch.Tensor | None:  # noqa: ARG002
        """Which token (row) attends to which, bool, shape (N, N): the mask that makes exact attention the same.

        None where there is no such mask, as this kind approximates attention to all tokens.
        """
        return None


class Dense(Mixer):
    """Exact attention of every token to every token."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, valid: torch.Tensor | None, plan: Plan
    ) -> torch.Tensor:
        """As `Mixer.forward`."""
        del plan
        return F.scaled_dot_product_attention(query, key, value, None if valid is None else valid[:, None, None])

    def allowed(self, lattice: Lattice) -> torch.Tensor:
        """As `Mixer.allowed`."""
        return torch.ones(len(lattice), len(lattice), dtype=torch.bool)


def masked_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, valid: torch.Tensor | None, allowed: torch.Tensor
) -> torch.Tensor:
    """Exact attention under a mask, by its formula: what every sparse kind must equal, in N x N memory.

    Parameters
    ----------
    query, key, value, valid
        As for `Mixer.forward`.
    allowed
        Which token attends to which, bool, shape (N, N).
    """
    mask = allowed if valid is None else allowed & valid[:, None, None]
    scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf)
    # A row that may look at nothing is zero, as in PyTorch's own attention.
    weights = torch.where(mask.any(-1, keepdim=True), scores, 0.0).softmax(-1).masked_fill(~mask, 0.0)
    return weights @ value


Kind = Callable[[], Mixer]
"""Makes the mixer of one layer."""
