"""A run goes on under any layout, whatever layout it was stopped under."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hyperslab.parallel.layout import Layout
from tests.parallel.test_parity import EXHAUSTIVE, run
from tests.parallel.training import Outcome

RESUMABLE = [
    Layout(),
    Layout(replicate=2),
    Layout(shard=4),
    Layout(pipeline=2, shard=2, pieces=2),
    Layout(domain=2, tensor=2),
    Layout(shard=2, tensor=2),
]
"""Of one, two and four ranks."""
WAYS = [
    # Round all of them once; and every other way.
    pytest.param(layout, other, marks=() if (place + 1) % len(RESUMABLE) == there else EXHAUSTIVE)
    for place, layout in enumerate(RESUMABLE)
    for there, other in enumerate(RESUMABLE)
]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What one device makes of the run."""
    (outcome,) = run("winds", "dense", Layout(), tmp_path_factory.mktemp("one"))
    return outcome


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[Layout, Path]:
    """Checkpoints of half a run under each of some layouts."""
    folders = {}
    for layout in RESUMABLE:
        folders[layout] = tmp_path_factory.mktemp("stopped")
        run("winds", "dense", layout, folders[layout], stop_at=5)
    return folders


@pytest.mark.parametrize(("layout", "other"), WAYS, ids=str)
def test_a_run_goes_on_under_any_layout_from_any_other(one, stopped, tmp_path, layout, other):
    # The order's digest is checked as a checkpoint is read.
    shutil.copytree(stopped[layout], tmp_path / "resumed")

    for outcome in run("winds", "dense", other, tmp_path / "resumed"):
        assert outcome.losses == pytest.approx({step: one.losses[step] for step in range(6, 11)}, rel=1e-5)


@pytest.mark.parametrize(
    "layout", [pytest.param(own, marks=() if own.pipeline > 1 else EXHAUSTIVE) for own in RESUMABLE], ids=str
)
def test_a_run_that_goes_on_under_its_own_layout_is_the_same_to_the_last_bit(stopped, tmp_path, layout):
    shutil.copytree(stopped[layout], tmp_path / "resumed")

    straight = run("winds", "dense", layout, tmp_path / "straight")
    resumed = run("winds", "dense", layout, tmp_path / "resumed")

    for whole, rest in zip(straight, resumed, strict=True):
        assert rest.losses == {step: whole.losses[step] for step in range(6, 11)}
        for key, weight in whole.weights.items():
            assert torch.equal(rest.weights[key], weight), key


LEARNED: Any = [
    # Probing: what was measured so far is part of the checkpoint.
    {"kind": "block_sparse", "block": 4, "density": 0.4, "pattern": "learned", "probe_steps": 7},
    # Not yet: directions have had no gradient.
    {"kind": "linear", "features": 8, "directions": "learned", "probe_from": 6, "probe_steps": 2},
]


@pytest.mark.parametrize("attention", LEARNED, ids=str)
@pytest.mark.parametrize(
    ("layout", "other"), [(Layout(), Layout(tensor=2)), (Layout(shard=2, tensor=2), Layout(domain=2))], ids=str
)
def test_what_is_learned_from_exact_attention_goes_on_from_where_it_was(tmp_path, attention, layout, other):
    (straight,) = run("winds", attention, Layout(), tmp_path / "straight")

    run("winds", attention, layout, tmp_path / "stopped", stop_at=5)

    for outcome in run("winds", attention, other, tmp_path / "stopped"):
        assert outcome.losses == pytest.approx({step: straight.losses[step] for step in range(6, 11)}, rel=1e-5)
