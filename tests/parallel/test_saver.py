import contextlib
import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
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
from hyperslab.parallel import checkpoint, saver
from hyperslab.parallel.catalog import Progress, damage_of, latest, read_progress
from hyperslab.parallel.layout import Layout
from hyperslab.parallel.saver import Saver
from hyperslab.parallel.trainer import make_optimizer
from tests.parallel.ranks import RanksFailed, on_ranks
from tests.parallel.saving import (
    Tensors,
    assert_equal,
    names_in,
    progress_at,
    save_steps,
    state_of,
    train_on,
    trained_once,
)
from tests.parallel.training import Task, make_run


@contextlib.contextmanager
def streams(create: Callable[[str], str | os.PathLike[str]]) -> Iterator[None]:
    """Each file of a checkpoint is opened where a function of its path says."""
    original = FileSystem.create_stream

    @contextlib.contextmanager
    def changed(self: FileSystem, path: str | os.PathLike[str], mode: str) -> Iterator[IOBase]:
        with original(self, create(str(path)), mode) as stream:
            yield stream

    with mock.patch.object(FileSystem, "create_stream", changed):
        yield


# What is written


def test_the_manifest_holds_the_progress_and_the_digest_of_every_file(tmp_path):
    on_ranks(2, save_steps, tmp_path, 5)
    path = tmp_path / "step-00000005"

    assert read_progress(path) == Progress(step=5, store_digest="store 5", order_digest="order 5")
    files = read_json(path / "manifest.json")["files"]
    assert {"__0_0.distcp", ".metadata"} <= files.keys()
    assert files == {file.name: file_digest(file) for file in path.iterdir() if file.name != "manifest.json"}


def shared_out(task: Task) -> None:
    run = make_run(task)
    with Saver(task.checkpoint_dir, keep=1) as own:
        own.save(run.model, make_optimizer(run.model, run.train), progress_at(1))


def test_the_files_of_every_rank_are_in_the_manifest(store, tmp_path):
    on_ranks(2, shared_out, Task(store=store, checkpoint_dir=tmp_path, layout=Layout(replicate=1, shard=2)))

    files = read_json(tmp_path / "step-00000001" / "manifest.json")["files"]
    assert list(files) == [".metadata", "__0_0.distcp", "__1_0.distcp"]


def test_saving_a_step_again_replaces_it(tmp_path):
    def body() -> tuple[Tensors, Tensors]:
        save_steps(tmp_path, 4)
        model, optimizer = trained_once(seed=40)
        with Saver(tmp_path, keep=3) as own:
            own.save(model, optimizer, progress_at(4))
        other, its_optimizer = trained_once(seed=2)
        checkpoint.load(tmp_path / "step-00000004", other, its_optimizer)
        return state_of(model, optimizer), state_of(other, its_optimizer)

    ((saved, loaded),) = on_ranks(1, body)

    assert names_in(tmp_path) == ["step-00000004"]
    assert_equal(loaded, saved)


def test_the_latest_checkpoints_are_kept_and_older_ones_dropped(tmp_path):
    # Steps of several lengths: as text without their zeros, 9 would come after 10.
    on_ranks(1, lambda: save_steps(tmp_path, 8, 9, 10, 100, keep=2))

    assert names_in(tmp_path) == ["step-00000010", "step-00000100"]
    assert latest(tmp_path) == tmp_path / "step-00000100"


# Beside training


class Gate:
    """Files of a checkpoint wait here until it is opened; counts those that came."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.came = threading.Semaphore(0)

    def __call__(self, path: str) -> str:
        self.came.release()
        assert self.opened.wait(30), "the gate stayed shut"
        return path


def trained_on_while_saving(directory: Path) -> tuple[list[str], Tensors, Tensors, Tensors]:
    """Names on disk while the write is held up; states at the save, after more steps, and as loaded."""
    model, optimizer = trained_once(seed=1)
    gate = Gate()
    with streams(gate), Saver(directory, keep=3) as own:
        saved = state_of(model, optimizer)
        own.save(model, optimizer, progress_at(1))
        gate.came.acquire()
        for _ in range(3):
            train_on(model, optimizer)
            # Collectives of training go on beside those of the save.
            dist.all_reduce(torch.ones(4))
        there = names_in(directory)
        gate.opened.set()
    other, its_optimizer = trained_once(seed=2)
    checkpoint.load(directory / "step-00000001", other, its_optimizer)
    return there, saved, state_of(model, optimizer), state_of(other, its_optimizer)


def test_training_goes_on_while_the_state_of_the_step_is_written(tmp_path):
    for there, saved, gone_on, loaded in on_ranks(2, trained_on_while_saving, tmp_path):
        assert there == [".step-00000001.draft"]
        assert all(not torch.equal(gone_on[name], tensor) for name, tensor in saved.items())
        assert_equal(loaded, saved)


def test_a_second_save_that_reuses_the_memory_of_the_first_holds_its_own_state(tmp_path):
    def body() -> list[tuple[Tensors, Tensors]]:
        model, optimizer = trained_once(seed=1)
        saved = []
        with Saver(tmp_path, keep=3) as own:
            for step in (1, 2):
                saved.append(state_of(model, optimizer))
                own.save(model, optimizer, progress_at(step))
                train_on(model, optimizer)
        loaded = []
        for step in (1, 2):
            other, its_optimizer = trained_once(seed=2)
            checkpoint.load(tmp_path / f"step-0000000{step}", other, its_optimizer)
            loaded.append(state_of(other, its_optimizer))
        return list(zip(saved, loaded, strict=True))

    ((first, second),) = on_ranks(1, body)

    assert_equal(first[1], first[0])
    assert_equal(second[1], second[0])
    assert not torch.equal(first[0]["weight"], second[0]["weight"])


def test_a_save_waits_for_the_one_before(tmp_path):
    def body() -> tuple[bool, list[str], list[str]]:
        model, optimizer = trained_once(seed=1)
        gate = Gate()
        with streams(gate), Saver(tmp_path, keep=3) as own:
            own.save(model, optimizer, progress_at(1))
            second = threading.Thread(target=own.save, args=(model, optimizer, progress_at(2)))
            second.start()
            gate.came.acquire()
            second.join(0.3)
            waits, held = second.is_alive(), names_in(tmp_path)
            gate.opened.set()
            second.join()
            began = names_in(tmp_path)
        return waits, held, began

    ((waits, held, began),) = on_ranks(1, body)

    assert waits
    assert held == [".step-00000001.draft"]
    assert "step-00000001" in began
    assert names_in(tmp_path) == ["step-00000001", "step-00000002"]


def end_while_saving(directory: Path) -> None:
    with Saver(directory, keep=3) as own:
        own.save(*trained_once(seed=1), progress_at(1))
        raise LookupError("what happened")


def test_an_end_waits_for_what_is_being_written_whatever_ends_it(tmp_path):
    def body() -> None:
        with pytest.raises(LookupError, match="what happened"):
            end_while_saving(tmp_path)

    on_ranks(2, body)

    assert damage_of(tmp_path / "step-00000001") is None


# Kills


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


def test_a_draft_of_another_step_is_removed_by_the_next_save(tmp_path):
    def body() -> None:
        killed_before_rename(tmp_path)
        save_steps(tmp_path, 3)

    on_ranks(1, body)

    assert names_in(tmp_path) == ["step-00000001", "step-00000003"]


def test_a_killed_save_of_the_first_checkpoint_leaves_none(tmp_path):
    def body() -> None:
        with fault_at_rename(Killed()), pytest.raises(Killed):
            save_steps(tmp_path, 1)

    on_ranks(1, body)

    assert latest(tmp_path) is None


def killed_in_mid_save(task: Task, victim: int) -> None:
    """Two saves; while files of the second are written, one rank is killed."""
    run = make_run(task)
    optimizer = make_optimizer(run.model, run.train)

    def kill(path: str) -> str:
        if path.endswith(f"__{victim}_0.distcp"):
            os.kill(os.getpid(), signal.SIGKILL)
        return path

    with Saver(task.checkpoint_dir, keep=3) as own:
        own.save(run.model, optimizer, progress_at(1))
        own.wait()
        with streams(kill):
            own.save(run.model, optimizer, progress_at(2))
            own.wait()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_in_mid_save_leaves_nothing_that_counts(store, tmp_path, victim):
    task = Task(store=store, checkpoint_dir=tmp_path, layout=Layout(replicate=1, shard=2))

    # Whichever is seen first: the death, or the other rank's broken connection.
    with pytest.raises(RanksFailed, match=rf"rank {victim}: died without a word|rank {1 - victim}: (.|\n)*by peer"):
        on_ranks(2, killed_in_mid_save, task, victim)

    assert names_in(tmp_path) == [".step-00000002.draft", "step-00000001"]
    assert latest(tmp_path) == tmp_path / "step-00000001"
    assert damage_of(tmp_path / "step-00000001") is None


# A full disk


def full_disk(ending: str) -> AbstractContextManager[None]:
    """Files of the checkpoint that end so are written to a device that is always full."""
    return streams(lambda path: "/dev/full" if path.endswith(ending) else path)


def raising(number: int) -> Any:
    return mock.Mock(side_effect=OSError(number, os.strerror(number)))


def told_when_full(directory: Path, where: str) -> str:
    """What the person is told when the disk is full at one place of the save."""
    save_steps(directory, 1)
    faults: dict[str, AbstractContextManager[Any]] = {
        "directory": mock.patch.object(Path, "mkdir", raising(errno.ENOSPC)),
        "shard": full_disk(".distcp"),
        "metadata": full_disk(".metadata.tmp"),
        "manifest": mock.patch.object(saver, "write_json", raising(errno.ENOSPC)),
        "rename": fault_at_rename(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))),
    }
    with faults[where], pytest.raises(UserError) as error:
        save_steps(directory, 2)
    return str(error.value)


@pytest.mark.parametrize("where", ["directory", "shard", "metadata", "manifest", "rename"])
def test_a_full_disk_is_a_persons_mistake_and_leaves_the_checkpoint_before(tmp_path, where):
    (message,) = on_ranks(1, told_when_full, tmp_path, where)

    assert message == f"{tmp_path}: no space left on the disk; free some room, then go on with `hyperslab resume`"
    assert latest(tmp_path) == tmp_path / "step-00000001"


def full_on_one_rank(task: Task, rank: int, where: str) -> str:
    run = make_run(task)
    optimizer = make_optimizer(run.model, run.train)
    faults: dict[str, AbstractContextManager[Any]] = {
        "write": full_disk(".distcp"),
        "digests": mock.patch.object(saver, "file_digest", raising(errno.ENOSPC)),
        "manifest": mock.patch.object(saver, "write_json", raising(errno.ENOSPC)),
    }
    fault = faults[where] if dist.get_rank() == rank else contextlib.nullcontext()
    with fault, pytest.raises(UserError) as error, Saver(task.checkpoint_dir, keep=3) as own:
        own.save(run.model, optimizer, progress_at(1))
    return str(error.value)


@pytest.mark.parametrize(
    ("rank", "where"), [(0, "write"), (1, "write"), (0, "digests"), (1, "digests"), (0, "manifest")]
)
def test_a_disk_that_is_full_for_one_rank_is_told_on_both(store, tmp_path, rank, where):
    expected = f"{tmp_path}: no space left on the disk; free some room, then go on with `hyperslab resume`"
    task = Task(store=store, checkpoint_dir=tmp_path, layout=Layout(replicate=1, shard=2))

    assert on_ranks(2, full_on_one_rank, task, rank, where) == [expected, expected]
    assert latest(tmp_path) is None


def test_a_full_disk_is_told_by_the_next_save_which_writes_nothing(tmp_path):
    def body() -> None:
        with Saver(tmp_path, keep=3) as own, full_disk(".distcp"):
            own.save(*trained_once(seed=1), progress_at(1))
            with pytest.raises(UserError, match="no space left"):
                own.save(*trained_once(seed=2), progress_at(2))

    on_ranks(2, body)

    assert names_in(tmp_path) == [".step-00000001.draft"]


def test_the_error_that_ends_training_is_not_hidden_by_one_of_the_save(tmp_path):
    def body() -> list[str]:
        with full_disk(".distcp"), pytest.raises(LookupError, match="what happened") as error:
            end_while_saving(tmp_path)
        return error.value.__notes__

    ((note,),) = on_ranks(1, body)

    assert note.startswith("The checkpoint that was being written is lost as well: ")
    assert "no space left on the disk" in note


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
            mock.patch.object(saver, "write_json", raising(errno.EIO)),
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
