"""The ranks as a mesh with the layout's axes, and the groups of ranks that work together."""

import warnings
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from hyperslab.parallel.layout import AXES, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Views of the mesh, by what they are for."""

    layout: Layout
    whole: DeviceMesh
    parameters: DeviceMesh
    """Ranks that parameters are shared out over; where there are copies, these first."""
    team: dist.ProcessGroup
    """Ranks that share samples with this one: those of its `domain` and `tensor`."""
    stage: dist.ProcessGroup
    """Ranks that hold the same layers as this one: all but those along `pipeline`."""

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return torch.device(
            self.whole.device_type, torch.cuda.current_device() if self.whole.device_type == "cuda" else 0
        )

    def group(self, axis: str) -> dist.ProcessGroup:
        """The group of this rank along an axis."""
        return self.whole.get_group(axis)


def make_mesh(layout: Layout, device: str) -> Mesh:
    """The mesh of all ranks."""
    whole = init_device_mesh(device, layout.sizes, mesh_dim_names=AXES)
    shards = whole["shard", "domain"]._flatten("shard_domain")
    team = whole["domain", "tensor"]._flatten("team")
    # A mesh of one axis shards, a mesh of two replicates over the first and shards over the second.
    with warnings.catch_warnings():
        # Of axes beside a flattened one torch 2.13 makes a mesh in no other way yet.
        warnings.filterwarnings("ignore", "Slicing a flattened dim", UserWarning)
        parameters = whole["replicate", "shard_domain"] if layout.replicate > 1 else shards
    stage = whole["replicate", "shard", "domain", "tensor"]._flatten("stage")
    return Mesh(layout=layout, whole=whole, parameters=parameters, team=team.get_group(), stage=stage.get_group())
