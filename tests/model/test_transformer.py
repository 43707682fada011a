from typing import Any

import pytest
import torch

from hyperslab.model.config import ModelSettings
from hyperslab.model.transformer import Frame, SpaceTimeTransformer, count_parameters

FRAME = Frame(
    channels=3,
    latitude=(60.0, 30.0, 0.0, -30.0, -60.0),
    longitude=tuple(range(0, 360, 45)),
    periodic=True,
)


def settings(**changes: Any) -> ModelSettings:
    return ModelSettings(**({"width": 16, "depth": 2, "heads": 2, "patch": 2, "history": 2} | changes))


def make_model(seed: int = 0, *, trained: bool = False, **changes: Any) -> SpaceTimeTransformer:
    """A model; a `trained` one has a head that is not zero."""
    torch.manual_seed(seed)
    model = SpaceTimeTransformer(settings(**changes), FRAME)
    if trained:
        torch.nn.init.normal_(model.head.weight, std=0.1)
    return model


def make_inputs(batch: int = 2, history: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(21)
    return torch.randn(batch, history, 3, 5, 8, generator=generator), torch.randn(batch, 4, generator=generator)


def test_an_untrained_model_forecasts_persistence_exactly():
    inputs, calendar = make_inputs()

    assert torch.equal(make_model()(inputs, calendar), inputs[:, -1])


@pytest.mark.parametrize("history", [1, 3])
@pytest.mark.parametrize("patch", [None, 1, 3])
def test_a_forecast_is_one_frame_whatever_the_history_and_patch(history, patch):
    inputs, calendar = make_inputs(history=history)

    assert make_model(trained=True, history=history, patch=patch)(inputs, calendar).shape == (2, 3, 5, 8)


def test_a_missing_input_counts_as_the_mean():
    # Inputs are normalised, so the mean is zero.
    model, (inputs, calendar) = make_model(trained=True), make_inputs()
    filled, gappy = inputs.clone(), inputs.clone()
    filled[0, 0, 1, 2, 3], gappy[0, 0, 1, 2, 3] = 0.0, torch.nan
    filled[1, 1, 0, 4], gappy[1, 1, 0, 4] = 0.0, torch.nan

    forecast = model(gappy, calendar)

    assert torch.isfinite(forecast).all()
    assert torch.equal(forecast, model(filled, calendar))


def test_parameters_are_as_many_as_counted_by_hand():
    # Width 16, depth 2, heads 2 of 8, patch 2, 3 channels, history 2. Values of a patch: 3 x 2 x 2 = 12.
    # Position features: 6 x 6 = 36. Feed-forward inside: 8/3 x 16, up to 48. Embeddings: 12 x 16 + 16 = 208;
    # 36 x 16 + 16 = 592; calendar 4 x 16 + 16 = 80; age 2 x 16 = 32: in all 912. Block: norms 2 x 16 = 32;
    # attention 16 x 48 + 16 x 16 = 1024 and norms of queries and keys 2 x 8 = 16; feed-forward 16 x 96 + 48 x
    # 16 = 2304: together 3376, two blocks 6752. Last norm 16; head 16 x 12 + 12 = 204.
    by_hand = 912 + 6752 + 16 + 204

    assert count_parameters(settings(), FRAME) == by_hand
    assert sum(parameter.numel() for parameter in make_model().parameters()) == by_hand


@pytest.mark.parametrize(("width", "depth", "heads", "patch", "history"), [(8, 1, 1, 1, 1), (24, 3, 4, 3, 4)])
def test_the_number_of_parameters_follows_a_closed_formula(width, depth, heads, patch, history):
    values, hidden = 3 * patch**2, -(-8 * width // 24) * 8
    embeddings = (values + 1) * width + (36 + 1) * width + (4 + 1) * width + history * width
    block = 2 * width + 4 * width**2 + 2 * (width // heads) + 3 * width * hidden
    head = width + (width + 1) * values

    counted = count_parameters(settings(width=width, depth=depth, heads=heads, patch=patch, history=history), FRAME)

    assert counted == embeddings + depth * block + head


def test_counting_parameters_of_a_huge_model_allocates_nothing():
    # 40 blocks of width 8192 hold 12 x 8192^2 x 40 = 3.2e10 parameters, 129 GB in float32.
    assert count_parameters(settings(width=8192, depth=40, heads=64), FRAME) > 3.2e10


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    first, same, other = (make_model(seed).state_dict() for seed in (5, 5, 6))

    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["embed.weight"], other["embed.weight"])


def test_weights_start_normal_by_fan_in_and_residual_branches_are_scaled_by_depth():
    model = make_model(width=128, depth=2, heads=4)

    # A block's query_key_value has fan-in 128: std 128^-1/2 = 0.0884 over 3 x 128^2 = 49 152 numbers, whose
    # own standard error is std / sqrt(2 x 49 152) = 0.3 %. Outputs are scaled by (2 x depth)^-1/2 = 1/2; the
    # feed-forward's fan-in is 344. Five standard errors of the smallest (128^2 numbers: 0.55 %) are 2.8 %.
    weights = model.state_dict()
    for name, std in (
        ("attention.query_key_value", 128**-0.5),
        ("attention.output", 128**-0.5 / 2),
        ("feed_forward.gate_and_value", 128**-0.5),
        ("feed_forward.output", 344**-0.5 / 2),
    ):
        assert float(weights[f"blocks.1.{name}.weight"].std()) == pytest.approx(std, rel=0.028)
    assert not model.head.weight.any()
    assert not any(p.any() for name, p in model.named_parameters() if name.endswith("bias"))


def test_a_forecast_depends_on_each_past_frame_their_order_and_the_calendar():
    model, (inputs, calendar) = make_model(trained=True), make_inputs()

    def change(inputs: torch.Tensor, calendar: torch.Tensor) -> torch.Tensor:
        difference: torch.Tensor = model(inputs, calendar) - inputs[:, -1]
        return difference

    reference = change(inputs, calendar)
    older = inputs.clone()
    older[:, 0] += 1
    newer = inputs.clone()
    newer[:, 1] += 1
    assert not torch.allclose(change(older, calendar), reference, atol=1e-4)
    assert not torch.allclose(change(newer, calendar), reference, atol=1e-4)
    assert not torch.allclose(change(inputs.flip(1), calendar), reference, atol=1e-4)
    assert not torch.allclose(change(inputs, calendar.flip(1)), reference, atol=1e-4)


def test_the_age_of_past_frames_tells_them_apart():
    # Attention itself has no order: without ages, older frames could be swapped unnoticed.
    model, (inputs, calendar) = make_model(trained=True, history=3), make_inputs(history=3)

    swapped = model(inputs[:, [1, 0, 2]], calendar)

    assert not torch.allclose(swapped, model(inputs, calendar), atol=1e-4)


def test_the_change_is_read_from_the_tokens_of_the_newest_frame():
    # Blocks that pass their tokens on leave each frame by itself.
    model, (inputs, calendar) = make_model(trained=True), make_inputs()
    for name, parameter in model.named_parameters():
        if name.startswith("blocks.") and name.endswith("output.weight"):
            torch.nn.init.zeros_(parameter)
    older, newer = inputs.clone(), inputs.clone()
    older[:, 0] += 1
    newer[:, 1] += 1

    reference = model(inputs, calendar) - inputs[:, 1]
    assert torch.equal(model(older, calendar) - inputs[:, 1], reference)
    assert not torch.allclose(model(newer, calendar) - newer[:, 1], reference, atol=1e-4)


def test_samples_of_a_batch_do_not_see_one_another():
    model, (inputs, calendar) = make_model(trained=True), make_inputs()

    together = model(inputs, calendar)
    alone = torch.cat([model(inputs[i : i + 1], calendar[i : i + 1]) for i in range(2)])

    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


def test_turning_the_globe_by_whole_patches_turns_the_forecast():
    # Longitudes 0, 45, ... turned by one patch of two columns: the same points under other numbers, so the
    # forecast is the same field under other numbers.
    inputs, calendar = make_inputs()
    model = make_model(trained=True)
    turned_frame = Frame(
        channels=3, latitude=FRAME.latitude, longitude=(*FRAME.longitude[2:], 360.0, 405.0), periodic=True
    )
    turned = SpaceTimeTransformer(settings(), turned_frame)
    turned.load_state_dict(model.state_dict())

    forecast = turned(inputs.roll(-2, dims=-1), calendar)

    torch.testing.assert_close(forecast, model(inputs, calendar).roll(-2, dims=-1), rtol=1e-5, atol=1e-5)
