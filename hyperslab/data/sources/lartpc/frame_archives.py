"""Frames of the Wire-Cell Toolkit: images of wire and tick, in archives of numpy arrays."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from hyperslab.data.config import DataSettings
from hyperslab.data.sources import Block
from hyperslab.data.sources.index import Channel, Index, RawFile
from hyperslab.data.sources.lartpc.header import UNKNOWN, Header
from hyperslab.data.sources.lartpc.numpy_archive import (
    Member,
    is_compressed_tar,
    open_archive,
    read_npy,
    read_npy_header,
)
from hyperslab.data.sources.lartpc.pictures import NS_TO_US, Event, Picture, Tag, mask_text, picture_of
from hyperslab.errors import UserError

# FrameFileSource.cxx of WireCell/wire-cell-toolkit: <type>_<tag>_<ident>; a tag may hold underscores itself.
MEMBER = re.compile(r"(frame|channels|tickinfo|chanmask|summary)_(.*)_(-?\d{1,18})\.npy")
SMALL_ARRAY_BYTES = 64 << 20
BLOCK_BYTES = 256 << 20


class FrameArchives:
    """`frame_TAG_IDENT.npy` with its channels and tickinfo: a tag is a channel, an ident an event."""

    name = "wire-cell"
    kind = "Wire-Cell frames"

    def read_header(self, path: str, settings: DataSettings) -> Header:
        """Events, tags, wires and ticks; of the frames only the npy headers are read."""
        events, others = _survey(path)
        tags = list(next(iter(events.values())).tags)
        pictures = [picture_of(event, number, tags, settings, path) for number, event in events.items()]
        first = pictures[0]
        for number, picture in zip(events, pictures, strict=True):
            if replace(picture, start_ns=first.start_ns) != first:
                raise UserError(
                    f"{path}: event {number} has {picture.words}, event {next(iter(events))} has {first.words}; "
                    "all need the same wires and ticks, name them apart"
                )
        masks = sorted({name for event in events.values() for name in event.masks})
        frame_labels: dict[str, tuple[str | int | float, ...]] = {
            "event_id": tuple(events),
            "start_us": tuple(picture.start_ns * NS_TO_US for picture in pictures),
        }
        for name in masks:
            texts = (mask_text(event.masks.get(name), first) for event in events.values())
            frame_labels[f"mask_{name}"] = tuple(texts)
        frame_bytes = 4 * len(tags) * len(first.channels) * first.num_ticks
        compressed = is_compressed_tar(_magic(path))
        return Header(
            path=path,
            format=self.name,
            kind=self.kind,
            num_frames=len(events),
            space=first.space,
            channels=tuple(Channel(name=tag, units=UNKNOWN, long_name=f"Wire-Cell trace tag {tag}") for tag in tags),
            frame_labels=frame_labels,
            details={"events": list(events), "rows": first.rows and list(first.rows)},
            attributes={"tick_ns": first.tick_ns},
            oddities=tuple(_oddities(events, others, first, masks)),
            # A compressed archive is unpacked from its beginning for every read.
            block_frames=max(1, min(len(events), BLOCK_BYTES // frame_bytes)) if compressed else 1,
        )

    def read(self, file: RawFile, index: Index, first: int, last: int) -> Block:
        """Frames `[first, last)` of those in the file."""
        wanted = {number: place for place, number in enumerate(file.details["events"][first:last])}
        tags = {channel.name: place for place, channel in enumerate(index.channels)}
        values = np.empty((last - first, *index.shape[1:]), np.float32)
        lacking = {(number, tag) for number in wanted for tag in tags}
        rows = slice(None) if file.details["rows"] is None else file.details["rows"]
        with open_archive(file.path) as members:
            for member in members:
                match = MEMBER.fullmatch(member.name)
                if match and match[1] == "frame" and (key := (int(match[3]), match[2])) in lacking:
                    with np.errstate(over="ignore", invalid="ignore"):  # a damaged number may exceed a float32
                        values[wanted[key[0]], tags[key[1]]] = read_npy(member, file.path)[rows]
                    lacking.remove(key)
                if not lacking:
                    break
        if lacking:
            number, tag = min(lacking)
            raise UserError(f"{file.path}: holds no frame_{tag}_{number}.npy; fetch the archive again")
        return {"values": values}

    def odd_values(self, header: Header) -> Iterator[str]:
        """Counts of places without a value."""
        lost = total = 0
        with open_archive(header.path) as members:
            for member in members:
                if member.name.startswith("frame_") and MEMBER.fullmatch(member.name):
                    values = read_npy(member, header.path)
                    lost += int((~np.isfinite(values)).sum())
                    total += values.size
        if lost:
            yield f"{lost:,} of {total:,} values are NaN or infinite: kept as they are"


def _magic(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(8)


def _survey(path: str) -> tuple[dict[int, Event], list[str]]:
    """What the archive holds of each event, and names of members that are none of a frame."""
    events: dict[int, Event] = {}
    others: list[str] = []
    seen: set[str] = set()
    with open_archive(path) as members:
        for member in members:
            match = MEMBER.fullmatch(member.name)
            if member.name in seen:
                raise UserError(f"{path}: holds {member.name} twice; pack each array once")
            seen.add(member.name)
            if match is None:
                others.append(member.name)
                continue
            _take(events.setdefault(int(match[3]), Event()), match[1], match[2], member, path)
    if not any(event.tags for event in events.values()):
        raise UserError(f"{path}: holds no frame_TAG_IDENT.npy ({', '.join(others[:3]) or 'nothing'}); name others")
    return {number: event for number, event in events.items() if event.tags}, others


def _take(event: Event, kind: str, tag: str, member: Member, path: str) -> None:
    if kind == "summary":
        event.num_summaries += 1
        return
    header = read_npy_header(member, path)
    if kind == "frame":
        event.tags.setdefault(tag, Tag()).header = header
        return
    if header.num_bytes > SMALL_ARRAY_BYTES:
        raise UserError(f"{path}: {member.name} has {header.num_bytes:,} bytes; it is damaged, fetch it again")
    values = read_npy(member, path, header)
    if kind == "chanmask":
        if values.ndim != 2 or values.shape[1] != 3 or values.dtype.kind not in "iu":
            raise UserError(f"{path}: {member.name} is {values.dtype} {values.shape}, not rows of channel, start, stop")
        event.masks[tag] = values
    elif kind == "channels":
        event.tags.setdefault(tag, Tag()).channels = values
    else:
        event.tags.setdefault(tag, Tag()).tickinfo = values


def _oddities(events: dict[int, Event], others: list[str], picture: Picture, masks: list[str]) -> Iterator[str]:
    yield (
        f"tick: {picture.tick_ns:g} ns, as the file states; times of the axis tick are us since the frame's start "
        "(start_us, from ns)"
    )
    yield "the file states no unit of its values: taken as they stand"
    yield "the file does not tell planes apart: choose the wires of one with data.lartpc.wires"
    for name in masks:
        rows = [event.masks[name] for event in events.values() if name in event.masks]
        own = sum(int(np.isin(row[:, 0], picture.channels).sum()) for row in rows)
        yield (
            f"chanmask {name}: {own:,} of {sum(map(len, rows)):,} masked stretches lie on wires of the frames: kept in "
            f"mask_{name} of each frame, the values are not touched"
        )
    if any(event.num_summaries for event in events.values()):
        yield "summary arrays are left out"
    if others:
        yield f"members that are no part of a frame are left out: {', '.join(others[:5])}"
