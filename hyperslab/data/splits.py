"""Which frames are trained on, which are held out to watch training, and which are held out to the end."""

import hashlib
from datetime import date

import numpy as np

from hyperslab.data.frames import SPLITS, Ints, Ranges, ranges_of
from hyperslab.data.sources.index import Index
from hyperslab.errors import UserError

Splits = dict[str, Ranges]
TRAIN, VALIDATION, TEST = range(len(SPLITS))


def split_frames(index: Index, validation: float | date, test: float | date) -> Splits:
    """Frame ranges of each split.

    A stretch of time is cut in the order of time. Single segments (events) are cut in the order of the store. The
    segments of a subject stay together; subjects are drawn by a hash of their name, so that neither the site nor the
    date of a scan decides.

    Raises
    ------
    UserError
        When a split would be empty, the test split would not come last, or a date is given where time has none.
    """
    if index.split_by == "time":
        labels = _by_time(index, validation, test)
    else:
        _refuse_dates(index, validation, test)
        labels = _by_unit(_units(index), validation, test)
    asked = {TRAIN, *(split for split, rule in ((VALIDATION, validation), (TEST, test)) if rule != 0)}
    if not asked <= set(np.unique(labels).tolist()):
        raise UserError(_too_few(index, validation, test))
    return _ranges(labels)


def extend_splits(old: Splits, index: Index, num_old: int, validation: float | date, test: float | date) -> Splits:
    """The splits after frames were appended: no old frame changes its split.

    Later times go by the boundaries that the old frames have. New events and new subjects are cut by the same shares
    among themselves; a known subject's new segments join its old ones.

    Parameters
    ----------
    index
        All frames, the old ones first.
    num_old
        Frames that were there before.
    """
    labels = np.empty(len(index.time), np.int64)
    for number, name in enumerate(SPLITS):
        for start, stop in old[name]:
            labels[start:stop] = number
    times = index.times
    if index.split_by == "time":
        # The last split that there is takes what comes later.
        labels[num_old:] = labels[:num_old][np.argmax(times[:num_old])]
    else:
        units = _units(index)
        known = dict(zip(units[:num_old].tolist(), labels[:num_old].tolist(), strict=True))
        fresh = np.asarray([unit not in known for unit in units.tolist()])
        labels[fresh] = _by_unit(units[fresh], validation, test, least=0)
        for position in range(num_old, len(labels)):
            labels[position] = known.get(int(units[position]), labels[position])
    return _ranges(labels)


def _ranges(labels: Ints) -> Splits:
    return {name: ranges_of(labels == number) for number, name in enumerate(SPLITS)}


def _by_time(index: Index, validation: float | date, test: float | date) -> Ints:
    moments = np.unique(index.times)
    test_start = _first(moments, index, test, len(moments))
    validation_start = _first(moments, index, validation, test_start)
    if validation_start > test_start:
        raise UserError(_too_few(index, validation, test))
    later = np.append(moments, moments[-1] + 1)
    return np.searchsorted(later[[validation_start, test_start]], index.times, side="right").astype(np.int64)


def _first(moments: Ints, index: Index, rule: float | date, stop: int) -> int:
    """Place of a split's first moment, when the next split begins at `stop`."""
    if isinstance(rule, date):
        return int(np.searchsorted(moments, index.clock.seconds(rule)))
    return stop - _count(rule, len(moments), least=1)


def _count(share: float, total: int, least: int) -> int:
    """Of so many, those that a share holds out: none of a share of 0, at least so many otherwise."""
    return max(least, round(share * total)) if share else 0


def _units(index: Index) -> Ints:
    """The unit that each frame belongs to, none of which is ever torn: a segment, or a subject."""
    if index.split_by == "segment":
        return index.segments
    subjects = np.asarray(index.segment_labels["subject"], dtype=str)
    # A subject's number is a hash of its name, the same in every archive.
    numbers = np.asarray(
        [int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") for name in subjects.tolist()], np.int64
    )
    return numbers[index.segments]


def _by_unit(units: Ints, validation: float | date, test: float | date, least: int = 1) -> Ints:
    """Split of each frame: the last units are the test split, those before them validation."""
    if len(units) == 0:
        return units
    unique, where = np.unique(units, return_inverse=True)
    total = len(unique)
    counts = [_count(float(share), total, least) for share in (validation, test)]  # type: ignore[arg-type]
    order = np.full(total, TRAIN, np.int64)
    order[max(0, total - counts[1] - counts[0]) :] = VALIDATION
    order[max(0, total - counts[1]) :] = TEST
    return order[where]


def _refuse_dates(index: Index, *rules: float | date) -> None:
    for rule in rules:
        if isinstance(rule, date):
            raise UserError(
                f"data.validation, data.test: found the date {rule}, but {index.source} data is held out by "
                f"{index.split_by}; give a share such as 0.1"
            )


def _too_few(index: Index, validation: float | date, test: float | date) -> str:
    if index.split_by == "time":
        first, last = (index.clock.moment(time) for time in (min(index.time), max(index.time)))
        what = f"{len(index.time)} frames from {first} to {last}; each of training, validation and test needs a frame"
    else:
        units = len(np.unique(_units(index)))
        what = f"{units} {index.split_by}(s); each of training, validation and test needs one whole"
    return (
        f"data.validation, data.test: found {validation} and {test} for {what}, in this order; "
        "choose other dates or shares (0 holds nothing out), or add data"
    )
