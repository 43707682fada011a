"""Checkpoints that are complete or absent: written aside, then renamed into place."""

import shutil
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from hyperslab.data.files import digest_of, file_digest, sync, write_json
from hyperslab.errors import UserError, disk_error
from hyperslab.parallel.catalog import MANIFEST, PREFIX, Progress, finished, read_manifest


def save(directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, keep: int) -> None:
    """Write a checkpoint from all ranks, and drop all but the latest `keep`.

    Raises
    ------
    UserError
        When the disk is full or cannot be written.
    """
    final = directory / f"{PREFIX}{progress.step:08d}"
    draft = directory / f".{final.name}.draft"
    leader = dist.get_rank() == 0
    if leader:
        shutil.rmtree(draft, ignore_errors=True)
        _make_directory(draft)
    dist.barrier()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            dcp_save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=draft)
        if leader:
            _complete(draft, final, progress)
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        raise (isinstance(cause, OSError) and disk_error(cause, directory)) or error from None
    except OSError as error:
        raise disk_error(error, directory) or error from None
    if leader:
        for old in list(finished(directory))[:-keep]:
            shutil.rmtree(old)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise disk_error(error, path) or error from None


def _complete(draft: Path, final: Path, progress: Progress) -> None:
    files = sorted(file for file in draft.rglob("*") if file.is_file())
    for file in files:
        sync(file)
    digests = {file.relative_to(draft).as_posix(): file_digest(file) for file in files}
    digest = digest_of(digests)
    write_json(draft / MANIFEST, {**asdict(progress), "files": digests, "digest": digest})
    if final.exists():
        shutil.rmtree(final)
    draft.rename(final)
    sync(final.parent)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Fill a model, and an optimizer where given, from a checkpoint, whatever layout wrote it.

    Raises
    ------
    UserError
        When a file of the checkpoint is missing or changed.
    """
    manifest = read_manifest(path)
    for name, digest in manifest["files"].items():
        file = path / name
        if not file.is_file() or file_digest(file) != digest:
            raise UserError(
                f"{file}: missing or changed since it was written; remove {path} to go on from the one before"
            )
    optimizers = [] if optimizer is None else [optimizer]
    model_state, optimizer_state = get_state_dict(model, optimizers)
    state: dict[str, Any] = {"model": model_state}
    if optimizer is not None:
        state["optimizer"] = optimizer_state
    with warnings.catch_warnings():
        # Loading without a process group is meant where one process evaluates.
        warnings.simplefilter("ignore")
        dcp_load(state, checkpoint_id=path)
    set_state_dict(model, optimizers, model_state_dict=state["model"], optim_state_dict=state.get("optimizer", {}))
