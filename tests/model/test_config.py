from typing import Any

import pytest

from hyperslab.errors import UserError
from hyperslab.model.config import AttentionSettings, MaskSettings, ModelSettings, ObjectiveSettings, TokenSettings
from hyperslab.model.presets import PRESETS
from hyperslab.settings import Settings, parse


def mistake(model: type[Settings], content: dict[str, Any]) -> str:
    with pytest.raises(UserError) as error:
        parse(model, content, "campaign.yaml")
    return str(error.value)


@pytest.mark.parametrize(
    ("width", "heads", "advice"),
    # The largest number of heads up to that asked for whose heads are whole and even: 130 / 5 = 26, 130 / 10 is odd.
    [
        (128, 12, "try 8"),
        (130, 12, "try 5"),
        (96, 5, "try 4"),
        (30, 2, "try 1"),
        (17, 16, "make model.width even, such as 18"),
    ],
)
def test_heads_that_do_not_divide_the_width_are_refused_with_a_divisor_to_try(width, heads, advice):
    assert mistake(ModelSettings, {"width": width, "heads": heads}) == (
        f"campaign.yaml: model.heads: must divide model.width ({width}) into heads of an even number of features, got "
        f"{heads}; {advice}"
    )


def test_the_smallest_sizes_are_accepted():
    chosen = ModelSettings(width=8, depth=1, heads=4, patch=1, history=1)

    assert (chosen.width, chosen.heads, chosen.patch) == (8, 4, 1)


@pytest.mark.parametrize("content", [{"width": 4, "heads": 2}, {"depth": 0}, {"heads": 0}, {"history": 0}])
def test_sizes_below_the_smallest_are_refused(content):
    key, value = next(iter(content.items()))

    said = mistake(ModelSettings, content)

    assert said.startswith(f"campaign.yaml: {key}: found {value}; input should be greater than")


@pytest.mark.parametrize("patch", [0, -1, 10_001])
def test_a_patch_out_of_range_is_refused(patch):
    assert mistake(TokenSettings, {"patch": patch}) == (
        f"campaign.yaml: patch: found {patch}; must be between 1 and 10000, or a list of such numbers"
    )


def test_a_patch_may_be_given_for_each_axis_but_each_must_be_at_least_one():
    assert TokenSettings(patch=[2, 4, 4]).patch == [2, 4, 4]
    assert "found 0; input should be greater than or equal to 1" in mistake(TokenSettings, {"patch": [2, 0]})


@pytest.mark.parametrize("cell", [[], [1.0, 0.0], [-2.0]])
def test_a_cell_without_an_extent_is_refused(cell):
    assert "campaign.yaml: cell" in mistake(TokenSettings, {"cell": cell})


def test_an_unknown_key_is_refused_with_the_nearest_known_one():
    assert "widht: unknown key, found 64; did you mean `width`" in mistake(ModelSettings, {"widht": 64})
    assert "attention.0.landmark: unknown key, found 8; did you mean `landmarks`" in mistake(
        ModelSettings, {"attention": {"kind": "nystrom", "landmark": 8}}
    )


@pytest.mark.parametrize("content", [{"kind": "nowcast"}, {"lead": 0}, {"leads": 0}, {"rollout": 0}])
def test_an_unknown_objective_and_a_lead_of_nothing_are_refused(content):
    key, value = next(iter(content.items()))

    assert f"campaign.yaml: {key}: found {value!r}; input should be" in mistake(ObjectiveSettings, content)


@pytest.mark.parametrize("name", ["leads", "rollout"])
def test_what_forecasts_nothing_has_no_further_leads(name):
    assert mistake(ObjectiveSettings, {"kind": "masked", name: 2}) == (
        f"campaign.yaml: objective.{name}: found 2 with objective.kind masked, which forecasts nothing; leave it out, "
        "or set kind to both"
    )
    assert getattr(ObjectiveSettings.model_validate({"kind": "both", name: 2}), name) == 2


def test_a_kind_of_attention_that_no_layer_would_have_is_refused():
    assert mistake(ModelSettings, {"depth": 2, "attention": ["window", "dense", "axial"]}) == (
        "campaign.yaml: model.attention: found 3 kinds for a model.depth of 2; give at most as many as there are layers"
    )


@pytest.mark.parametrize("ratio", [0, 1, -0.1, 1.5])
def test_hiding_nothing_or_everything_is_refused(ratio):
    assert f"campaign.yaml: mask.ratio: found {ratio}; input should be" in mistake(
        ObjectiveSettings, {"mask": {"ratio": ratio}}
    )
    assert MaskSettings(ratio=0.99).ratio == 0.99


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("window", [AttentionSettings(kind="window")]),
        ({"kind": "window", "window": 32}, [AttentionSettings(kind="window", window=32)]),
        (["window", "dense"], [AttentionSettings(kind="window"), AttentionSettings()]),
        (
            [{"kind": "linear", "features": 8}, "axial"],
            [AttentionSettings(kind="linear", features=8), AttentionSettings(kind="axial")],
        ),
    ],
)
def test_attention_may_be_written_as_a_name_a_mapping_or_a_list(written, meant):
    assert ModelSettings.model_validate({"attention": written}).attention == meant


def test_attention_is_dense_where_nothing_is_said():
    assert ModelSettings().attention == [AttentionSettings(kind="dense")]


def test_settings_survive_being_written_and_read_again():
    chosen = ModelSettings(preset="tiny", attention=["window", {"kind": "linear", "features": 4}], patch=[2, 2, 2])

    assert ModelSettings.model_validate(chosen.model_dump(mode="json")) == chosen


def test_layers_after_the_listed_ones_repeat_them():
    settings = ModelSettings.model_validate({"depth": 5, "attention": ["window", "axial", "dense"]})

    assert [settings.attention_of(layer).kind for layer in range(5)] == ["window", "axial", "dense", "window", "axial"]


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        ("denes", "attention.0.kind: found 'denes'; input should be 'dense', 'window', 'axial', 'block_sparse'"),
        (["dense", "wnidow"], "attention.1.kind: found 'wnidow'; input should be"),
        ([], "attention: found []; list should have at least 1 item"),
        (None, "attention.0: found None; expected `key: value` lines below it"),
        (3, "attention.0: found 3; expected `key: value` lines below it"),
        (True, "attention: found True; must not be true or false"),
        ({"kind": "window", "window": 0}, "attention.0.window: found 0; must be at least 1"),
        ({"kind": "window", "window": [1, 0]}, "input should be greater than or equal to 1"),
        ({"kind": "block_sparse", "density": 0}, "attention.0.density: found 0; input should be greater than 0"),
        ({"kind": "block_sparse", "density": 1.5}, "attention.0.density: found 1.5; input should be less than or"),
        ({"kind": "block_sparse", "blocks": 0}, "attention.0.blocks: found 0; input should be greater than or"),
        ({"kind": "linear", "features": 0}, "attention.0.features: found 0; input should be greater than or"),
        (
            {"kind": "linear", "probe_every": 50},
            "attention.probe_every: must be more than probe_steps (50), got 50",
        ),
    ],
)
def test_attention_that_cannot_be_is_refused(attention, message):
    assert message in mistake(ModelSettings, {"attention": attention})


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_preset_gives_width_depth_and_heads(preset):
    chosen = ModelSettings(preset=preset)

    assert {"width": chosen.width, "depth": chosen.depth, "heads": chosen.heads} == PRESETS[preset]


def test_what_is_given_beside_a_preset_goes_before_it():
    # `tiny` has width 192, depth 4 and 6 heads.
    chosen = ModelSettings(preset="tiny", depth=2)

    assert (chosen.width, chosen.depth, chosen.heads) == (192, 2, 6)


@pytest.mark.parametrize("preset", ["huge", ["tiny"], {"tiny": 1}, 3])
def test_an_unknown_preset_is_refused(preset):
    said = mistake(ModelSettings, {"preset": preset})

    assert said.startswith(f"campaign.yaml: preset: found {preset!r}; input should be 'tiny', 'small'")


def test_the_presets_have_as_many_parameters_as_is_said_beside_them():
    # 12 x width^2 x depth, by hand: tiny 12 x 36 864 x 4 = 1.77 M; 10b 12 x 21 233 664 x 40 = 10.19 B.
    counts = {name: 12 * sizes["width"] ** 2 * sizes["depth"] for name, sizes in PRESETS.items()}

    assert counts == pytest.approx(
        {"tiny": 2e6, "small": 25e6, "base": 150e6, "large": 680e6, "xl": 2.8e9, "10b": 10.2e9}, rel=0.13
    )


@pytest.mark.parametrize("module", ["model", "model.py", "my-package:make", "package:", ":make", "a:b.c"])
def test_a_model_of_ones_own_needs_a_module_and_a_name(module):
    assert f"campaign.yaml: module: found {module!r}" in mistake(ModelSettings, {"module": module})
    assert ModelSettings(module="my_package.models:make").module == "my_package.models:make"


@pytest.mark.parametrize(
    ("attention", "learned"),
    [
        ({"kind": "dense"}, False),
        ({"kind": "block_sparse"}, False),
        ({"kind": "block_sparse", "pattern": "random"}, False),
        ({"kind": "block_sparse", "pattern": "learned"}, True),
        ({"kind": "linear"}, False),
        ({"kind": "linear", "directions": "learned"}, True),
        # What another kind learns says nothing.
        ({"kind": "window"}, False),
    ],
)
def test_what_learns_from_exact_attention_probes_and_nothing_else_does(attention, learned):
    settings = AttentionSettings(**attention)

    assert settings.is_learned == learned
    assert settings.probes(0) == learned


def test_probing_comes_first_and_never_again():
    settings = AttentionSettings(kind="linear", directions="learned", probe_steps=3)

    assert [step for step in range(1000) if settings.probes(step)] == [0, 1, 2]


def test_probing_comes_again_every_so_many_steps():
    settings = AttentionSettings(kind="linear", directions="learned", probe_steps=2, probe_every=5)

    assert [step for step in range(14) if settings.probes(step)] == [0, 1, 5, 6, 10, 11]


def test_tokens_that_lie_close_together_are_those_of_a_block():
    assert ModelSettings().block == 64
    both = {"attention": ["dense", {"kind": "block_sparse", "block": 16}, {"kind": "block_sparse", "block": 32}]}
    assert ModelSettings.model_validate(both).block == 16


@pytest.mark.parametrize(
    ("objective", "forecasts", "masks", "targets"),
    [
        # A sample holds a target for each lead, or each step of a roll-out, where anything is forecast.
        ({"kind": "forecast"}, True, False, 1),
        ({"kind": "forecast", "leads": 3}, True, False, 3),
        ({"kind": "masked"}, False, True, 0),
        ({"kind": "both", "rollout": 2}, True, True, 2),
    ],
)
def test_an_objective_says_what_is_predicted(objective, forecasts, masks, targets):
    settings = ObjectiveSettings(**objective)

    assert (settings.forecasts, settings.masks, settings.targets) == (forecasts, masks, targets)


def test_roll_outs_by_several_leads_at_a_stroke_are_refused():
    assert mistake(ObjectiveSettings, {"leads": 3, "rollout": 4}) == (
        "campaign.yaml: objective.rollout: found 4 with objective.leads 3; only one of them may be above 1: roll-outs "
        "go on by one lead at a time"
    )


@pytest.mark.parametrize(("model", "key"), [(TokenSettings, "patch"), (AttentionSettings, "window")])
def test_an_empty_list_of_sides_is_refused(model, key):
    assert "or a list of such numbers" in mistake(model, {key: []})


@pytest.mark.parametrize(
    ("attention", "words"),
    [
        ({"density": 0.1}, "give the `kind` that the settings are for"),
        ({"kind": "window", "density": 0.5}, "attention.density: is not for window attention"),
        ({"kind": "dense", "window": 8}, "attention.window: is not for dense attention"),
    ],
)
def test_settings_of_another_kind_of_attention_are_refused(attention, words):
    assert words in mistake(ModelSettings, {"attention": attention})


def test_probing_begins_where_it_is_told_to():
    # Steps 5 and 6, then every 4 steps from there.
    chosen = AttentionSettings(kind="block_sparse", pattern="learned", probe_from=5, probe_steps=2, probe_every=4)

    assert [step for step in range(16) if chosen.probes(step)] == [5, 6, 9, 10, 13, 14]
