"""Checkpoints read again: the latest that is whole, into a model and an optimizer of any layout."""

import io
import pickle
import warnings
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from hyperslab.errors import UserError, disk_error
from hyperslab.parallel import catalog

MODEL = "model."
"""What the names of the model's weights begin with, beside the optimizer's."""
METADATA_NAMES = {("pathlib", "PosixPath"), ("torch", "Size"), ("torch.serialization", "_get_layout")}
"""What DCP's metadata may name, beside types of numbers and its own classes."""
METADATA_MODULES = {"torch.distributed.checkpoint.filesystem", "torch.distributed.checkpoint.metadata"}

BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)
"""The optimizer's state is kept by parameter: stages of a pipeline have groups of their own."""

T = TypeVar("T")


def choose(directory: Path, *, set_aside: bool = True) -> Path | None:
    """The latest checkpoint that is whole, the same on all ranks, or None where there is none at all.

    Every file is compared with its digest. A damaged checkpoint is passed over, and a line says so.

    Parameters
    ----------
    set_aside
        Whether damaged ones are renamed, so that they do not count any more; the next save removes them.

    Raises
    ------
    UserError
        When there are checkpoints, but none that is whole.
    """
    damages: dict[Path, str] = {}
    # What the first rank sees: the others' view of a shared file system may lag behind.
    for path in reversed(_of_all(catalog.entries(directory))[0]):
        found = [damage for damage in _of_all(catalog.damage_of(path, *_place())) if damage]
        if not found:
            _pass_over(damages, path, set_aside=set_aside)
            return path
        damages[path] = found[0]
    if damages:
        raise UserError(
            f"{next(iter(damages.values()))}; none of the checkpoints in {directory} is whole: "
            "restore one from a copy, or remove them all to begin anew"
        )
    return None


def _pass_over(damages: dict[Path, str], chosen: Path, *, set_aside: bool) -> None:
    if _place()[0] != 0:
        return
    for path, damage in damages.items():
        print(f"{damage}; {path.name} is passed over, and {chosen.name} is taken", flush=True)
        if set_aside:
            try:
                path.rename(catalog.aside(path, "damaged"))
            except OSError as error:
                raise disk_error(error, path) or error from None


def _place() -> tuple[int, int]:
    """Number of this rank, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def _of_all(value: T) -> list[T]:
    """The value of every rank."""
    values = [value] * _place()[1]
    if dist.is_initialized():
        dist.all_gather_object(values, value)
    return values


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Fill a model, and an optimizer where given, from a checkpoint, whatever layout wrote it.

    Parameters
    ----------
    path
        A checkpoint that was found whole: nothing is compared with its digest here.
    """
    optimizers = [] if optimizer is None else [optimizer]
    model_state, optimizer_state = get_state_dict(model, optimizers, options=BY_NAME)
    state: dict[str, Any] = {"model": model_state}
    if optimizer is not None:
        state["optimizer"] = optimizer_state
    _fill(path, state)
    set_state_dict(
        model,
        optimizers,
        model_state_dict=state["model"],
        optim_state_dict=state.get("optimizer", {}),
        options=BY_NAME,
    )


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint's model by name, whole, whatever layout wrote them."""
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in _metadata(path).state_dict_metadata.items()
        if name.startswith(MODEL) and isinstance(entry, TensorStorageMetadata)
    }
    _fill(path, state)
    return {name.removeprefix(MODEL): tensor for name, tensor in state.items()}


def _fill(path: Path, state: dict[str, Any]) -> None:
    _metadata(path)  # before DCP unpickles them, whatever they name
    try:
        with warnings.catch_warnings():
            # Loading without a process group is meant where one process evaluates.
            warnings.simplefilter("ignore")
            dcp_load(state, storage_reader=FileSystemReader(path), planner=_Planner())
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        raise (cause if isinstance(cause, UserError) else error) from None


def _metadata(path: Path) -> Metadata:
    """What a checkpoint holds; its pickle may name nothing but what describes one."""
    with (path / ".metadata").open("rb") as file:
        metadata = _Unpickler(file).load()
    assert isinstance(metadata, Metadata)
    return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = (module, name) in METADATA_NAMES or module in METADATA_MODULES
        if known or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise _refusal(f"names {module}.{name}")


class _Planner(DefaultLoadPlanner):
    """DCP's planner, which by itself unpickles what is no tensor, for plain values alone."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        try:
            torch.load(value, weights_only=True)
        except pickle.UnpicklingError:
            raise _refusal(f"holds no plain value as {read_item.dest_index.fqn}") from None
        value.seek(0)
        super().load_bytes(read_item, value)


def _refusal(what: str) -> UserError:
    return UserError(f"the checkpoint {what}, as none of Hyperslab's does: take it from where it was written")
