"""Parameters and floating-point operations of the space-time Transformer, by formulas: nothing is built or run.

A multiply-add is two operations. Matrix products count (Kaplan et al. 2020, arXiv 2001.08361, table 1), and so does all
of attention (Chowdhery et al. 2022, arXiv 2204.02311, appendix B); norms, softmax and activations, which are of lower
order, do not. N is the number of tokens of a sample, W the width.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hyperslab.errors import UserError
from hyperslab.model.config import AttentionSettings, ModelSettings, hidden_width

# What imports torch, a second that not every plan pays, is imported inside the functions that need it.
if TYPE_CHECKING:
    from hyperslab.model.fields import Field
    from hyperslab.model.hits import Cloud


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Where the tokens of a sample lie: what `Lattice` is to the model, in plain numbers."""

    shape: tuple[int, ...]
    """Cells along each axis: time, then space."""
    periodic: tuple[bool, ...]
    """Whether each axis closes on itself."""
    present: tuple[tuple[int, ...], ...] | None = None
    """Cells of space that are tokens, at all times; None where all are."""

    @property
    def places(self) -> int:
        """Cells of space that are tokens."""
        return math.prod(self.shape[1:]) if self.present is None else len(self.present)

    @property
    def tokens(self) -> int:
        """Tokens of a sample."""
        return self.shape[0] * self.places


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """Operations of one forward pass for one sample, by where they are done."""

    embed: int = 0
    projections: int = 0
    """To queries, keys and values, and from what attention gives."""
    attention: int = 0
    feed_forward: int = 0
    heads: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.embed + self.projections + self.attention + self.feed_forward + self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFlops:
    """Operations of one forward and backward pass for one sample."""

    forward: int
    backward: int
    recomputed: int
    """Of the forward pass, done again in the backward pass."""

    @property
    def model(self) -> int:
        """What training takes at least: what model FLOPs utilisation counts (arXiv 2204.02311, appendix B)."""
        return self.forward + self.backward

    @property
    def total(self) -> int:
        """What is executed: what hardware FLOPs utilisation counts (Korthikanti et al. 2022, arXiv 2205.05198)."""
        return self.model + self.recomputed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linear:
    """A layer with a bias."""

    inputs: int
    outputs: int
    rows: int
    """Vectors of a sample that it is applied to."""

    @property
    def parameters(self) -> int:
        return (self.inputs + 1) * self.outputs

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.inputs * self.outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What a stream has of its own."""

    embed: list[_Linear]
    heads: list[_Linear]
    vectors: int
    """Vectors of one width each that are added to tokens as they are."""


def count_parameters(settings: ModelSettings, streams: "Mapping[str, Field | Cloud]") -> int:
    """Number of parameters of `SpaceTimeTransformer`; `settings.module`, a model of one's own, is not looked at."""
    width = settings.width
    count = width + sum(block_parameters(settings, layer) for layer in range(settings.depth))
    for stream in streams.values():
        parts = _parts_of(stream, _whole(stream), width)
        count += sum(linear.parameters for linear in parts.embed + parts.heads) + width * parts.vectors
    return count


def block_parameters(settings: ModelSettings, layer: int) -> int:
    """Number of parameters of one Transformer block: about 12 W^2."""
    width, head_width = settings.width, settings.width // settings.heads
    chosen = settings.attention_of(layer)
    learned = chosen.features * head_width if chosen.kind == "linear" and chosen.directions == "learned" else 0
    return 2 * width + 4 * width**2 + 2 * head_width + learned + 3 * width * hidden_width(width)


def forward_flops(settings: ModelSettings, stream: "Field | Cloud", tokens: int | None = None) -> Flops:
    """Operations of one forward pass for one sample of a stream.

    What all samples of a batch share, the embedding of places of a field, counts for each: the sum over a batch is a
    trifle too high.

    Parameters
    ----------
    tokens
        Of a stream of hits: tokens of a sample, those that pad it among them. None of a field, whose axes tell.

    Raises
    ------
    ValueError
        When tokens are given for a field, or not given for hits.
    UserError
        When boxes of `window` do not fit the axes, or the patch does not.
    """
    cells = cells_of(stream, tokens)
    parts = _parts_of(stream, cells, settings.width)
    layers = [(count, layer_flops(settings, layer, cells)) for layer, count in _layer_counts(settings).items()]
    return Flops(
        embed=sum(linear.flops for linear in parts.embed),
        projections=sum(count * layer.projections for count, layer in layers),
        attention=sum(count * layer.attention for count, layer in layers),
        feed_forward=sum(count * layer.feed_forward for count, layer in layers),
        heads=sum(linear.flops for linear in parts.heads),
    )


def training_flops(settings: ModelSettings, stream: "Field | Cloud", tokens: int | None = None) -> TrainingFlops:
    """Operations of one forward and backward pass for one sample of a stream.

    The backward pass takes twice the forward pass, one product each for the gradient of inputs and of weights. Of the
    first layer, whose input is data, and of fixed directions only one of them is needed, which is not taken off. What
    a kernel of attention recomputes by itself counts no more than in the papers above, and neither does exact
    attention while a kind that is learned is probing. A rollout of k forecasts makes k such passes.

    Parameters and errors are those of `forward_flops`.
    """
    forward = forward_flops(settings, stream, tokens).total
    cells = cells_of(stream, tokens)
    again = sum(count * recomputed_flops(settings, layer, cells) for layer, count in _layer_counts(settings).items())
    return TrainingFlops(forward=forward, backward=2 * forward, recomputed=again)


def layer_flops(settings: ModelSettings, layer: int, cells: Cells) -> Flops:
    """Operations of one forward pass of one Transformer block for one sample."""
    chosen, width = settings.attention_of(layer), settings.width
    return Flops(
        projections=projection_flops(cells.tokens, width),
        attention=attention_flops(
            chosen, cells, width=width, heads=settings.heads, shifted=_is_shifted(settings, layer)
        ),
        feed_forward=feed_forward_flops(cells.tokens, width),
    )


def recomputed_flops(settings: ModelSettings, layer: int, cells: Cells) -> int:
    """Operations of one Transformer block that its backward pass does again, by `settings.recompute`.

    PyTorch stops once it has all that the backward pass needs (`torch.utils.checkpoint.set_checkpoint_early_stop`).
    What the feed-forward's last product gives is no part of that, unless a share for stochastic depth follows it.
    """
    if settings.recompute == "none":
        return 0
    flops = layer_flops(settings, layer, cells)
    last = flops.feed_forward // 3
    if settings.recompute == "selective":
        return flops.feed_forward - last
    return flops.total - (0 if settings.stochastic_depth else last)


def projection_flops(tokens: int, width: int) -> int:
    """Operations of the projections of one layer: 2 N W 3W to queries, keys and values, and 2 N W W from them."""
    return 8 * tokens * width**2


def feed_forward_flops(tokens: int, width: int) -> int:
    """Operations of the feed-forward of one layer: three products of N x W x hidden, about 16 N W^2."""
    return 6 * tokens * width * hidden_width(width)


def attention_flops(chosen: AttentionSettings, cells: Cells, *, width: int, heads: int, shifted: bool = False) -> int:
    """Operations of one layer's attention, without projections.

    What is executed counts, also where it is of no use: places that fill up boxes shorter than the longest, and the
    last block of `block_sparse`, since hardware is busy with them as with the others.

    Parameters
    ----------
    shifted
        Whether boxes of `window` begin half a box later, as in every second layer of its kind.

    Raises
    ------
    UserError
        When `window` is a list of another length than the axes are.
    """
    tokens = cells.tokens
    if chosen.kind == "window":
        return grouped_flops(*window_groups(cells, chosen.window, shifted=shifted), width)
    if chosen.kind == "axial":
        # Every place is there at all times, so that no line along time and no frame is shorter than others.
        times = cells.shape[0]
        return grouped_flops(cells.places, times, width) + grouped_flops(times, cells.places, width)
    if chosen.kind == "block_sparse":
        return block_sparse_flops(tokens, width, chosen.block, seen_blocks(chosen, tokens))
    if chosen.kind == "linear":
        return linear_flops(tokens, width, heads, chosen.features)
    if chosen.kind == "nystrom":
        return nystrom_flops(tokens, width, heads, chosen.landmarks)
    return grouped_flops(1, tokens, width)


def grouped_flops(groups: int, length: int, width: int) -> int:
    """Operations of exact attention inside groups: scores and values, 2 length^2 W each. Dense is one group."""
    return 4 * groups * length**2 * width


def window_groups(cells: Cells, window: int | list[int], *, shifted: bool) -> tuple[int, int]:
    """Number of boxes that hold tokens, and tokens of the fullest one, to which the others are filled up.

    Parameters
    ----------
    window
        Cells of a box along each axis, time first, or their number.

    Raises
    ------
    UserError
        When it is a list of another length than the axes are.
    """
    from hyperslab.model.lattice import box_of

    sides = box_of(cells.shape, window) if isinstance(window, int) else window
    if len(sides) != len(cells.shape):
        raise UserError(
            f"model.attention.window: found {list(sides)} for tokens along {len(cells.shape)} axes (time, then space); "
            "give a number for each axis, or one number of tokens"
        )
    boxes = [
        _boxes_along(size, min(side, size), closes=closes, shifted=shifted)
        for size, side, closes in zip(cells.shape, sides, cells.periodic, strict=True)
    ]
    along = [Counter(numbers) for numbers in boxes]
    if cells.present is None:
        return math.prod(map(len, along)), math.prod(max(counts.values()) for counts in along)
    in_space = Counter(tuple(boxes[1 + axis][n] for axis, n in enumerate(place)) for place in cells.present)
    return len(along[0]) * len(in_space), max(along[0].values()) * max(in_space.values(), default=0)


def seen_blocks(chosen: AttentionSettings, tokens: int) -> int:
    """Blocks that each block sees, its own among them."""
    count = -(-tokens // chosen.block)
    return min(count, chosen.blocks or max(1, round(chosen.density * count)))


def block_sparse_flops(tokens: int, width: int, block: int, seen: int) -> int:
    """Operations of attention of blocks to `seen` blocks each: 4 N W x seen x block, N a multiple of the block.

    Where every block sees all, attention is dense, and nothing is filled up.
    """
    count = -(-tokens // block)
    if seen >= count:
        return grouped_flops(1, tokens, width)
    return 4 * count * block * seen * block * width


def linear_flops(tokens: int, width: int, heads: int, features: int) -> int:
    """Operations of attention by features.

    To features of queries and of keys, from keys and values to their sums, and from these to the tokens, 2 N W features
    each; and one sum for each token and head that weights are divided by.
    """
    return 8 * tokens * width * features + 2 * tokens * heads * features


def nystrom_flops(tokens: int, width: int, heads: int, landmarks: int) -> int:
    """Operations of attention through landmarks; dense where tokens are no more than these.

    Tokens are cut into `landmarks` runs of one length, or fewer where the last ones would be empty: m. Scores of tokens
    beside landmarks and the way back, 2 N m W each; attention of landmarks to all tokens, 4 N m W; scores of landmarks
    beside one another and the inverse applied, 2 m^2 W each; for the inverse, four products of 2 m^3 for each head
    and iteration.
    """
    from hyperslab.model.attention.nystrom import ITERATIONS

    if landmarks >= tokens:
        return grouped_flops(1, tokens, width)
    runs = -(-tokens // -(-tokens // landmarks))
    return 8 * tokens * runs * width + 4 * runs**2 * width + 8 * ITERATIONS * runs**3 * heads


def cells_of(stream: "Field | Cloud", tokens: int | None = None) -> Cells:
    """Where a stream's tokens lie. Parameters and errors are those of `forward_flops`, but for `window`."""
    from hyperslab.model.fields import Field

    whole = _whole(stream, tokens or 0)
    if isinstance(stream, Field) == (tokens is not None):
        raise ValueError(f"tokens: must be given for hits alone, got {tokens} for a {type(stream).__name__}")
    if not isinstance(stream, Field) or stream.present is None:
        return whole
    there = stream.frame_patches.cut(stream.present[None, None, None])[0].any(-1).tolist()
    places = itertools.product(*map(range, whole.shape[1:]))
    return Cells(shape=whole.shape, periodic=whole.periodic, present=tuple(itertools.compress(places, there)))


def _whole(stream: "Field | Cloud", tokens: int = 0) -> Cells:
    """All cells of a stream, also absent ones; hits are a line of tokens."""
    from hyperslab.model.fields import Field

    if isinstance(stream, Field):
        return Cells(shape=stream.patches.shape, periodic=stream.patches.periodic)
    return Cells(shape=(1, tokens), periodic=(False, False))


def _parts_of(stream: "Field | Cloud", cells: Cells, width: int) -> _Parts:
    from hyperslab.model.fields import Field

    return _field_parts(stream, cells, width) if isinstance(stream, Field) else _cloud_parts(stream, cells, width)


def _field_parts(field: "Field", cells: Cells, width: int) -> _Parts:
    from hyperslab.model.fields import CALENDAR_FEATURES
    from hyperslab.model.positions import NUM_FREQUENCIES

    objective, patch, all_places = field.objective, field.patches.patch, math.prod(cells.shape[1:])
    in_frame = field.channels * math.prod(patch[1:])
    names = {axis.name for axis in field.axes}
    # Latitude and longitude are a point of the sphere, of three coordinates. Absent places are embedded as well.
    coordinates = len(names) + ({"latitude", "longitude"} <= names)
    embed = [
        _Linear(inputs=in_frame * patch[0], outputs=width, rows=cells.tokens),
        _Linear(inputs=2 * NUM_FREQUENCIES * coordinates, outputs=width, rows=all_places),
        _Linear(inputs=CALENDAR_FEATURES, outputs=width, rows=1),
    ]
    if objective.leads > 1:
        embed.append(_Linear(inputs=2 * NUM_FREQUENCIES, outputs=width, rows=1))
    heads = []
    if objective.forecasts:  # from the tokens of the newest frames
        heads.append(_Linear(inputs=width, outputs=in_frame, rows=cells.places))
    if objective.masks:
        heads.append(_Linear(inputs=width, outputs=in_frame * patch[0], rows=cells.tokens))
    ages, missing, hidden = cells.shape[0], 1, int(objective.masks)
    nominal = all_places if any(axis.nominal for axis in field.axes) else 0
    return _Parts(embed=embed, heads=heads, vectors=ages + missing + hidden + nominal)


def _cloud_parts(cloud: "Cloud", cells: Cells, width: int) -> _Parts:
    from hyperslab.model.positions import NUM_FREQUENCIES

    values = cloud.parts * (1 + cloud.channels)
    features = 2 * NUM_FREQUENCIES * len(cloud.cell)
    ages, hidden = cloud.tokens.history, 1
    return _Parts(
        embed=[_Linear(inputs=inputs, outputs=width, rows=cells.tokens) for inputs in (values, features)],
        heads=[_Linear(inputs=width, outputs=values, rows=cells.tokens)],
        vectors=ages + hidden,
    )


def _layer_counts(settings: ModelSettings) -> dict[int, int]:
    """First layers, and how many layers cost the same as each: kinds repeat, and shifts with every second turn."""
    turn = 2 * len(settings.attention)
    return {layer: len(range(layer, settings.depth, turn)) for layer in range(min(turn, settings.depth))}


def _is_shifted(settings: ModelSettings, layer: int) -> bool:
    turns, rest = divmod(layer, len(settings.attention))
    windows = [chosen.kind == "window" for chosen in settings.attention]
    return (turns * sum(windows) + sum(windows[:rest])) % 2 == 1


def _boxes_along(size: int, side: int, *, closes: bool, shifted: bool) -> list[int]:
    """Number of the box that each place along an axis lies in, as in `Window.boxes`."""
    shift = side // 2 if shifted and side < size else 0
    return [((place + shift) % size if closes else place + shift) // side for place in range(size)]
