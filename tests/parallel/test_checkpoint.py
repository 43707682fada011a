import os
import pickle
import shutil
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.staging import DefaultStager

from hyperslab.data.files import digest_of, file_digest, read_json, write_json
from hyperslab.errors import UserError
from hyperslab.parallel import checkpoint
from hyperslab.parallel.catalog import damage_of, latest
from hyperslab.parallel.layout import Layout
from hyperslab.parallel.saver import Saver
from hyperslab.parallel.trainer import make_optimizer
from tests.parallel.ranks import RanksFailed, on_ranks
from tests.parallel.saving import Tensors, assert_equal, names_in, progress_at, save_steps, state_of, trained_once
from tests.parallel.training import Task, make_model, make_run, whole_weights

SHARDED = Layout(replicate=1, shard=2)


# Loading


def saved_and_loaded(directory: Path) -> tuple[Tensors, Tensors]:
    """State before the save, and what a model of another seed loads."""
    model, optimizer = trained_once(seed=1)
    with Saver(directory, keep=3) as saver:
        saver.save(model, optimizer, progress_at(1))
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
    with Saver(directory, keep=3) as saver:
        saver.save(model, optimizer, progress_at(1))
    fresh = torch.nn.Linear(3, 2)
    its_optimizer = torch.optim.AdamW(fresh.parameters(), lr=0.5)
    checkpoint.load(directory / "step-00000001", fresh, its_optimizer)
    return state_of(model, optimizer), state_of(fresh, its_optimizer)


def test_an_optimizer_that_has_made_no_step_is_filled_too(tmp_path):
    ((saved, loaded),) = on_ranks(1, loaded_into_fresh, tmp_path)

    assert_equal(loaded, saved)


def save_shared_out(task: Task) -> Tensors:
    run = make_run(task)
    with Saver(task.checkpoint_dir, keep=3) as saver:
        saver.save(run.model, make_optimizer(run.model, run.train), progress_at(7))
    return whole_weights(run.model)


def load_shared_out(task: Task) -> Tensors:
    run = make_run(task)
    checkpoint.load(task.checkpoint_dir / "step-00000007", run.model, make_optimizer(run.model, run.train))
    return whole_weights(run.model)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Layout(replicate=2, shard=2), SHARDED),
        (SHARDED, Layout(replicate=2, shard=1)),
        (SHARDED, Layout(replicate=1, shard=3)),
    ],
)
def test_a_checkpoint_is_loaded_by_another_layout_than_wrote_it(store, tmp_path, before, after):
    task = Task(store=store, checkpoint_dir=tmp_path, layout=before, train={"batch": 12})
    saved, *_ = on_ranks(before.num_ranks, save_shared_out, task)
    other = Task(store=store, checkpoint_dir=tmp_path, layout=after, train={"batch": 12, "seed": 99})

    for loaded in on_ranks(after.num_ranks, load_shared_out, other):
        assert_equal(loaded, saved)


def test_a_checkpoint_of_two_ranks_is_loaded_without_a_process_group(store, tmp_path):
    saved, _ = on_ranks(2, save_shared_out, Task(store=store, checkpoint_dir=tmp_path, layout=SHARDED))
    model = make_model(store, seed=99)

    checkpoint.load(tmp_path / "step-00000007", model, None)

    assert_equal(whole_weights(model), saved)


def test_weights_are_read_whole_without_a_model(store, tmp_path):
    task = Task(store=store, checkpoint_dir=tmp_path, layout=Layout(replicate=2, shard=2))
    saved, *_ = on_ranks(4, save_shared_out, task)

    weights = checkpoint.read_weights(tmp_path / "step-00000007")

    # Exact attention has no buffers: nothing but parameters.
    assert_equal(weights, saved)


# Damage


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Checkpoints of steps 3 and 4 from two ranks; tests damage copies of them."""
    directory = tmp_path_factory.mktemp("sound")
    on_ranks(2, save_steps, directory, 3, 4)
    return directory


@pytest.fixture
def copied(sound, tmp_path):
    return Path(shutil.copytree(sound, tmp_path / "checkpoints"))


def change(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def choose(directory: Path) -> Path | None:
    return checkpoint.choose(directory)


def test_the_latest_checkpoint_is_chosen_on_all_ranks_where_it_is_whole(copied, capfd):
    assert on_ranks(2, choose, copied) == [copied / "step-00000004"] * 2
    assert capfd.readouterr().out == ""


def test_where_there_is_no_checkpoint_none_is_chosen(tmp_path):
    assert on_ranks(2, choose, tmp_path / "absent") == [None, None]


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "manifest.json"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [("changed", "was changed since it was written"), ("cut off", "was changed since"), ("missing", "is missing")],
)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(copied, capfd, name, damage, words):
    file = copied / "step-00000004" / name
    if damage == "missing":
        file.unlink()
    elif damage == "cut off":
        file.write_bytes(file.read_bytes()[:-3])
    else:
        change(file)

    chosen = on_ranks(2, choose, copied)

    assert chosen == [copied / "step-00000003"] * 2
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith(f"{file}: {'is missing or damaged' if name == 'manifest.json' else words}")
    assert line.endswith("; step-00000004 is passed over, and step-00000003 is taken")
    assert names_in(copied) == [".step-00000004.damaged", "step-00000003"]
    assert latest(copied) == copied / "step-00000003"


def seen_damaged_by_one(directory: Path, rank: int) -> Path | None:
    """What is chosen where the disk of one rank gives nothing of the latest checkpoint."""

    def digest(path: Path) -> str:
        if path.parent.name == "step-00000004" and dist.get_rank() == rank:
            raise OSError(5, "Input/output error")
        return file_digest(path)

    with mock.patch("hyperslab.parallel.catalog.file_digest", digest):
        return checkpoint.choose(directory)


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_choose_the_same_where_one_alone_cannot_read(copied, capfd, rank):
    assert on_ranks(2, seen_damaged_by_one, copied, rank) == [copied / "step-00000003"] * 2
    assert "cannot be read: Input/output error; step-00000004 is passed over" in capfd.readouterr().out


def test_every_file_is_checked_whatever_the_number_of_ranks(copied):
    for name in read_json(copied / "step-00000004" / "manifest.json")["files"]:
        again = Path(shutil.copytree(copied, copied.with_name(f"without {name}")))
        change(again / "step-00000004" / name)
        assert on_ranks(3, choose, again) == [again / "step-00000003"] * 3


def test_where_none_is_whole_the_person_is_told_and_nothing_is_touched(copied):
    for step in (3, 4):
        change(copied / f"step-0000000{step}" / "__0_0.distcp")

    def body() -> str:
        with pytest.raises(UserError) as error:
            checkpoint.choose(copied)
        return str(error.value)

    expected = (
        f"{copied}/step-00000004/__0_0.distcp: was changed since it was written; none of the checkpoints in {copied} "
        "is whole: restore one from a copy, or remove them all to begin anew"
    )
    assert on_ranks(2, body) == [expected, expected]
    assert names_in(copied) == ["step-00000003", "step-00000004"]


def test_a_damaged_checkpoint_is_left_where_it_is_by_those_who_only_read(copied, capfd):
    change(copied / "step-00000004" / "__0_0.distcp")

    assert checkpoint.choose(copied, set_aside=False) == copied / "step-00000003"

    assert "step-00000004 is passed over" in capfd.readouterr().out
    assert names_in(copied) == ["step-00000003", "step-00000004"]


def test_what_was_set_aside_is_removed_once_there_is_a_later_checkpoint(copied):
    change(copied / "step-00000004" / "__0_0.distcp")

    def body() -> None:
        checkpoint.choose(copied)
        save_steps(copied, 5)

    on_ranks(1, body)

    assert names_in(copied) == ["step-00000003", "step-00000005"]


def killed_in_mid_load(task: Task) -> None:
    read = FileSystemReader.read_data

    def kill(self: FileSystemReader, *arguments: Any) -> Any:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, *arguments)

    with mock.patch.object(FileSystemReader, "read_data", kill):
        load_shared_out(task)


def test_a_rank_that_is_killed_in_mid_load_leaves_the_checkpoint_whole(store, tmp_path):
    task = Task(store=store, checkpoint_dir=tmp_path, layout=SHARDED)
    saved, _ = on_ranks(2, save_shared_out, task)

    # Whichever is seen first: the death, or the other rank's broken connection.
    with pytest.raises(RanksFailed, match=r"rank 1: died without a word|rank 0: (.|\n)*by peer"):
        on_ranks(2, killed_in_mid_load, task)

    assert damage_of(tmp_path / "step-00000007") is None
    for loaded in on_ranks(2, load_shared_out, task):
        assert_equal(loaded, saved)


# What is no checkpoint of ours, though its digests fit


class Trap:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def with_fitting_digests(path: Path) -> Path:
    manifest = read_json(path / "manifest.json")
    files = {name: file_digest(path / name) for name in manifest["files"]}
    write_json(path / "manifest.json", manifest | {"files": files, "digest": digest_of(files)})
    assert damage_of(path) is None
    return path


def test_metadata_that_name_more_than_a_checkpoint_does_are_not_unpickled(copied, tmp_path):
    path = copied / "step-00000004"
    (path / ".metadata").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with_fitting_digests(path)

    for read in (lambda: checkpoint.load(path, *trained_once(seed=1)), lambda: checkpoint.read_weights(path)):
        with pytest.raises(UserError, match=r"the checkpoint names pathlib\.Path\.touch|names builtins\.getattr"):
            read()
    assert not (tmp_path / "sprung").exists()


def test_values_that_are_no_plain_values_are_not_unpickled(tmp_path):
    def body() -> None:
        model, optimizer = trained_once(seed=1)
        optimizer.param_groups[0]["lr"] = Trap(tmp_path / "sprung")
        # Copying the state would spring the trap.
        with mock.patch.object(DefaultStager, "stage", lambda self, state: state), Saver(tmp_path, keep=3) as saver:
            saver.save(model, optimizer, progress_at(1))
        with pytest.raises(UserError, match=r"the checkpoint holds no plain value as optimizer\..*lr"):
            checkpoint.load(tmp_path / "step-00000001", *trained_once(seed=1))

    on_ranks(1, body)

    assert not (tmp_path / "sprung").exists()
