"""The mean state of the training period, as a forecast and as the reference of anomalies."""

import numpy as np
import numpy.typing as npt

from hyperslab.data.clock import DAY_SECONDS, Clock
from hyperslab.data.frames import Ints, mask_of
from hyperslab.data.store import Store

HALF_WINDOW_DAYS = 15
BLOCK_BYTES = 64 << 20
"""Memory for the training frames that are read at a time."""


def climatology(store: Store, time: Ints, *, monthly: bool) -> npt.NDArray[np.float64]:
    """Mean of the training frames of the same season at each time, shape (time, channel, *space).

    For monthly frames the season is the calendar month; otherwise the days within `HALF_WINDOW_DAYS` of the day of
    the year (a day more or less across leap years), at the same time of day. NaN where the training period holds no
    such frame. Time that is of no calendar has no seasons: then it is the mean of all training frames.
    Memory grows with the number of times, so times are best passed in batches without repetition.

    Parameters
    ----------
    time
        Seconds since 1970-01-01; shape (time,).
    """
    training = mask_of(store.splits["train"], len(store.time)) & store.valid
    same = _same_season(time, store.time, store.clock, monthly=monthly) & training
    total = np.zeros((len(time), *store.frame_shape))
    count = np.zeros_like(total)
    length = max(1, BLOCK_BYTES // (4 * int(np.prod(store.frame_shape))))
    for first in range(0, len(store.time), length):
        last = min(first + length, len(store.time))
        chosen = same[:, first:last].astype(np.float64)
        if not chosen.any():
            continue
        frames = store.read(first, last).astype(np.float64)
        there = np.isfinite(frames)
        total += np.tensordot(chosen, np.where(there, frames, 0), axes=1)
        count += np.tensordot(chosen, there.astype(np.float64), axes=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _same_season(time: Ints, frames: Ints, clock: Clock, *, monthly: bool) -> npt.NDArray[np.bool_]:
    if clock.kind != "calendar":
        return np.ones((len(time), len(frames)), bool)
    if monthly:
        return np.equal.outer(clock.months(time) % 12, clock.months(frames) % 12)
    days = (time[:, None] - frames[None]) / DAY_SECONDS
    apart = np.abs((days + clock.year_days / 2) % clock.year_days - clock.year_days / 2)
    same_clock = (time % DAY_SECONDS)[:, None] == (frames % DAY_SECONDS)[None]
    return np.asarray((apart <= HALF_WINDOW_DAYS + 0.5) & same_clock)
