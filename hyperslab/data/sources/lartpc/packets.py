"""Raw packets of LArPix chips (LArPix+HDF5 version 2): where on the chips, when and how much, without a geometry."""

from collections.abc import Iterator

import h5py
import numpy as np

from hyperslab.data.config import DataSettings
from hyperslab.data.frames import Ints
from hyperslab.data.sources import Block
from hyperslab.data.sources.index import Axis, Channel, Index, RawFile
from hyperslab.data.sources.lartpc.hdf5 import dataset, open_hdf5
from hyperslab.data.sources.lartpc.header import LARPIX_CLOCK_US, Header, points_of
from hyperslab.data.sources.lartpc.points import Column, read_points, recipe
from hyperslab.data.sources.lartpc.table import CompoundTable, blocks
from hyperslab.errors import UserError

PLACES = ("io_group", "io_channel", "chip_id", "channel_id")
NEEDED = (*PLACES, "packet_type", "valid_parity", "timestamp", "dataword")

# hdf5format.py of larpix/larpix-control; 6 and 7 since version 2.4.
DATA = 0
KINDS = {
    1: "test",
    2: "config write",
    3: "config read",
    4: "timestamp",
    5: "message",
    6: "sync",
    7: "trigger",
}


class Packets:
    """`packets`: the data packets of valid parity, all of a file as one event."""

    name = "packets"
    kind = "LArPix packets"

    def read_header(self, path: str, _settings: DataSettings) -> Header:
        """Counts of packets of each type; a packet's place is its position."""
        with open_hdf5(path) as file:
            table = _table(dataset(file, "packets"), path)
            types, broken = _count(table, path)
        held = int(types[DATA]) - broken
        kinds = ", ".join(f"{n:,} {KINDS.get(kind, f'type {kind}')}" for kind, n in enumerate(types) if kind and n)
        oddities = [
            "packets know no events: all of a file are one frame; build events with ndlar_flow to have one frame each",
            "packets hold no place in space: positions are the numbers of their io group, io channel, chip and channel",
            f"t: counted from the file's least timestamp in us (ticks times {LARPIX_CLOCK_US:g}), exactly",
        ]
        if kinds:
            oddities.append(f"packets other than data are left out: {kinds}")
        if broken:
            oddities.append(f"{broken:,} of {int(types[DATA]):,} data packets have an invalid parity: left out")
        return Header(
            path=path,
            format=self.name,
            kind=self.kind,
            num_frames=min(1, held),
            space=tuple(Axis(name=name, units="1", long_name=name) for name in PLACES),
            channels=(
                Channel(name="dataword", units="ADC", long_name="pulse height", variable="dataword"),
                Channel(name="t", units="us", long_name="time since the file's first packet", variable="timestamp"),
            ),
            labels=(Channel(name="timestamp", units="1", long_name="clock ticks", variable="timestamp"),),
            points=np.full(min(1, held), held, np.int64),
            details=_RECIPE,
            oddities=tuple(oddities),
        )

    def read(self, file: RawFile, index: Index, first: int, last: int) -> Block:
        """Frames `[first, last)` of those in the file."""
        with open_hdf5(file.path) as content:
            table = _table(dataset(content, "packets"), file.path)
            rows, before = [np.empty(0, np.int64)], 0
            for block in blocks(table, ("packet_type", "valid_parity")):
                good = np.flatnonzero((block["packet_type"] == DATA) & (block["valid_parity"] == 1))
                rows.append(good + before)
                before += len(block["packet_type"])
            kept = np.concatenate(rows) if last > first else rows[0]
            return read_points(table, kept, points_of(file, index, first, last), file, index)

    def odd_values(self, header: Header) -> Iterator[str]:
        """How often time goes back from one data packet to the next."""
        back, last = 0, None
        with open_hdf5(header.path) as file:
            for block in blocks(_table(dataset(file, "packets"), header.path), ("packet_type", "timestamp")):
                ticks = block["timestamp"][block["packet_type"] == DATA]
                ticks = ticks if last is None else np.concatenate([[last], ticks])
                back += int((ticks[1:] < ticks[:-1]).sum())
                last = ticks[-1] if len(ticks) else last
        if back:
            yield f"timestamps go back {back:,} times from one data packet to the next: kept in the order of the file"


_RECIPE = recipe(
    [Column(names=(name,)) for name in PLACES],
    {
        "dataword": Column(names=("dataword",)),
        "t": Column(names=("timestamp",), scale=LARPIX_CLOCK_US, from_first=True),
    },
    {"timestamp": "timestamp"},
)


def _table(packets: h5py.Dataset, path: str) -> CompoundTable:
    table = CompoundTable(packets, path)
    if lacking := [name for name in NEEDED if name not in table.dtypes]:
        raise UserError(
            f"{path}: its packets lack {', '.join(lacking)}; LArPix+HDF5 version 2 is read, convert with larpix-control"
        )
    return table


def _count(table: CompoundTable, path: str) -> tuple[Ints, int]:
    """Packets of each type, and data packets of invalid parity."""
    types, broken = np.zeros(256, np.int64), 0
    for block in blocks(table, ("packet_type", "valid_parity")):
        kind = block["packet_type"]
        if len(kind) and (kind.min() < 0 or kind.max() > 255):
            raise UserError(f"{path}: packet types reach {kind.max()}; they are 0 to 7, the file is damaged")
        types += np.bincount(kind.astype(np.int64), minlength=256)
        broken += int(((kind == DATA) & (block["valid_parity"] != 1)).sum())
    return types, broken
