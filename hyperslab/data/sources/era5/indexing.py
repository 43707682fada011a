"""The index of an archive, from what its files hold."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hyperslab.data.config import DataSettings
from hyperslab.data.sources.era5.choice import Choice, choose
from hyperslab.data.sources.era5.formats import state_of
from hyperslab.data.sources.era5.grid import Floats, check_same
from hyperslab.data.sources.era5.header import Contents, Header
from hyperslab.data.sources.era5.record import Record, make_record
from hyperslab.data.sources.era5.regrid import regrid_attributes, regrid_line, target_grid
from hyperslab.data.sources.index import Axis, Index, RawFile

# Frames that are read together fill about this much memory, unless one chunk of the raw files fills more.
_BLOCK_BYTES = 64 << 20

PRELIMINARY = "0005"


def make_index(contents: Sequence[Contents], settings: DataSettings) -> Index:
    """The index of these files.

    Raises
    ------
    UserError
        When files overlap or disagree, or the campaign asks for what none of them has.
    """
    choice = choose(contents, settings)
    headers = [header for held in contents for header in held.headers]
    used = [(header, names) for header in headers if (names := tuple(c.name for c in choice.own(header)))]
    statics = _static_files(headers, choice)
    grid, path = used[0][0].grid, used[0][0].name
    for header, _ in (*used, *statics):
        check_same(header.grid, header.name, grid, path)
    record = make_record(used, settings)
    latitude, longitude = grid.latitude, grid.longitude
    oddities = [*_file_oddities(contents, [*used, *statics]), *record.oddities, *_version_oddities(record)]
    oddities += _static_oddities(choice)
    attributes = {}
    if (regrid := settings.era5.regrid) is not None:
        latitude, longitude = target_grid(grid, regrid)
        attributes["regrid"] = regrid_attributes(grid, regrid)
        oddities.append(regrid_line(grid, latitude, longitude, regrid))
    versions = record.versions()
    return Index(
        source="era5",
        clock=record.clock,
        time=tuple(record.time.tolist()),
        segment=tuple(record.segment.tolist()),
        channels=choice.channels,
        space=_space(latitude, longitude),
        files=_raw_files(record, statics, len(choice.channels)),
        oddities=tuple(oddities),
        statics=choice.statics,
        frame_labels={"expver": tuple(np.where(versions == "", "unknown", versions).tolist())} if any(versions) else {},
        segment_labels=record.segment_labels(),
        block_frames=_block_frames([piece.header for piece in record.pieces], len(choice.channels)),
        attributes=attributes,
    )


def _space(latitude: Floats, longitude: Floats) -> tuple[Axis, ...]:
    return (
        Axis(name="latitude", units="degrees_north", values=tuple(latitude.tolist()), long_name="latitude"),
        Axis(name="longitude", units="degrees_east", values=tuple(longitude.tolist()), long_name="longitude"),
    )


def _static_files(headers: Sequence[Header], choice: Choice) -> list[tuple[Header, tuple[str, ...]]]:
    """The first file that holds each static field."""
    found: list[tuple[Header, tuple[str, ...]]] = []
    taken: set[str] = set()
    for header in headers:
        names = tuple(channel.name for channel in choice.own_statics(header) if channel.name not in taken)
        if names:
            found.append((header, names))
            taken.update(names)
    return found


def _raw_files(
    record: Record, statics: Sequence[tuple[Header, tuple[str, ...]]], num_channels: int
) -> tuple[RawFile, ...]:
    states: dict[str, tuple[int, int]] = {}
    files = []
    for piece in record.pieces:
        file = _raw_file(piece.header, piece.names, states)
        # All channels need no list: thousands of files would repeat it.
        names = piece.names if len(piece.names) < num_channels else ()
        files.append(replace(file, channels=names, runs=record.runs(piece)))
    for header, names in statics:
        file = _raw_file(header, names, states)
        files.append(replace(file, details={**file.details, "static": True}))
    return tuple(files)


def _raw_file(header: Header, names: tuple[str, ...], states: dict[str, tuple[int, int]]) -> RawFile:
    if header.path not in states:
        states[header.path] = state_of(header.path)
    size, modified = states[header.path]
    details: dict[str, object] = {"part": header.part} if header.part else {}
    if header.messages:
        details["messages"] = {name: header.messages[name] for name in names}
        details["group"] = header.group
    return RawFile(path=header.path, size_bytes=size, modified_ns=modified, channels=names, details=details)


def _block_frames(headers: Sequence[Header], num_channels: int) -> int:
    """Frames best read together: a chunk of the raw files, or an even part of it where a chunk is too large."""
    widest = max(headers, key=lambda header: header.chunk_frames)
    frame_bytes = 4 * num_channels * int(np.prod(widest.grid.shape))
    most = max(1, max(_BLOCK_BYTES, widest.chunk_bytes) // frame_bytes)
    chunk = min(widest.chunk_frames, max(header.num_frames for header in headers))
    parts = -(-chunk // most)
    return -(-chunk // parts)


def _file_oddities(contents: Sequence[Contents], used: Sequence[tuple[Header, tuple[str, ...]]]) -> list[str]:
    """Each line once, with the name of the first file that it is of, and the number of further ones."""
    owners: dict[str, list[str]] = {}
    for header, _ in used:
        for line in header.oddities:
            names = owners.setdefault(line, [])
            if (name := _short(header.path)) not in names[-1:]:
                names.append(name)
    taken = {header.path for header, _ in used}
    for held in contents:
        if held.path not in taken:
            owners.setdefault("holds nothing that was asked for", []).append(_short(held.path))
    return [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {line}" for line, names in owners.items()
    ]


def _short(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _version_oddities(record: Record) -> list[str]:
    versions = record.versions()
    known = sorted({version for found in set(versions.tolist()) for version in found.split(",")} - {""})
    if known in ([], ["0001"]):
        return []
    preliminary = sum(
        count for version, count in zip(*np.unique(versions, return_counts=True), strict=True) if PRELIMINARY in version
    )
    words = f"experiment version {', '.join(known)}, recorded for each frame"
    return [words + (f": {preliminary} of {len(versions)} frames are preliminary (ERA5T)" if preliminary else "")]


def _static_oddities(choice: Choice) -> list[str]:
    names = [channel.name for channel in choice.statics if channel.name in choice.single]
    return [f"{', '.join(names)} with a single time: kept as fields without time"] if names else []
