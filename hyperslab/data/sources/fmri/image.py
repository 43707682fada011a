"""An image of voxels, whatever its format."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from hyperslab.data.sources.fmri.content import find_file
from hyperslab.data.sources.fmri.series import Repetition
from hyperslab.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image of voxels whose data are read when asked for."""

    data: Any
    """nibabel's proxy of the array, of shape `shape`."""
    shape: tuple[int, ...]
    kind: str
    affine: np.ndarray
    zooms: tuple[float, ...]
    data_path: Path
    file: IO[bytes] | None
    """The open file that `data` reads; None where the proxy opens it itself."""
    repetition: Repetition
    oddities: tuple[str, ...]
    has_orientation: bool = True
    """Whether the affine is stated by the file, not made up from the sizes of its voxels."""
    no_series: str = ""
    """Why it is no series, where its header says so."""

    def close(self) -> None:
        """Let go of the file."""
        if self.file is not None:
            self.file.close()


def header_path(path: Path) -> Path:
    """The file that describes the data in `path`: its `.HEAD` or `.PAR` where `path` is the data alone."""
    name = path.name
    stem = re.sub(r"\.(brik(\.gz|\.bz2)?|rec)$", "", name, flags=re.IGNORECASE)
    if stem == name:
        return path
    wanted = "HEAD" if "brik" in name.lower()[len(stem) :] else "PAR"
    for suffix in (wanted, wanted.lower()):
        if (header := path.with_name(f"{stem}.{suffix}")).is_file():
            return header
    raise UserError(f"{path}: its header {stem}.{wanted} is not beside it; put it there")


def find_data(header: Path, suffixes: tuple[str, ...]) -> Path:
    """The one file of data beside a header.

    Raises
    ------
    UserError
        When there is none, or several.
    """
    stem = header.name[: -len(header.suffix)]
    found = [header.with_name(stem + suffix) for suffix in suffixes if header.with_name(stem + suffix).is_file()]
    if len(found) != 1:
        what = " and ".join(file.name for file in found) or "none"
        raise UserError(f"{header}: needs one file of data beside it ({stem}{suffixes[0]}), found {what}")
    return find_file(str(found[0]))


def check_values(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], affine: np.ndarray) -> None:
    """Refuse values that are no real numbers, and what only a damaged header says.

    Raises
    ------
    UserError
        When one of them is so.
    """
    if dtype.kind not in "iuf":
        raise UserError(f"{path}: its values are of type {dtype}, not real numbers; give the magnitude images")
    if not shape or min(shape) < 1:
        raise UserError(f"{path}: its header says the shape {shape}, which is damaged; get the file again")
    if not np.isfinite(affine).all():
        raise UserError(f"{path}: its orientation holds missing values; mend the sform and qform of its header")


def name_oddities(path: Path, zooms: tuple[float, ...]) -> list[str]:
    """What the name of a file says about the size of its voxels and its header does not."""
    named = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)mm", path.name)
    if named is None or any(abs(float(named[1]) - zoom) < 0.05 for zoom in zooms):
        return []
    return [f"its name says {named[1]} mm, its voxels are {' x '.join(f'{zoom:g}' for zoom in zooms)} mm"]
