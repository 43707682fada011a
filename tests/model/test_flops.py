import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from hyperslab.errors import UserError
from hyperslab.model.config import AttentionSettings, ModelSettings, ObjectiveSettings, TokenSettings
from hyperslab.model.fields import Field, FieldSample
from hyperslab.model.flops import (
    Cells,
    attention_flops,
    block_parameters,
    cells_of,
    count_parameters,
    feed_forward_flops,
    forward_flops,
    layer_flops,
    nystrom_flops,
    projection_flops,
    recomputed_flops,
    seen_blocks,
    training_flops,
    window_groups,
)
from hyperslab.model.hits import Cloud, HitSample
from hyperslab.model.positions import Axis
from hyperslab.model.transformer import Sample, SpaceTimeTransformer, Stream

LATITUDE = Axis(name="latitude", values=(60.0, 40.0, 20.0, 0.0, -20.0, -40.0, -60.0))
LONGITUDE = Axis(name="longitude", values=tuple(range(0, 360, 30)), periodic=True)
PARCEL = Axis(name="parcel", values=tuple(range(20)), nominal=True)
KINDS: list[str | dict[str, Any]] = [
    "dense",
    {"kind": "window", "window": 16},
    {"kind": "window", "window": 50},
    "axial",
    {"kind": "block_sparse", "block": 8, "density": 0.4},
    {"kind": "block_sparse", "block": 16, "blocks": 2, "pattern": "random"},
    {"kind": "block_sparse", "block": 8, "pattern": "learned"},
    {"kind": "block_sparse", "block": 4096},
    {"kind": "linear", "features": 24},
    {"kind": "linear", "features": 24, "directions": "learned"},
    {"kind": "nystrom", "landmarks": 10},
    {"kind": "nystrom", "landmarks": 4096},
]


def settings(**changes: Any) -> ModelSettings:
    return ModelSettings(**({"width": 16, "depth": 2, "heads": 2} | changes))


def winds(**changes: Any) -> Field:
    """Frames on the globe: 4 x 7 x 12 places, 2 x 4 x 6 = 48 tokens."""
    defaults: dict[str, Any] = {
        "channels": 3,
        "axes": (LATITUDE, LONGITUDE),
        "tokens": TokenSettings(history=4, patch=[2, 2, 2]),
        "objective": ObjectiveSettings(),
    }
    return Field(**defaults | changes)


def brain(**changes: Any) -> Field:
    """Frames of named parcels, of which 13 of 20 are there: 8 x 13 = 104 tokens."""
    defaults: dict[str, Any] = {
        "channels": 1,
        "axes": (PARCEL,),
        "tokens": TokenSettings(history=8, patch=1),
        "objective": ObjectiveSettings(kind="masked"),
        "present": torch.tensor([n % 3 != 1 for n in range(20)]),
    }
    return Field(**defaults | changes)


def hits(**changes: Any) -> Cloud:
    defaults: dict[str, Any] = {
        "channels": 2,
        "low": (0.0, 0.0, 0.0),
        "cell": (1.0, 1.0, 1.0),
        "shape": (8, 8, 8),
        "tokens": TokenSettings(history=2),
        "objective": ObjectiveSettings(kind="masked"),
    }
    return Cloud(**defaults | changes)


def field_sample(field: Field, batch: int = 1, **changes: Any) -> FieldSample:
    sizes = [len(axis.values) for axis in field.axes]
    defaults: dict[str, Any] = {
        "inputs_BTCS": torch.randn(batch, field.tokens.history, field.channels, *sizes),
        "calendar_BF": torch.randn(batch, 4),
        "lead_B": torch.ones(batch, dtype=torch.int64),
        "complete": True,
    }
    return FieldSample(**defaults | changes)


def hit_sample(cloud: Cloud, tokens: int, batch: int = 1) -> HitSample:
    return HitSample(
        values_BNP=torch.randn(batch, tokens, cloud.parts * (1 + cloud.channels)),
        position_BNS=torch.rand(batch, tokens, 4),
        valid_BN=torch.arange(tokens).expand(batch, -1) < tokens - 5,
        count=tokens,
    )


def counted(run: Callable[[], Any]) -> int:
    """Operations that PyTorch counts while something runs."""

    def once(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]

    def twice(_: Any, *shapes: Any, **__: Any) -> int:
        return 2 * once(*shapes)

    # PyTorch has no formula for the CPU's own attention. Its backward pass is counted without the scores, which it
    # works out again.
    custom = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: once,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: twice,
    }
    with FlopCounterMode(display=False, custom_mapping=custom) as counter:
        run()
    return int(counter.get_total_flops())


def counted_forward(chosen: ModelSettings, stream: Stream, sample: Sample) -> int:
    """Operations that PyTorch counts of a forward pass; patterns of blocks are worked out before, once for all."""
    model = SpaceTimeTransformer(chosen, {"own": stream})
    with torch.no_grad():
        model("own", sample)
        return counted(lambda: model("own", sample))


def counted_backward(chosen: ModelSettings, stream: Stream, sample: Sample) -> int:
    """Operations that PyTorch counts of a backward pass, attention as the matrix products of its formula."""
    model = SpaceTimeTransformer(chosen, {"own": stream})
    with sdpa_kernel(SDPBackend.MATH):
        total = torch.stack([part.sum() for part in model("own", sample).values()]).sum()
        return counted(total.backward)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_as_many_as_those_of_the_model_for_every_kind_of_attention(kind):
    chosen = settings(attention=kind)
    streams: dict[str, Stream] = {"winds": winds(), "brain": brain(), "hits": hits()}

    model = SpaceTimeTransformer(chosen, streams)

    assert count_parameters(chosen, streams) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("objective", ["forecast", "masked", "both"])
@pytest.mark.parametrize("leads", [1, 3])
@pytest.mark.parametrize(
    "stream",
    [
        winds(axes=(LATITUDE, LONGITUDE)),
        winds(axes=(LATITUDE,), tokens=TokenSettings(history=3, patch=2)),
        winds(axes=(Axis(name="x", values=(0.0, 1.0)), Axis(name="run", values=(0.0, 1.0), nominal=True))),
        winds(axes=(LATITUDE, LONGITUDE), tokens=TokenSettings(history=2)),
        brain(),
        hits(),
        hits(low=(0.0, 0.0), cell=(2.0, 1.0), shape=(4, 8), channels=1),
    ],
)
def test_parameters_are_as_many_as_those_of_the_model_for_every_stream_and_objective(stream, objective, leads):
    changed = replace(stream, objective=ObjectiveSettings(kind=objective, leads=1 if objective == "masked" else leads))
    chosen = settings(width=40, heads=4, depth=3, attention=["dense", {"kind": "linear", "directions": "learned"}])

    model = SpaceTimeTransformer(chosen, {"own": changed})

    assert count_parameters(chosen, {"own": changed}) == sum(parameter.numel() for parameter in model.parameters())


def test_parameters_of_a_block_are_as_many_as_counted_by_hand():
    # Width 16, 2 heads of 8. Norms 2 x 16; queries, keys and values 16 x 48, output 16 x 16, norms of queries and
    # keys 2 x 8. Inside the feed-forward 8/3 x 16 = 42.7, in eights 48: gate and value 16 x 96, output 48 x 16.
    by_hand = 32 + 768 + 256 + 16 + 1536 + 768
    # Learned directions: 24 features of a head of 8.
    learned = settings(attention=["dense", {"kind": "linear", "features": 24, "directions": "learned"}])

    assert block_parameters(settings(), 0) == by_hand
    assert [block_parameters(learned, layer) for layer in range(3)] == [by_hand, by_hand + 24 * 8, by_hand]


@pytest.mark.parametrize(
    ("preset", "claimed"),
    [("tiny", 2e6), ("small", 25e6), ("base", 150e6), ("large", 680e6), ("xl", 2.8e9), ("10b", 10.2e9)],
)
def test_a_preset_has_about_as_many_parameters_as_it_is_said_to_have(preset, claimed):
    # 12 x width^2 x depth: 12 x 192^2 x 4 = 1.77e6; 12 x 512^2 x 8 = 25.2e6; 12 x 1024^2 x 12 = 151e6;
    # 12 x 1536^2 x 24 = 679e6; 12 x 2560^2 x 36 = 2.83e9; 12 x 4608^2 x 40 = 10.19e9. "2 M" is 13 % more than the
    # first, 2.8e9 is 1.2 % less than the fifth, the others are right to 1 %. Streams add little: 3 x 2^3 + 1 vectors of
    # one width for values, 36 + 1 for positions, 4 + 1 for the calendar, 2 for ages, 1 where values are missing, 12 and
    # as many numbers for the head, and 1 for the last norm: 83.
    chosen = ModelSettings(preset=preset)

    by_hand = 12 * chosen.width**2 * chosen.depth
    blocks = sum(block_parameters(chosen, layer) for layer in range(chosen.depth))
    assert blocks == pytest.approx(by_hand, rel=0.003)
    assert blocks == pytest.approx(claimed, rel=0.13 if preset == "tiny" else 0.012)
    assert count_parameters(chosen, {"winds": winds()}) == blocks + 83 * chosen.width + 12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "stream",
    [
        winds(objective=ObjectiveSettings(kind="both", leads=3)),
        winds(axes=(LATITUDE,), tokens=TokenSettings(history=7, patch=1)),
        winds(present=(torch.arange(84) % 5 < 2).view(7, 12), tokens=TokenSettings(history=3, patch=1)),
        brain(),
        hits(),
    ],
    ids=["globe", "line", "globe with gaps", "parcels", "hits"],
)
def test_a_forward_pass_takes_as_many_operations_as_pytorch_counts(kind, stream):
    # Three layers: boxes of the second are shifted, those of the third not.
    chosen = settings(attention=kind, depth=3)
    tokens = 128 if isinstance(stream, Cloud) else None
    sample: Sample = hit_sample(stream, 128) if isinstance(stream, Cloud) else field_sample(stream)

    assert forward_flops(chosen, stream, tokens).total == counted_forward(chosen, stream, sample)


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_and_missing_values_change_no_operations(kind):
    field = brain()
    hidden = torch.arange(cells_of(field).tokens)[None] % 2 == 0
    sample = field_sample(field, complete=False, hidden_BN=hidden)
    sample.inputs_BTCS[0, 3, 0, 5] = torch.nan
    chosen = settings(attention=kind)

    assert forward_flops(chosen, field).total == counted_forward(chosen, field, sample)


def test_layers_of_several_kinds_count_each_by_its_own():
    # Five layers of three kinds: boxes are in layers 0, 2, 3, and 3 is as 0 again; of these every second is shifted,
    # layer 2.
    mixed = settings(depth=5, attention=[{"kind": "window", "window": 16}, "axial", {"kind": "window", "window": 32}])
    field = winds(axes=(LATITUDE,), tokens=TokenSettings(history=7, patch=1))

    flops = forward_flops(mixed, field)

    assert flops.total == counted_forward(mixed, field, field_sample(field))
    layers = [layer_flops(mixed, layer, cells_of(field)) for layer in range(5)]
    assert flops.attention == sum(layer.attention for layer in layers)
    assert flops.projections + flops.feed_forward == sum(layer.projections + layer.feed_forward for layer in layers)
    # 7 x 7 cells. Boxes of 4 x 4 are 2 x 2. Lines along time and frames are 7 of 7 each. 32 cells are boxes of 4 x 7,
    # shifted along time alone: 0 1 | 2 3 4 5 | 6 are three.
    boxes, lines, shifted = (4 * 16 * pairs for pairs in (4 * 16**2, 2 * 7 * 7**2, 3 * 28**2))
    assert [layer.attention for layer in layers] == [boxes, lines, shifted, boxes, lines]


def test_samples_of_a_batch_share_only_the_embedding_of_places():
    # 24 places of 36 features become 16 each: 2 x 24 x 36 x 16, once and not three times.
    field = winds()

    batch = counted_forward(settings(), field, field_sample(field, batch=3))

    assert batch == 3 * forward_flops(settings(), field).total - 2 * (2 * 24 * 36 * 16)


def test_operations_of_a_forward_pass_are_as_many_as_counted_by_hand():
    # 48 tokens of 3 x 2 x 2 x 2 = 24 values, width 16, 2 layers.
    # Embedding: 2 x 48 x 24 x 16 = 36 864; 24 places of 36 features: 2 x 24 x 36 x 16 = 27 648; the calendar:
    # 2 x 4 x 16 = 128. Projections: 2 x 48 x 16 x (48 + 16) = 98 304 a layer; feed-forward with 48 inside:
    # 2 x 48 x 16 x 3 x 48 = 221 184; attention: scores and values 2 x 48^2 x 16 = 73 728 each. Head: the 24 tokens
    # of the newer half to 3 x 2 x 2 = 12 values: 2 x 24 x 16 x 12 = 9216.
    flops = forward_flops(settings(), winds())

    assert flops.embed == 36_864 + 27_648 + 128
    assert flops.projections == 2 * 98_304
    assert flops.feed_forward == 2 * 221_184
    assert flops.attention == 2 * 2 * 73_728
    assert flops.heads == 9216
    assert flops.total == 64_640 + 2 * (98_304 + 221_184 + 147_456) + 9216


def test_a_large_model_takes_two_operations_for_each_parameter_and_token():
    # Chowdhery et al. 2022, appendix B: training takes 6 x parameters + 12 x layers x width x tokens for each token; a
    # third of it is the forward pass.
    chosen, cells = ModelSettings(preset="10b"), Cells(shape=(8, 32, 64), periodic=(False, False, True))

    layer = layer_flops(chosen, 0, cells)

    assert cells.tokens == 16_384
    assert layer.projections + layer.feed_forward == pytest.approx(
        2 * cells.tokens * block_parameters(chosen, 0), rel=1e-4
    )
    assert layer.attention == 4 * 16_384 * 16_384 * 4608


def test_boxes_are_as_many_and_as_long_as_counted_by_hand():
    cells = Cells(shape=(3, 7, 8), periodic=(False, False, True))

    # Boxes of 2 x 4 x 4: 2 along time, 2 along the 7, 2 round the 8: 8 of up to 32 places.
    assert window_groups(cells, [2, 4, 4], shifted=False) == (8, 32)
    # Shifted by 1, 2 and 2: times 0 | 1 2; of the 7, 0 1 | 2 3 4 5 | 6; round the 8 still 2 boxes.
    assert window_groups(cells, [2, 4, 4], shifted=True) == (2 * 3 * 2, 32)
    # A box as long as its axis does not move; of the 7, 0 1 2 | 3 4 5 6: the longest has 4 of 6 places.
    assert window_groups(cells, [3, 6, 9], shifted=False) == (2, 3 * 6 * 8)
    assert window_groups(cells, [3, 6, 9], shifted=True) == (2, 3 * 4 * 8)


def test_boxes_are_filled_up_only_to_the_fullest_where_cells_are_absent():
    # Of 8 places along an axis 0 1 2 and 7 are there, at 4 times: boxes of 2 x 4 are 2 along time, with 3 and 1 of 4
    # places; shifted by half a box, 0 1 | 2 | 7 are three in space and 0 | 1 2 | 3 in time.
    cells = Cells(shape=(4, 8), periodic=(False, False), present=((0,), (1,), (2,), (7,)))

    assert cells.tokens == 16
    assert window_groups(cells, [2, 4], shifted=False) == (2 * 2, 2 * 3)
    assert window_groups(cells, [2, 4], shifted=True) == (3 * 3, 2 * 2)


def test_attention_of_every_kind_takes_as_many_operations_as_counted_by_hand():
    # 5 x 20 = 100 tokens of width 16, 2 heads.
    cells = Cells(shape=(5, 20), periodic=(False, False))

    def count(**chosen: Any) -> int:
        return attention_flops(AttentionSettings(**chosen), cells, width=16, heads=2)

    assert count(kind="dense") == 4 * 100**2 * 16
    # 20 lines of 5 and 5 frames of 20: 4 x 16 x (20 x 25 + 5 x 400).
    assert count(kind="axial") == 4 * 16 * 2500
    # 7 blocks of 16 are 112 places; 3 blocks are 48 keys.
    assert count(kind="block_sparse", block=16, blocks=3) == 4 * 112 * 48 * 16
    # Every block sees all 7: nothing is filled up.
    assert count(kind="block_sparse", block=16, blocks=9) == 4 * 100**2 * 16
    # Features of queries and keys, sums, and what is taken from them: 2 x 100 x 16 x 30 each; 2 x 100 x 2 x 30.
    assert count(kind="linear", features=30) == 4 * 96_000 + 12_000
    # 100 tokens in 30 runs would be runs of 4, and 25 of these: scores and back 2 x 2 x 100 x 25 x 16, landmarks to
    # all 4 x 100 x 25 x 16, landmarks' own 2 x 2 x 25^2 x 16; inverse 8 x 4 x 2 x 25^3 for each of 2 heads.
    assert count(kind="nystrom", landmarks=30) == 160_000 + 160_000 + 40_000 + 2_000_000
    assert nystrom_flops(100, 16, 2, 100) == count(kind="dense")


def test_blocks_that_are_seen_are_rounded_as_the_model_rounds_them():
    # 20 blocks of 8: an eighth is 2.5, which Python rounds to the even 2; 0.13 x 20 = 2.6 to 3; at least 1.
    assert seen_blocks(AttentionSettings(kind="block_sparse", block=8, density=0.125), 160) == 2
    assert seen_blocks(AttentionSettings(kind="block_sparse", block=8, density=0.13), 153) == 3
    assert seen_blocks(AttentionSettings(kind="block_sparse", block=8, density=0.001), 160) == 1
    assert seen_blocks(AttentionSettings(kind="block_sparse", block=8, blocks=50), 160) == 20


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "linear" not in str(kind)])
def test_a_backward_pass_takes_twice_the_forward_pass_but_for_the_gradient_of_the_data(kind):
    # Every product has a gradient by its inputs and one by its weights, but data and positions need none.
    chosen, field = settings(attention=kind), winds(objective=ObjectiveSettings(kind="both", leads=2))
    flops, training = forward_flops(chosen, field), training_flops(chosen, field)

    backward = counted_backward(chosen, field, field_sample(field))

    assert backward == 2 * flops.total - flops.embed == training.backward - flops.embed
    assert training.forward == flops.total
    assert training.recomputed == 0
    assert training.total == training.model == 3 * flops.total


def test_a_backward_pass_needs_no_gradient_of_fixed_directions():
    # Queries and keys of 48 tokens of width 16 to 24 features: 2 x 2 x 48 x 16 x 24 in each of 2 layers.
    chosen, field = settings(attention={"kind": "linear", "features": 24}), winds()
    flops = forward_flops(chosen, field)

    backward = counted_backward(chosen, field, field_sample(field))

    assert backward == 2 * flops.total - flops.embed - 2 * 73_728


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "linear" not in str(kind)])
def test_what_is_recomputed_is_what_pytorch_counts_beyond_the_backward_pass(kind, recompute, kept):
    chosen = settings(attention=kind, recompute=recompute, stochastic_depth=0.5 if kept else 0.0)
    field = winds()
    sample = field_sample(field, kept_LB=torch.ones(2, 1) if kept else None)
    training = training_flops(chosen, field)

    backward = counted_backward(chosen, field, sample)

    assert backward == training.backward + training.recomputed - forward_flops(chosen, field).embed
    assert training.model == 3 * training.forward
    assert training.total == training.model + training.recomputed


def test_what_is_recomputed_is_as_much_as_counted_by_hand():
    # 48 tokens, width 16, 48 inside: queries, keys, values and output 8 x 48 x 16^2; attention 4 x 48^2 x 16; gate
    # and value 2 x 48 x 16 x 96, output 2 x 48 x 48 x 16. The output of the feed-forward is needed by nothing.
    projections, attention, gate, output = 98_304, 147_456, 147_456, 73_728
    cells = cells_of(winds())

    assert projection_flops(48, 16) == projections
    assert feed_forward_flops(48, 16) == gate + output
    assert recomputed_flops(settings(), 0, cells) == 0
    assert recomputed_flops(settings(recompute="selective"), 0, cells) == gate
    assert recomputed_flops(settings(recompute="full"), 0, cells) == projections + attention + gate


def test_absent_cells_are_no_tokens():
    # Every third parcel from the second on is absent: 1, 4, 7, 10, 13, 16, 19. In patches of 2 none of the pairs is
    # absent whole.
    assert cells_of(brain()).tokens == 8 * 13
    assert cells_of(brain(tokens=TokenSettings(history=8, patch=2))).tokens == 8 * 10
    assert cells_of(winds()).tokens == 2 * 4 * 6


def test_a_cell_that_reaches_across_the_seam_is_there_as_in_the_model():
    # Longitudes in cells 0-4, 5-9, and 10 11 with 0 1 2 across the seam. Only longitude 1 holds data.
    there = (torch.arange(12) == 1).expand(7, 12)
    field = winds(present=there, tokens=TokenSettings(history=1, patch=[7, 5]))

    assert cells_of(field).present == ((0, 0), (0, 2))
    assert len(field.lattice) == 2


def test_the_number_of_tokens_is_given_for_hits_and_for_nothing_else():
    with pytest.raises(ValueError, match=r"tokens: must be given for hits alone, got None for a Cloud"):
        forward_flops(settings(), hits())
    with pytest.raises(ValueError, match=r"tokens: must be given for hits alone, got 48 for a Field"):
        training_flops(settings(), winds(), 48)


def test_boxes_of_too_few_axes_are_refused_as_the_model_refuses_them():
    chosen = settings(attention={"kind": "window", "window": [2, 4]})
    model = SpaceTimeTransformer(chosen, {"winds": winds()})

    with pytest.raises(UserError, match=r"attention\.window: found \[2, 4\] for tokens along 3 axes"):
        forward_flops(chosen, winds())
    with pytest.raises(ValueError, match=r"attention\.window: found \[2, 4\] for tokens along 3 axes"):
        model("winds", field_sample(winds()))


def test_formulas_need_no_torch():
    # A plan in plain numbers should not wait a second for it.
    code = "import sys; import hyperslab.model.flops; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
