"""Simulated readout of larnd-sim-jax: a group of arrays for each event, in groups of batches."""

import re
from collections.abc import Iterator

import h5py
import numpy as np

from hyperslab.data.config import DataSettings
from hyperslab.data.sources import Block
from hyperslab.data.sources.index import Index, RawFile
from hyperslab.data.sources.lartpc.clouds import NO_UNITS, QUANTITIES
from hyperslab.data.sources.lartpc.hdf5 import dataset, find, names_in, open_hdf5
from hyperslab.data.sources.lartpc.header import Header, points_of
from hyperslab.data.sources.lartpc.layout import Layout, make_layout
from hyperslab.data.sources.lartpc.points import Column, odd_values, read_points
from hyperslab.data.sources.lartpc.table import DatasetTable
from hyperslab.errors import UserError

BATCH, EVENT = re.compile(r"batch_(\d{1,18})"), re.compile(r"event_(\d{1,18})")


class Readout:
    """`batch_N/event_M/...`: arrays of one length, positions `pix_x`, `pix_y`, `pix_z`."""

    name = "larnd-sim-jax"
    kind = "larnd-sim-jax readout"

    def read_header(self, path: str, _settings: DataSettings) -> Header:
        """Events, and their points by the shapes of their arrays."""
        with open_hdf5(path) as file:
            groups = _groups(file)
            if not groups:
                raise UserError(f"{path}: its batches hold no event; there is nothing to take")
            tables = (_table(file, group, path) for _, _, group in groups)
            first = next(tables)
            layout = _layout(first, path)
            points = [first.rows, *(_same(table, first, path).rows for table in tables)]
        return Header(
            path=path,
            format=self.name,
            kind=self.kind,
            num_frames=len(groups),
            space=layout.space,
            channels=layout.channels,
            labels=layout.labels,
            points=np.asarray(points, np.int64),
            frame_labels={
                "event_id": tuple(event for _, event, _ in groups),
                "batch": tuple(batch for batch, _, _ in groups),
            },
            details={**layout.details, "groups": [group for _, _, group in groups]},
            oddities=(*layout.oddities, "events are in the order of their batches and numbers"),
        )

    def read(self, file: RawFile, index: Index, first: int, last: int) -> Block:
        """Frames `[first, last)` of those in the file."""
        points = points_of(file, index, first, last)
        parts = []
        with open_hdf5(file.path) as content:
            for group, count in zip(file.details["groups"][first:last], points, strict=True):
                table = _table(content, group, file.path)
                if table.rows != count:
                    raise UserError(f"{file.path}: {group} has {table.rows} points, not {count}; scan it again")
                parts.append(read_points(table, np.arange(count), (count,), file, index))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def odd_values(self, header: Header) -> Iterator[str]:
        """Counts of points without a position, and of negative charges."""
        with open_hdf5(header.path) as file:
            tables = [_table(file, group, header.path) for group in header.details["groups"]]
            layout = _layout(tables[0], header.path)
            yield from odd_values(tables, layout.positions, layout.charges)


def _groups(file: h5py.File) -> list[tuple[int, int, str]]:
    """Batch, event and path of each event, in the order of their numbers; HDF5 lists names by the alphabet."""
    found = []
    for batch in (match for name in names_in(file) if (match := BATCH.fullmatch(name))):
        group = find(file, batch[0])
        if isinstance(group, h5py.Group):
            events = (match for name in names_in(group) if (match := EVENT.fullmatch(name)))
            found += [(int(batch[1]), int(event[1]), f"{batch[0]}/{event[0]}") for event in events]
    return sorted(found)


def _table(file: h5py.File, name: str, path: str) -> DatasetTable:
    group = find(file, name)
    if not isinstance(group, h5py.Group) or not len(group):
        raise UserError(f"{path}: {name} holds no arrays; write the file again")
    return DatasetTable({column: dataset(file, f"{name}/{column}") for column in names_in(group)}, path)


def _same(table: DatasetTable, first: DatasetTable, path: str) -> DatasetTable:
    if table.dtypes != first.dtypes:
        odd = min(name for name, _ in set(table.dtypes.items()) ^ set(first.dtypes.items()))
        raise UserError(f"{path}: its events differ in the array {odd}; all events need the same arrays")
    return table


def _layout(table: DatasetTable, path: str) -> Layout:
    axes = {axis: Column(names=(f"pix_{axis}",)) for axis in "xyz"}
    return make_layout(table, path, axes, QUANTITIES, left_out=("eventID",), oddities=(NO_UNITS,))
