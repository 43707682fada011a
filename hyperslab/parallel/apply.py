"""A single-device model on many ranks, in one readable place."""

from dataclasses import replace
from typing import Literal, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from hyperslab.model.transformer import SpaceTimeModel
from hyperslab.parallel.layout import Layout

Precision = Literal["fp32", "bf16"]


def make_mesh(layout: Layout, device: str) -> DeviceMesh:
    """The ranks as a mesh with the layout's axes."""
    return init_device_mesh(device, (layout.replicate, layout.shard), mesh_dim_names=("replicate", "shard"))


def apply(model: nn.Module, mesh: DeviceMesh, precision: Precision, *, compiled: bool = False) -> nn.Module:
    """Share the model's parameters out over the mesh: each block is gathered just before it computes.

    Gradients are summed in float32 whatever `precision` the products have.

    Parameters
    ----------
    model
        One that follows `SpaceTimeModel`: its `blocks` are shared out one by one.
    compiled
        Whether each block is compiled.
    """
    blocks = cast(SpaceTimeModel, model).blocks
    products = torch.bfloat16 if precision == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=products, reduce_dtype=torch.float32)
    # A mesh of one axis shards, a mesh of two replicates over the first and shards over the second.
    axes = mesh if mesh["replicate"].size() > 1 else mesh["shard"]
    for block in blocks:
        if compiled:
            # Before it is sharded: what gathers the parameters stays outside of the compiled part.
            block.compile()
        fully_shard(block, mesh=axes, mp_policy=policy)
    # The root takes and gives float32, and casts inside: the frame that a forecast starts from is not rounded.
    fully_shard(model, mesh=axes, mp_policy=replace(policy, cast_forward_inputs=False))
    return model
