"""A synthetic archive in the manner of DUNE's near detector: hits with their truth, truth alone, or wire images."""

import math
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from hyperslab.data.sources.synthetic.archive import Order, check_room, draft, in_order
from hyperslab.data.sources.synthetic.drift import Detector, drifted, read_out
from hyperslab.data.sources.synthetic.flow import FlowFile, SegmentFile
from hyperslab.data.sources.synthetic.tracks import draw_tracks, segments_of
from hyperslab.data.sources.synthetic.wires import WIRES, FrameArchive, image

_FILE_BYTES = 256 * 10**6
_MOST_EVENTS = 32
"""Events that are made at a time."""


def write(order: Order) -> list[Path]:
    """Write the archive; its files in the order of their numbers."""
    least = 2 if order.size_bytes >= 2 * 10**6 else 1
    count = max(least, math.ceil(order.size_bytes / _FILE_BYTES))
    one = {"flow": _write_flow, "segments": _write_segments, "frames": _write_frames}[order.form]
    suffix = {"flow": "FLOW.hdf5", "segments": "EDEPSIM.hdf5", "frames": "frames.tar.gz"}[order.form]

    def write_one(number: int) -> Path:
        target = order.out / f"lartpc_{number:05d}.{suffix}"
        with draft(target) as path:
            one(path, order.size_bytes // count, np.random.default_rng([order.seed, 10, number]))
        return target

    return list(in_order(write_one, range(count), order.workers))


def _write_flow(path: Path, size_bytes: int, rng: np.random.Generator) -> None:
    detector = Detector()
    with h5py.File(path, "w") as opened:
        file, num_segments = FlowFile(opened, detector), 0
        for first, count in _batches(path, size_bytes, file):
            segments = segments_of(draw_tracks(detector.box, first, count, rng), num_segments, rng)
            num_segments += len(segments)
            clouds = drifted(detector, segments, rng)
            ids = segments["segment_id"].astype(np.int64)
            file.append(first, count, read_out(detector, clouds, ids, rng), segments)


def _write_segments(path: Path, size_bytes: int, rng: np.random.Generator) -> None:
    with h5py.File(path, "w") as opened:
        file, num_segments = SegmentFile(opened), 0
        for first, count in _batches(path, size_bytes, file):
            segments = segments_of(draw_tracks(Detector().box, first, count, rng), num_segments, rng)
            num_segments += len(segments)
            file.append(segments)


def _write_frames(path: Path, size_bytes: int, rng: np.random.Generator) -> None:
    with FrameArchive.create(path) as file:
        for first, count in _batches(path, size_bytes, file):
            for event in range(first, first + count):
                segments = segments_of(draw_tracks(WIRES.box, event, 1, rng), 0, rng)
                file.append(event, image(WIRES, drifted(WIRES, segments, rng), rng))


def _batches(path: Path, size_bytes: int, file: FlowFile | SegmentFile | FrameArchive) -> Iterator[tuple[int, int]]:
    """First event and number of events of each batch, until the file has its size."""
    events, count = 0, 1
    check_room(path, 0)
    while True:
        yield events, count
        events += count
        left = size_bytes - file.size_bytes
        own = max(1.0, file.size_bytes / events)
        if left < own / 2:
            return
        count = max(1, min(_MOST_EVENTS, events, int(left / own)))
        check_room(path, 2 * count * own)
