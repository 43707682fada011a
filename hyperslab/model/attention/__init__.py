"""Kinds of attention, chosen layer by layer."""

from collections.abc import Mapping

from hyperslab.model.attention.block_sparse import BlockSparse
from hyperslab.model.attention.grouped import Axial, Window
from hyperslab.model.attention.linear import Linear
from hyperslab.model.attention.mixer import Dense, Mixer, Plan
from hyperslab.model.attention.nystrom import Nystrom
from hyperslab.model.config import ModelSettings
from hyperslab.model.lattice import Lattice


def make_mixer(settings: ModelSettings, layer: int, lattices: Mapping[str, Lattice]) -> Mixer:
    """The kind of attention that a layer has.

    Parameters
    ----------
    lattices
        Those of the streams whose tokens lie in the same places in every sample, by name.
    """
    chosen = settings.attention_of(layer)
    head_width = settings.width // settings.heads
    if chosen.kind == "window":
        before = sum(settings.attention_of(number).kind == "window" for number in range(layer))
        return Window(chosen.window, shifted=before % 2 == 1)
    if chosen.kind == "axial":
        return Axial()
    if chosen.kind == "block_sparse":
        return BlockSparse(
            chosen.block,
            chosen.density,
            chosen.pattern,
            lattices=lattices,
            seed=layer,
            num_seen=chosen.blocks,
            backend=chosen.backend,
        )
    if chosen.kind == "linear":
        return Linear(head_width, chosen.features, learned=chosen.directions == "learned")
    if chosen.kind == "nystrom":
        return Nystrom(chosen.landmarks)
    return Dense()


__all__ = ["Axial", "BlockSparse", "Dense", "Linear", "Mixer", "Nystrom", "Plan", "Window", "make_mixer"]
