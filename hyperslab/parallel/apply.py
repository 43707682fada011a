"""A single-device model on many ranks, in one readable place."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, cast

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from hyperslab.errors import UserError
from hyperslab.model.attention import BlockSparse, Linear
from hyperslab.model.transformer import SpaceTimeModel
from hyperslab.parallel.config import Schedule
from hyperslab.parallel.mesh import Mesh
from hyperslab.parallel.passes import Passes, Pipeline
from hyperslab.parallel.stages import split_layers
from hyperslab.parallel.team import share_out

Precision = Literal["fp32", "bf16"]


def apply(
    model: nn.Module,
    mesh: Mesh,
    precision: Precision,
    *,
    compiled: bool = False,
    costs: Sequence[float] = (),
    schedule: Schedule = "1f1b",
    offload: bool = False,
) -> Passes:
    """Share the model out over the mesh; what passes samples through it.

    1. Layers over `pipeline`: what a stage does not hold is not worked on further.
    2. Tokens, features and heads of each block over `domain` and `tensor`: it changes what parameters there are.
    3. Each block is compiled, if that is asked for: what gathers its parameters stays outside of the compiled part.
    4. Parameters over `shard` x `domain`, and copied over `replicate`: each block's are gathered just before it
       computes. Gradients are summed in float32 whatever `precision` the products have.

    Parameters
    ----------
    model
        One that follows `SpaceTimeModel`.
    compiled
        Whether each block is compiled.
    costs
        Of each layer, for stages of about the same cost; all the same where empty.
    schedule
        Of a pipeline.
    offload
        Whether what is shared out waits in the memory of the host.
    """
    if mesh.layout.pipeline > 1:
        _cut(model, mesh, costs)
    _weigh(model, mesh)
    blocks = [block for block in cast(SpaceTimeModel, model).blocks if any(True for _ in block.parameters())]
    if mesh.layout.domain * mesh.layout.tensor > 1:
        share_out(blocks, mesh)
    products = torch.bfloat16 if precision == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=products, reduce_dtype=torch.float32)
    waiting = CPUOffloadPolicy(pin_memory=mesh.device.type == "cuda") if offload else OffloadPolicy()
    for block in blocks:
        if compiled:
            block.compile()
        fully_shard(block, mesh=mesh.parameters, mp_policy=policy, offload_policy=waiting)
    # The root takes and gives float32, and casts inside: the frame that a forecast starts from is not rounded.
    whole = replace(policy, cast_forward_inputs=False)
    fully_shard(model, mesh=mesh.parameters, mp_policy=whole, offload_policy=waiting)
    if mesh.layout.pipeline == 1:
        return Passes(model, mesh)
    width = cast(SpaceTimeModel, model).width
    return Pipeline(model, mesh, width=width, dtype=products or torch.float32, schedule=schedule)


def _cut(model: nn.Module, mesh: Mesh, costs: Sequence[float]) -> None:
    """Keep the layers of this rank's stage alone.

    Raises
    ------
    UserError
        When the model cannot be cut into so many stages.
    """
    own, stages = cast(SpaceTimeModel, model), mesh.layout.pipeline
    costs = costs or [1.0] * len(list(own.blocks))
    if stages > len(costs) or not hasattr(own, "keep") or not hasattr(own, "width"):
        raise UserError(
            f"parallel.pipeline: found {stages} stages for a model of {len(costs)} blocks; it needs at least as many, "
            "and `keep` and `width`, as docs/parallel.md shows"
        )
    own.keep(split_layers(costs, stages)[mesh.group("pipeline").rank()])


def _weigh(model: nn.Module, mesh: Mesh) -> None:
    """Tell layers that learn by themselves how much of it is to count: ranks of `tensor` see some heads each."""
    for module in model.modules():
        if isinstance(module, Linear):
            module.share = 1 / (mesh.layout.tensor * mesh.layout.pieces)  # gradients are summed over ranks and pieces
        if isinstance(module, BlockSparse):
            module.weight = mesh.layout.tensor  # the mean is taken over ranks
