"""What the header of one raw file says, whatever its format."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hyperslab.data.clock import Clock
from hyperslab.data.frames import Ints
from hyperslab.data.sources.era5.grid import Grid
from hyperslab.data.sources.index import Channel
from hyperslab.errors import UserError

NO_MEMBER = -1

PRESSURE = "pressure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """When the fields at each position of a file are, and which member and forecast they belong to."""

    time: Ints
    """Time for which the field is valid, in the clock's unit; shape (position,)."""
    initial: Ints
    """Time at which the forecast began; the time itself where the file knows of no forecast."""
    member: Ints
    """Number of the ensemble member; `NO_MEMBER` where the file knows of none."""
    expver: npt.NDArray[np.str_]
    """ECMWF's experiment version, such as 0001 for ERA5 and 0005 for ERA5T; empty where unknown."""

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Variables of one file that share their frames: those of a file on several sets of frames make several headers."""

    path: str
    part: str = ""
    """Name of the member of a zip archive."""
    grid: Grid
    clock: Clock
    frames: Frames | None
    """None for fields without time."""
    channels: tuple[Channel, ...]
    oddities: tuple[str, ...] = ()
    chunk_frames: int = 1
    """Frames in a chunk of the file."""
    chunk_bytes: int = 0
    """Bytes of such a chunk, as float32."""
    messages: dict[str, str] = field(default_factory=dict)
    """Where the messages of each channel lie in a GRIB file, packed."""
    group: int = 0
    """Number of the header among those of its file."""

    @property
    def num_frames(self) -> int:
        """Frames in the file."""
        return 0 if self.frames is None else len(self.frames)

    @property
    def name(self) -> str:
        """Path, with the member of a zip archive."""
        return f"{self.path} ({self.part})" if self.part else self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All that one raw file holds."""

    path: str
    words: str
    """Format and dimensions, as `hyperslab inspect` says them."""
    headers: tuple[Header, ...]
    left_out: dict[str, str]
    """Variables that cannot be fields, and why."""


def channel_name(variable: str, kind: str | None, level: float | None) -> str:
    """Name of a channel: `t2m`, `t_500` on a level of pressure, `t_hybrid_1` on another kind of level."""
    name = variable.replace(" ", "_")
    if level is None:
        return name
    return f"{name}_{level:g}" if kind in (None, PRESSURE) else f"{name}_{kind}_{level:g}"


def check_names(channels: list[Channel], where: str) -> None:
    """Refuse two fields of one name.

    Raises
    ------
    UserError
        When a level stands twice, or names differ in nothing but a space.
    """
    first: dict[str, Channel] = {}
    for channel in channels:
        other = first.setdefault(channel.name, channel)
        if other is channel:
            continue
        if other.variable == channel.variable:
            raise UserError(f"{where}: {channel.variable} has the level {channel.level:g} twice; keep each level once")
        raise UserError(
            f"{where}: {other.variable!r} and {channel.variable!r} would both be {channel.name}; rename one"
        )
