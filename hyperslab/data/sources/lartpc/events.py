"""Which rows of a table belong to which event."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperslab.data.frames import Ints
from hyperslab.data.sources.index import Index, RawFile
from hyperslab.data.sources.lartpc.header import points_of
from hyperslab.errors import UserError

PIECES_LIMIT = 1_000_000
"""Pieces of events that an index holds for one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Events of one file, in the order in which they first come."""

    numbers: tuple[int, ...]
    """Number of each event, as it stands in the file."""
    points: Ints
    pieces: dict[str, list[int]] | None
    """Where an event's rows are not one stretch that follows the last event's: the pieces of all, as `first` (the
    first piece of each event, and their number), `start` and `stop` (rows of each piece)."""
    is_sorted: bool
    """Whether events come in the order of their numbers."""

    @property
    def oddities(self) -> list[str]:
        """What a person should know about the order."""
        if self.pieces is not None:
            split = int((np.diff(self.pieces["first"]) > 1).sum())
            return [f"{split:,} events are not in one piece: their points are joined, in the order of the file"]
        return [] if self.is_sorted else ["events are not in the order of their numbers: kept in the order of the file"]


def find_events(blocks: Iterable[npt.NDArray[Any]], path: str) -> Events:
    """The events of a table, from the event number of each row.

    Parameters
    ----------
    blocks
        Event numbers of all rows, a stretch at a time.

    Raises
    ------
    UserError
        When event numbers are no whole numbers, or mixed row by row.
    """
    numbers, starts, total = [], [], 0
    for block in blocks:
        if block.dtype.kind not in "iu":
            raise UserError(f"{path}: its event numbers are of type {block.dtype}; they must be whole, mend the file")
        change = np.flatnonzero(block[1:] != block[:-1]) + 1
        change = np.concatenate([[0], change]) if len(block) else change
        numbers.append(block[change])
        starts.append(change + total)
        total += len(block)
        if sum(map(len, starts)) > PIECES_LIMIT:
            raise UserError(f"{path}: its events change more than {PIECES_LIMIT:,} times; sort its rows by event")
    if not total:
        return Events(numbers=(), points=np.empty(0, np.int64), pieces=None, is_sorted=True)
    return _events_of_runs(np.concatenate(numbers), np.concatenate(starts).astype(np.int64), total)


def _events_of_runs(numbers: npt.NDArray[Any], starts: Ints, total: int) -> Events:
    # A run that goes on from one block to the next was cut there.
    new = np.concatenate([[True], numbers[1:] != numbers[:-1]])
    numbers, starts = numbers[new], starts[new]
    stops = np.append(starts[1:], total)
    known, first, event = np.unique(numbers, return_index=True, return_inverse=True)
    rank = np.empty(len(known), np.int64)
    rank[np.argsort(first)] = np.arange(len(known))
    event = rank[event]
    points = np.bincount(event, weights=stops - starts, minlength=len(known)).astype(np.int64)
    return Events(
        numbers=tuple(int(number) for number in known[np.argsort(first)]),
        points=points,
        pieces=pieces_of(event, starts, stops, len(known)) if len(numbers) > len(known) else None,
        is_sorted=bool((np.diff(first) > 0).all()),
    )


def pieces_of(event: Ints, starts: Ints, stops: Ints, num_events: int) -> dict[str, list[int]]:
    """The pieces of each event, for `Events.pieces`.

    Parameters
    ----------
    event, starts, stops
        Event and rows `[start, stop)` of each piece; pieces of one event in the order of their points.
    """
    order = np.argsort(event, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(event, minlength=num_events))])
    return {"first": first.tolist(), "start": starts[order].tolist(), "stop": stops[order].tolist()}


def rows_of(file: RawFile, index: Index, first: int, last: int) -> Ints:
    """Row of each point of the frames `[first, last)` of a file whose details say its `pieces`, frame after frame."""
    pieces = file.details.get("pieces")
    if pieces is None:
        before, held = (sum(points_of(file, index, a, b)) for a, b in ((0, first), (first, last)))
        return np.arange(before, before + held, dtype=np.int64)
    own = slice(pieces["first"][first], pieces["first"][last])
    bounds = zip(pieces["start"][own], pieces["stop"][own], strict=True)
    stretches = [np.arange(start, stop, dtype=np.int64) for start, stop in bounds]
    return np.concatenate(stretches) if stretches else np.empty(0, np.int64)
