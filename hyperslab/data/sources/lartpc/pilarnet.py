"""PILArNet-M: voxels of simulated events, ordered by cluster, with the truth of each cluster."""

from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hyperslab.data.config import DataSettings
from hyperslab.data.frames import Ints
from hyperslab.data.sources import Block
from hyperslab.data.sources.index import Axis, Channel, Index, RawFile
from hyperslab.data.sources.lartpc.hdf5 import dataset, holds, open_hdf5
from hyperslab.data.sources.lartpc.header import UNKNOWN, Header, points_of
from hyperslab.data.sources.lartpc.heaps import check_heaps
from hyperslab.data.sources.lartpc.points import whole_numbers
from hyperslab.errors import UserError

POINT_WIDTH = 8
BLOCK_EVENTS = 256

# DATASET.md of DeepLearnPhysics/PoLAr-MAE: x, y, z, then these; it states no units beyond those given here.
FEATURES = (
    Channel(name="value", units="MeV", long_name="value of the voxel"),
    Channel(name="energy", units="MeV", long_name="energy deposited"),
    Channel(name="time", units=UNKNOWN, long_name="absolute time"),
    Channel(name="num_electrons", units="1", long_name="ionisation electrons"),
    Channel(name="dx", units=UNKNOWN, long_name="dx"),
)
# A row of `cluster` is its number of points, then these; the last one since revision 2.
LABELS = (
    Channel(name="fragment_id", units="1", long_name="fragment"),
    Channel(name="group_id", units="1", long_name="particle (group of fragments)"),
    Channel(name="interaction_id", units="1", long_name="interaction"),
    Channel(name="semantic", units="1", long_name="0 shower, 1 track, 2 Michel, 3 delta, 4 low energy"),
    Channel(name="particle", units="1", long_name="0 photon, 1 electron, 2 muon, 3 pion, 4 proton, -1 none"),
)


class PilarNet:
    """`point` and `cluster`: one flat array for each event."""

    name = "pilarnet"
    kind = "PILArNet-M"

    def read_header(self, path: str, _settings: DataSettings) -> Header:
        """Events, and their points as the clusters count them; no point is read."""
        with open_hdf5(path) as file:
            point, cluster = _open(file, path)
            check_heaps(cluster, path, 0, len(cluster))
            width = _cluster_width(point, cluster, path)
            points = [
                int(_sizes(row, width, path, event).sum())
                for start in range(0, len(cluster), BLOCK_EVENTS)
                for event, row in enumerate(cluster[start : start + BLOCK_EVENTS], start)
            ]
            extra = holds(file, "cluster_extra")
        oddities = [
            "positions are voxel numbers: the file states no size of a voxel (PILArNet's is 3 mm, arXiv:2006.01993)",
            "the file states no units: those of the data set's description are taken, time and dx as they stand",
        ]
        if extra:
            oddities.append("cluster_extra (momentum, vertex and more) is left out: labels are whole numbers")
        if width == 5:
            oddities.append("revision 1: there is no particle of a cluster")
        return Header(
            path=path,
            format=self.name,
            kind=f"{self.kind}, revision {1 if width == 5 else '2 or later'}",
            num_frames=len(points),
            space=tuple(Axis(name=axis, units="voxel", long_name=f"voxel number along {axis}") for axis in "xyz"),
            channels=FEATURES,
            labels=LABELS[: width - 1],
            points=np.asarray(points, np.int64),
            frame_labels={"event_id": tuple(range(len(points)))},
            details={"cluster_width": width},
            attributes={"cluster_width": width},
            oddities=tuple(oddities),
        )

    def read(self, file: RawFile, index: Index, first: int, last: int) -> Block:
        """Frames `[first, last)` of those in the file."""
        width = int(file.details["cluster_width"])
        features = [3 + [channel.name for channel in FEATURES].index(channel.name) for channel in index.channels]
        labels = [1 + [label.name for label in LABELS].index(label.name) for label in index.labels]
        rows, truth = [np.empty((0, POINT_WIDTH), np.float32)], [np.empty((0, len(labels)), np.int64)]
        with open_hdf5(file.path) as content:
            point, cluster = _open(content, file.path)
            check_heaps(cluster, file.path, first, last)
            check_heaps(point, file.path, first, last)
            for event, count in enumerate(points_of(file, index, first, last), first):
                values, clusters = point[event], cluster[event]
                if values.size != count * POINT_WIDTH:
                    raise UserError(
                        f"{file.path}: event {event} has {values.size:,} values of points, its clusters have {count:,} "
                        f"points of {POINT_WIDTH}; the file is damaged, fetch it again"
                    )
                sizes = _sizes(clusters, width, file.path, event)
                rows.append(values.reshape(-1, POINT_WIDTH))
                chosen = whole_numbers(clusters.reshape(-1, width)[:, labels], f"cluster {event}", file.path)
                truth.append(np.repeat(chosen, sizes, axis=0))
        data = np.concatenate(rows)
        block = {
            "position": data[:, :3].astype(np.float32),
            "feature": data[:, features].astype(np.float32),
        }
        if labels:
            block["labels"] = np.concatenate(truth)
        return block

    def odd_values(self, header: Header) -> Iterator[str]:
        """A line for points whose voxel is NaN, or whose value is negative."""
        lost = below = 0
        with open_hdf5(header.path) as file:
            point, _ = _open(file, header.path)
            check_heaps(point, header.path, 0, len(point))
            for event in range(len(point)):
                values = point[event]
                values = values[: values.size // POINT_WIDTH * POINT_WIDTH].reshape(-1, POINT_WIDTH)
                lost += int((~np.isfinite(values[:, :3])).any(axis=1).sum())
                below += int((values[:, 3] < 0).sum())
        if lost:
            yield f"{lost:,} points have a position that is NaN or infinite: kept as it is"
        if below:
            yield f"{below:,} points have a negative value: kept as it is"


def _open(file: h5py.File, path: str) -> tuple[h5py.Dataset, h5py.Dataset]:
    point, cluster = dataset(file, "point"), dataset(file, "cluster")
    for data in (point, cluster):
        base = h5py.check_vlen_dtype(data.dtype)
        if not isinstance(base, np.dtype) or base.kind not in "fiu" or data.ndim != 1:
            raise UserError(f"{path}: {data.name} is no list of number arrays; it is not PILArNet-M")
    if len(point) != len(cluster):
        raise UserError(
            f"{path}: has points of {len(point)} events and clusters of {len(cluster)}; the file is damaged"
        )
    return point, cluster


def _cluster_width(point: h5py.Dataset, cluster: h5py.Dataset, path: str) -> int:
    """Columns of a cluster: those with which the clusters' points add up in the first event that has any."""
    for event in range(len(cluster)):
        row = cluster[event]
        if not row.size:
            continue
        check_heaps(point, path, event, event + 1)
        values = point[event]
        for width in (5, 6):
            if row.size % width == 0 and row[::width].sum() * POINT_WIDTH == values.size:
                return width
        raise UserError(
            f"{path}: the clusters of event {event} ({row.size} values) add up to its {values.size} values of points "
            f"neither with 5 columns (revision 1) nor with 6 (revision 2); it is not PILArNet-M, or damaged"
        )
    return 5


def _sizes(row: npt.NDArray[Any], width: int, path: str, event: int) -> Ints:
    """Points of each cluster of an event."""
    sizes = row[::width]
    if row.size % width or bool((sizes < 0).any()) or bool((sizes != np.trunc(sizes)).any()):
        raise UserError(
            f"{path}: the clusters of event {event} are not rows of {width} with a number of points each; "
            "the file is damaged, fetch it again"
        )
    return sizes.astype(np.int64)
