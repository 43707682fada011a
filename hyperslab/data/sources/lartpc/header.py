"""What every lartpc format says of a file, and offers to read it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from hyperslab.data.config import DataSettings
from hyperslab.data.frames import Ints
from hyperslab.data.sources import Block
from hyperslab.data.sources.index import Axis, Channel, Index, RawFile

FrameLabels = dict[str, tuple[str | int | float, ...]]

LARPIX_CLOCK_US = 0.1
"""Tick of the 10 MHz clock of LArPix chips."""

UNKNOWN = "unknown"
"""Unit of a quantity whose file states none and whose writer is not known to use one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the index columns of one file say; its data is not read."""

    path: str
    format: str
    """Name of the format, as in `RawFile.details`."""
    kind: str
    """The format in words."""
    num_frames: int
    space: tuple[Axis, ...]
    channels: tuple[Channel, ...]
    labels: tuple[Channel, ...] = ()
    points: Ints | None = None
    """Points of each frame; None for images."""
    frame_labels: FrameLabels = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    """What `read` needs of this file; content that JSON holds."""
    attributes: dict[str, Any] = field(default_factory=dict)
    oddities: tuple[str, ...] = ()
    block_frames: int = 1


class Format(Protocol):
    """One format of files: how its header and its frames are read."""

    @property
    def name(self) -> str:
        """Name of the format, kept in `RawFile.details`."""
        ...

    def read_header(self, path: str, settings: DataSettings, /) -> Header:
        """Frames, channels and space of a file, from its index columns."""
        ...

    def read(self, file: RawFile, index: Index, first: int, last: int, /) -> Block:
        """Frames `[first, last)` of those in the file."""
        ...

    def odd_values(self, header: Header) -> Iterator[str]:
        """One line for each kind of odd value in the data, which are all read for it."""
        ...


def first_frame(file: RawFile) -> int:
    """Number, in the index, of a file's first frame."""
    return file.runs[0][1]


def points_of(file: RawFile, index: Index, first: int, last: int) -> tuple[int, ...]:
    """Points of the frames `[first, last)` of those in the file."""
    start = first_frame(file)
    return (index.points or ())[start + first : start + last]
