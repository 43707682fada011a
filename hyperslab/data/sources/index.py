"""What a scan finds out about raw files; kept in the store as the recipe that staging follows."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from hyperslab.data.clock import Clock
from hyperslab.data.frames import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One field of a frame (a variable, or a variable on one level), one feature of a point, or one truth label."""

    name: str
    units: str
    long_name: str
    variable: str = ""
    """Name of the variable in the raw files, where it differs from the channel's."""
    level: float | None = None
    """Level of the variable: hPa of pressure, else the raw files' own unit."""
    details: dict[str, Any] = field(default_factory=dict)
    """What else its source needs to read it; content that JSON holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of space."""

    name: str
    """Name of the dimension, such as `latitude`, `x`, `parcel`, `wire` or `tick`."""
    units: str
    values: tuple[float, ...] = ()
    """Coordinate of each place along a dense axis; empty for an axis of positions of points."""
    names: tuple[str, ...] = ()
    """A name for each place, such as those of parcels; empty where places have none."""
    long_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFile:
    """A raw file and the frames that it holds."""

    path: str
    """An absolute path, or a URL."""
    size_bytes: int
    modified_ns: int
    channels: tuple[str, ...] = ()
    """Names of the channels that are taken from it; all of them where empty."""
    runs: tuple[tuple[int, int, int], ...] = ()
    """Unbroken stretches: (first position in the file, first frame, number of frames)."""
    details: dict[str, Any] = field(default_factory=dict)
    """What else its source needs to read it; content that JSON holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """All frames of an archive and where each of their pieces lies.

    Frames stand in the order of the store: segment after segment, and inside a segment in the order of time.
    A dense frame is an array of shape (channel, *space). A ragged frame is a set of points, each with a position
    (one value for each axis of `space`), a value for each of `channels`, and a value for each of `labels`.
    """

    source: str
    clock: Clock
    time: tuple[int, ...]
    """Time of each frame, in the clock's unit; ascending inside a segment."""
    segment: tuple[int, ...]
    """Segment of each frame, from 0, never descending: an unbroken run in time, a scan, an event."""
    channels: tuple[Channel, ...]
    space: tuple[Axis, ...]
    """Axes of a dense frame, or of the positions of points."""
    files: tuple[RawFile, ...]
    oddities: tuple[str, ...] = ()
    """One line for each thing a person should know."""
    points: tuple[int, ...] | None = None
    """Points of each frame of a ragged archive; None for a dense one."""
    labels: tuple[Channel, ...] = ()
    """Truth of each point (ragged) or of each place of a frame (dense); kept beside, never an input."""
    statics: tuple[Channel, ...] = ()
    """Fields without time, of the shape of space: land-sea mask, orography, brain mask."""
    frame_labels: dict[str, tuple[str | int | float, ...]] = field(default_factory=dict)
    """Facts about each frame, such as ERA5's `expver` or the neutrino of an event; kept beside, never an input."""
    segment_labels: dict[str, tuple[str | int | float, ...]] = field(default_factory=dict)
    """Facts about each segment, such as `subject`, `session`, `task`, `run`, `member`."""
    split_by: Literal["time", "segment", "subject"] = "time"
    """What is held out whole: a stretch of time, single segments (events), or all segments of a subject (then
    `segment_labels` has `subject`)."""
    block_frames: int = 1
    """Frames best read together, such as the length of the raw files' chunks in time."""
    robust: bool = False
    """Whether the store also keeps each channel's median and interquartile range."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """What else reproduces the store: regridding, masks and their digests, repetition time, and so on."""

    @property
    def is_ragged(self) -> bool:
        """Whether frames are sets of points."""
        return self.points is not None

    @property
    def space_shape(self) -> tuple[int, ...]:
        """Size of each axis of a dense frame."""
        return tuple(len(axis.values) for axis in self.space)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all dense frames: (frame, channel, *space)."""
        return (len(self.time), len(self.channels), *self.space_shape)

    @property
    def total_points(self) -> int:
        """Points of all frames."""
        return sum(self.points or ())

    @property
    def frame_bytes(self) -> int:
        """Bytes of one dense frame in float32, or of one point."""
        if self.is_ragged:
            return 4 * (len(self.space) + len(self.channels) + len(self.labels))
        return int(np.prod(self.shape[1:])) * 4

    @property
    def times(self) -> Ints:
        """The time axis as an array."""
        return np.asarray(self.time, np.int64)

    @property
    def segments(self) -> Ints:
        """The segment of each frame as an array."""
        return np.asarray(self.segment, np.int64)

    def axis(self, name: str) -> Axis | None:
        """The axis of that name, or None."""
        return next((axis for axis in self.space if axis.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """A form that JSON holds."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Index":
        """The inverse of `to_json`."""
        return _ADAPTER.validate_python(content)


_ADAPTER = TypeAdapter(Index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One raw file in words, for `hyperslab inspect`."""

    path: str
    kind: str
    """Format and size."""
    taken: tuple[str, ...]
    """One line for each thing that would be taken."""
    oddities: tuple[str, ...]
    """One line for each thing a person should know."""
