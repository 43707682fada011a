"""Small raw files of every lartpc format, as their programs write them."""

import io
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

SEGMENT_FIELDS = [
    ("event_id", "u4"),
    ("z", "f4"),
    ("traj_id", "i4"),
    ("dE", "f4"),
    ("x", "f4"),
    ("pdg_id", "i4"),
    ("vertex_id", "u8"),
    ("dEdx", "f4"),
    ("t0", "f8"),
    ("y", "f4"),
    ("n_electrons", "u4"),
]
HIT_FIELDS = [
    ("id", "u4"),
    ("x", "f8"),
    ("y", "f8"),
    ("z", "f8"),
    ("t_drift", "f8"),
    ("ts_pps", "u8"),
    ("io_group", "u8"),
    ("io_channel", "u8"),
    ("Q", "f8"),
    ("E", "f8"),
]
EVENT_FIELDS = [("id", "u8"), ("nhit", "u4"), ("unix_ts", "u8"), ("n_ext_trigs", "u4")]
REGION = np.dtype([("start", "i8"), ("stop", "i8")])
PACKET_FIELDS = [
    ("io_group", "u1"),
    ("io_channel", "u1"),
    ("chip_id", "u1"),
    ("packet_type", "u1"),
    ("valid_parity", "u1"),
    ("channel_id", "u1"),
    ("timestamp", "u8"),
    ("dataword", "u1"),
]


def noise(rows: int, fields: Sequence[tuple[str, str]], seed: int = 0) -> np.ndarray:
    """Rows of random numbers: fractions from a normal, whole numbers from 0 to 99."""
    rng = np.random.default_rng(seed)
    table = np.zeros(rows, np.dtype(list(fields)))
    for name, kind in fields:
        table[name] = rng.normal(0, 10, rows) if kind.startswith("f") else rng.integers(0, 100, rows)
    return table


def write_segments(
    path: Path, events: Sequence[int], name: str = "segments", fields: Any = SEGMENT_FIELDS
) -> np.ndarray:
    """Segments of these events, row by row; what was written."""
    table = noise(len(events), fields)
    table[fields[0][0]] = events
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=table)
    return table


def write_flow(
    path: Path,
    pairs: Sequence[tuple[int, int]],
    num_events: int,
    num_hits: int,
    *,
    hits: str = "prompt",
    backward: bool = False,
    pitch: float | None = 0.4434,
    ticks: float | None = 0.1,
    mode: str = "w",
) -> np.ndarray:
    """Hits and the pairs of event and hit that tie them, in the layout of h5flow; the hits that were written."""
    events, place = "charge/events", f"charge/calib_{hits}_hits"
    table = noise(num_hits, HIT_FIELDS)
    table["id"] = np.arange(num_hits)
    table["ts_pps"] = 2**53 + 1 + np.arange(num_hits)  # which a float64 does not hold
    own = noise(num_events, EVENT_FIELDS, seed=1)
    own["id"] = 7 + np.arange(num_events)
    ref = np.asarray(pairs, "u4").reshape(-1, 2)
    with h5py.File(path, mode) as file:
        if f"{events}/data" not in file:
            file.create_dataset(f"{events}/data", data=own, maxshape=(None,))
        file.create_dataset(f"{place}/data", data=table, maxshape=(None,))
        forward, back = f"{events}/ref/{place}", f"{place}/ref/{events}"
        stored = ref[:, ::-1] if backward else ref
        file.create_dataset(f"{back if backward else forward}/ref", data=stored, maxshape=(None, 2))
        file.create_dataset(f"{forward}/ref_region", data=_regions(ref[:, 0], num_events), maxshape=(None,))
        file.create_dataset(f"{back}/ref_region", data=_regions(ref[:, 1], num_hits), maxshape=(None,))
        if ticks is not None:
            file.require_group("run_info").attrs["crs_ticks"] = ticks
        if pitch is not None:
            file.require_group("geometry_info").attrs["pixel_pitch"] = pitch
    return table


def _regions(column: np.ndarray, size: int) -> np.ndarray:
    """First and last pair, and one more, of each number; (0, 0) where there is none."""
    regions = np.zeros(size, REGION)
    for number in np.unique(column):
        places = np.flatnonzero(column == number)
        regions[number] = (places[0], places[-1] + 1)
    return regions


def write_backtrack(path: Path, fractions: np.ndarray, ids: np.ndarray, hits: str = "prompt") -> None:
    """Shares (hit, k) of the truth segments (hit, k), added to a file of hits."""
    kind = np.dtype([("fraction", "f8", fractions.shape[1:]), ("segment_ids", "i8", ids.shape[1:])])
    table = np.zeros(len(fractions), kind)
    table["fraction"], table["segment_ids"] = fractions, ids
    with h5py.File(path, "a") as file:
        file.create_dataset(f"mc_truth/calib_{hits}_hit_backtrack/data", data=table)


def write_packets(path: Path, table: np.ndarray) -> None:
    """LArPix packets."""
    with h5py.File(path, "w") as file:
        file.create_group("_header").attrs["version"] = "2.4"
        file.create_dataset("packets", data=table, maxshape=(None,))


def write_event_display(path: Path, selections: Sequence[Any], hits: int, clock_us: float | None = 0.1) -> np.ndarray:
    """Events that select these hits; the hits that were written."""
    fields = [("hid", "i8"), ("px", "f8"), ("py", "f8"), ("ts", "i8"), ("q", "f8"), ("chipid", "i8")]
    reference = h5py.regionref_dtype
    table = noise(hits, fields)
    table["ts"] = 2**60 + np.arange(hits)[::-1]
    with h5py.File(path, "w") as file:
        file.create_dataset("hits", data=table, maxshape=(None,))
        events = np.zeros(len(selections), [("evid", "i8"), ("hit_ref", reference), ("unix_ts", "u8")])
        events["evid"] = 100 + np.arange(len(selections))
        for number, chosen in enumerate(selections):
            events["hit_ref"][number] = h5py.RegionReference() if chosen is None else file["hits"].regionref[chosen]
        file.create_dataset("events", data=events)
        file.create_dataset("tracks", data=np.zeros(1, [("track_id", "i8")]))
        if clock_us is not None:
            file["tracks"].attrs["clock_period"] = clock_us
    return table


def write_pilarnet(path: Path, events: Sequence[Sequence[int]], width: int = 6, seed: int = 0) -> list[np.ndarray]:
    """Events given by the sizes of their clusters; the points that were written, (point, 8) each."""
    rng = np.random.default_rng(seed)
    points = [rng.uniform(0, 768, (sum(sizes), 8)).astype(np.float32) for sizes in events]
    with h5py.File(path, "w") as file:
        point = file.create_dataset("point", (len(events),), h5py.vlen_dtype(np.float32))
        cluster = file.create_dataset("cluster", (len(events),), h5py.vlen_dtype(np.int32))
        for event, sizes in enumerate(events):
            point[event] = points[event].ravel()
            rows = [[size, *range(10 * number, 10 * number + width - 1)] for number, size in enumerate(sizes)]
            cluster[event] = np.asarray(rows, np.int32).ravel()
    return points


def write_readout(path: Path, events: Mapping[str, int]) -> None:
    """Groups of arrays of these lengths."""
    with h5py.File(path, "w") as file:
        for number, (name, length) in enumerate(events.items()):
            for column in ("pix_x", "pix_y", "pix_z", "Q", "adc"):
                file[f"{name}/{column}"] = np.arange(length, dtype=np.float32) + number
            file[f"{name}/pixels"] = np.arange(length, dtype=np.int32)
            file[f"{name}/eventID"] = np.full(length, number)


def write_columns(path: Path, spills: Sequence[int]) -> dict[str, np.ndarray]:
    """Segments, a dataset for each column; the columns that were written."""
    rng = np.random.default_rng(0)
    columns: dict[str, np.ndarray] = {"SpillID": np.asarray(spills, np.int32)}
    for end in ("Start", "End"):
        for axis in "XYZ":
            columns[f"{end}{axis}Pos"] = rng.normal(0, 50, len(spills)).astype(np.float32)
    columns["EnergyDep"] = rng.uniform(0, 1, len(spills)).astype(np.float32)
    columns["PDG"] = np.full(len(spills), 13, np.int32)
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file[name] = values
    return columns


def frame_arrays(
    ident: int,
    tags: Sequence[str] = ("gauss0", "wiener0"),
    shape: tuple[int, int] = (3, 4),
    tickinfo: Sequence[float] = (0, 500, 0),
    first_channel: int = 10,
) -> dict[str, np.ndarray]:
    """The arrays of one event of a Wire-Cell frame archive."""
    arrays: dict[str, np.ndarray] = {}
    for number, tag in enumerate(tags):
        values = np.random.default_rng(ident + number).normal(0, 100, shape).astype(np.float32)
        arrays[f"frame_{tag}_{ident}"] = np.asfortranarray(values)
        arrays[f"channels_{tag}_{ident}"] = np.arange(shape[0], dtype=np.int32) + first_channel
        arrays[f"tickinfo_{tag}_{ident}"] = np.asarray(tickinfo, np.float64)
    return arrays


def npy(values: np.ndarray) -> bytes:
    """An array in npy form."""
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def write_tar(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """A tar archive of npy arrays, packed as its name says."""
    packing = {".tar": "w", ".gz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}[path.suffix]
    with tarfile.open(path, packing) as archive:  # type: ignore[call-overload]
        for name, values in arrays.items():
            data = npy(values)
            info = tarfile.TarInfo(f"{name}.npy")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


INFO_LINES = (1, 2.5, 1.25, 2.0, 2.25, 2.75, 0.5, 14, 1, 2, 3, 4, 10, 11, 0.125, 321)


def write_npz(path: Path, arrays: Mapping[str, np.ndarray], *, compressed: bool = False) -> None:
    """A numpy archive of these arrays."""
    save = np.savez_compressed if compressed else np.savez
    save(path, **dict(arrays))  # type: ignore[arg-type]


def write_pixel_map(
    path: Path, image: np.ndarray | None = None, info: Sequence[float] | None = INFO_LINES
) -> np.ndarray:
    """A pixel map and its truth; the image that was written."""
    if image is None:
        image = np.random.default_rng(0).integers(0, 256, (3, 500, 500), np.uint8)
    path.write_bytes(zlib.compress(image.tobytes(), 1))
    if info is not None:
        path.with_suffix(".info").write_text("".join(f"{value}\n" for value in info))
    return image
