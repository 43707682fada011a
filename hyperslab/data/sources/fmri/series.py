"""What one file says about its run, whatever its format."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hyperslab.data.sources.index import Axis
from hyperslab.errors import UserError

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """The time between two frames as a header states it."""

    seconds: float | None
    """None where the header does not state it, or not in a way that can be taken."""
    reason: str = ""
    """Why it cannot be taken."""
    oddity: str = ""
    """What a person should know where it is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What the header of one file says."""

    path: Path
    kind: str
    """Format and type of the values, in words."""
    frames: int
    space: tuple[Axis, ...]
    repetition: Repetition
    companions: tuple[Path, ...] = ()
    """Other files that hold the data."""
    affine: tuple[tuple[float, ...], ...] | None = None
    """Voxel indices to millimetres, of a volume."""
    has_orientation: bool = True
    """Whether the affine is stated by the file, not made up from the sizes of its voxels."""
    zooms: tuple[float, ...] = ()
    """Size of a voxel in millimetres."""
    layout: str = ""
    """Digest of what the places are, such as the vertices of a surface, where names do not say it."""
    dead: tuple[str, ...] = ()
    """Places whose values never change, or are missing; known for tables alone."""
    details: dict[str, Any] = field(default_factory=dict)
    """What is needed to read the file again, and what else is known of it; content that JSON holds."""
    oddities: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis of space."""
        return tuple(len(axis.values) for axis in self.space)

    @property
    def is_volume(self) -> bool:
        """Whether a frame is an image of voxels."""
        return len(self.space) == 3


class Reader(Protocol):
    """An open file."""

    def frames(self, start: int, stop: int) -> Floats:
        """Frames `[start, stop)`, shape (frame, *space), NaN where missing.

        Raises
        ------
        UserError
            When the data cannot be read, or the file's checksum is wrong.
        """
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


def places(name: str, size: int, names: tuple[str, ...] = (), long_name: str = "") -> Axis:
    """An axis of numbered places."""
    return Axis(name=name, units="1", values=tuple(map(float, range(size))), names=names, long_name=long_name)


def check_frames(path: Path, frames: int) -> None:
    """Refuse a file that holds fewer than two frames.

    Raises
    ------
    UserError
        When it does.
    """
    if frames < 2:
        raise UserError(f"{path}: holds {frames} frame(s), a series needs two or more; leave it out of data.files")


def to_float32(values: npt.NDArray[Any]) -> Floats:
    """Values as float32; one that is too large becomes infinite, which `Run` refuses outside the mask."""
    # Infinities and signalling NaN, which damaged data hold, would print a warning.
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32)
