"""The mean state of the training period, as a forecast and as the reference of anomalies."""

import numpy as np
import numpy.typing as npt

from hyperslab.data.frames import DAY_SECONDS, Ints
from hyperslab.data.store import Store

HALF_WINDOW_DAYS = 15
YEAR_DAYS = 365.2425


def climatology(store: Store, time: Ints, *, monthly: bool) -> npt.NDArray[np.float64]:
    """Mean of the training frames of the same season at each time, shape (time, channel, latitude, longitude).

    For monthly frames the season is the calendar month; otherwise the days within `HALF_WINDOW_DAYS` of the day of
    the year (a day more or less across leap years), at the same time of day. NaN where the training period holds no
    such frame.
    Memory grows with the number of times, so times are best passed in batches without repetition.

    Parameters
    ----------
    time
        Seconds since 1970-01-01; shape (time,).
    """
    start, stop = store.splits["train"]
    same = _same_season(time, store.time[start:stop], monthly=monthly) & store.valid[start:stop]
    total = np.zeros((len(time), *store.values.shape[1:]))
    count = np.zeros_like(total)
    for first in range(start, stop, store.shard_frames):
        last = min(first + store.shard_frames, stop)
        chosen = same[:, first - start : last - start].astype(np.float64)
        if not chosen.any():
            continue
        frames = store.read(first, last).astype(np.float64)
        there = np.isfinite(frames)
        total += np.tensordot(chosen, np.where(there, frames, 0), axes=1)
        count += np.tensordot(chosen, there.astype(np.float64), axes=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _same_season(time: Ints, training: Ints, *, monthly: bool) -> npt.NDArray[np.bool_]:
    if monthly:
        return np.equal.outer(_month(time), _month(training))
    days = (time[:, None] - training[None]) / DAY_SECONDS
    apart = np.abs((days + YEAR_DAYS / 2) % YEAR_DAYS - YEAR_DAYS / 2)
    same_clock = (time % DAY_SECONDS)[:, None] == (training % DAY_SECONDS)[None]
    return np.asarray((apart <= HALF_WINDOW_DAYS + 0.5) & same_clock)


def _month(time: Ints) -> Ints:
    return np.asarray(time.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64) % 12)
