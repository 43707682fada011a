"""Frames on the time axis: segments, splits, and the windows that training may draw."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hyperslab.data.clock import DAY_SECONDS, Clock

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Ranges = tuple[tuple[int, int], ...]
"""Frame ranges `[start, stop)`, ascending, without touching one another."""

SPLITS = ("train", "validation", "test")
STANDARD_CLOCK = Clock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """How the frames of a record hang together in time."""

    ids: Ints
    """Segment of each frame, counted from 0; shape (frame,)."""
    monthly: bool
    """Whether frames follow one another by calendar month."""
    step: int
    """Time between two frames of a segment, in the clock's unit; its most common value where months differ."""
    clock: Clock

    @property
    def cadence(self) -> str:
        """The step in words, such as `6 h`, `1 month` or `720 ms`; `none` where no frame follows another."""
        if self.monthly:
            return "1 month"
        if self.step == 0 or self.clock.kind == "event":
            return "none"
        whole, rest = divmod(self.step, self.clock.ticks_per_second)
        if rest:
            return f"{1000 * self.step / self.clock.ticks_per_second:g} ms"
        for size, unit in ((DAY_SECONDS, "d"), (3600, "h"), (60, "min")):
            if whole % size == 0:
                return f"{whole // size} {unit}"
        return f"{whole} s"


def find_segments(time: Ints, clock: Clock = STANDARD_CLOCK) -> Segments:
    """Cut a time axis where frames are missing.

    Parameters
    ----------
    time
        Time of each frame in the clock's unit, strictly ascending; shape (frame,).
    clock
        What time counts.
    """
    whole = measure_segments(time, np.zeros(len(time), np.int64), clock)
    if len(time) < 2:
        return whole
    breaks = np.diff(clock.months(time)) != 1 if whole.monthly else np.diff(time) != whole.step
    ids = np.concatenate([[0], np.cumsum(breaks)]).astype(np.int64)
    return replace(whole, ids=ids)


def measure_segments(time: Ints, ids: Ints, clock: Clock) -> Segments:
    """The step of frames whose segments are known.

    Parameters
    ----------
    time, ids
        Time and segment of each frame; shape (frame,).
    clock
        What time counts.
    """
    steps = np.diff(time)[np.diff(ids) == 0]
    if len(steps) == 0:
        return Segments(ids=ids, monthly=False, step=0, clock=clock)
    values, counts = np.unique(steps, return_counts=True)
    common = int(values[np.argmax(counts)])
    monthly = clock.kind == "calendar" and 28 * DAY_SECONDS <= common <= 31 * DAY_SECONDS
    return Segments(ids=ids, monthly=monthly, step=common, clock=clock)


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a split: `span` consecutive frames inside one segment, all of them valid.

    Memory grows with the number of unbroken runs, not with the number of windows.
    """

    starts: Ints
    """First frame of each unbroken run that holds a window; shape (run,)."""
    offsets: Ints
    """Number of windows before each run, and in all; shape (run + 1,)."""
    span: int
    """Frames in a window."""

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def first_frames(self, windows: Ints) -> Ints:
        """Frame at which each of some windows begins; both of shape (window,).

        Raises
        ------
        IndexError
            When there is no such window.
        """
        outside = (windows < 0) | (windows >= len(self))
        if outside.any():
            raise IndexError(f"window {windows[outside][0]} of {len(self)}")
        run = np.searchsorted(self.offsets, windows, side="right") - 1
        return np.asarray(self.starts[run] + windows - self.offsets[run], np.int64)


def find_windows(segment: Ints, valid: Bools, ranges: Ranges, span: int) -> Windows:
    """All windows of `span` frames that lie in one range, in one segment, and hold no invalid frame.

    Parameters
    ----------
    segment, valid
        Segment number and validity of each frame; shape (frame,).
    ranges
        Frame ranges of a split: a window never reaches over one.
    """
    starts, counts = [], []
    for bounds in ranges:
        for start, stop in _runs(segment, valid, bounds):
            if stop - start >= span:
                starts.append(start)
                counts.append(stop - start - span + 1)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Windows(np.asarray(starts, np.int64), offsets, span)


def _runs(segment: Ints, valid: Bools, bounds: tuple[int, int]) -> Iterator[tuple[int, int]]:
    start, stop = bounds
    usable = valid[start:stop]
    change = np.flatnonzero((np.diff(segment[start:stop]) != 0) | (usable[1:] != usable[:-1])) + 1
    for a, b in pairwise([0, *change.tolist(), stop - start]):
        if b > a and usable[a]:
            yield start + a, start + b


def mask_of(ranges: Ranges, num_frames: int) -> Bools:
    """Whether each frame lies in one of the ranges; shape (frame,)."""
    mask = np.zeros(num_frames, bool)
    for start, stop in ranges:
        mask[start:stop] = True
    return mask


def ranges_of(mask: Bools) -> Ranges:
    """The ranges of the frames that a mask marks."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return tuple((int(start), int(stop)) for start, stop in edges.reshape(-1, 2))
