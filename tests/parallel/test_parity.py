"""Every layout computes what one device computes."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hyperslab.model.config import ModelSettings, ObjectiveSettings
from hyperslab.parallel.config import Schedule
from hyperslab.parallel.layout import Layout
from tests.parallel.ranks import on_ranks
from tests.parallel.training import Outcome, Task, assert_same_weights, make_hits, make_store, make_volumes, train_task

STORES = {"winds": make_store(), "volumes": make_volumes(), "hits": make_hits()}
SETTINGS: dict[str, Any] = {"width": 32, "depth": 4, "heads": 8, "patch": 2, "history": 2}
TRAIN = {"steps": 10, "batch": 4, "validate_every": 5, "learning_rate": 1e-3}
EXHAUSTIVE = pytest.mark.skipif(
    os.environ.get("HYPERSLAB_EXHAUSTIVE") != "1", reason="one of very many layouts; HYPERSLAB_EXHAUSTIVE=1 tries all"
)
AXES = [{"pipeline": 2}, {"replicate": 2}, {"shard": 2}, {"domain": 2}, {"tensor": 2}]
ALONE = [{name: size} for size in (2, 4) for axis in AXES for name in axis]
PAIRS = [one | other for number, one in enumerate(AXES) for other in AXES[:number]]
TRIPLES = [
    {"pipeline": 2, "shard": 2, "tensor": 2},
    {"replicate": 2, "domain": 2, "tensor": 2},
    {"pipeline": 2, "shard": 2, "domain": 2},
]
FEW = [*ALONE[: len(AXES)], {"domain": 2, "tensor": 2}, TRIPLES[0]]
LAYOUTS = [pytest.param(axes, marks=() if axes in FEW else EXHAUSTIVE) for axes in ALONE + PAIRS + TRIPLES]
KINDS: list[Any] = [
    {"kind": "window", "window": 4},
    "axial",
    {"kind": "block_sparse", "block": 4, "density": 0.4},
    {"kind": "block_sparse", "block": 4, "density": 0.4, "pattern": "learned", "probe_steps": 2},
    {"kind": "linear", "features": 8},
    {"kind": "linear", "features": 8, "directions": "learned", "probe_steps": 3},
    {"kind": "nystrom", "landmarks": 4},
]


@pytest.fixture(scope="module")
def one_device() -> dict[str, Outcome]:
    """What one device made of runs, by their description."""
    return {}


def run(
    store: str, attention: Any, layout: Layout, folder: Path, schedule: Schedule = "1f1b", stop_at: int | None = None
) -> list[Outcome]:
    task = Task(
        store=STORES[store],
        checkpoint_dir=folder,
        layout=layout,
        model=ModelSettings.model_validate(SETTINGS | {"attention": attention}),
        objectives=(ObjectiveSettings(kind="both"),),
        train=TRAIN,
        schedule=schedule,
        stop_at=stop_at,
    )
    return on_ranks(layout.num_ranks, train_task, task)


def layout_of(axes: dict[str, int]) -> Layout:
    return Layout(**({"pieces": axes.get("pipeline", 1)} | axes))


def assert_parity(
    known: dict[str, Outcome],
    store: str,
    attention: Any,
    axes: dict[str, int],
    folder: Path,
    schedule: Schedule = "1f1b",
) -> None:
    """Losses, gradient norms and final weights are those of one device."""
    name = f"{store} {attention}"
    if name not in known:
        (known[name],) = run(store, attention, Layout(), folder / "one")
    one = known[name]
    layout = layout_of(axes)
    # Landmarks' matrix is inverted step by step, which makes what is rounded differently grow.
    far = 1e-4 if "nystrom" in str(attention) else 1e-5
    outcomes = run(store, attention, layout, folder / "many", schedule)
    for outcome in outcomes:
        attention_errors = {name for _, values in one.log for name in values if name.startswith("attention/")}
        for number in ("train/loss", "train/gradient_norm", "validation/loss", *attention_errors):
            close = far if number in attention_errors else 1e-5
            assert outcome.numbers(number) == pytest.approx(one.numbers(number), rel=close), number
    for data_rank in range(layout.data):
        # The stages of a pipeline hold the weights between them.
        own = [outcome for rank, outcome in enumerate(outcomes) if layout.data_rank(rank) == data_rank]
        assert_same_weights({name: weight for each in own for name, weight in each.weights.items()}, one.weights, far)


@pytest.mark.parametrize("axes", LAYOUTS, ids=lambda axes: str(layout_of(axes)))
def test_a_layout_computes_what_one_device_computes(one_device, tmp_path, axes):
    assert_parity(one_device, "winds", "dense", axes, tmp_path)


def test_the_gradients_of_two_copies_and_of_two_that_share_one_are_the_same_to_the_last_bit(tmp_path):
    # A sum of two is the same in either order. Later the optimizer rounds by how long a rank's parameters are.
    copies, shared = (
        run("winds", "dense", layout, tmp_path / name)
        for name, layout in (("copies", Layout(replicate=2)), ("shared", Layout(shard=2)))
    )

    for one, other in zip(copies, shared, strict=True):
        for name in ("train/loss", "train/gradient_norm"):
            assert one.numbers(name)[1] == other.numbers(name)[1]
        assert_same_weights(one.weights, other.weights, 1e-5)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_schedules_of_a_pipeline_compute_the_same(one_device, tmp_path, schedule):
    assert_parity(one_device, "winds", "dense", {"pipeline": 2, "pieces": 4}, tmp_path, schedule)


def test_what_waits_in_the_memory_of_the_host_is_the_same_to_the_last_bit(tmp_path):
    # Here host and device are one; on a GPU this was never run.
    layout = Layout(shard=2, tensor=2)
    task = Task(
        store=STORES["winds"],
        checkpoint_dir=tmp_path / "here",
        layout=layout,
        model=ModelSettings(**SETTINGS),
        train=TRAIN,
    )

    here = on_ranks(4, train_task, task)
    there = on_ranks(4, train_task, replace(task, checkpoint_dir=tmp_path / "there", offload=True))

    for one, other in zip(here, there, strict=True):
        assert one.losses == other.losses
        assert all(torch.equal(weight, other.weights[name]) for name, weight in one.weights.items())


def test_a_batch_in_pieces_computes_what_it_does_at_once(one_device, tmp_path):
    assert_parity(one_device, "winds", "dense", {"shard": 2, "pieces": 2}, tmp_path)


def test_features_learn_the_same_from_a_batch_in_pieces(one_device, tmp_path):
    assert_parity(one_device, "winds", KINDS[5], {"pieces": 2}, tmp_path)


def test_a_stage_of_dense_layers_alone_is_judged_with_the_others(one_device, tmp_path):
    assert_parity(one_device, "winds", ["dense", "dense", KINDS[0], KINDS[0]], {"pipeline": 2}, tmp_path)


def test_stages_of_a_pipeline_choose_patterns_by_what_their_own_layers_measured(one_device, tmp_path):
    assert_parity(one_device, "winds", KINDS[3], {"pipeline": 2, "shard": 2}, tmp_path)


@pytest.mark.parametrize(
    "axes", [{"domain": 4}, pytest.param({"tensor": 4}, marks=EXHAUSTIVE)], ids=lambda axes: str(layout_of(axes))
)
@pytest.mark.parametrize("attention", KINDS, ids=str)
def test_kinds_of_attention_do_so_in_parts(one_device, tmp_path, attention, axes):
    assert_parity(one_device, "winds", attention, axes, tmp_path)


@pytest.mark.parametrize(
    "axes", [{"domain": 4}, {"domain": 2, "tensor": 2}, {"pipeline": 2}], ids=lambda axes: str(layout_of(axes))
)
@pytest.mark.parametrize("store", ["volumes", "hits"])
def test_samples_of_other_sciences_do_so_in_parts(one_device, tmp_path, store, axes):
    assert_parity(one_device, store, "dense", axes, tmp_path)
