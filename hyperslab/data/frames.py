"""Frames on the time axis: segments, splits, and the windows that training may draw."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hyperslab.errors import UserError

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SPLITS = ("train", "validation", "test")
DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """How the frames of a record hang together in time."""

    ids: Ints
    """Segment of each frame, counted from 0; shape (frame,)."""
    monthly: bool
    """Whether frames follow one another by calendar month."""
    step_seconds: int
    """Time between two frames of a segment; its most common value where months differ."""

    @property
    def cadence(self) -> str:
        """The step in words, such as `6 h` or `1 month`."""
        if self.monthly:
            return "1 month"
        for size, unit in ((DAY_SECONDS, "d"), (3600, "h"), (60, "min")):
            if self.step_seconds % size == 0:
                return f"{self.step_seconds // size} {unit}"
        return f"{self.step_seconds} s"


def find_segments(time: Ints) -> Segments:
    """Cut a time axis where frames are missing.

    Parameters
    ----------
    time
        Seconds since 1970-01-01, strictly ascending; shape (frame,).
    """
    if len(time) < 2:
        return Segments(ids=np.zeros(len(time), np.int64), monthly=False, step_seconds=0)
    steps = np.diff(time)
    values, counts = np.unique(steps, return_counts=True)
    common = int(values[np.argmax(counts)])
    monthly = 28 * DAY_SECONDS <= common <= 31 * DAY_SECONDS
    if monthly:
        months = time.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64)
        breaks = np.diff(months) != 1
    else:
        breaks = steps != common
    ids = np.concatenate([[0], np.cumsum(breaks)]).astype(np.int64)
    return Segments(ids=ids, monthly=monthly, step_seconds=common)


def split_bounds(time: Ints, validation: float | date, test: float | date) -> dict[str, tuple[int, int]]:
    """Frame ranges `[start, stop)` of the training, validation and test splits, in the order of time.

    Raises
    ------
    UserError
        When a split would be empty, or the test split would not come last.
    """
    total = len(time)
    test_start = _split_start(time, test, total)
    validation_start = _split_start(time, validation, test_start)
    if not 0 < validation_start < test_start < total:
        first, last = moment(time[0]), moment(time[-1])
        raise UserError(
            f"data.validation, data.test: found {validation} and {test} for {total} frames from {first} to {last}; "
            "each of training, validation and test needs a frame, in this order; choose other dates or shares"
        )
    return {
        "train": (0, validation_start),
        "validation": (validation_start, test_start),
        "test": (test_start, total),
    }


def _split_start(time: Ints, rule: float | date, stop: int) -> int:
    if isinstance(rule, date):
        return int(np.searchsorted(time, seconds(rule)))
    return stop - max(1, round(rule * len(time)))


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

    def first_frame(self, window: int) -> int:
        """Frame at which a window begins.

        Raises
        ------
        IndexError
            When there is no such window.
        """
        if not 0 <= window < len(self):
            raise IndexError(f"window {window} of {len(self)}")
        run = int(np.searchsorted(self.offsets, window, side="right")) - 1
        return int(self.starts[run] + window - self.offsets[run])


def find_windows(segment: Ints, valid: Bools, bounds: tuple[int, int], span: int) -> Windows:
    """All windows of `span` frames that lie in `bounds`, in one segment, and hold no invalid frame.

    Parameters
    ----------
    segment, valid
        Segment number and validity of each frame; shape (frame,).
    bounds
        Frame range `[start, stop)`: a window never reaches over it.
    """
    starts, counts = [], []
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


def seconds(day: date, *, day_end: bool = False) -> int:
    """Seconds since 1970-01-01 of a day's first second, or of its last."""
    first = int(np.datetime64(day, "s").astype(np.int64))
    return first + DAY_SECONDS - 1 if day_end else first


def moment(time: int | np.int64) -> str:
    """A frame's time in words, such as `1982-01-16T20:00`."""
    return str(np.datetime64(int(time), "s").astype("datetime64[m]"))
