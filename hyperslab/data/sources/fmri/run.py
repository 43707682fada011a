"""One run as it goes to the store: masked, averaged over parcels, cleaned, cropped and padded."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperslab.data.sources.fmri.confounds import Cleaning, read_confounds, removed_basis
from hyperslab.data.sources.fmri.formats import open_reader
from hyperslab.data.sources.fmri.grid import Parcels, Placement, lay_atlas, mask_of, read_field
from hyperslab.data.sources.fmri.series import Floats
from hyperslab.data.sources.index import Index, RawFile
from hyperslab.errors import UserError

Inside = npt.NDArray[np.bool_]

PIECE_BYTES = 32 << 20
"""Volumes in float32 that are worked on at a time."""


def stamp(path: Path) -> dict[str, Any]:
    """What tells whether a file has changed."""
    state = path.stat()
    return {"path": str(path), "size_bytes": state.st_size, "modified_ns": state.st_mtime_ns}


def check_stamp(stamped: dict[str, Any]) -> Path:
    """The path of a file that has not changed since it was stamped.

    Raises
    ------
    UserError
        When it has, or is gone.
    """
    path = Path(stamped["path"])
    try:
        now = stamp(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read any more ({error.strerror}); put it back") from None
    if now != stamped:
        raise UserError(f"{path}: has changed since it was indexed; start a new campaign for the new data")
    return path


def check_unchanged(file: RawFile, index: Index) -> None:
    """Refuse a run of which a file has changed since the scan.

    Raises
    ------
    UserError
        When one has.
    """
    check_stamp({"path": file.path, "size_bytes": file.size_bytes, "modified_ns": file.modified_ns})
    shared = [index.attributes[key] for key in ("mask", "atlas") if isinstance(index.attributes.get(key), dict)]
    for stamped in (*file.details["beside"], *shared):
        check_stamp({key: stamped[key] for key in ("path", "size_bytes", "modified_ns")})


def inside_of(file: RawFile, index: Index) -> Inside | None:
    """Where the mask of a run is not 0; None where it has none.

    Raises
    ------
    UserError
        When the mask cannot be read.
    """
    path = file.details.get("mask") or (index.attributes.get("mask") or {}).get("path")
    return None if path is None else mask_of(read_field(path, "mask"))


class Run:
    """An open run."""

    def __init__(self, file: RawFile, index: Index) -> None:
        details, attributes = file.details, index.attributes
        self._path = Path(file.path)
        self._frames = sum(count for _, _, count in file.runs)
        shape = tuple(details.get("shape", index.space_shape))
        self._step = max(1, PIECE_BYTES // (4 * int(np.prod(shape))))
        self._inside = inside_of(file, index)
        self._parcels = _parcels(file, index, self._inside)
        self._placement = Placement(shape, tuple(attributes["shape"])) if "shape" in attributes else None
        self._cleaning: Cleaning | None = None
        if "cleaning" in attributes:
            basis = self._basis(attributes["cleaning"], details)
            cleaned = index.space_shape if self._parcels is not None else shape
            self._cleaning = Cleaning(basis, self._masked, cleaned, self._path)
        self._reader = open_reader(self._path, details)

    def _basis(self, cleaning: dict[str, Any], details: dict[str, Any]) -> npt.NDArray[np.float64]:
        confounds = None
        if cleaning["confounds"]:
            confounds, _ = read_confounds(Path(details["confounds"]), cleaning["confounds"], self._frames)
        return removed_basis(confounds, cleaning["detrend"] == "linear", self._frames, self._path)

    def fill(self, block: Floats, start: int) -> None:
        """Put the frames from `start` on into `block`, shape (frame, *space), NaN where missing.

        Raises
        ------
        UserError
            When the data cannot be read, or hold infinite values.
        """
        # A volume takes its room several times on its way: a few at a time do.
        for first in range(0, len(block), self._step):
            last = min(len(block), first + self._step)
            read = self._cleaning.frames if self._cleaning else self._masked
            values = read(start + first, start + last)
            block[first:last] = self._placement.volumes(values) if self._placement else values

    def _masked(self, start: int, stop: int) -> Floats:
        values = self._reader.frames(start, stop)
        if self._inside is not None and self._parcels is None:
            values[:, ~self._inside] = np.nan
        if self._parcels is not None:
            values = self._parcels.means(values)
        if np.isinf(values).any():
            frame = start + int(np.nonzero(np.isinf(values))[0][0])
            raise UserError(
                f"{self._path}: holds infinite values, or some that float32 cannot hold, in frame {frame}; "
                "mend the file, or give a mask that leaves them out"
            )
        return values

    def close(self) -> None:
        """Let go of the file."""
        self._reader.close()


def _parcels(file: RawFile, index: Index, inside: Inside | None) -> Parcels | None:
    if "atlas" not in index.attributes:
        return None
    atlas = read_field(index.attributes["atlas"]["path"], "atlas")
    details = file.details
    laid = lay_atlas(atlas, tuple(details["shape"]), np.asarray(details["affine"]), details["has_orientation"])
    return Parcels(laid, index.attributes["atlas"]["labels"], inside)
