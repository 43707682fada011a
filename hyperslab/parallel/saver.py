"""Checkpoints written beside training, complete or absent: written aside, then renamed into place."""

import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from hyperslab.data.files import digest_of, file_digest, sync, write_json
from hyperslab.errors import disk_error
from hyperslab.parallel import catalog
from hyperslab.parallel.checkpoint import BY_NAME

WRITE_TIMEOUT = timedelta(minutes=30)
"""How long ranks wait for the one that writes longest."""

T = TypeVar("T")


class Saver:
    """Writes checkpoints in a thread of its own while training goes on, one at a time.

    Every rank makes one, and calls its methods at the same steps as the others. As a context it ends once nothing is
    being written any more.

    Parameters
    ----------
    directory
        Where the checkpoints of the run lie.
    keep
        Latest checkpoints that stay on disk.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory, self._keep = directory, keep
        # Threads come to their collectives in an order that differs from rank to rank: those of a save must not meet
        # those of training.
        self._group = dist.new_group(backend="gloo", timeout=WRITE_TIMEOUT)
        # It keeps its copy for the next save, which spares the clearing of fresh memory.
        self._stager = DefaultStager(StagingOptions(False, False, False, False))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: catalog.Progress) -> None:
        """Copy the state to memory and have it written; the save before this one is waited for.

        Raises
        ------
        UserError
            When the disk was full, or could not be written, in the save before.
        """
        self.wait()
        model_state, optimizer_state = get_state_dict(model, optimizer, options=BY_NAME)
        state = self._stager.stage({"model": model_state, "optimizer": optimizer_state})
        self._writing = self._thread.submit(self._write, state, progress)

    def wait(self) -> None:
        """Return once nothing is being written any more.

        Raises
        ------
        UserError
            When the disk is full or cannot be written.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RuntimeError):
            # As collectives raise when a rank is lost. A write would wait for it too; what is half done does not count.
            self._thread.shutdown(wait=False)
            return
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"The checkpoint that was being written is lost as well: {failure}")
        finally:
            self._thread.shutdown()
            self._stager.close()

    def _write(self, state: Any, progress: catalog.Progress) -> None:
        final = catalog.place_of(self._directory, progress.step)
        draft = catalog.aside(final, "draft")
        leader = dist.get_rank(self._group) == 0
        try:
            self._together(lambda: _make_directory(draft) if leader else None)
            dcp_save(state, checkpoint_id=draft, process_group=self._group)
            parts = self._together(lambda: _digests(draft, dist.get_rank(self._group)))
            digests = {name: digest for part in parts for name, digest in part.items()}
            self._together(lambda: self._complete(draft, final, progress, digests) if leader else None)
        except CheckpointException as error:
            cause = next(iter(error.failures.values()))[0]
            raise (isinstance(cause, OSError) and disk_error(cause, self._directory)) or error from None
        except OSError as error:
            raise disk_error(error, self._directory) or error from None

    def _together(self, work: Callable[[], T]) -> list[T]:
        """What `work` gives on each rank; a failure of one rank's disk is raised on all of them."""
        outcome: T | OSError
        try:
            outcome = work()
        except OSError as error:
            outcome = error
        outcomes: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(outcomes, outcome, group=self._group)
        for found in outcomes:
            if isinstance(found, OSError):
                raise found
        return outcomes

    def _complete(self, draft: Path, final: Path, progress: catalog.Progress, digests: dict[str, str]) -> None:
        digests = dict(sorted(digests.items()))
        content = {**asdict(progress), "files": digests, "digest": digest_of(digests)}
        write_json(draft / catalog.MANIFEST, content)
        if final.exists():
            _remove(final)
        draft.rename(final)
        sync(final.parent)
        for old in catalog.entries(self._directory)[: -self._keep]:
            _remove(old)
        # Drafts that killed saves left, and what was found damaged: now there is a later one that is whole.
        for left in self._directory.glob(f".{catalog.PREFIX}*"):
            shutil.rmtree(left)


def _make_directory(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)


def _digests(draft: Path, rank: int) -> dict[str, str]:
    """Digests of the files that a rank wrote, by name, once they are on the disk."""
    files = [*draft.glob(f"__{rank}_*"), *([draft / ".metadata"] if rank == 0 else [])]
    for file in files:
        sync(file)
    return {file.name: file_digest(file) for file in files}


def _remove(path: Path) -> None:
    # Without its manifest it does not count, should a kill leave a part of it.
    (path / catalog.MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path)
