"""One index after another: later months, more subjects, further events."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hyperslab.data.frames import measure_segments
from hyperslab.data.sources.index import Index, RawFile
from hyperslab.errors import UserError

MUST_BE_EQUAL = ("source", "clock", "channels", "labels", "statics", "split_by")


def append_index(old: Index, new: Index) -> Index:
    """The index of both archives, the old frames first and as they were.

    Raises
    ------
    UserError
        When the new files differ in channels, space or clock, or do not come later.
    """
    _check_form(old, new)
    joins = _joins(old, new)
    first_segment = old.segment[-1] + (0 if joins else 1)
    num_old = len(old.time)
    # Events are numbered through; any other time is what it is.
    later = old.time[-1] + 1 if old.clock.kind == "event" else 0
    return replace(
        old,
        time=old.time + tuple(later + time for time in new.time),
        segment=old.segment + tuple(first_segment + segment for segment in new.segment),
        files=old.files + tuple(_shifted(file, num_old) for file in new.files),
        oddities=old.oddities + tuple(line for line in _oddities(old, new) if line not in old.oddities),
        points=None if old.points is None else old.points + (new.points or ()),
        frame_labels={name: old.frame_labels[name] + new.frame_labels[name] for name in old.frame_labels},
        segment_labels={
            name: held + new.segment_labels[name][1 if joins else 0 :] for name, held in old.segment_labels.items()
        },
    )


def _check_form(old: Index, new: Index) -> None:
    first, rule = new.files[0].path, "files that are appended must be like the old ones"
    for name in MUST_BE_EQUAL:
        if getattr(old, name) != getattr(new, name):
            here, there = (_words(getattr(a, name), getattr(b, name)) for a, b in ((new, old), (old, new)))
            raise UserError(f"{first}: its {name} ({here}) differ from those of the store ({there}); {rule}")
    if old.space != new.space:
        here, there = (", ".join(f"{axis.name} {len(axis.values)}" for axis in index.space) for index in (new, old))
        raise UserError(f"{first}: its space ({here}) is not that of the store ({there}), or lies elsewhere; {rule}")
    for held, more in ((old.frame_labels, new.frame_labels), (old.segment_labels, new.segment_labels)):
        if set(held) != set(more):
            raise UserError(f"{first}: it has the labels {sorted(more)}, the store has {sorted(held)}; {rule}")
    if old.split_by == "time" and min(new.time) <= max(old.time):
        raise UserError(
            f"{first}: begins at {new.clock.moment(min(new.time))}, the store ends at "
            f"{old.clock.moment(max(old.time))}; only later frames can be appended, stage the others anew"
        )
    after, before = (measure_segments(index.times, index.segments, index.clock) for index in (new, old))
    if old.split_by == "time" and after.step and before.step and after.cadence != before.cadence:
        raise UserError(f"{first}: has a frame every {after.cadence}, the store every {before.cadence}; {rule}")
    if old.split_by == "subject":
        _check_runs(old, new)


def _check_runs(old: Index, new: Index) -> None:
    """A run that is in the store is not appended a second time from another file."""
    names = sorted(old.segment_labels)
    known = set(zip(*(old.segment_labels[name] for name in names), strict=True))
    for run in zip(*(new.segment_labels[name] for name in names), strict=True):
        if run in known:
            words = ", ".join(f"{name} {value}" for name, value in zip(names, run, strict=True) if value != "")
            raise UserError(f"{new.files[0].path}: the run of {words} is in the store; name each run once")


def _oddities(old: Index, new: Index) -> Iterator[str]:
    yield from new.oddities
    here, there = (measure_segments(index.times, index.segments, index.clock).cadence for index in (new, old))
    if here != there and "none" not in (here, there):
        name = new.files[0].path.rsplit("/", 1)[-1]
        yield f"{name}: appended with a frame every {here}, the frames before every {there}"


def _joins(old: Index, new: Index) -> bool:
    """Whether the first new frame follows the last old one without a gap, in one record."""
    if old.clock.kind != "calendar" or old.split_by != "time" or old.segment_labels:
        return False
    segments = measure_segments(old.times, old.segments, old.clock)
    if segments.monthly:
        last, first = old.clock.months(old.times[-1:])[0], new.clock.months(new.times[:1])[0]
        return bool(first - last == 1)
    return segments.step > 0 and new.time[0] - old.time[-1] == segments.step


def _shifted(file: RawFile, frames: int) -> RawFile:
    return replace(file, runs=tuple((position, frame + frames, count) for position, frame, count in file.runs))


def _words(value: Any, other: Any) -> str:
    """A value in words; of several fields those that the other one lacks."""
    if isinstance(value, tuple):
        return ", ".join(f"{item.name} [{item.units}]" for item in value if item not in other) or "none"
    return str(value)
