"""Attention of blocks of tokens to a few blocks each, chosen by rule or by what the loss was seen to depend on."""

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F

from hyperslab.model.attention import patterns
from hyperslab.model.attention.blocks import attend_blocks, attend_blocks_flex
from hyperslab.model.attention.mixer import Mixer, Plan
from hyperslab.model.attention.probe import probed_attention
from hyperslab.model.lattice import Lattice

Backend = Literal["auto", "gather", "flex"]


class BlockSparse(Mixer):
    """Exact attention under a mask of whole blocks of tokens, every block of queries seeing as many blocks of keys.

    A learned pattern begins as the static one. While `probing`, attention is dense, and the backward pass adds up how
    much the loss depends on what each block sees of each other one; `settle` then chooses the pattern, which is kept
    in the state of the layer.
    """

    def __init__(
        self,
        block: int,
        density: float,
        rule: patterns.Rule,
        *,
        lattices: Mapping[str, Lattice],
        seed: int = 0,
        num_seen: int | None = None,
        backend: Backend = "auto",
    ) -> None:
        """Make a mixer.

        Parameters
        ----------
        block
            Tokens in a block.
        density
            Share of the blocks that each block sees, above 0 and at most 1.
        lattices
            Those for which a pattern is learned, by name. On any other one the pattern is the static one.
        seed
            Of random patterns; it should differ from layer to layer.
        num_seen
            Blocks that each block sees, instead of a share.
        """
        super().__init__()
        self.block, self.density, self.rule, self.seed = block, density, rule, seed
        self.num_seen, self.backend = num_seen, backend
        self.probing = False
        self.weight = 1.0
        """What the influence that is measured counts, where the mean is taken over others that measure other heads."""
        self._names = {lattice: name for name, lattice in lattices.items()} if rule == "learned" else {}
        for lattice, name in self._names.items():
            pattern = patterns.static_pattern(lattice, block, self.seen(lattice))
            self.register_buffer(f"pattern_{name}", pattern.clone())  # layers share what is not learned yet
            self.register_buffer(f"influence_{name}", torch.zeros(len(pattern), len(pattern)))

    def seen(self, lattice: Lattice) -> int:
        """Blocks that each block of a lattice sees."""
        count = patterns.num_blocks(lattice, self.block)
        return min(count, self.num_seen or max(1, round(self.density * count)))

    def plan(self, lattice: Lattice, device: torch.device) -> Plan:
        """The pattern; a learned one stands in the layer's state, beside the influence that is added up."""
        name = self._names.get(lattice)
        if name is None:
            return super().plan(lattice, device)
        return self.get_buffer(f"pattern_{name}"), self.get_buffer(f"influence_{name}")

    def make_plan(self, lattice: Lattice) -> Plan:
        """The pattern by rule."""
        if self.rule == "random":
            return (patterns.random_pattern(lattice, self.block, self.seen(lattice), self.seed),)
        return (patterns.static_pattern(lattice, self.block, self.seen(lattice)),)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, valid: torch.Tensor | None, plan: Plan
    ) -> torch.Tensor:
        """As `Mixer.forward`."""
        pattern, *influence = plan
        if self.probing and influence:
            return probed_attention(query, key, value, valid, influence[0], self.block, self.weight)
        if pattern.shape[1] == len(pattern):
            return F.scaled_dot_product_attention(query, key, value, None if valid is None else valid[:, None, None])
        n = query.shape[2]
        missing = len(pattern) * self.block - n
        if missing:
            query, key, value = (F.pad(tensor, (0, 0, 0, missing)) for tensor in (query, key, value))
            valid = query.new_ones(len(query), n, dtype=torch.bool) if valid is None else valid
            valid = F.pad(valid, (0, missing))
        flex = self.backend == "flex" or (self.backend == "auto" and query.device.type == "cuda")
        attend = attend_blocks_flex if flex else attend_blocks
        return attend(query, key, value, pattern, valid)[:, :, :n]

    def settle(self) -> None:
        """Choose every learned pattern anew by the influence that was added up, and forget it.

        A pattern stays as it is where there was none.
        """
        for lattice, name in self._names.items():
            influence = self.get_buffer(f"influence_{name}")
            if not influence.any():
                continue
            touching = patterns.neighbours(lattice, self.block)
            pattern = patterns.learned_pattern(influence.cpu(), touching, self.seen(lattice))
            self.get_buffer(f"pattern_{name}").copy_(pattern)
            influence.zero_()

    def allowed(self, lattice: Lattice) -> torch.Tensor:
        """As `Mixer.allowed`."""
        pattern = self.plan(lattice, torch.device("cpu"))[0]
        return patterns.token_mask(pattern, self.block, len(lattice))
