"""What a scan finds out about raw files; kept in the store as the recipe that staging follows."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hyperslab.data.frames import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One field of a frame: a variable, or a variable on one level."""

    name: str
    variable: str
    """Name of the variable in the raw files."""
    level: float | None
    units: str
    long_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFile:
    """A raw file and the frames that it holds."""

    path: str
    size_bytes: int
    modified_ns: int
    channels: tuple[str, ...]
    """Names of the channels that are taken from it."""
    runs: tuple[tuple[int, int, int], ...]
    """Unbroken stretches: (first position in the file, first frame, number of frames)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """All frames of an archive and where each of their pieces lies."""

    source: str
    time: tuple[int, ...]
    """Seconds since 1970-01-01 of each frame, strictly ascending."""
    channels: tuple[Channel, ...]
    latitude: tuple[float, ...]
    """Degrees north, descending: the first row is the northernmost."""
    longitude: tuple[float, ...]
    """Degrees east, ascending."""
    files: tuple[RawFile, ...]
    oddities: tuple[str, ...]
    """One line for each thing a person should know."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of all frames: (frame, channel, latitude, longitude)."""
        return (len(self.time), len(self.channels), len(self.latitude), len(self.longitude))

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame in float32."""
        return int(np.prod(self.shape[1:])) * 4

    @property
    def times(self) -> Ints:
        """The time axis as an array."""
        return np.asarray(self.time, np.int64)

    def to_json(self) -> dict[str, Any]:
        """A form that JSON holds."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Index":
        """The inverse of `to_json`."""
        files = [
            RawFile(**{**item, "channels": tuple(item["channels"]), "runs": tuple(map(tuple, item["runs"]))})
            for item in content["files"]
        ]
        return cls(
            source=content["source"],
            time=tuple(content["time"]),
            channels=tuple(Channel(**item) for item in content["channels"]),
            latitude=tuple(content["latitude"]),
            longitude=tuple(content["longitude"]),
            files=tuple(files),
            oddities=tuple(content["oddities"]),
        )


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
