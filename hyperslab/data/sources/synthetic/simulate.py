"""Synthetic archives of every kind: what can be written, and the checks before it is."""

import errno
import importlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from hyperslab.data.sources.synthetic.archive import Order
from hyperslab.errors import UserError, disk_error

FORMS = {
    "era5": {
        "cds": "netCDF-4 in float32, as the Climate Data Store has written since 2024",
        "classic": "netCDF-3 in int16, as the store wrote until 2024",
        "packed": "netCDF-4 in int16, as the store wrote until 2024",
    },
    "lartpc": {
        "flow": "hits with their truth, as ndlar_flow writes them",
        "segments": "truth alone, as larnd-sim takes it",
        "frames": "images of wire planes, as wire-cell writes them",
    },
    "fmri": {"nifti": "4-D images in a BIDS tree", "parcels": "tables of one column a region in a BIDS tree"},
}
"""Formats of each kind of archive, the usual one first."""


def simulate(kind: str, order: Order) -> list[Path]:
    """Write a synthetic archive; the paths of its raw files.

    Raises
    ------
    UserError
        When there is no such kind or format, the directory is not empty, or the disk is too small.
    """
    if kind not in FORMS:
        raise UserError(f"simulate: found {kind!r}; known are {', '.join(FORMS)}")
    if order.form not in FORMS[kind]:
        raise UserError(f"--format: found {order.form!r}; {kind} archives are written as {', '.join(FORMS[kind])}")
    _make_room(order)
    # The libraries of one kind are not wanted for another.
    write: Callable[[Order], list[Path]] = importlib.import_module(f"hyperslab.data.sources.synthetic.{kind}").write
    try:
        return write(order)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(order, order.size_bytes - _written_bytes(order.out)) from None
        raise disk_error(error, order.out) or error from None


def _make_room(order: Order) -> None:
    try:
        order.out.mkdir(parents=True, exist_ok=True)
        if any(order.out.iterdir()):
            raise UserError(f"{order.out}: is not empty; give a new directory")
        if not os.access(order.out, os.W_OK):
            raise UserError(f"{order.out}: cannot be written; choose a directory you may write to")
    except FileExistsError:
        raise UserError(f"{order.out}: is a file; give a new directory") from None
    except OSError as error:
        raise UserError(f"{order.out}: cannot be written: {error.strerror}; choose another directory") from None
    if shutil.disk_usage(order.out).free < order.size_bytes:
        raise _full(order, order.size_bytes)


def _full(order: Order, need_bytes: int) -> UserError:
    free = shutil.disk_usage(order.out).free
    return UserError(
        f"{order.out}: no space left on the disk ({need_bytes:,} bytes are needed, {free:,} are free); "
        "free some room, or ask for a smaller --size"
    )


def _written_bytes(out: Path) -> int:
    return sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
