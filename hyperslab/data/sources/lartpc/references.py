"""References of h5flow: pairs of event and hit in one dataset, and regions of that dataset for each event.

The layout is that of `h5flow_data_manager.py` and `lib.py` of lbl-neutrino/h5flow.
"""

from dataclasses import dataclass

import h5py
import numpy as np

from hyperslab.data.frames import Ints
from hyperslab.data.sources.lartpc.hdf5 import dataset, holds
from hyperslab.data.sources.lartpc.table import BLOCK_ROWS
from hyperslab.errors import UserError


@dataclass(frozen=True, slots=True)
class _Pair:
    """A dataset of references, and its column of events and of hits."""

    data: h5py.Dataset
    event: int
    hit: int


class References:
    """Which hits each event has.

    Raises
    ------
    UserError
        When there are no references, or they are not of h5flow's form.
    """

    def __init__(self, file: h5py.File, events: str, hits: str, path: str) -> None:
        forward, backward = f"{events}/ref/{hits}", f"{hits}/ref/{events}"
        if holds(file, f"{forward}/ref"):
            self._pair = _Pair(dataset(file, f"{forward}/ref"), 0, 1)
        elif holds(file, f"{backward}/ref"):
            self._pair = _Pair(dataset(file, f"{backward}/ref"), 1, 0)
        else:
            raise UserError(f"{path}: has no references from {events} to {hits}; run ndlar_flow again")
        # Regions of events that have no hit may never have been written: they read as (0, 0).
        self._regions = dataset(file, f"{forward}/ref_region", may_have_gaps=True)
        self._path = path
        data = self._pair.data
        if data.ndim != 2 or data.shape[1] != 2 or data.dtype.kind not in "iu":
            raise UserError(f"{path}: {data.name} is {data.dtype} {data.shape}, not pairs; run ndlar_flow again")
        if set(self._regions.dtype.names or ()) != {"start", "stop"}:
            raise UserError(f"{path}: {self._regions.name} has no start and stop; run ndlar_flow again")

    def count(self, num_events: int, num_hits: int) -> Ints:
        """Hits of each event."""
        if len(self._regions) < num_events:
            raise UserError(
                f"{self._path}: {self._regions.name} covers {len(self._regions)} of {num_events} events; "
                "run ndlar_flow again"
            )
        points = np.zeros(num_events, np.int64)
        for start in range(0, len(self._pair.data), BLOCK_ROWS):
            pairs = self._pair.data[start : start + BLOCK_ROWS].astype(np.int64)
            events, hits = pairs[:, self._pair.event], pairs[:, self._pair.hit]
            if pairs.min() < 0 or events.max() >= num_events or hits.max() >= num_hits:
                raise UserError(
                    f"{self._path}: {self._pair.data.name} refers to what is not there; run ndlar_flow again"
                )
            points += np.bincount(events, minlength=num_events)
        return points

    def rows(self, first: int, points: tuple[int, ...]) -> Ints:
        """Row of each hit of some events, event after event.

        Parameters
        ----------
        first
            Number of the first event.
        points
            How many hits each event must have.
        """
        last = first + len(points)
        region = self._regions[first:last]
        start, stop = region["start"].astype(np.int64), region["stop"].astype(np.int64)
        used = stop > start
        if not used.any():
            return self._checked(np.empty((0, 2), np.int64), first, points)
        low, high = int(start[used].min()), int(stop[used].max())
        if low < 0 or high > len(self._pair.data):
            raise UserError(f"{self._path}: {self._regions.name} leaves the references; run ndlar_flow again")
        found = []
        for begin in range(low, high, BLOCK_ROWS):
            pairs = self._pair.data[begin : min(begin + BLOCK_ROWS, high)].astype(np.int64)
            pairs = pairs[:, [self._pair.event, self._pair.hit]]
            found.append(pairs[(pairs[:, 0] >= first) & (pairs[:, 0] < last)])
        return self._checked(np.concatenate(found), first, points)

    def _checked(self, pairs: Ints, first: int, points: tuple[int, ...]) -> Ints:
        counts = np.bincount(pairs[:, 0] - first, minlength=len(points))
        if counts.tolist() != list(points):
            event = first + int(np.argmax(counts != np.asarray(points)))
            raise UserError(
                f"{self._path}: {self._regions.name} leads to {counts[event - first]} hits of event {event}, "
                f"{points[event - first]} refer to it; run ndlar_flow again"
            )
        rows: Ints = pairs[np.argsort(pairs[:, 0], kind="stable"), 1]
        return rows
