import errno
import os
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from hyperslab.errors import UserError
from hyperslab.model.config import ModelSettings
from hyperslab.parallel import weights
from hyperslab.parallel.catalog import Progress
from hyperslab.parallel.layout import Layout
from hyperslab.parallel.saver import Saver
from hyperslab.parallel.trainer import make_optimizer
from tests.parallel.ranks import on_ranks
from tests.parallel.saving import Tensors, assert_equal, names_in
from tests.parallel.training import MODEL, Task, make_model, make_run, make_tasks

LEARNED = MODEL.model_copy(
    update={
        "attention": ModelSettings.model_validate(
            {"attention": {"kind": "block_sparse", "pattern": "learned", "block": 4, "density": 0.5}}
        ).attention
    }
)
"""Its patterns and influences are no parameters, but a part of the model."""


def save_task(task: Task) -> None:
    run = make_run(task)
    with Saver(task.checkpoint_dir, keep=1) as saver:
        progress = Progress(step=7, store_digest="of the store", order_digest="of the order")
        saver.save(run.model, make_optimizer(run.model, run.train), progress)


@pytest.fixture(scope="module")
def saved(store, tmp_path_factory):
    """A checkpoint of four ranks, two copies of two shards."""
    directory = tmp_path_factory.mktemp("saved")
    layout = Layout(replicate=2, shard=2)
    on_ranks(4, save_task, Task(store=store, checkpoint_dir=directory, layout=layout, model=LEARNED))
    return directory / "step-00000007"


@pytest.fixture(scope="module")
def exported(saved):
    """Its weights as a file."""
    file = saved.parent / "winds.safetensors"
    weights.export(saved, file, "winds")
    return file


def model_of(store, seed: int, settings: ModelSettings = LEARNED) -> torch.nn.Module:
    return make_model(store, seed, settings, make_tasks(store, settings))


def test_weights_come_back_from_the_file_to_the_last_bit(store, exported):
    # The model that the ranks made, of seed 1.
    expected, other = model_of(store, seed=1).state_dict(), model_of(store, seed=2)
    assert any(not torch.equal(tensor, expected[name]) for name, tensor in other.state_dict().items())

    weights.initialise(other, exported)

    assert any("pattern" in name for name in expected)
    assert_equal(dict(other.state_dict()), dict(expected))


def test_the_file_holds_whole_tensors_and_says_where_they_come_from(store, exported):
    expected = model_of(store, seed=1).state_dict()

    with safe_open(exported, framework="pt") as held:
        assert held.metadata() == {
            "step": "7",
            "store_digest": "of the store",
            "order_digest": "of the order",
            "campaign": "winds",
        }
    assert_equal(load_file(exported), dict(expected))


def test_the_file_may_be_read_by_those_who_may_read_files_made_here(exported, tmp_path):
    (tmp_path / "plain").touch()

    assert exported.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_file_that_is_there_is_not_overwritten(saved, tmp_path):
    file = tmp_path / "here.safetensors"
    file.write_text("mine")

    with pytest.raises(UserError, match=r"here\.safetensors: already exists; choose another name"):
        weights.export(saved, file, "winds")

    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        # As the library words it: the system's number stands in its text alone.
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), "no space left"),
        (OSError(errno.EACCES, os.strerror(errno.EACCES)), "cannot be written: Permission denied"),
    ],
)
def test_a_disk_that_takes_no_file_is_a_persons_mistake_and_nothing_is_left(saved, tmp_path, fault, words):
    with (
        mock.patch.object(weights, "save_file", side_effect=fault),
        pytest.raises(UserError, match=rf"out\.safetensors: {words}"),
    ):
        weights.export(saved, tmp_path / "out.safetensors", "winds")

    assert names_in(tmp_path) == []


def test_a_place_that_is_not_there_is_a_persons_mistake(saved, tmp_path):
    with pytest.raises(UserError, match=r"nowhere/out\.safetensors: cannot be written: No such file or directory"):
        weights.export(saved, tmp_path / "nowhere" / "out.safetensors", "winds")


def refusal(model: torch.nn.Module, file: Path) -> str:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError) as error:
        weights.initialise(model, file)
    assert_equal(dict(model.state_dict()), before)
    return str(error.value)


def two_layers(**changes: torch.Tensor) -> Tensors:
    return {"0.weight": torch.zeros(3, 2), "0.bias": torch.zeros(3), "1.weight": torch.zeros(1, 3)} | changes


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"0.weight": torch.zeros(3, 2)}, "missing: 0.bias, 1.weight"),
        (two_layers(extra=torch.zeros(1)), "unexpected: extra"),
        (
            two_layers(**{f"extra{n}": torch.zeros(1) for n in range(5)}),
            "unexpected: extra0, extra1, extra2 and 2 more",
        ),
        (
            two_layers(**{"0.bias": torch.zeros(4)}),
            "of another kind: 0.bias (4 float32, the model's is 3 float32)",
        ),
        (
            two_layers(**{"1.weight": torch.zeros(1, 3, dtype=torch.float64), "0.bias": torch.tensor(1.0)}),
            "of another kind: 0.bias (one number float32, the model's is 3 float32), "
            "1.weight (1 x 3 float64, the model's is 1 x 3 float32)",
        ),
        (
            {"0.weight": torch.zeros(2, 3), "0.bias": torch.zeros(3), "2.weight": torch.zeros(1, 3)},
            "missing: 1.weight; unexpected: 2.weight; of another kind: 0.weight (2 x 3 float32, the model's is "
            "3 x 2 float32)",
        ),
    ],
)
def test_a_file_of_another_model_is_refused_with_what_does_not_fit(tmp_path, tensors, words):
    file = tmp_path / "other.safetensors"
    save_file(tensors, file)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1, bias=False))

    assert refusal(model, file) == (
        f"train.init_from: {file}: does not fit the model: {words}; give the settings of `model` and the archives that "
        "its weights were trained with"
    )


def test_a_file_that_is_cut_off_or_none_is_refused(tmp_path, exported):
    cut, text = tmp_path / "cut.safetensors", tmp_path / "text.safetensors"
    cut.write_bytes(exported.read_bytes()[:-1])
    text.write_text("weights")

    for file in (cut, text, tmp_path):
        words = refusal(torch.nn.Linear(1, 1), file)
        assert words.startswith(f"train.init_from: {file}: is no whole safetensors file (")
    gone = tmp_path / "gone.safetensors"
    assert refusal(torch.nn.Linear(1, 1), gone) == f"train.init_from: {gone}: no such file; check the path"
