"""Gradients after the backward pass: what is left to be summed over ranks, their norm, and clipping."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from hyperslab.parallel.collectives import local
from hyperslab.parallel.mesh import Mesh


def complete(parameters: Iterable[nn.Parameter], mesh: Mesh) -> None:
    """Sum the gradients of what all ranks of `tensor` have a copy of: each has computed with its own tokens."""
    group = mesh.group("tensor")
    if group.size() == 1:
        return
    copied = [local(parameter.grad) for parameter in parameters if parameter.grad is not None and _is_copied(parameter)]
    # Gradients that wait in the memory of the host are summed where ranks compute.
    flat = torch.cat([gradient.flatten() for gradient in copied]).to(mesh.device)
    dist.all_reduce(flat, group=group)
    totals = torch.split(flat, [gradient.numel() for gradient in copied])
    for gradient, total in zip(copied, totals, strict=True):
        gradient.copy_(total.view_as(gradient))


def clip(parameters: Iterable[nn.Parameter], mesh: Mesh, most: float) -> float:
    """Scale gradients down so that the norm of all of them together, over all ranks, is at most `most`.

    Returns
    -------
    float
        The norm before.
    """
    layout = mesh.layout
    gradients, square = [], torch.zeros((), dtype=torch.float64, device=mesh.device)
    for parameter in parameters:
        if parameter.grad is None:
            continue
        gradient = local(parameter.grad)
        copies = layout.replicate * (layout.tensor if _is_copied(parameter) else 1)
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float64)
        square += (norm.square() / copies).to(mesh.device)
        gradients.append(gradient)
    dist.all_reduce(square)
    whole = float(square.sqrt())
    if whole > most:
        torch._foreach_mul_(gradients, most / whole)
    return whole


def _is_copied(parameter: nn.Parameter) -> bool:
    """Whether all ranks of `tensor` hold the same."""
    return not isinstance(parameter, DTensor) or "tensor" not in (parameter.device_mesh.mesh_dim_names or ())
