"""Files of hits as ndlar_flow writes them with h5flow, and files of segments as edep-sim's converter writes them."""

from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hyperslab.data.sources.synthetic.drift import BACKTRACK, HITS, TICK_US, Detector, Hits
from hyperslab.data.sources.synthetic.tracks import SEGMENTS, Ints

EVENTS = np.dtype(
    [
        ("id", "u8"),
        ("nhit", "u4"),
        ("ADC", "f8"),
        ("ts_start", "f8"),
        ("ts_end", "f8"),
        ("n_ext_trigs", "u4"),
        ("unix_ts", "u8"),
        ("unix_ts_usec", "u4"),
    ]
)
"""A row of `charge/events/data` (proto_nd_flow/reco/charge/event_builder.py)."""
REGION = np.dtype([("start", "i4"), ("stop", "i4")])
"""Rows of `ref` that belong to one row of `data` (h5flow/data/lib.py)."""
_EVENTS, _HITS = "charge/events", "charge/calib_prompt_hits"
_BACKTRACK, _SEGMENTS = "mc_truth/calib_prompt_hit_backtrack", "mc_truth/segments"
_CHUNK_ROWS = 1024
_FIRST_SECOND = 1_700_000_000
"""Unix time of the first event."""


class FlowFile:
    """Events with their hits and truth, appended batch by batch."""

    def __init__(self, file: h5py.File, detector: Detector) -> None:
        self._file = file
        for name, dtype in ((_EVENTS, EVENTS), (_HITS, HITS), (_BACKTRACK, BACKTRACK), (_SEGMENTS, SEGMENTS)):
            _table(file, f"{name}/data", dtype, deflate=name == _BACKTRACK)
        self._link(_EVENTS, _HITS)
        self._link(_HITS, _BACKTRACK)
        # As ndlar_flow's resources keep them: millimetres a microsecond, microseconds, centimetres.
        file.create_group("lar_info").attrs["v_drift"] = detector.velocity * 10
        file["lar_info"].attrs["electron_lifetime"] = detector.lifetime_us
        file.create_group("geometry_info").attrs["pixel_pitch"] = detector.pitch_cm
        file.create_group("run_info").attrs["crs_ticks"] = TICK_US

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows so far."""
        return _stored_bytes(self._file)

    def append(self, first_event: int, num_events: int, hits: Hits, segments: npt.NDArray[Any]) -> None:
        """Write events, all of them, also those without a hit."""
        first_hit = len(self._file[f"{_HITS}/data"])
        event = np.arange(first_event, first_event + num_events)
        starts, stops = np.searchsorted(hits.event, event), np.searchsorted(hits.event, event, side="right")
        number = first_hit + np.arange(len(hits.rows))
        rows = hits.rows.copy()
        rows["id"] = number
        _append(self._file[f"{_EVENTS}/data"], _events(event, rows, starts, stops))
        _append(self._file[f"{_HITS}/data"], rows)
        _append(self._file[f"{_BACKTRACK}/data"], hits.sources)
        _append(self._file[f"{_SEGMENTS}/data"], segments)
        self._refer(_EVENTS, _HITS, np.stack([hits.event, number], axis=1), first_hit + starts, first_hit + stops)
        self._refer(_HITS, _BACKTRACK, np.stack([number, number], axis=1), number, number + 1)

    def _link(self, parent: str, child: str) -> None:
        """References between two tables, with the attributes by which h5flow finds them."""
        forward, backward = f"{parent}/ref/{child}", f"{child}/ref/{parent}"
        reference = _table(self._file, f"{forward}/ref", np.dtype("u4"), columns=2)
        for side, path, owner in ((0, forward, parent), (1, backward, child)):
            region = _table(self._file, f"{path}/ref_region", REGION)
            region.attrs["ref"] = reference.name
            reference.attrs[f"dset{side}"] = f"/{owner}/data"
            reference.attrs[f"ref_region{side}"] = region.name

    def _refer(self, parent: str, child: str, pairs: Ints, starts: Ints, stops: Ints) -> None:
        first = len(self._file[f"{parent}/ref/{child}/ref"])
        _append(self._file[f"{parent}/ref/{child}/ref"], pairs.astype("u4"))
        _append(self._file[f"{parent}/ref/{child}/ref_region"], _regions(starts, stops))
        single = first + np.arange(len(pairs))
        _append(self._file[f"{child}/ref/{parent}/ref_region"], _regions(single, single + 1))


class SegmentFile:
    """Truth alone: energy deposits before any detector, in one table `segments`."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        _table(file, "segments", SEGMENTS)

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows so far."""
        return _stored_bytes(self._file)

    def append(self, segments: npt.NDArray[Any]) -> None:
        """Write some segments."""
        _append(self._file["segments"], segments)


def _events(event: Ints, hits: npt.NDArray[Any], starts: Ints, stops: Ints) -> npt.NDArray[Any]:
    events = np.zeros(len(event), EVENTS)
    events["id"], events["nhit"] = event, stops - starts
    events["unix_ts"] = _FIRST_SECOND + event
    sums = np.concatenate([[0.0], np.cumsum(hits["Q"])])
    events["ADC"] = sums[stops] - sums[starts]
    some = stops > starts
    events["ts_start"][some] = hits["ts_pps"][starts[some]]
    events["ts_end"][some] = hits["ts_pps"][stops[some] - 1]
    return events


def _regions(starts: Ints, stops: Ints) -> npt.NDArray[Any]:
    regions = np.zeros(len(starts), REGION)
    regions["start"], regions["stop"] = starts, stops
    return regions


def _table(file: h5py.File, name: str, dtype: np.dtype[Any], *, columns: int = 0, deflate: bool = False) -> Any:
    tail = (columns,) if columns else ()
    filters = {"compression": "gzip", "compression_opts": 1, "shuffle": True} if deflate else {}
    return file.create_dataset(
        name, (0, *tail), dtype, maxshape=(None, *tail), chunks=(_CHUNK_ROWS, *tail), track_times=False, **filters
    )


def _append(table: Any, rows: npt.NDArray[Any]) -> None:
    if len(rows):
        table.resize(len(table) + len(rows), axis=0)
        table[-len(rows) :] = rows


def _stored_bytes(file: h5py.File) -> int:
    found: list[int] = []

    def add(_: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found.append(item.id.get_storage_size())

    file.visititems(add)
    return sum(found)
