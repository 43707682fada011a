"""Attention inside groups of tokens: windows of space-time, or the lines and planes of a lattice."""

from collections.abc import Sequence

import torch

from hyperslab.errors import UserError
from hyperslab.model.attention.blocks import as_bias, attend_rows
from hyperslab.model.attention.mixer import Mixer, Plan
from hyperslab.model.lattice import Lattice, box_of, cell_numbers


class Window(Mixer):
    """Exact attention inside boxes of space-time (Liu et al. 2021, arXiv 2103.14030, in any number of dimensions).

    A shifted layer has its boxes begin half a box later, so that what one layer keeps apart the next one joins. Round
    a periodic axis a box goes on across the seam; at a border it ends there.
    """

    def __init__(self, window: int | Sequence[int], *, shifted: bool) -> None:
        """Make a mixer.

        Parameters
        ----------
        window
            Cells of a box along each axis, time first; or their number, for as compact a box as a lattice allows.
        """
        super().__init__()
        self.window = window if isinstance(window, int) else tuple(window)
        self.shifted = shifted

    def sides(self, lattice: Lattice) -> tuple[int, ...]:
        """Cells of a box along each axis of a lattice."""
        if isinstance(self.window, int):
            return box_of(lattice.shape, self.window)
        if len(self.window) != len(lattice.shape):
            raise UserError(
                f"model.attention.window: found {list(self.window)} for tokens along {len(lattice.shape)} axes (time, "
                "then space); give a number for each axis, or one number of tokens"
            )
        return tuple(min(side, size) for side, size in zip(self.window, lattice.shape, strict=True))

    def boxes(self, lattice: Lattice) -> torch.Tensor:
        """Number of the box that each token lies in; shape (N,)."""
        boxes = torch.zeros(len(lattice), dtype=torch.int64)
        for axis, (size, side) in enumerate(zip(lattice.shape, self.sides(lattice), strict=True)):
            place = lattice.cells[:, axis] + (side // 2 if self.shifted and side < size else 0)
            if lattice.periodic[axis]:
                place = place % size
            boxes = boxes * (size // side + 2) + place // side
        return boxes

    def make_plan(self, lattice: Lattice) -> Plan:
        """Tokens of each box."""
        return group(self.boxes(lattice))

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, valid: torch.Tensor | None, plan: Plan
    ) -> torch.Tensor:
        """As `Mixer.forward`."""
        return attend_in_groups(query, key, value, valid, plan)

    def allowed(self, lattice: Lattice) -> torch.Tensor:
        """As `Mixer.allowed`."""
        boxes = self.boxes(lattice)
        return boxes[:, None] == boxes[None, :]


class Axial(Mixer):
    """Attention along time, then over space: what a token takes in is first mixed along each place's own time.

    Of a matrix of N x N weights it keeps the product of two sparse ones; N x (times + places) are computed (Ho et
    al. 2019, arXiv 1912.12180). Tokens without time attend to all others.
    """

    def make_plan(self, lattice: Lattice) -> Plan:
        """Tokens of each place, then those of each time."""
        return (*group(self.places(lattice)), *group(lattice.cells[:, 0]))

    @staticmethod
    def places(lattice: Lattice) -> torch.Tensor:
        """Number of each token's place in space; shape (N,)."""
        return cell_numbers(lattice.cells[:, 1:], lattice.shape[1:])

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, valid: torch.Tensor | None, plan: Plan
    ) -> torch.Tensor:
        """As `Mixer.forward`."""
        # Each of both groupings has a third tensor, the only ones of bools, where places are left over.
        first = 3 if plan[2].dtype == torch.bool else 2
        mixed = attend_in_groups(query, key, value, valid, plan[:first])
        return attend_in_groups(query, key, mixed, valid, plan[first:])


def group(numbers: torch.Tensor) -> Plan:
    """Tokens of each group: which they are, where each token has gone to, and where a group is shorter than others.

    Parameters
    ----------
    numbers
        Group of each token; shape (N,).

    Returns
    -------
    tuple of torch.Tensor
        Token in each place of each group, shape (group, place), 0 in places that are left over; place of each token
        among all of them, shape (N,); and, only where places are left over, which ones are not, shape (group, place).
    """
    _, numbers, lengths = torch.unique(numbers, return_inverse=True, return_counts=True)
    order = numbers.argsort(stable=True)
    longest = int(lengths.max())
    within = torch.arange(len(order)) - (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    places = torch.empty_like(order)
    places[order] = numbers[order] * longest + within
    tokens = torch.zeros(len(lengths) * longest, dtype=torch.int64)
    tokens[places] = torch.arange(len(places))
    if int(lengths.min()) == longest:
        return tokens.view(-1, longest), places
    return tokens.view(-1, longest), places, torch.arange(longest) < lengths[:, None]


def attend_in_groups(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, valid: torch.Tensor | None, plan: Plan
) -> torch.Tensor:
    """Exact attention of every token to those of its group, shape (B, A, N, D).

    Parameters
    ----------
    query, key, value, valid
        As for `Mixer.forward`.
    plan
        From `group`.
    """
    tokens, _, *filled = plan
    b, a, n, d = query.shape
    # A group is a row of blocks of one token each.
    query, key, value = (tensor.contiguous().view(b * a, n, 1, d) for tensor in (query, key, value))
    bias = None if valid is None else as_bias(valid, query.dtype).repeat_interleave(a, 0).view(b * a, n, 1, 1)
    return attend_rows(query, key, value, tokens, None, bias, *filled).view(b, a, n, d)
