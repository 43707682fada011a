import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from io import IOBase
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem

from hyperslab.data.files import file_digest, read_json
from hyperslab.errors import UserError
from hyperslab.parallel import checkpoint
from hyperslab.parallel.catalog import Progress, latest, read_progress
from hyperslab.parallel.layout import Layout
from hyperslab.parallel.trainer import make_optimizer
from tests.parallel.ranks import on_ranks
from tests.parallel.training import Task, make_model, make_run, whole_weights

Tensors = dict[str, torch.Tensor]


def trained_once(seed: int) -> tuple[torch.nn.Linear, torch.optim.AdamW]:
    """A small model after one step, and its optimizer."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    torch.autograd.backward(model(torch.ones(1, 3)).square().sum())
    optimizer.step()
    return model, optimizer


def progress_at(step: int) -> Progress:
    return Progress(step=step, store_digest=f"store {step}", order_digest=f"order {step}")


def save_steps(directory: Path, *steps: int, keep: int = 3) -> None:
    """Save a model of its own at each step."""
    for step in steps:
        checkpoint.save(directory, *trained_once(seed=step), progress_at(step), keep)


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    """Parameters and the optimizer's moments, by name."""
    state = dict(model.state_dict())
    for number, moments in optimizer.state_dict()["state"].items():
        state |= {f"{number}.{name}": value for name, value in moments.items()}
    return state


def assert_equal(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


# Saving and loading


def saved_and_loaded(directory: Path) -> tuple[Tensors, Tensors]:
    """State before the save, and what a model of another seed loads."""
    model, optimizer = trained_once(seed=1)
    checkpoint.save(directory, model, optimizer, progress_at(1), keep=3)
    other, its_optimizer = trained_once(seed=2)
    assert not torch.equal(other.weight, model.weight)
    checkpoint.load(directory / "step-00000001", other, its_optimizer)
    return state_of(model, optimizer), state_of(other, its_optimizer)


def test_what_was_saved_is_loaded_to_the_last_bit(tmp_path):
    ((saved, loaded),) = on_ranks(1, saved_and_loaded, tmp_path)

    # Weight and bias, and for each of them two moments and the number of steps.
    assert len(saved) == 2 + 2 * 3
    assert_equal(loaded, saved)


def loaded_into_fresh(directory: Path) -> tuple[Tensors, Tensors]:
    """State before the save, and what a model loads whose optimizer has made no step."""
    model, optimizer = trained_once(seed=1)
    checkpoint.save(directory, model, optimizer, progress_at(1), keep=3)
    fresh = torch.nn.Linear(3, 2)
    its_optimizer = torch.optim.AdamW(fresh.parameters(), lr=0.5)
    checkpoint.load(directory / "step-00000001", fresh, its_optimizer)
    return state_of(model, optimizer), state_of(fresh, its_optimizer)


def test_an_optimizer_that_has_made_no_step_is_filled_too(tmp_path):
    ((saved, loaded),) = on_ranks(1, loaded_into_fresh, tmp_path)

    assert_equal(loaded, saved)


def save_shared_out(task: Task) -> Tensors:
    run = make_run(task)
    checkpoint.save(task.checkpoint_dir, run.model, make_optimizer(run.model, run.train), progress_at(7), keep=1)
    return whole_weights(run.model)


def test_a_checkpoint_of_two_ranks_is_loaded_without_a_process_group(store, tmp_path):
    task = Task(store=store, checkpoint_dir=tmp_path, layout=Layout(replicate=1, shard=2))
    saved, _ = on_ranks(2, save_shared_out, task)
    model = make_model(store, seed=99)

    checkpoint.load(tmp_path / "step-00000007", model, None)

    assert_equal(whole_weights(model), saved)


def test_the_manifest_holds_the_progress_and_the_digest_of_every_file(tmp_path):
    on_ranks(1, save_steps, tmp_path, 5)
    path = tmp_path / "step-00000005"

    assert read_progress(path) == Progress(step=5, store_digest="store 5", order_digest="order 5")
    assert read_json(path / "manifest.json")["files"] == {
        file.name: file_digest(file) for file in path.iterdir() if file.name != "manifest.json"
    }


def test_saving_a_step_again_replaces_it(tmp_path):
    def body() -> tuple[Tensors, Tensors]:
        save_steps(tmp_path, 4)
        model, optimizer = trained_once(seed=40)
        checkpoint.save(tmp_path, model, optimizer, progress_at(4), keep=3)
        other, its_optimizer = trained_once(seed=2)
        checkpoint.load(tmp_path / "step-00000004", other, its_optimizer)
        return state_of(model, optimizer), state_of(other, its_optimizer)

    ((saved, loaded),) = on_ranks(1, body)

    assert names_in(tmp_path) == ["step-00000004"]
    assert_equal(loaded, saved)


# Which checkpoints there are


def test_the_latest_checkpoints_are_kept_and_older_ones_dropped(tmp_path):
    # Steps of several lengths: as text without their zeros, 9 would come after 10.
    on_ranks(1, lambda: save_steps(tmp_path, 8, 9, 10, 100, keep=2))

    assert names_in(tmp_path) == ["step-00000010", "step-00000100"]
    assert latest(tmp_path) == tmp_path / "step-00000100"


class Killed(BaseException):
    """Ends a save where a kill would."""


@contextlib.contextmanager
def fault_at_rename(fault: BaseException) -> Iterator[None]:
    """The rename of a whole draft raises; those that torch makes inside it do not."""
    rename = Path.rename

    def raise_for_drafts(self: Path, target: str | os.PathLike[str]) -> Path:
        if self.suffix == ".draft":
            raise fault
        return rename(self, target)

    with mock.patch.object(Path, "rename", raise_for_drafts):
        yield


def killed_before_rename(directory: Path) -> None:
    save_steps(directory, 1)
    with fault_at_rename(Killed()), pytest.raises(Killed):
        save_steps(directory, 2)


def test_a_save_that_is_killed_before_its_rename_leaves_the_one_before(tmp_path):
    on_ranks(1, killed_before_rename, tmp_path)

    assert names_in(tmp_path) == [".step-00000002.draft", "step-00000001"]
    assert latest(tmp_path) == tmp_path / "step-00000001"


def test_a_draft_that_a_killed_save_left_is_replaced(tmp_path):
    draft = tmp_path / ".step-00000002.draft"

    def body() -> None:
        killed_before_rename(tmp_path)
        (draft / "__9_0.distcp").write_bytes(b"of a rank that there is no more")
        save_steps(tmp_path, 2)

    on_ranks(1, body)

    assert names_in(tmp_path) == ["step-00000001", "step-00000002"]
    assert names_in(tmp_path / "step-00000002") == [".metadata", "__0_0.distcp", "manifest.json"]


def test_a_killed_save_of_the_first_checkpoint_leaves_none(tmp_path):
    def body() -> None:
        with fault_at_rename(Killed()), pytest.raises(Killed):
            save_steps(tmp_path, 1)

    on_ranks(1, body)

    assert latest(tmp_path) is None


# Damage


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A checkpoint of step 3; tests damage copies of it."""
    directory = tmp_path_factory.mktemp("sound")
    on_ranks(1, save_steps, directory, 3)
    return directory / "step-00000003"


@pytest.fixture
def copied(sound, tmp_path):
    return Path(shutil.copytree(sound, tmp_path / sound.name))


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("damage", ["one byte changed", "last byte cut off", "missing"])
def test_a_damaged_file_is_refused_by_name(copied, name, damage):
    file = copied / name
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "last byte cut off":
        file.write_bytes(content[:-1])
    else:
        content[len(content) // 2] ^= 1
        file.write_bytes(content)

    with pytest.raises(UserError) as error:
        checkpoint.load(copied, *trained_once(seed=1))

    assert str(error.value) == (
        f"{file}: missing or changed since it was written; remove {copied} to go on from the one before"
    )


@pytest.mark.parametrize("damage", ["cut off", "a file left out"])
def test_a_damaged_manifest_is_refused_by_name(copied, damage):
    manifest = copied / "manifest.json"
    content = read_json(manifest)
    del content["files"]["__0_0.distcp"]
    manifest.write_text('{"digest": ' if damage == "cut off" else json.dumps(content))

    with pytest.raises(UserError, match=r"manifest\.json"):
        checkpoint.load(copied, *trained_once(seed=1))


# A full disk


@contextlib.contextmanager
def full_disk(ending: str) -> Iterator[None]:
    """Files of the checkpoint that end so are written to a device that is always full."""
    create_stream = FileSystem.create_stream

    @contextlib.contextmanager
    def create(self: FileSystem, path: str | os.PathLike[str], mode: str) -> Iterator[IOBase]:
        with create_stream(self, "/dev/full" if str(path).endswith(ending) else path, mode) as stream:
            yield stream

    with mock.patch.object(FileSystem, "create_stream", create):
        yield


def raising(number: int) -> Any:
    return mock.Mock(side_effect=OSError(number, os.strerror(number)))


def told_when_full(directory: Path, where: str) -> str:
    """What the person is told when the disk is full at one place of the save."""
    save_steps(directory, 1)
    faults: dict[str, AbstractContextManager[Any]] = {
        "directory": mock.patch.object(Path, "mkdir", raising(errno.ENOSPC)),
        "shard": full_disk(".distcp"),
        "metadata": full_disk(".metadata.tmp"),
        "manifest": mock.patch.object(checkpoint, "write_json", raising(errno.ENOSPC)),
        "rename": fault_at_rename(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))),
    }
    with faults[where], pytest.raises(UserError) as error:
        save_steps(directory, 2)
    return str(error.value)


@pytest.mark.parametrize("where", ["directory", "shard", "metadata", "manifest", "rename"])
def test_a_full_disk_is_a_persons_mistake_and_leaves_the_checkpoint_before(tmp_path, where):
    (message,) = on_ranks(1, told_when_full, tmp_path, where)

    assert message.startswith(f"{tmp_path}")
    assert message.endswith("no space left on the disk; free some room, then go on with `hyperslab resume`")
    assert latest(tmp_path) == tmp_path / "step-00000001"


def full_on_one_rank(directory: Path, rank: int) -> str:
    fault = full_disk(".distcp") if dist.get_rank() == rank else contextlib.nullcontext()
    with fault, pytest.raises(UserError) as error:
        save_steps(directory, 1)
    return str(error.value)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_disk_that_is_full_for_one_rank_is_told_on_both(tmp_path, rank):
    expected = f"{tmp_path}: no space left on the disk; free some room, then go on with `hyperslab resume`"

    assert on_ranks(2, full_on_one_rank, tmp_path, rank) == [expected, expected]
    assert latest(tmp_path) is None


def test_a_directory_that_may_not_be_written_is_a_persons_mistake(tmp_path):
    def body() -> str:
        with mock.patch.object(Path, "mkdir", raising(errno.EACCES)), pytest.raises(UserError) as error:
            save_steps(tmp_path, 1)
        return str(error.value)

    (message,) = on_ranks(1, body)

    assert message.endswith("cannot be written: Permission denied; choose a directory you may write to")


def test_a_failing_disk_is_no_persons_mistake(tmp_path):
    def body() -> None:
        with (
            mock.patch.object(checkpoint, "write_json", raising(errno.EIO)),
            pytest.raises(OSError, match="Input/output error") as error,
        ):
            save_steps(tmp_path, 1)
        assert not isinstance(error.value, UserError)
        with (
            mock.patch.object(FileSystem, "create_stream", raising(errno.EIO)),
            pytest.raises(CheckpointException, match="Input/output error"),
        ):
            save_steps(tmp_path, 2)

    on_ranks(1, body)

    assert latest(tmp_path) is None
