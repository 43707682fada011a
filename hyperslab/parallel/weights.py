"""A model's weights in one safetensors file: exported from a checkpoint, and what another campaign begins from."""

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from hyperslab.data.files import sync
from hyperslab.errors import UserError, disk_error
from hyperslab.parallel import catalog, checkpoint

MOST_NAMED = 3
"""Tensors that a message names, of those that do not fit."""
Kind = tuple[tuple[int, ...], torch.dtype]
"""Shape and type of a tensor."""


def export(path: Path, file: Path, campaign: str) -> dict[str, torch.Tensor]:
    """Write the weights of a checkpoint, and return them by name.

    The file's metadata say where they come from: `step`, `store_digest`, `order_digest`, and the `campaign`'s name.

    Parameters
    ----------
    path
        A checkpoint that was found whole.

    Raises
    ------
    UserError
        When the file is there already, the disk is full, or the place cannot be written.
    """
    if file.exists():
        raise UserError(f"{file}: already exists; choose another name")
    tensors = checkpoint.read_weights(path)
    progress = catalog.read_progress(path)
    about = {
        "step": progress.step,
        "store_digest": progress.store_digest,
        "order_digest": progress.order_digest,
        "campaign": campaign,
    }
    try:
        with tempfile.TemporaryDirectory(prefix=f".{file.name[:100]}-", dir=file.parent) as aside:
            draft, plain = Path(aside) / "draft", Path(aside) / "plain"
            save_file(tensors, draft, {name: str(value) for name, value in about.items()})
            # The library makes files that none but their owner may read.
            plain.touch()
            shutil.copymode(plain, draft)
            sync(draft)
            draft.rename(file)
        sync(file.parent)
    except SafetensorError as error:
        raise _disk_error(error, file) or error from None
    except OSError as error:
        refusal = UserError(f"{file}: cannot be written: {error.strerror}; choose another place")
        raise disk_error(error, file) or refusal from None
    return tensors


def _disk_error(error: SafetensorError, file: Path) -> UserError | None:
    """The library's errors hold the system's number in their words alone."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    return disk_error(OSError(int(number[1]), str(error)), file) if number else None


def initialise(model: nn.Module, file: Path) -> None:
    """Give a model the weights of a file, which must hold all that it has and no others.

    Raises
    ------
    UserError
        When the file cannot be read, or holds other names, shapes or types than the model.
    """
    state = model.state_dict()
    wanted = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
    differences = list(_differences(read_kinds(file), wanted))
    if differences:
        raise UserError(
            f"train.init_from: {file}: does not fit the model: {'; '.join(differences)}; give the settings of `model` "
            "and the archives that its weights were trained with"
        )
    with safe_open(file, framework="pt") as held, torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(held.get_tensor(name))


def read_kinds(file: Path) -> dict[str, Kind]:
    """Shape and type of each tensor of a file by name, from its header.

    Raises
    ------
    UserError
        When there is no such file, or it is no safetensors file.
    """
    try:
        with safe_open(file, framework="pt") as held:
            slices = {name: held.get_slice(name) for name in held.keys()}  # noqa: SIM118
            return {
                name: (tuple(part.get_shape()), (part[:0] if part.get_shape() else held.get_tensor(name)).dtype)
                for name, part in slices.items()
            }
    except FileNotFoundError:
        raise UserError(f"train.init_from: {file}: no such file; check the path") from None
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"train.init_from: {file}: is no whole safetensors file ({error}); give one that `hyperslab export` wrote"
        ) from None


def _differences(found: Mapping[str, Kind], wanted: Mapping[str, Kind]) -> Iterator[str]:
    """What does not fit, in words, a few of each sort by name."""
    missing, unexpected = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    other = [
        f"{name} ({_words(found[name])}, the model's is {_words(wanted[name])})"
        for name in wanted
        if name in found and found[name] != wanted[name]
    ]
    for title, names in (("missing", missing), ("unexpected", unexpected), ("of another kind", other)):
        if names:
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            yield f"{title}: {', '.join(names[:MOST_NAMED])}{more}"


def _words(kind: Kind) -> str:
    shape, dtype = kind
    return f"{' x '.join(map(str, shape)) or 'one number'} {str(dtype).removeprefix('torch.')}"
