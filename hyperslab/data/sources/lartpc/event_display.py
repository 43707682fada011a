"""Hits that larpix's event builder has joined to events, for its event display: region references tie them."""

from collections.abc import Iterator
from dataclasses import replace

import h5py
import numpy as np

from hyperslab.data.config import DataSettings
from hyperslab.data.frames import Ints
from hyperslab.data.sources import Block
from hyperslab.data.sources.index import Axis, Channel, Index, RawFile
from hyperslab.data.sources.lartpc.events import PIECES_LIMIT, pieces_of, rows_of
from hyperslab.data.sources.lartpc.hdf5 import dataset, find, holds, open_hdf5
from hyperslab.data.sources.lartpc.header import LARPIX_CLOCK_US, Header, points_of
from hyperslab.data.sources.lartpc.heaps import check_heaps
from hyperslab.data.sources.lartpc.layout import Layout, Quantity, make_layout
from hyperslab.data.sources.lartpc.points import Column, odd_values, read_points
from hyperslab.data.sources.lartpc.table import BLOCK_ROWS, CompoundTable
from hyperslab.errors import UserError

# evd_lib.py of larpix/larpix-v2-testing-scripts: mm of the pixel layout, mV above pedestal, ticks of the clock.
QUANTITIES = {
    "q": Quantity(units="mV", long_name="charge above pedestal", is_charge=True),
    "q_raw": Quantity(units="mV", long_name="charge above pedestal, before correction", is_charge=True),
}


class EventDisplay:
    """`hits` and `events`; an event's `hit_ref` selects its hits."""

    name = "larpix-events"
    kind = "events built by larpix's event display tools"

    def read_header(self, path: str, _settings: DataSettings) -> Header:
        """Events and the hits that their references select; no hit is read."""
        with open_hdf5(path) as file:
            hits = CompoundTable(dataset(file, "hits"), path)
            layout = _layout(file, hits, path)
            events = dataset(file, "events")
            event, starts, stops = _selections(file, events, hits.rows, path)
            own = events.fields([name for name in ("evid", "unix_ts") if name in events.dtype.names])[:]
        points = np.bincount(event, weights=stops - starts, minlength=len(own)).astype(np.int64)
        oddities = list(layout.oddities)
        if free := hits.rows - int(points.sum()):
            oddities.append(f"{free:,} of {hits.rows:,} hits belong to no event: left out")
        return Header(
            path=path,
            format=self.name,
            kind=self.kind,
            num_frames=len(own),
            space=layout.space,
            channels=layout.channels,
            labels=layout.labels,
            points=points,
            frame_labels={
                label: tuple(own[name].tolist())
                for label, name in (("event_id", "evid"), ("unix_ts", "unix_ts"))
                if name in own.dtype.names
            },
            details={**layout.details, "pieces": pieces_of(event, starts, stops, len(own))},
            oddities=tuple(oddities),
        )

    def read(self, file: RawFile, index: Index, first: int, last: int) -> Block:
        """Frames `[first, last)` of those in the file."""
        with open_hdf5(file.path) as content:
            table = CompoundTable(dataset(content, "hits"), file.path)
            rows = rows_of(file, index, first, last)
            return read_points(table, rows, points_of(file, index, first, last), file, index)

    def odd_values(self, header: Header) -> Iterator[str]:
        """Counts of hits without a position, and of negative charges."""
        with open_hdf5(header.path) as file:
            table = CompoundTable(dataset(file, "hits"), header.path)
            layout = _layout(file, table, header.path)
            yield from odd_values([table], layout.positions, layout.charges, "hits")


def _layout(file: h5py.File, hits: CompoundTable, path: str) -> Layout:
    attributes = find(file, "tracks").attrs if holds(file, "tracks") else {}
    stated = np.asarray(attributes.get("clock_period", LARPIX_CLOCK_US))
    if stated.size != 1 or stated.dtype.kind not in "iuf" or not 0 < float(stated.ravel()[0]) < 1e3:
        raise UserError(f"{path}: tracks.clock_period is {stated}; it must be the clock's tick in us, mend the file")
    period = float(stated.ravel()[0])
    axes = {
        "x": Column(names=("px",), scale=0.1),
        "y": Column(names=("py",), scale=0.1),
        "t": Column(names=("ts",), scale=period, from_first=True),
    }
    oddities = (
        "px and py (mm) are positions x and y in cm; the third position is t, the time since the event's first hit in "
        f"us (ts times {period:g}): hits have no drift coordinate",
    )
    units = {"x": "cm", "y": "cm", "t": "us"}
    layout = make_layout(hits, path, axes, QUANTITIES, axis_units=units, oddities=oddities)
    drift = Axis(name="t", units="us", long_name="time since the event's first hit")
    clock = Channel(name="ts", units="1", long_name="clock ticks", variable="ts")
    return replace(layout, space=(*layout.space[:2], drift), labels=(*layout.labels, clock))


def _selections(file: h5py.File, events: h5py.Dataset, rows: int, path: str) -> tuple[Ints, Ints, Ints]:
    """Event, first row and end of each stretch of hits that the references of the events select."""
    pieces: list[tuple[int, int, int]] = []
    check_heaps(events, path, 0, len(events), "hit_ref")
    for start in range(0, len(events), BLOCK_ROWS):
        for number, reference in enumerate(events.fields("hit_ref")[start : start + BLOCK_ROWS], start):
            pieces += [(number, begin, end) for begin, end in _stretches(file, reference, rows, path)]
        if len(pieces) > PIECES_LIMIT:
            raise UserError(f"{path}: its events are in more than {PIECES_LIMIT:,} pieces; sort its hits by event")
    event, starts, stops = np.asarray(pieces, np.int64).reshape(-1, 3).T
    return event, starts, stops


def _stretches(file: h5py.File, reference: h5py.RegionReference, rows: int, path: str) -> list[tuple[int, int]]:
    if not isinstance(reference, h5py.RegionReference):
        raise UserError(f"{path}: events.hit_ref holds no region references; build the events again")
    if not reference:
        return []
    if h5py.h5r.get_name(reference, file.id) != b"/hits":
        raise UserError(f"{path}: events.hit_ref refers to another table than hits; build the events again")
    region = h5py.h5r.get_region(reference, file.id)
    if region.get_select_npoints() == 0:
        return []
    if region.get_select_type() == h5py.h5s.SEL_ALL:
        return [(0, rows)]
    if region.get_select_type() != h5py.h5s.SEL_HYPERSLABS:
        raise UserError(f"{path}: events.hit_ref selects single points; build the events again")
    blocks = np.asarray(region.get_select_hyper_blocklist(), np.int64).reshape(-1, 2)
    if blocks.min() < 0 or blocks.max() >= rows:
        raise UserError(f"{path}: events.hit_ref selects hits up to {blocks.max()}, there are {rows}; build it again")
    return [(int(first), int(last) + 1) for first, last in blocks]
