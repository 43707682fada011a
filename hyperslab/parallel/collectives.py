"""Exchanges between ranks that gradients flow back through. Ranks of a group give tensors of one shape."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather(tensor: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    """What all ranks hold, one after another along a dimension; gradients are summed over the ranks."""
    gathered: torch.Tensor = _Gather.apply(tensor, group, dim)  # type: ignore[no-untyped-call]
    return gathered


def scatter_sum(tensor: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    """The sum over all ranks, of which each is given its piece along a dimension."""
    piece: torch.Tensor = _ScatterSum.apply(tensor, group, dim)  # type: ignore[no-untyped-call]
    return piece


def exchange(tensor: torch.Tensor, group: dist.ProcessGroup, *, cut: int, join: int) -> torch.Tensor:
    """Cut a dimension into as many pieces as there are ranks, send each its own, and join what comes along another."""
    exchanged: torch.Tensor = _Exchange.apply(tensor, group, cut, join)  # type: ignore[no-untyped-call]
    return exchanged


def gather_plain(tensor: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    """What all ranks hold, one after another along a dimension, without gradients."""
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return torch.cat(parts, dim)


def _scattered(tensor: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    pieces = tensor.chunk(group.size(), dim)
    own = torch.empty_like(pieces[0], memory_format=torch.contiguous_format)
    dist.reduce_scatter_single(own, torch.cat(pieces), group=group)
    return own


def _exchanged(tensor: torch.Tensor, group: dist.ProcessGroup, cut: int, join: int) -> torch.Tensor:
    pieces = torch.stack(tensor.chunk(group.size(), cut))
    received = torch.empty_like(pieces)
    dist.all_to_all_single(received, pieces, group=group)
    return torch.cat(received.unbind(), join)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> torch.Tensor:
        tensor, ctx.group, ctx.dim = given
        return gather_plain(tensor, ctx.group, ctx.dim)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _scattered(gradients[0], ctx.group, ctx.dim), None, None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> torch.Tensor:
        tensor, ctx.group, ctx.dim = given
        return _scattered(tensor, ctx.group, ctx.dim)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return gather_plain(gradients[0], ctx.group, ctx.dim), None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> torch.Tensor:
        tensor, ctx.group, ctx.cut, ctx.join = given
        return _exchanged(tensor, ctx.group, ctx.cut, ctx.join)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _exchanged(gradients[0], ctx.group, ctx.join, ctx.cut), None, None, None
