"""Wires and ticks of a Wire-Cell frame, from the small arrays that stand beside it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperslab.data.config import DataSettings
from hyperslab.data.sources.index import Axis
from hyperslab.data.sources.lartpc.numpy_archive import NpyHeader
from hyperslab.errors import UserError

NS_TO_US = 1e-3
TICK_RANGE_NS = (1.0, 100_000.0)
TICK_TOLERANCE = 1e-6


@dataclass(slots=True)
class Tag:
    """What an archive holds of one tag of one event."""

    header: NpyHeader | None = None
    channels: npt.NDArray[Any] | None = None
    tickinfo: npt.NDArray[Any] | None = None


@dataclass(slots=True)
class Event:
    """What an archive holds of one event."""

    tags: dict[str, Tag] = field(default_factory=dict)
    masks: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    num_summaries: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """Wires and ticks of an event, alike for all of its tags."""

    channels: tuple[float, ...]
    rows: tuple[int, ...] | None
    """Rows of the array that these wires are; None for all of them."""
    num_ticks: int
    start_ns: float
    tick_ns: float
    first_bin: int

    @property
    def words(self) -> str:
        """Wires and ticks in words."""
        return (
            f"{len(self.channels)} wires from {self.channels[0]:g} and {self.num_ticks} ticks of {self.tick_ns:g} ns "
            f"from {self.first_bin}"
        )

    @property
    def space(self) -> tuple[Axis, ...]:
        """Numbers of the wires, and times of the ticks since the frame's start."""
        ticks = (self.first_bin + np.arange(self.num_ticks)) * self.tick_ns * NS_TO_US
        return (
            Axis(name="wire", units="1", values=self.channels, long_name="number of the readout channel"),
            Axis(name="tick", units="us", values=tuple(ticks.tolist()), long_name="time since the frame's start"),
        )


def picture_of(event: Event, number: int, tags: list[str], settings: DataSettings, path: str) -> Picture:
    """Wires and ticks of an event.

    Parameters
    ----------
    tags
        Tags of the first event; those that are asked for must be in each and have the same wires and ticks.

    Raises
    ------
    UserError
        When a frame is incomplete, its arrays do not fit together, or its tick is none or not the one asked for.
    """
    wanted = [tag for tag in tags if settings.variables is None or tag in settings.variables] or tags
    if lacking := set(wanted) ^ set(event.tags) if settings.variables is None else set(wanted) - set(event.tags):
        raise UserError(
            f"{path}: event {number} and the first one do not both have the tag {min(lacking)}; "
            "choose tags that all have in data.variables"
        )
    pictures = {tag: _picture_of_tag(event.tags[tag], f"{tag}_{number}", settings, path) for tag in wanted}
    first = next(iter(pictures.values()))
    for tag, picture in pictures.items():
        if picture != first:
            raise UserError(
                f"{path}: the tags {next(iter(pictures))} and {tag} of event {number} differ in wires or ticks; "
                "choose tags of one shape in data.variables"
            )
    return first


def _picture_of_tag(tag: Tag, name: str, settings: DataSettings, path: str) -> Picture:
    if tag.header is None or tag.channels is None or tag.tickinfo is None:
        parts = {"frame": tag.header, "channels": tag.channels, "tickinfo": tag.tickinfo}
        lacking = ", ".join(f"{part}_{name}.npy" for part, value in parts.items() if value is None)
        raise UserError(f"{path}: holds no {lacking}; a frame needs its channels and tickinfo, pack all three")
    shape, channels = tag.header.shape, tag.channels
    if len(shape) != 2 or tag.header.dtype.kind not in "iuf" or 0 in shape:
        raise UserError(
            f"{path}: frame_{name}.npy is {tag.header.dtype} {shape}; it must be numbers, channels by ticks"
        )
    if channels.shape != shape[:1] or channels.dtype.kind not in "iu" or len(np.unique(channels)) != len(channels):
        raise UserError(
            f"{path}: channels_{name}.npy ({channels.dtype} {channels.shape}) must number the {shape[0]} channels of "
            "its frame, each once; write the archive again"
        )
    rows = _rows(channels, name, settings, path)
    start, tick, first = _tickinfo(tag.tickinfo, name, settings, path)
    own = channels if rows is None else channels[list(rows)]
    return Picture(tuple(map(float, own)), rows, shape[1], start, tick, first)


def _rows(channels: npt.NDArray[Any], name: str, settings: DataSettings, path: str) -> tuple[int, ...] | None:
    if settings.lartpc.wires is None:
        return None
    low, high = settings.lartpc.wires
    rows = np.flatnonzero((channels >= low) & (channels <= high))
    if not len(rows):
        raise UserError(
            f"{path}: channels_{name}.npy numbers {channels.min()} to {channels.max()}, data.lartpc.wires asks for "
            f"{low} to {high}; ask for others, or name other files"
        )
    return tuple(rows.tolist())


def _tickinfo(values: npt.NDArray[Any], name: str, settings: DataSettings, path: str) -> tuple[float, float, int]:
    """Start of the frame (ns), sampling period (ns) and ticks before the first column (aux/docs/tickinfo.org)."""
    where = f"{path}: tickinfo_{name}.npy"
    if values.shape != (3,) or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise UserError(f"{where} is {values.dtype} {values.shape}; it must be time, tick and first bin, in ns")
    start, tick, first = (float(value) for value in values)
    low, high = TICK_RANGE_NS
    if not low <= tick <= high or first < 0 or first != int(first) or first > 1e9:
        raise UserError(
            f"{where} states a tick of {tick:g} ns and a first bin of {first:g}; a tick lies between {low:g} and "
            f"{high:g} ns and the bin is a whole number, write the archive again"
        )
    wanted = settings.lartpc.tick_ns
    if wanted is not None and abs(tick - wanted) > TICK_TOLERANCE * wanted:
        raise UserError(
            f"{where} states a tick of {tick:g} ns, data.lartpc.tick_ns is {wanted:g} ns; "
            "resample the frames, or correct the setting"
        )
    return start, tick, int(first)


def mask_text(mask: npt.NDArray[Any] | None, picture: Picture) -> str:
    """Masked wires of the frame, such as `2577 2580[0:300]`: without ticks where all of them are masked."""
    own = set(picture.channels)
    texts = []
    for channel, start, stop in (mask if mask is not None else np.empty((0, 3), int)).tolist():
        if channel in own:
            begin, end = start - picture.first_bin, stop - picture.first_bin
            whole = begin <= 0 and end >= picture.num_ticks
            texts.append(str(channel) if whole else f"{channel}[{begin}:{end}]")
    return " ".join(texts)
