"""What attention learns from exact attention in a model, and how far it is from it."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperslab.model.attention import BlockSparse, Dense, Linear, Mixer
from hyperslab.model.attention.mismatch import relative_error
from hyperslab.model.attention.probe import covered_mass
from hyperslab.model.block import Block
from hyperslab.model.config import ModelSettings
from hyperslab.model.lattice import Lattice


def set_probing(model: nn.Module, settings: ModelSettings, step: int | None) -> bool:
    """Let the layers that learn from exact attention compute it, in the steps in which they do.

    Parameters
    ----------
    step
        Training steps done; None where nothing is to be learned.

    Returns
    -------
    bool
        Whether a stretch of such steps has just come to its end: patterns are to be chosen.
    """
    ended = False
    for layer, block in _blocks(model):
        chosen, mixer = settings.attention_of(layer), block.attention.mixer
        if isinstance(mixer, BlockSparse | Linear):
            mixer.probing = step is not None and chosen.probes(step)
        if step is not None and step > 0:
            ended |= chosen.probes(step - 1) and not chosen.probes(step)
    return ended


def attend_as_trained(model: nn.Module, settings: ModelSettings, step: int) -> None:
    """Let layers attend as in the last training step: exactly, where that step probed.

    Parameters
    ----------
    step
        Training steps done.
    """
    for layer, block in _blocks(model):
        chosen, mixer = settings.attention_of(layer), block.attention.mixer
        if isinstance(mixer, BlockSparse):
            mixer.probing = chosen.probes(max(0, step - 1))


def influences(model: nn.Module) -> list[torch.Tensor]:
    """What layers with learned patterns have measured, each of shape (block, block)."""
    mixers = [block.attention.mixer for _, block in _blocks(model)]
    return [
        buffer
        for mixer in mixers
        if isinstance(mixer, BlockSparse)
        for name, buffer in mixer.named_buffers()
        if name.startswith("influence_")
    ]


def settle(model: nn.Module) -> None:
    """Choose all learned patterns by what was measured; where nothing was, they stay."""
    for _, block in _blocks(model):
        if isinstance(block.attention.mixer, BlockSparse):
            block.attention.mixer.settle()


@torch.no_grad()
def attention_errors(model: nn.Module, lattice: Lattice | None, forward: Callable[[], Any]) -> dict[str, float]:
    """How far each layer's attention is from exact attention, on what `forward` gives the model.

    Parameters
    ----------
    lattice
        Where the tokens lie; None where that is not known.
    forward
        Calls the model, in evaluation.

    Returns
    -------
    dict of float
        Of each layer that is not dense, counted from 0: `layer_00/output_error`, the root of the square difference over
        the square of exact attention's output; and, where it is exact under a mask, `layer_00/covered_mass`, the share
        of exact attention's weights that lies under it.
    """
    errors: dict[str, float] = {}
    handles = []
    for layer, block in _blocks(model):
        if not isinstance(block.attention.mixer, Dense):
            note = _Note(f"layer_{layer:02d}", lattice, errors)
            # First of all hooks: others may share out what the mixer gives.
            handles.append(block.attention.mixer.register_forward_hook(note, prepend=True))
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return errors


MOST_TOKENS = 8192
"""Tokens of a sample up to which errors are measured: masks of all pairs take their square."""


class _Note:
    """A hook that compares what a kind of attention gave with what exact attention gives."""

    def __init__(self, layer: str, lattice: Lattice | None, errors: dict[str, float]) -> None:
        self.layer, self.lattice, self.errors = layer, lattice, errors

    def __call__(self, mixer: Mixer, given: tuple[Any, ...], mixed: torch.Tensor) -> None:
        query, key, value, valid, _ = given
        if query.shape[2] > MOST_TOKENS:
            return
        exact = F.scaled_dot_product_attention(query, key, value, None if valid is None else valid[:, None, None])
        self.errors[f"{self.layer}/output_error"] = float(relative_error(mixed, exact, valid).sqrt())
        allowed = None if self.lattice is None else mixer.allowed(self.lattice)
        if allowed is not None:
            mass = covered_mass(query, key, valid, allowed.to(query.device))
            self.errors[f"{self.layer}/covered_mass"] = float(mass)


def _blocks(model: nn.Module) -> list[tuple[int, Block]]:
    """The layers of a model that are held and ours, and their numbers; none of a user's own kind."""
    return [(layer, block) for layer, block in enumerate(getattr(model, "blocks", [])) if isinstance(block, Block)]
