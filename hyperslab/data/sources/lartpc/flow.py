"""Calibrated hits of ndlar_flow (h5flow): references between datasets say which hits an event has."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import h5py
import numpy as np

from hyperslab.data.config import DataSettings
from hyperslab.data.frames import Ints
from hyperslab.data.sources import Block
from hyperslab.data.sources.index import Channel, Index, RawFile
from hyperslab.data.sources.lartpc.hdf5 import dataset, find, holds, open_hdf5
from hyperslab.data.sources.lartpc.header import LARPIX_CLOCK_US, FrameLabels, Header, points_of
from hyperslab.data.sources.lartpc.layout import Layout, Quantity, make_layout
from hyperslab.data.sources.lartpc.points import Column, odd_values, read_points
from hyperslab.data.sources.lartpc.references import References
from hyperslab.data.sources.lartpc.table import Arrays, CompoundTable, Table
from hyperslab.errors import UserError

EVENTS = "charge/events"
HITS = {"final": "charge/calib_final_hits", "prompt": "charge/calib_prompt_hits"}
BACKTRACK = {"final": "mc_truth/calib_final_hit_backtrack", "prompt": "mc_truth/calib_prompt_hit_backtrack"}
SEGMENT = Channel(name="segment_id", units="1", long_name="truth segment with the largest share of the hit")
MM_PITCH = 1.0
"""Pixels are 3.7 to 4.4 mm wide: a pitch above this is in mm, one below in cm."""


class Flow:
    """`charge/events` and one of its sets of calibrated hits."""

    name = "ndlar_flow"
    kind = "ndlar_flow hits (h5flow)"

    def read_header(self, path: str, settings: DataSettings) -> Header:
        """Events, and how many hits refer to each; no hit is read."""
        with open_hdf5(path) as file:
            hits = _choose(file, settings, path)
            table = CompoundTable(dataset(file, f"{HITS[hits]}/data"), path)
            layout = _layout(file, table, path)
            events = dataset(file, f"{EVENTS}/data")
            references = References(file, EVENTS, HITS[hits], path)
            points = references.count(len(events), table.rows)
            truth = _backtrack(file, hits, table.rows)
            if truth is not None:
                layout = replace(layout, labels=(*layout.labels, SEGMENT))
            oddities = [*layout.oddities, *_oddities(file, hits, points, table, truth)]
            frame_labels = _frame_labels(events)
        return Header(
            path=path,
            format=self.name,
            kind=self.kind,
            num_frames=len(points),
            space=layout.space,
            channels=layout.channels,
            labels=layout.labels,
            points=points,
            frame_labels=frame_labels,
            details={**layout.details, "hits": hits},
            attributes={"hits": hits},
            oddities=tuple(oddities),
        )

    def read(self, file: RawFile, index: Index, first: int, last: int) -> Block:
        """Frames `[first, last)` of those in the file."""
        hits = str(file.details["hits"])
        with open_hdf5(file.path) as content:
            points = points_of(file, index, first, last)
            rows = References(content, EVENTS, HITS[hits], file.path).rows(first, points)
            plain = CompoundTable(dataset(content, f"{HITS[hits]}/data"), file.path)
            truth = _backtrack(content, hits, plain.rows)
            table: Table = plain if truth is None else _WithTruth(plain, truth)
            if len(rows) and rows.max() >= table.rows:
                raise UserError(
                    f"{file.path}: an event refers to hit {rows.max()} of {table.rows}; run ndlar_flow again"
                )
            return read_points(table, rows, points, file, index)

    def odd_values(self, header: Header) -> Iterator[str]:
        """Counts of hits without a position, and of negative charges."""
        with open_hdf5(header.path) as file:
            table = CompoundTable(dataset(file, f"{HITS[header.details['hits']]}/data"), header.path)
            layout = _layout(file, table, header.path)
            yield from odd_values([table], layout.positions, layout.charges, "hits")


def _choose(file: h5py.File, settings: DataSettings, path: str) -> str:
    held = [hits for hits, name in HITS.items() if holds(file, f"{name}/data")]
    wanted = settings.lartpc.hits
    if wanted and wanted not in held:
        raise UserError(
            f"{path}: data.lartpc.hits asks for {wanted} hits, the file holds {' and '.join(held)}; ask for those"
        )
    return wanted or held[0]


def _layout(file: h5py.File, table: CompoundTable, path: str) -> Layout:
    length, length_line = _length_scale(file, path)
    clock, clock_line = _attribute(file, "run_info", "crs_ticks", path)
    tick = clock or LARPIX_CLOCK_US
    quantities = {
        "t_drift": Quantity(units="us", long_name="drift time", scale=tick),
        "Q": Quantity(units="ke-", long_name="charge", is_charge=True),
        "Q_raw": Quantity(units="ke-", long_name="charge, before correction", is_charge=True),
        "E": Quantity(units="MeV", long_name="energy", is_charge=True),
        "x_corr": Quantity(units="cm", long_name="x, corrected for drift time", scale=length),
        "t_confidence": Quantity(units="1", long_name="confidence of the match of charge and light"),
    }
    axes = {axis: Column(names=(axis,), scale=length) for axis in "xyz"}
    return make_layout(table, path, axes, quantities, oddities=[line for line in (length_line, clock_line) if line])


def _attribute(file: h5py.File, group: str, name: str, path: str) -> tuple[float | None, str]:
    """An attribute of h5flow's description of the run, and a line where it is missing."""
    if not holds(file, group) or name not in find(file, group).attrs:
        return None, f"{group} does not state {name}: {LARPIX_CLOCK_US:g} us are taken" if group == "run_info" else ""
    value = np.asarray(find(file, group).attrs[name])
    if value.size != 1 or value.dtype.kind not in "fiu" or not 0 < float(value.ravel()[0]) < 1e3:
        raise UserError(f"{path}: {group}.{name} is {value}; it must be one positive number, mend the file")
    return float(value.ravel()[0]), ""


def _length_scale(file: h5py.File, path: str) -> tuple[float, str]:
    """Factor from the file's unit of length to cm: early versions of ndlar_flow wrote mm."""
    pitch, _ = _attribute(file, "geometry_info", "pixel_pitch", path)
    if pitch is None:
        return 1.0, "geometry_info does not state the pixel pitch: positions are taken as cm"
    if pitch > MM_PITCH:
        return 0.1, f"the pixel pitch is stated as {pitch:g}, so lengths are in mm"
    return 1.0, ""


def _frame_labels(events: h5py.Dataset) -> FrameLabels:
    labels = {"event_id": "id", "unix_ts": "unix_ts", "num_external_triggers": "n_ext_trigs"}
    held = {label: name for label, name in labels.items() if name in (events.dtype.names or ())}
    own = events.fields(list(held.values()))[:]
    return {label: tuple(own[name].tolist()) for label, name in held.items()}


def _oddities(
    file: h5py.File, hits: str, points: Ints, table: CompoundTable, truth: h5py.Dataset | None
) -> Iterator[str]:
    other = "prompt" if hits == "final" else "final"
    if holds(file, f"{HITS[other]}/data"):
        yield f"{hits} hits are taken; the file also holds {other} ones (data.lartpc.hits)"
    if free := table.rows - int(points.sum()):
        yield f"{free:,} of {table.rows:,} hits belong to no event, or to several"
    if empty := int((points == 0).sum()):
        yield f"{empty:,} of {len(points):,} events have no hit: kept as frames without points"
    if truth is not None:
        yield "segment_id is the truth segment with the largest share of a hit, -1 without any; see mc_truth/segments"


def _backtrack(file: h5py.File, hits: str, num_hits: int) -> h5py.Dataset | None:
    """Shares of truth segments in each hit, where the file is a simulation and has them row by row."""
    if not holds(file, f"{BACKTRACK[hits]}/data"):
        return None
    data = dataset(file, f"{BACKTRACK[hits]}/data")
    names = data.dtype.names or ()
    known = "fraction" in names and ("segment_ids" in names or "segment_id" in names)
    return data if known and data.shape == (num_hits,) else None


class _WithTruth:
    """A table of hits with the truth segment of each as one more column."""

    def __init__(self, table: CompoundTable, truth: h5py.Dataset) -> None:
        self._table, self._truth = table, truth
        self.rows, self.left_out = table.rows, table.left_out
        self.dtypes = {**table.dtypes, "segment_id": np.dtype(np.int64)}
        self._ids = "segment_ids" if "segment_ids" in truth.dtype.names else "segment_id"

    def read(self, names: Sequence[str], start: int, stop: int) -> Arrays:
        """Rows `[start, stop)` of some columns."""
        found = self._table.read([name for name in names if name != "segment_id"], start, stop)
        if "segment_id" in names:
            shares = self._truth.fields([self._ids, "fraction"])[start:stop]
            size = np.abs(np.nan_to_num(shares["fraction"].reshape(stop - start, -1)))
            best = np.argmax(size, axis=1)[:, None]
            ids = np.take_along_axis(shares[self._ids].reshape(stop - start, -1), best, 1)[:, 0].astype(np.int64)
            found["segment_id"] = np.where(size.max(axis=1, initial=0) > 0, ids, -1)
        return found
