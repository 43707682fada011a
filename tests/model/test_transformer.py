import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from hyperslab.errors import UserError
from hyperslab.model.attention import BlockSparse, Dense, Linear
from hyperslab.model.block import Block
from hyperslab.model.config import MaskSettings, ModelSettings, ObjectiveSettings, TokenSettings
from hyperslab.model.fields import Field, FieldSample
from hyperslab.model.hits import Cloud, HitSample, group_hits
from hyperslab.model.masking import generator_of, hide
from hyperslab.model.objectives import forecast_loss, hit_loss, reconstruction_loss
from hyperslab.model.positions import Axis
from hyperslab.model.transformer import SpaceTimeTransformer, Stream, make_model

GLOBE = (
    Axis(name="latitude", values=(60.0, 30.0, 0.0, -30.0, -60.0)),
    Axis(name="longitude", values=tuple(range(0, 360, 45)), periodic=True),
)
LEARNED: list[Any] = [
    {"kind": "block_sparse", "block": 4, "density": 0.4, "pattern": "learned"},
    {"kind": "linear", "features": 8, "directions": "learned"},
]
KINDS: list[Any] = [
    "dense",
    {"kind": "window", "window": 8},
    "axial",
    {"kind": "block_sparse", "block": 4, "density": 0.4},
    {"kind": "linear", "features": 8},
    {"kind": "nystrom", "landmarks": 4},
    *LEARNED,
]


def field_of(kind: str = "both", *, history: int = 4, channels: int = 3, leads: int = 1, block: int = 4) -> Field:
    return Field(
        channels=channels,
        axes=GLOBE,
        tokens=TokenSettings(history=history, patch=2),
        objective=ObjectiveSettings(kind=kind, leads=leads),
        block=block,
    )


BRAIN = Field(
    channels=1,
    axes=(Axis(name="parcel", values=tuple(range(7)), nominal=True),),
    tokens=TokenSettings(history=6, patch=[2, 1]),
    objective=ObjectiveSettings(kind="masked"),
    block=4,
)
CLOUD = Cloud(
    channels=1,
    low=(0.0, 0.0),
    cell=(1.0, 1.0),
    shape=(8, 8),
    tokens=TokenSettings(history=2),
    objective=ObjectiveSettings(kind="masked"),
)


def streams() -> dict[str, Stream]:
    return {"winds": field_of(), "brain": BRAIN, "hits": CLOUD}


def settings_of(**changes: Any) -> ModelSettings:
    return ModelSettings.model_validate({"width": 16, "depth": 2, "heads": 2} | changes)


def model_of(seed: int = 0, own: dict[str, Stream] | None = None, **changes: Any) -> SpaceTimeTransformer:
    """A model whose heads are not zero."""
    torch.manual_seed(seed)
    model = SpaceTimeTransformer(settings_of(**changes), streams() if own is None else own)
    for name, parameter in model.named_parameters():
        if ".head_" in name:
            nn.init.normal_(parameter)
    return model


def field_sample(field: Field, batch: int = 3, seed: int = 1, *, gaps: bool = True) -> FieldSample:
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, field.tokens.history, field.channels, *(len(axis.values) for axis in field.axes))
    frames = torch.randn(shape, generator=generator)
    if gaps:
        frames[torch.rand(shape, generator=generator) < 0.1] = torch.nan
    hidden = [hide(MaskSettings(), field.lattice, generator_of(seed, row)) for row in range(batch)]
    return FieldSample(
        inputs_BTCS=frames,
        calendar_BF=torch.randn(batch, 4, generator=generator),
        lead_B=torch.ones(batch, dtype=torch.int64),
        complete=not gaps,
        hidden_BN=torch.stack(hidden) if field.objective.masks else None,
    )


def cloud_sample(seed: int = 1) -> HitSample:
    generator = torch.Generator().manual_seed(seed)
    sample = group_hits(
        CLOUD,
        8 * torch.rand(90, 2, generator=generator),
        torch.randn(90, 1, generator=generator),
        torch.randint(2, (90,), generator=generator),
        torch.tensor([0, 30, 40, 90]),
    )
    return replace(sample, hidden_BN=torch.rand(sample.valid_BN.shape, generator=generator) < 0.5)


def losses_of(model: nn.Module, *, kept: torch.Tensor | None = None) -> torch.Tensor:
    """Losses of all streams of `streams()` together."""
    winds = replace(field_sample(field_of()), kept_LB=kept)
    predictions, everywhere = model("winds", winds), torch.ones(1)
    loss = forecast_loss(predictions["forecast"], winds.inputs_BTCS[:, 0], everywhere)
    assert winds.hidden_BN is not None
    hidden = field_of().spread(winds.hidden_BN)
    loss = loss + reconstruction_loss(predictions["reconstruction"], winds.inputs_BTCS, hidden, everywhere)
    brain = replace(field_sample(BRAIN, gaps=False), kept_LB=kept)
    assert brain.hidden_BN is not None
    found = model("brain", brain)["reconstruction"]
    loss = loss + reconstruction_loss(found, brain.inputs_BTCS, BRAIN.spread(brain.hidden_BN), everywhere)
    hits = replace(cloud_sample(), kept_LB=kept)
    found = model("hits", hits)
    return loss + hit_loss(found["occupancy"], found["feature"], hits)


def probe(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, BlockSparse | Linear):
            module.probing = True


@pytest.mark.parametrize(
    ("attention", "probing"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in LEARNED)]
)
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_computed_again_changes_neither_loss_nor_gradients(attention, probing, recompute):
    # One layer of three is left out for each sample.
    kept = torch.tensor([[0.0, 1, 2], [1, 0, 2], [2, 1, 0]])
    found = {}
    for setting in ("none", recompute):
        model = model_of(attention=attention, depth=3, recompute=setting)
        if probing:
            probe(model)
        loss = losses_of(model, kept=kept)
        torch.autograd.backward(loss)
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        influence = {name: buffer for name, buffer in model.named_buffers() if ".influence_" in name}
        found[setting] = (loss, gradients, influence)

    (loss, gradients, influence), (loss_again, gradients_again, influence_again) = found.values()
    assert torch.equal(loss_again, loss)
    for name, gradient in gradients.items():
        # The same products in the same order: to the last bit.
        again = gradients_again[name]
        assert (gradient is None) == (again is None) == (name.endswith("directions") and not probing), name
        assert gradient is None or again is None or torch.equal(again, gradient), name
    # What is measured while probing is added up once, not once more by what is computed again.
    for name, measured in influence.items():
        assert torch.equal(influence_again[name], measured)
        assert probing == bool(measured.any())


def test_directions_learn_while_probing_and_only_then():
    for probing in (False, True):
        model = model_of(attention=LEARNED[1])
        if probing:
            probe(model)
        torch.autograd.backward(losses_of(model))
        for name, parameter in model.named_parameters():
            if name.endswith("directions"):
                assert (parameter.grad is not None and bool(parameter.grad.any())) == probing


@pytest.mark.parametrize("attention", KINDS)
def test_every_parameter_takes_part_in_the_losses_of_its_streams(attention):
    model = model_of(attention=attention)
    torch.autograd.backward(losses_of(model))

    for name, parameter in model.named_parameters():
        if not name.endswith("directions"):  # nothing is missing in the brain
            assert parameter.grad is not None, name
            assert bool(parameter.grad.any()) == (name != "streams.brain.embed_missing"), name


@pytest.mark.parametrize("kind", ["forecast", "masked", "both"])
def test_gradients_are_of_the_same_parameters_whether_anything_is_missing_or_not(kind):
    # Ranks sum what they have: one that held a gradient more than another would wait for ever, or add up others.
    field = field_of(kind, leads=1 if kind == "masked" else 2)
    found = []
    for gaps in (False, True):
        model = model_of(own={"winds": field})
        predictions = model("winds", field_sample(field, gaps=gaps))
        torch.autograd.backward(torch.stack([value.square().mean() for value in predictions.values()]).sum())
        found.append({name for name, parameter in model.named_parameters() if parameter.grad is not None})

    assert found[0] == found[1] == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("attention", KINDS)
def test_a_layer_that_a_sample_leaves_out_is_as_if_it_were_not_there(attention):
    field = field_of("forecast")
    model = model_of(own={"winds": field}, attention=attention, depth=3)
    sample = field_sample(field)
    # The first sample leaves out the second layer, the others all but that; weights of kept layers are 1.
    kept = torch.tensor([[1.0, 0, 0], [0, 1, 1], [1, 0, 0]])

    found = model("winds", replace(sample, kept_LB=kept))["forecast"]

    for row, layers in enumerate([[0, 2], [1], [1]]):
        alone = model_of(own={"winds": field}, attention=attention, depth=3)
        alone.blocks = nn.ModuleList(model.blocks[layer] for layer in layers)
        torch.testing.assert_close(found[row], alone("winds", sample)["forecast"][row], rtol=1e-4, atol=1e-4)
    assert torch.equal(
        model("winds", replace(sample, kept_LB=torch.ones(3, 3)))["forecast"], model("winds", sample)["forecast"]
    )


def test_streams_share_the_trunk_and_have_embedders_and_heads_of_their_own():
    model = model_of()
    alone = model_of(own={"winds": field_of()})
    sample = field_sample(field_of())

    # The same trunk, whatever other streams there are.
    shared = {name for name, _ in alone.named_parameters() if not name.startswith("streams.")}
    assert shared == {name for name, _ in model.named_parameters() if not name.startswith("streams.")}
    # A model of all streams predicts one as a model of that one does, with the same weights.
    alone.load_state_dict(model.state_dict(), strict=False)
    assert torch.equal(model("winds", sample)["forecast"], alone("winds", sample)["forecast"])
    # One stream's loss teaches the trunk, but no other stream.
    torch.autograd.backward(model("winds", sample)["forecast"].square().sum())
    for name, parameter in model.named_parameters():
        own = not name.startswith("streams.") or name.startswith("streams.winds.")
        assert own or parameter.grad is None
    assert all(parameter.grad is not None for parameter in model.blocks.parameters())


def test_learning_one_stream_changes_predictions_of_another():
    model, sample = model_of(), field_sample(BRAIN)
    before = model("brain", sample)["reconstruction"]

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.autograd.backward(model("winds", field_sample(field_of()))["forecast"].square().mean())
    optimizer.step()

    assert not torch.allclose(model("brain", sample)["reconstruction"], before, atol=1e-4)


@pytest.mark.parametrize("attention", KINDS)
def test_samples_of_a_batch_do_not_see_one_another(attention):
    model = model_of(attention=attention)
    sample = field_sample(field_of())

    together = model("winds", sample)
    for row in range(3):
        assert sample.hidden_BN is not None
        one = replace(
            sample,
            inputs_BTCS=sample.inputs_BTCS[row : row + 1],
            calendar_BF=sample.calendar_BF[row : row + 1],
            lead_B=sample.lead_B[row : row + 1],
            hidden_BN=sample.hidden_BN[row : row + 1],
        )
        for name, value in model("winds", one).items():
            torch.testing.assert_close(together[name][row], value[0], rtol=1e-4, atol=1e-4)


def test_layers_have_the_kinds_of_attention_that_were_chosen():
    model = model_of(attention=["dense", {"kind": "linear", "features": 4}], depth=5)

    kinds = [type(block.attention.mixer) for block in model.blocks if isinstance(block, Block)]
    assert kinds == [Dense, Linear, Dense, Linear, Dense]


def test_parameters_are_as_many_as_counted_by_hand():
    # Width 16, depth 2, heads 2 of 8, patch 1 x 2 x 2, 3 channels, history 4. Values of a patch: 3 x 2 x 2 = 12.
    # Position features: 6 x 6 = 36. Feed-forward inside: 8/3 x 16, up to 48. Embeddings: 12 x 16 + 16 = 208;
    # 36 x 16 + 16 = 592; calendar 4 x 16 + 16 = 80; age 4 x 16 = 64; missing 16: in all 960. Block: norms 2 x 16
    # = 32; attention 16 x 48 + 16 x 16 = 1024 and norms of queries and keys 2 x 8 = 16; feed-forward 16 x 96 + 48 x
    # 16 = 2304: together 3376, two blocks 6752. Last norm 16; head of a frame 16 x 12 + 12 = 204.
    def count(field: Field) -> int:
        model = SpaceTimeTransformer(settings_of(), {"winds": field})
        return sum(parameter.numel() for parameter in model.parameters())

    assert count(field_of("forecast")) == 960 + 6752 + 16 + 204
    # To reconstruct: what is hidden 16, and a head of the same size, as patches are of one frame. Two leads: 12
    # features, 12 x 16 + 16 = 208.
    assert count(field_of("masked")) == 960 + 6752 + 16 + 204 + 16
    assert count(field_of("both")) == 960 + 6752 + 16 + 204 + 16 + 204
    assert count(field_of("forecast", leads=2)) == 960 + 6752 + 16 + 204 + 208


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    first, same, other = (model_of(seed).state_dict() for seed in (5, 5, 6))

    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["streams.winds.embed.weight"], other["streams.winds.embed.weight"])


def test_weights_start_normal_by_fan_in_and_residual_branches_are_scaled_by_depth():
    torch.manual_seed(0)
    model = SpaceTimeTransformer(settings_of(width=128, depth=2, heads=4), streams())

    # A block's query_key_value has fan-in 128: std 128^-1/2 = 0.0884 over 3 x 128^2 = 49 152 numbers, whose
    # own standard error is std / sqrt(2 x 49 152) = 0.3 %. Outputs are scaled by (2 x depth)^-1/2 = 1/2; the
    # feed-forward's fan-in is 344. Five standard errors of the smallest (128^2 numbers: 0.55 %) are 2.8 %.
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for name, std in (
        ("attention.query_key_value", 128**-0.5),
        ("attention.output", 128**-0.5 / 2),
        ("feed_forward.gate", 128**-0.5),
        ("feed_forward.value", 128**-0.5),
        ("feed_forward.output", 344**-0.5 / 2),
    ):
        assert float(weights[f"blocks.1.{name}.weight"].std()) == pytest.approx(std, rel=0.028)
    # Embedders: 12 values of a patch, 1536 numbers, standard error 1.8 %; 36 features of positions 1.0 %.
    assert float(weights["streams.winds.embed.weight"].std()) == pytest.approx(12**-0.5, rel=0.09)
    assert float(weights["streams.winds.embed_position.weight"].std()) == pytest.approx(36**-0.5, rel=0.05)
    for name, parameter in weights.items():
        if ".head_" in name or name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            assert parameter.isfinite().all(), name
            assert parameter.std() > 0, name


def test_tokens_stay_of_one_size_however_deep_the_model_is():
    # Residual branches are scaled by depth, so that their sum is not: at depth 1 and at depth 24 tokens have about
    # the same mean square before the last norm.
    sizes = []
    for depth in (1, 24):
        model = model_of(own={"winds": field_of("forecast")}, depth=depth, width=32)
        model.norm.register_forward_pre_hook(lambda _, given: sizes.append(given[0].square().mean().item()))
        model("winds", field_sample(field_of("forecast")))

    assert sizes[1] == pytest.approx(sizes[0], rel=0.5)


def test_learned_directions_are_not_drawn_anew():
    # They have a rule of their own: rows as long as normal vectors are, orthogonal in every run of the head's width.
    model = model_of(attention=LEARNED[1], width=32)
    directions = model.get_parameter("blocks.0.attention.mixer.directions")

    products = directions[:8] @ directions[:8].T
    assert directions.shape == (8, 16)
    torch.testing.assert_close(products, products.diagonal().diag(), rtol=0, atol=1e-4)


def test_where_tokens_lie_is_no_part_of_the_state():
    # It follows from the settings; only what is learned is written.
    names = model_of(attention=LEARNED[0]).state_dict().keys()

    kept = {name for name in names if name.startswith("streams.")}
    assert kept == {name for name, _ in model_of().named_parameters() if name.startswith("streams.")}
    assert "blocks.0.attention.mixer.pattern_winds" in names


MODULE = '''
import torch
from torch import nn


class Mean(nn.Module):
    """Forecasts the mean of the past."""

    def __init__(self, settings, streams):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(settings.width, settings.width) for _ in range(settings.depth))
        self.names = list(streams)

    def forward(self, stream, sample):
        return {"forecast": sample.inputs_BTCS.mean(1)}


def without_blocks(settings, streams):
    return nn.Linear(1, 1)


def with_numbers_for_blocks(settings, streams):
    model = nn.Module()
    model.blocks = [1, 2]
    return model


def with_a_number_of_blocks(settings, streams):
    model = nn.Module()
    model.blocks = 3
    return model


def nothing(settings, streams):
    return None


def raising(settings, streams):
    return {}["width"]


class Short(Mean):
    """Leaves the first channel out."""

    def forward(self, stream, sample):
        return {"forecast": sample.inputs_BTCS.mean(1)[:, 1:]}


class Nameless(Mean):
    """Gives no dict."""

    def forward(self, stream, sample):
        return sample.inputs_BTCS.mean(1)


number = 3
'''


@pytest.fixture
def own_package(tmp_path, monkeypatch):
    """A package of the user's own, which is forgotten afterwards."""
    package = tmp_path / "someones_models"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "averages.py").write_text(MODULE)
    (package / "broken.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "someones_models"
    for name in [name for name in sys.modules if name.startswith("someones_models")]:
        del sys.modules[name]


def test_a_model_of_ones_own_is_made_by_its_import_path(own_package):
    settings = settings_of(module=f"{own_package}.averages:Mean", depth=3)

    model = make_model(settings, {"winds": field_of("forecast"), "brain": BRAIN})

    assert type(model).__name__ == "Mean"
    assert model.names == ["winds", "brain"]
    sample = field_sample(field_of("forecast"), gaps=False)
    assert torch.equal(model("winds", sample)["forecast"], sample.inputs_BTCS.mean(1))


def test_ours_is_made_where_none_is_named():
    assert isinstance(make_model(settings_of(), streams()), SpaceTimeTransformer)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("nobodys_models:Mean", r"cannot be imported \(No module named 'nobodys_models'\); check the path"),
        ("someones_models.sums:Mean", r"cannot be imported \(No module named 'someones_models.sums'\); check the path"),
        ("someones_models.averages:Median", r"cannot be imported \(.*has no attribute 'Median'\); check the path"),
        ("someones_models.broken:Mean", r"cannot be imported \(No module named 'a_package_that_nobody_has'\); check"),
        ("someones_models.averages:number", r"is a int; give a function or a class"),
        ("someones_models.averages:nothing", r"gave NoneType, which is no nn.Module with `blocks`"),
        ("someones_models.averages:raising", r"raised KeyError \('width'\) in .*averages.py, line \d+; mend it there"),
        ("someones_models.averages:without_blocks", r"gave Linear, which is no nn.Module with `blocks`"),
        ("someones_models.averages:with_numbers_for_blocks", r"gave Module, which is no nn.Module with `blocks`"),
        ("someones_models.averages:with_a_number_of_blocks", r"gave Module, which is no nn.Module with `blocks`"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(own_package, named, said):
    with pytest.raises(UserError, match=said) as error:
        make_model(settings_of(module=named), streams())

    assert str(error.value).startswith(f"model.module: {named} ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "found"), [("Short", r"\{'forecast': \(3, 2, 5, 8\)\}"), ("Nameless", "Tensor")])
def test_predictions_that_the_objective_does_not_ask_for_are_refused(own_package, name, found):
    named = f"{own_package}.averages:{name}"
    model = make_model(settings_of(module=named), streams())

    with pytest.raises(UserError, match=rf"gave {found} for winds; it must give a dict with 'forecast' of shape"):
        model("winds", field_sample(field_of(), gaps=False))
