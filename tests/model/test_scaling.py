from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from hyperslab.model.config import ModelSettings, ObjectiveSettings, TokenSettings
from hyperslab.model.fields import Field, FieldSample
from hyperslab.model.hits import Cloud
from hyperslab.model.objectives import forecast_loss
from hyperslab.model.positions import Axis
from hyperslab.model.scaling import parameter_groups
from hyperslab.model.transformer import SpaceTimeTransformer

MAP = Field(
    channels=2,
    axes=tuple(Axis(name=name, values=(0.0, 1.0, 2.0, 3.0)) for name in "yx"),
    tokens=TokenSettings(history=2, patch=2),
    objective=ObjectiveSettings(kind="both", leads=2),
)
CLOUD = Cloud(
    channels=1,
    low=(0.0, 0.0),
    cell=(1.0, 1.0),
    shape=(8, 8),
    tokens=TokenSettings(history=2),
    objective=ObjectiveSettings(kind="masked"),
)


def model_of(width: int, seed: int = 0, **changes: Any) -> SpaceTimeTransformer:
    """Heads are 16 wide, whatever the width."""
    torch.manual_seed(seed)
    settings = ModelSettings(width=width, heads=width // 16, **({"depth": 2} | changes))
    return SpaceTimeTransformer(settings, {"map": MAP, "hits": CLOUD})


def by_name(model: nn.Module, **options: float) -> dict[str, dict[str, Any]]:
    """The group of each parameter."""
    groups = parameter_groups(model, options.get("rate", 0.01), options.get("decay", 0.1))
    of = {id(parameter): group for group in groups for parameter in group["params"]}
    return {name: of[id(parameter)] for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("attention", ["dense", {"kind": "linear", "directions": "learned"}])
def test_every_parameter_is_in_one_group(attention):
    model = model_of(32, attention=attention)

    grouped = [parameter for group in parameter_groups(model, 0.01, 0.1) for parameter in group["params"]]

    assert len(grouped) == len(list(model.parameters()))
    assert {id(parameter) for parameter in grouped} == {id(parameter) for parameter in model.parameters()}


@pytest.mark.parametrize(("width", "scale"), [(32, 4.0), (128, 1.0), (512, 0.25)])
def test_matrices_that_take_features_learn_by_width_and_all_else_at_the_rate_itself(width, scale):
    # The rate is meant for a width of 128.
    for name, group in by_name(model_of(width), rate=0.01).items():
        takes_features = name.endswith(
            ("query_key_value.weight", "gate.weight", ".value.weight", "output.weight")
        ) or name.endswith(("head_forecast.weight", "head_reconstruction.weight"))
        assert group["scale"] == (scale if takes_features else 1.0), name
        assert group["lr"] == pytest.approx(0.01 * group["scale"])


def test_matrices_decay_and_vectors_and_directions_of_features_do_not():
    groups = by_name(model_of(32, attention={"kind": "linear", "directions": "learned"}), decay=0.1)

    for name, group in groups.items():
        is_spared = name.endswith(("bias", "norm.weight", "directions", "embed_missing", "embed_hidden"))
        assert group["weight_decay"] == (0.0 if is_spared else 0.1), name


def test_an_optimizer_takes_the_groups_as_they_are():
    optimizer = torch.optim.AdamW(parameter_groups(model_of(32), 0.01, 0.1))

    assert {group["lr"] for group in optimizer.param_groups} == {0.01, 0.04}


def test_a_model_without_a_width_learns_at_one_rate():
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Linear(512, 512)])

    assert {group["scale"] for group in parameter_groups(model, 0.01, 0.1)} == {1.0}


def moved(width: int, steps: int, *, scaled: bool) -> float:
    """Root mean square of what a few steps of Adam change of a forecast, from where it starts, which is persistence."""
    generator = torch.Generator().manual_seed(1)
    frames, target = torch.randn(4, 2, 2, 4, 4, generator=generator), torch.randn(4, 2, 4, 4, generator=generator)
    sample = FieldSample(
        inputs_BTCS=frames,
        calendar_BF=torch.randn(4, 4, generator=generator),
        lead_B=torch.ones(4, dtype=torch.int64),
        complete=True,
    )
    model = model_of(width)
    groups = parameter_groups(model, 1e-3, 0.0)
    if not scaled:
        groups = [group | {"lr": 1e-3} for group in groups]
    optimizer = torch.optim.Adam(groups)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(forecast_loss(model("map", sample)["forecast"], target, torch.ones(1)))
        optimizer.step()
    with torch.no_grad():
        change = model("map", sample)["forecast"] - frames[:, -1]
    return float(change.square().mean().sqrt())


WIDTHS = (32, 64, 128, 256, 512)


def growth(changes: Sequence[float]) -> float:
    """Exponent of the power of the width that fits best."""
    logs = torch.tensor(WIDTHS, dtype=torch.float64).log(), torch.tensor(changes, dtype=torch.float64).log()
    x, y = (values - values.mean() for values in logs)
    return float((x * y).sum() / x.square().sum())


@pytest.mark.parametrize("steps", [1, 4])
def test_steps_change_a_forecast_as_much_at_every_width(steps):
    # The coordinate check of maximal-update parametrisation (arXiv 2203.03466, appendix D.1): at one learning rate
    # what a step changes depends on no power of the width. A head of `width` features that moves by the rate each
    # moves its output by rate x width; 512 is 16 x 32, so without scaling it is about 16 times as much.
    with_scaling = [moved(width, steps, scaled=True) for width in WIDTHS]
    without = [moved(width, steps, scaled=False) for width in WIDTHS]

    # Over seeds the exponent is known to about 0.05.
    assert abs(growth(with_scaling)) < 0.15
    assert max(with_scaling) / min(with_scaling) < 1.5
    assert growth(without) > 0.7
    assert without[-1] / without[0] > 8
