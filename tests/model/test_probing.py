from typing import Any

import pytest
import torch
import torch.nn.functional as F

from hyperslab.model.config import ModelSettings, ObjectiveSettings
from hyperslab.model.fields import Field, FieldSample
from hyperslab.model.positions import Axis
from hyperslab.model.probing import attend_as_trained, attention_errors, influences, set_probing, settle
from hyperslab.model.transformer import SpaceTimeTransformer

LEARNED = {"kind": "block_sparse", "block": 4, "density": 0.4, "pattern": "learned", "probe_steps": 3}


def make(attention: Any, **changes: Any) -> Any:
    settings = ModelSettings(width=16, depth=2, heads=2, patch=1, history=1, attention=attention, **changes)
    axes = (Axis(name="y", values=tuple(range(5))), Axis(name="x", values=tuple(range(8))))
    field = Field(channels=1, axes=axes, tokens=settings, objective=ObjectiveSettings(), block=settings.block)
    torch.manual_seed(3)
    model = SpaceTimeTransformer(settings, {"main": field})
    head: Any = model.streams["main"]
    torch.nn.init.normal_(head.head_forecast.weight)
    return model, settings


def sample(batch: int = 2) -> FieldSample:
    generator = torch.Generator().manual_seed(4)
    return FieldSample(
        inputs_BTCS=torch.randn(batch, 1, 1, 5, 8, generator=generator),
        calendar_BF=torch.zeros(batch, 4),
        lead_B=torch.ones(batch, dtype=torch.int64),
        complete=True,
    )


def step(model: SpaceTimeTransformer) -> None:
    torch.autograd.backward(model("main", sample())["forecast"].square().sum())


def test_layers_probe_in_the_steps_that_they_are_told_to_and_choose_right_after():
    model, settings = make([LEARNED, "dense"])
    mixer = model.blocks[0].attention.mixer

    ended, probing = [], []
    for number in range(6):
        ended.append(set_probing(model, settings, number))
        probing.append(mixer.probing)

    assert probing == [True, True, True, False, False, False]
    assert ended == [False, False, False, True, False, False]
    set_probing(model, settings, 1)
    assert set_probing(model, settings, None) is False
    assert not mixer.probing


def test_a_chosen_pattern_is_another_one_and_what_was_measured_is_forgotten():
    model, settings = make([LEARNED, "dense"])
    before = model.blocks[0].attention.mixer.get_buffer("pattern_main").clone()
    set_probing(model, settings, 0)

    step(model)
    (influence,) = influences(model)
    assert bool((influence > 0).all())
    settle(model)

    after = model.blocks[0].attention.mixer.get_buffer("pattern_main")
    assert after.shape == before.shape
    assert not torch.equal(after, before)
    assert not influences(model)[0].any()


def test_a_layer_that_sees_all_blocks_makes_no_error():
    model, _ = make([{"kind": "block_sparse", "block": 4, "density": 1.0}, "dense"])

    errors = attention_errors(model.eval(), model.streams["main"].lattice, lambda: model("main", sample()))

    assert errors == pytest.approx({"layer_00/output_error": 0.0, "layer_00/covered_mass": 1.0}, abs=1e-5)


def test_errors_are_those_beside_exact_attention_on_the_same_queries_and_keys():
    model, _ = make(["dense", {"kind": "window", "window": 8}])
    mixer, given = model.blocks[1].attention.mixer, []
    handle = mixer.register_forward_hook(lambda _, arguments, mixed: given.append((*arguments[:3], mixed)))

    with torch.no_grad():
        errors = attention_errors(model.eval(), model.streams["main"].lattice, lambda: model("main", sample(1)))
    handle.remove()

    ((query, key, value, mixed),) = given
    exact = F.scaled_dot_product_attention(query, key, value)
    weights = (query @ key.transpose(-1, -2) * 8**-0.5).softmax(-1)
    allowed = mixer.allowed(model.streams["main"].lattice)
    squares = [(tensor.square()).sum((2, 3)) for tensor in (mixed - exact, exact)]
    expected = float((squares[0] / squares[1]).mean().sqrt())
    assert set(errors) == {"layer_01/output_error", "layer_01/covered_mass"}
    assert errors["layer_01/output_error"] == pytest.approx(expected, rel=1e-4)
    assert errors["layer_01/covered_mass"] == pytest.approx(float((weights * allowed).sum(-1).mean()), rel=1e-5)
    assert not mixer._forward_hooks


def test_approximations_have_an_error_but_no_mass():
    model, _ = make([{"kind": "nystrom", "landmarks": 4}, {"kind": "linear", "features": 8}])

    errors = attention_errors(model.eval(), model.streams["main"].lattice, lambda: model("main", sample()))

    assert set(errors) == {"layer_00/output_error", "layer_01/output_error"}


def test_models_of_ones_own_have_nothing_to_probe():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))

    assert set_probing(model, ModelSettings(attention=LEARNED), 0) is False
    assert influences(model) == []
    assert attention_errors(model, None, lambda: None) == {}


def test_layers_are_judged_as_they_attended_in_the_last_step_of_training():
    model, settings = make([LEARNED, "dense"])
    mixer = model.blocks[0].attention.mixer

    probing = []
    for done in range(6):
        attend_as_trained(model, settings, done)
        probing.append(mixer.probing)

    # Steps 0, 1 and 2 probe: after 1, 2 and 3 steps the last one did; before the first, as it will.
    assert probing == [True, True, True, True, False, False]
