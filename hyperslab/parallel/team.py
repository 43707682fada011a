"""Ranks that share samples: their tokens between layers, features and heads within them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from hyperslab.errors import UserError
from hyperslab.model.block import Place, Region
from hyperslab.parallel.collectives import exchange, gather, gather_plain, local, scatter_sum
from hyperslab.parallel.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Team:
    """Adds up what the ranks that share samples have each worked out of them."""

    group: dist.ProcessGroup | None = None
    """None where every rank has whole samples."""

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over the team, without gradients."""
        if self.group is None or self.group.size() == 1:
            return tensor
        total = tensor.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total

    def all(self, holds: bool) -> bool:
        """Whether it holds for all of the team."""
        return not bool(self.sum(torch.tensor(float(not holds))))


ALONE = Team()
"""A rank that has whole samples."""


def share_out(blocks: Iterable[nn.Module], mesh: Mesh) -> None:
    """Share the tokens of blocks out over `domain` and `tensor`, their features and heads over `tensor`.

    Between regions every rank holds its part of the tokens (sequence parallelism: Korthikanti et al. 2022,
    arXiv 2205.05198). Before a region the tokens of the `tensor` group are gathered; each rank works out some features
    or heads (Shoeybi et al. 2019, arXiv 1909.08053); the sum is scattered. What mixes the tokens of whole samples is
    given all tokens for some of these heads instead (Jacobs et al. 2023, arXiv 2309.14509): whatever kind of attention
    it is, it computes what one device computes.

    Parameters
    ----------
    blocks
        Each with `regions`, as `Block` has.

    Raises
    ------
    UserError
        When a block does not say what can be shared out.
    """
    whole = _Whole(mesh)
    for block in blocks:
        regions: dict[str, Region] | None = getattr(block, "regions", None)
        if regions is None:
            raise UserError(
                f"parallel: {mesh.layout} shares {type(block).__name__} out, which does not say how; give it `regions` "
                "as docs/parallel.md shows, or use replicate and shard alone"
            )
        for name, region in regions.items():
            _share_region(cast(nn.Module, getattr(block, name)), region, mesh, whole)


def _share_region(module: nn.Module, region: Region, mesh: Mesh, whole: "_Whole") -> None:
    tensor = mesh.group("tensor")
    if tensor.size() > 1:
        for names, dim in ((region.columns, 0), (region.rows, 1)):
            for name in names:
                _share_linear(name, cast(nn.Linear, getattr(module, name)), dim, mesh)

    def before(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        tokens, *rest = given
        if tensor.size() > 1:
            tokens = gather(tokens, tensor, 1)
        return (tokens, *(whole.place(other) if isinstance(other, Place) else other for other in rest))

    def after(_: nn.Module, __: tuple[Any, ...], tokens: torch.Tensor) -> torch.Tensor:
        return scatter_sum(tokens, tensor, 1) if tensor.size() > 1 else tokens

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after)
    for name in region.whole:
        mixer = cast(nn.Module, getattr(module, name))
        mixer.register_forward_pre_hook(whole.to_heads)
        mixer.register_forward_hook(whole.to_tokens)


def _share_linear(where: str, linear: nn.Linear, dim: int, mesh: Mesh) -> None:
    """Keep this rank's rows (0) or columns (1) of the weight; called with local tensors, it gives local tensors."""
    tensor, features = mesh.whole["tensor"], linear.weight.shape[dim]
    if features % tensor.size():
        raise UserError(
            f"parallel.tensor: found {tensor.size()} for the {features} features of {where}, which it must divide"
        )
    for name, parameter in list(linear.named_parameters()):
        own = parameter.detach().chunk(tensor.size(), dim)[tensor.get_local_rank()].clone()
        shared = DTensor.from_local(own, tensor, [Shard(dim)], run_check=False)
        setattr(linear, name, nn.Parameter(shared, requires_grad=parameter.requires_grad))
    linear.forward = partial(_local_linear, linear)  # type: ignore[method-assign]


def _local_linear(linear: nn.Linear, tokens: torch.Tensor) -> torch.Tensor:
    bias = linear.bias
    return F.linear(tokens, local(linear.weight), None if bias is None else local(bias))


class _Whole:
    """What the regions of all blocks must know of whole samples; layer after layer asks for the same."""

    def __init__(self, mesh: Mesh) -> None:
        self._domain, self._tensor = mesh.group("domain"), mesh.group("tensor")
        self._own: Place | None = None
        self._gathered: Place | None = None

    def place(self, own: Place) -> Place:
        """Angles of the tokens that a region is given, and which tokens of whole samples are valid."""
        if self._own is not own or self._gathered is None:
            cosine, sine = (_all_of(angles, self._tensor, -2) for angles in (own.cosine, own.sine))
            valid = own.valid
            if valid is not None:
                valid = _all_of(_all_of(valid, self._tensor, 1), self._domain, 1)[:, : own.count]
            self._own, self._gathered = own, replace(own, cosine=cosine, sine=sine, valid=valid)
        return self._gathered

    def to_heads(self, _: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Queries, keys and values of some heads of all tokens, from those of all heads of some tokens."""
        assert self._own is not None
        query, key, value, *rest = given
        if query.shape[1] % self._domain.size():
            raise UserError(
                f"parallel.domain: found {self._domain.size()} for {query.shape[1]} heads of each rank of `tensor`, "
                "which it must divide; change one of them"
            )
        if self._domain.size() > 1:
            query, key, value = (exchange(tensor, self._domain, cut=1, join=2) for tensor in (query, key, value))
        return (*(tensor[:, :, : self._own.count] for tensor in (query, key, value)), *rest)

    def to_tokens(self, _: nn.Module, __: tuple[Any, ...], mixed: torch.Tensor) -> torch.Tensor:
        """What was mixed, of all heads of some tokens again."""
        missing = -mixed.shape[2] % (self._domain.size() * self._tensor.size())
        mixed = F.pad(mixed, (0, 0, 0, missing))
        return exchange(mixed, self._domain, cut=2, join=1) if self._domain.size() > 1 else mixed


def _all_of(tensor: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    return gather_plain(tensor, group, dim) if group.size() > 1 else tensor
