"""Liquid-argon detectors: hits and points of events (ragged), or images of wire and tick (dense)."""

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hyperslab.data.clock import Clock
from hyperslab.data.config import DataSettings
from hyperslab.data.sources import Block
from hyperslab.data.sources.index import Channel, Description, Index, RawFile
from hyperslab.data.sources.lartpc.agreement import (
    check_alike,
    choose_channels,
    common_labels,
    in_one_line,
    join_lines,
    printable,
)
from hyperslab.data.sources.lartpc.flow import Flow
from hyperslab.data.sources.lartpc.formats import FORMATS, files_in, recognise
from hyperslab.data.sources.lartpc.frame_archives import FrameArchives
from hyperslab.data.sources.lartpc.header import Header, first_frame
from hyperslab.errors import UserError


class Lartpc:
    """Source of events: every frame is an event, and a segment of its own."""

    @in_one_line()
    def describe(self, path: str) -> Description:
        """Say what a file is, what would be taken from it, and what is odd in it; all of its data is read."""
        first = (files_in(path) or [path])[0]
        header = recognise(first).read_header(first, DataSettings(files=[first]))
        lines = [*header.oddities, *FORMATS[header.format].odd_values(header)]
        return Description(
            path=path,
            kind=f"{header.kind}, {Path(first).stat().st_size:,} bytes",
            taken=tuple(map(printable, _taken(header))),
            oddities=tuple(map(printable, lines)),
        )

    @in_one_line()
    def scan(self, paths: Sequence[str], settings: DataSettings) -> Index:
        """Read the event columns of all files and say which event lies where.

        Raises
        ------
        UserError
            When a file cannot be used, files disagree, or the campaign asks for what no file has.
        """
        _check_settings(settings)
        headers, states = [], []
        for path in _files(paths):
            known = recognise(path)
            _check_format(known.name, path, settings)
            # Before the header: a file that changes meanwhile is found out when it is read.
            states.append(Path(path).stat())
            headers.append(known.read_header(path, settings))
        oddities = join_lines((header.path, line) for header in headers for line in header.oddities)
        oddities += [f"{header.path}: holds no event" for header in headers if not header.num_frames]
        kept = [(header, state) for header, state in zip(headers, states, strict=True) if header.num_frames]
        if not kept:
            raise UserError(f"{paths[0] if paths else 'data.files'}: no event in {len(headers)} file(s); name others")
        return _index([header for header, _ in kept], [state for _, state in kept], settings, oddities)

    @in_one_line()
    def read(self, index: Index, start: int, stop: int) -> Block:
        """Frames `[start, stop)`.

        Raises
        ------
        UserError
            When a raw file has changed since the scan, or its data cannot be read.
        """
        parts: list[Block] = []
        number = max(0, bisect_right(index.files, start, key=first_frame) - 1)
        while number < len(index.files) and first_frame(file := index.files[number]) < stop:
            first, last = max(start - first_frame(file), 0), min(stop - first_frame(file), file.runs[0][2])
            if first < last:
                _check_unchanged(file)
                parts.append(FORMATS[file.details["format"]].read(file, index, first, last))
            number += 1
        if not parts:
            return _empty(index)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def read_statics(self, index: Index) -> npt.NDArray[np.float32]:
        """Nothing: a detector has no field without time."""
        return np.empty((0, *index.space_shape), np.float32)


SOURCE = Lartpc()

CHOICES = {"hits": Flow.name, "tick_ns": FrameArchives.name, "wires": FrameArchives.name}
"""Formats that the settings are for."""


def _check_settings(settings: DataSettings) -> None:
    if settings.period.start is not None or settings.period.end is not None:
        raise UserError("data.period: lartpc events are numbered, not dated; name the files to take instead")
    if settings.levels is not None:
        raise UserError("data.levels: lartpc channels have no levels; remove it")


def _files(paths: Sequence[str]) -> list[str]:
    found = [file for named in paths for file in files_in(named)]
    path, count = Counter(found).most_common(1)[0] if found else ("", 0)
    if count > 1:
        raise UserError(f"{path}: is named {count} times in data.files; every event once, name it once")
    return found


def _check_format(name: str, path: str, settings: DataSettings) -> None:
    """Refuse a choice that this format does not offer, rather than pass over it."""
    for key, owner in CHOICES.items():
        if getattr(settings.lartpc, key) is not None and name != owner:
            raise UserError(f"{path}: is of format {name}; data.lartpc.{key} is for {owner} files only, remove it")


def _index(headers: list[Header], states: list[os.stat_result], settings: DataSettings, oddities: list[str]) -> Index:
    first = headers[0]
    channels = choose_channels(headers, settings)
    check_alike(headers, channels)
    labels, label_lines = common_labels(headers)
    counts = [header.num_frames for header in headers]
    starts = np.concatenate([[0], np.cumsum(counts)])
    total = int(starts[-1])
    facts = [name for name in first.frame_labels if all(name in header.frame_labels for header in headers)]
    return Index(
        source="lartpc",
        clock=Clock(kind="event"),
        time=tuple(range(total)),
        segment=tuple(range(total)),
        channels=tuple(channels),
        space=first.space,
        files=tuple(
            _raw_file(header, state, channels, int(start))
            for header, state, start in zip(headers, states, starts, strict=False)
        ),
        oddities=(*oddities, *label_lines, *_lost_facts(headers, facts)),
        points=None
        if first.points is None
        else tuple(n for h in headers if h.points is not None for n in h.points.tolist()),
        labels=labels,
        frame_labels={
            "file": tuple(np.repeat(np.arange(len(headers)), counts).tolist()),
            **{name: tuple(value for header in headers for value in header.frame_labels[name]) for name in facts},
        },
        split_by="segment",
        block_frames=max(header.block_frames for header in headers),
        attributes={"format": first.format, **first.attributes},
    )


def _lost_facts(headers: list[Header], facts: list[str]) -> Iterator[str]:
    lost = sorted({name for header in headers for name in header.frame_labels} - set(facts))
    if lost:
        lacking = next(header.path for header in headers for name in lost if name not in header.frame_labels)
        yield f"facts about events that not all files have are left out: {', '.join(lost)} (not in {lacking})"


def _raw_file(header: Header, state: os.stat_result, channels: list[Channel], start: int) -> RawFile:
    return RawFile(
        path=header.path,
        size_bytes=state.st_size,
        modified_ns=state.st_mtime_ns,
        channels=tuple(channel.name for channel in channels),
        runs=((0, start, header.num_frames),),
        details={"format": header.format, **header.details},
    )


def _check_unchanged(file: RawFile) -> None:
    try:
        state = Path(file.path).stat()
    except OSError as error:
        raise UserError(
            f"{file.path}: cannot be read ({error.strerror}); put it back, or start a new campaign"
        ) from None
    if (state.st_size, state.st_mtime_ns) != (file.size_bytes, file.modified_ns):
        raise UserError(f"{file.path}: has changed since it was indexed; start a new campaign for the new data")


def _empty(index: Index) -> Block:
    """A block of no frames."""
    if not index.is_ragged:
        return {"values": np.empty((0, *index.shape[1:]), np.float32)}
    block: Block = {
        "position": np.empty((0, len(index.space)), np.float32),
        "feature": np.empty((0, len(index.channels)), np.float32),
    }
    if index.labels:
        block["labels"] = np.empty((0, len(index.labels)), np.int64)
    return block


def _taken(header: Header) -> Iterator[str]:
    """Lines on frames, space, channels and labels."""
    if header.points is not None:
        held = header.points.tolist()
        spread = f", {min(held):,} to {max(held):,} an event" if held else ""
        yield f"events: {header.num_frames:,}, with {sum(held):,} points{spread}"
        yield "positions: " + ", ".join(f"{axis.name} [{axis.units}]" for axis in header.space)
    else:
        yield f"events: {header.num_frames:,}"
        yield "image: " + " x ".join(f"{axis.name} {len(axis.values):,}" for axis in header.space)
    for channel in header.channels:
        yield f"channel {channel.name}: {channel.long_name} [{channel.units}]"
    for label in header.labels:
        yield f"label {label.name}: {label.long_name}"
    if header.frame_labels:
        yield f"facts about each event: {', '.join(header.frame_labels)}"
