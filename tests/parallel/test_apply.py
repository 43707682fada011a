import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from hyperslab.data.store import Store
from hyperslab.parallel.layout import AXES, Layout
from hyperslab.parallel.mesh import make_mesh
from tests.parallel.ranks import on_ranks
from tests.parallel.training import Outcome, Task, forecast_of, make_model, make_run, train_task


def task_of(store: Store, directory: Path, replicate: int, shard: int, **changes: Any) -> Task:
    return Task(store=store, checkpoint_dir=directory, layout=Layout(replicate=replicate, shard=shard), **changes)


def held_shapes(task: Task) -> dict[str, tuple[int, ...]]:
    """Shape of what this rank holds of each parameter."""
    shapes = {}
    for name, parameter in make_run(task).model.named_parameters():
        assert isinstance(parameter, DTensor), f"{name} is not shared out"
        shapes[name] = tuple(parameter.to_local().shape)
    return shapes


def test_two_ranks_of_one_copy_hold_the_halves_of_each_parameter(store, tmp_path):
    whole = {name: tuple(p.shape) for name, p in make_model(store).named_parameters()}

    first, second = on_ranks(2, held_shapes, task_of(store, tmp_path, 1, 2))

    # Parameters are cut along their first dimension, and all of these are even.
    assert first == second == {name: (shape[0] // 2, *shape[1:]) for name, shape in whole.items()}


def test_two_ranks_of_two_copies_hold_each_parameter_whole(store, tmp_path):
    whole = {name: tuple(p.shape) for name, p in make_model(store).named_parameters()}

    assert on_ranks(2, held_shapes, task_of(store, tmp_path, 2, 1)) == [whole, whole]


def place_in_mesh(layout: Layout) -> tuple[tuple[str, ...], tuple[int, ...]]:
    mesh = make_mesh(layout, "cpu").whole
    return mesh.mesh_dim_names or (), tuple(mesh.get_coordinate() or ())


def test_ranks_are_numbered_along_the_innermost_axis_first():
    layout = Layout(replicate=2, tensor=2)
    places = on_ranks(4, place_in_mesh, layout)

    assert [names for names, _ in places] == [AXES] * 4
    assert (
        [coordinate for _, coordinate in places]
        == [tuple(layout.coordinates(rank).values()) for rank in range(4)]
        == [(0, 0, 0, 0, 0), (0, 0, 0, 0, 1), (0, 1, 0, 0, 0), (0, 1, 0, 0, 1)]
    )


def forecast_once(task: Task) -> torch.Tensor:
    """The forecast of one validation window by a model whose head is not zero."""
    run = make_run(task)
    with torch.no_grad():
        for name, parameter in run.model.named_parameters():
            if ".head_forecast." in name:
                parameter.fill_(0.1)
        return forecast_of(run.model, task.store, "validation", [0])[0]


def test_a_model_that_is_shared_out_forecasts_as_a_single_device_does(store, tmp_path):
    model = make_model(store)
    for name, parameter in model.named_parameters():
        if ".head_forecast." in name:
            torch.nn.init.constant_(parameter, 0.1)
    with torch.no_grad():
        alone, batch = forecast_of(model, store, "validation", [0])
    assert not torch.allclose(alone, torch.nan_to_num(batch.inputs[:, -1]), atol=0.05)

    forecasts = on_ranks(2, forecast_once, task_of(store, tmp_path, 1, 2))

    for forecast in forecasts:
        torch.testing.assert_close(forecast, alone, rtol=1e-5, atol=1e-6)


def test_products_in_bf16_train_nearly_as_in_fp32(store, tmp_path, two_ranks):
    bf16: list[Outcome] = on_ranks(2, train_task, task_of(store, tmp_path, 1, 2, precision="bf16"))

    for outcome, reference in zip(bf16, two_ranks, strict=True):
        assert outcome.losses.keys() == reference.losses.keys()
        assert all(math.isfinite(loss) for loss in outcome.losses.values())
        # bf16 has 8 bits: a rounding of 2^-9 = 0.2 % in each product, and a few of them follow one another.
        assert outcome.losses == pytest.approx(reference.losses, rel=5e-2)
        # Not equal either: products that were in float32 all the time would be.
        assert outcome.losses != reference.losses
        assert {weight.dtype for weight in outcome.weights.values()} == {torch.float32}


def change_by_untrained_model(task: Task) -> float:
    """Largest distance of a forecast from persistence."""
    run = make_run(task)
    with torch.no_grad():
        forecast, batch = forecast_of(run.model, task.store, "validation", [0])
    assert forecast.dtype == torch.float32
    return float((forecast - torch.nan_to_num(batch.inputs[:, -1])).abs().max())


@pytest.mark.parametrize(
    "precision",
    [
        "fp32",
        pytest.param("bf16"),
    ],
)
def test_an_untrained_model_forecasts_persistence_whatever_the_precision_of_products(store, tmp_path, precision):
    (change,) = on_ranks(1, change_by_untrained_model, task_of(store, tmp_path, 1, 1, precision=precision))

    assert change == 0
