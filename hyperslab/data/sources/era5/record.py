"""The common record of many files: which frames there are, in which order, and where each of them lies."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hyperslab.data.clock import Clock
from hyperslab.data.config import DataSettings
from hyperslab.data.frames import Bools, Ints, find_segments
from hyperslab.data.sources.era5.header import Frames, Header
from hyperslab.data.sources.era5.trajectories import (
    Trajectories,
    find_trajectories,
    has_steps,
    members_of,
    overlaps,
)
from hyperslab.errors import UserError

Label = tuple[str | int | float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Frames that are taken from one file."""

    header: Header
    names: tuple[str, ...]
    """Channels that are taken from it."""
    positions: Ints
    """Positions in the file that are taken, ascending."""
    frames: Frames
    """The frames at these positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """All frames, trajectory after trajectory, and inside one by time."""

    clock: Clock
    pieces: tuple[Piece, ...]
    trajectories: Trajectories
    keys: Ints
    """Key of each frame, ascending."""
    segment: Ints
    oddities: tuple[str, ...]

    @property
    def time(self) -> Ints:
        """Time of each frame."""
        return self.trajectories.times(self.keys)

    def runs(self, piece: Piece) -> tuple[tuple[int, int, int], ...]:
        """Unbroken stretches of a file: first position in it, first frame, number of frames."""
        frames = np.searchsorted(self.keys, self.trajectories.keys(piece.frames))
        breaks = np.flatnonzero((np.diff(piece.positions) != 1) | (np.diff(frames) != 1)) + 1
        starts = np.concatenate([np.zeros(min(1, len(frames)), np.int64), breaks])
        lengths = np.diff(starts, append=len(frames))
        return tuple(zip(piece.positions[starts].tolist(), frames[starts].tolist(), lengths.tolist(), strict=True))

    def segment_labels(self) -> dict[str, Label]:
        """Member and initial time of each segment, where the archive has them."""
        first = np.flatnonzero(np.diff(self.segment, prepend=-1))
        ranks = self.trajectories.ranks(self.keys[first]).tolist()
        labels: dict[str, Label] = {}
        if self.trajectories.has_members:
            labels["member"] = tuple(self.trajectories.member(rank) for rank in ranks)
        if self.trajectories.has_starts:
            labels["initial_time"] = tuple(self.clock.moment(self.trajectories.start(rank)) for rank in ranks)
        return labels

    def versions(self) -> npt.NDArray[np.str_]:
        """ECMWF's experiment version of each frame, several where its fields differ; empty where unknown."""
        versions = np.full(len(self.keys), "", "<U64")
        for piece in self.pieces:
            places = np.searchsorted(self.keys, self.trajectories.keys(piece.frames))
            found = piece.frames.expver
            both = (versions[places] != "") & (found != "") & (versions[places] != found)
            for place, version in zip(places[both], found[both], strict=True):
                versions[place] = ",".join(sorted({*versions[place].split(","), *version.split(",")}))
            plain = ~both & (found != "")
            versions[places[plain]] = found[plain]
        return versions


def make_record(used: Sequence[tuple[Header, tuple[str, ...]]], settings: DataSettings) -> Record:
    """The record that these files make together: every channel has every frame exactly once.

    Parameters
    ----------
    used
        Headers of fields in time, and the names of the channels that are taken from each.

    Raises
    ------
    UserError
        When nothing lies in the period, or calendars, members or frames do not fit together.
    """
    clock = _common_clock([header for header, _ in used])
    members = _chosen_members([header for header, _ in used], settings)
    pieces = [_piece(header, names, members, clock, settings) for header, names in used]
    pieces = [piece for piece in pieces if len(piece.positions)]
    if not pieces:
        start, end = (day or "..." for day in (settings.period.start, settings.period.end))
        raise UserError(f"data.period: no frame lies in {start} to {end}; choose one that the files reach into")
    groups = _by_files(pieces)
    has_starts, oddities = _forecasts([[piece.frames for piece in held] for held in groups.values()])
    trajectories = find_trajectories([piece.frames for piece in pieces], members is not None, has_starts)
    keys = _common_keys(groups, trajectories, clock)
    segment, gaps = _segments(keys, trajectories, clock)
    return Record(
        clock=clock,
        pieces=tuple(pieces),
        trajectories=trajectories,
        keys=keys,
        segment=segment,
        oddities=(*oddities, *gaps),
    )


def _common_clock(headers: Sequence[Header]) -> Clock:
    first = headers[0]
    for header in headers[1:]:
        if header.clock != first.clock:
            raise UserError(
                f"{header.name}: its calendar is {header.clock.calendar}, that of {first.name} is "
                f"{first.clock.calendar}; all files need one calendar, convert them with `cdo setcalendar`"
            )
    return first.clock


def _chosen_members(headers: Sequence[Header], settings: DataSettings) -> Ints | None:
    """Members to take; None where the archive is no ensemble."""
    known = members_of(headers)
    for member in settings.era5.members or []:
        if member not in known:
            held = ", ".join(map(str, known[:20].tolist())) or "none"
            raise UserError(f"data.era5.members: unknown member {member}; the files hold {held}")
    if len(known) == 0:
        return None
    return known if settings.era5.members is None else np.asarray(settings.era5.members, np.int64)


def _piece(header: Header, names: tuple[str, ...], members: Ints | None, clock: Clock, settings: DataSettings) -> Piece:
    frames = header.frames
    assert frames is not None, "headers of a record have frames"
    keep = _in_period(frames.time, clock, settings)
    if members is not None:
        keep &= np.isin(frames.member, members)
    positions = np.flatnonzero(keep).astype(np.int64)
    return Piece(
        header=header,
        names=names,
        positions=positions,
        frames=Frames(
            time=frames.time[positions],
            initial=frames.initial[positions],
            member=frames.member[positions],
            expver=frames.expver[positions],
        ),
    )


def _in_period(time: Ints, clock: Clock, settings: DataSettings) -> Bools:
    keep = np.ones(len(time), bool)
    if settings.period.start is not None:
        keep &= time >= clock.seconds(settings.period.start)
    if settings.period.end is not None:
        keep &= time <= clock.seconds(settings.period.end, day_end=True)
    return keep


def _by_files(pieces: Sequence[Piece]) -> dict[tuple[str, ...], list[Piece]]:
    """Pieces of each channel; channels of the same files go together, as an archive may have thousands of them."""
    held: dict[str, list[int]] = {}
    for number, piece in enumerate(pieces):
        for name in piece.names:
            held.setdefault(name, []).append(number)
    names: dict[tuple[int, ...], list[str]] = {}
    for name, numbers in held.items():
        names.setdefault(tuple(numbers), []).append(name)
    return {tuple(same): [pieces[number] for number in numbers] for numbers, same in names.items()}


def _forecasts(groups: Sequence[Sequence[Frames]]) -> tuple[bool, list[str]]:
    """Whether each initial time makes a trajectory of its own, and what to say of it."""
    long = [has_steps(frames) for frames in groups]
    if not any(long):
        return False, []
    if all(long) or any(overlaps(frames) for frames in groups):
        return True, ["forecasts: each initial time is a segment of its own, at its valid times"]
    return False, ["short forecasts stand at their valid times beside analyses: no two of them reach over one another"]


def _common_keys(groups: dict[tuple[str, ...], list[Piece]], trajectories: Trajectories, clock: Clock) -> Ints:
    """Keys of all frames: every channel has each of them, and has it once."""
    axes = {names: _join(names[0], pieces, trajectories, clock) for names, pieces in groups.items()}
    union = np.unique(np.concatenate(list(axes.values())))
    for names, axis in axes.items():
        if len(axis) != len(union):
            lacking = np.setdiff1d(union, axis, assume_unique=True)
            raise UserError(
                f"data.files: {names[0]} has no frame at {_words(int(lacking[0]), trajectories, clock)} "
                f"({len(lacking)} of {len(union)} frames are missing) where other variables have one; "
                "add its files, or narrow data.period or data.variables"
            )
    return union


def _join(name: str, pieces: Sequence[Piece], trajectories: Trajectories, clock: Clock) -> Ints:
    """Keys of all frames of one channel; none may stand in two files."""
    held = [trajectories.keys(piece.frames) for piece in pieces]
    keys = np.concatenate(held)
    order = np.argsort(keys, kind="stable")
    repeated = np.flatnonzero(np.diff(keys[order]) == 0)
    if len(repeated):
        owner = np.repeat(np.arange(len(pieces)), [len(own) for own in held])
        first, second = (pieces[owner[order[repeated[0] + place]]].header.name for place in (0, 1))
        where = _words(int(keys[order[repeated[0]]]), trajectories, clock)
        raise UserError(
            f"data.files: {first} and {second} overlap: both hold {name} at {where} "
            f"({len(repeated)} frames in all); name each frame once"
        )
    return keys[order]


def _words(key: int, trajectories: Trajectories, clock: Clock) -> str:
    """Time of a frame, with its member and initial time where there are any."""
    rank = key // trajectories.time_span
    words = clock.moment(key % trajectories.time_span + trajectories.first_time)
    if trajectories.has_members:
        words += f" of member {trajectories.member(rank)}"
    if trajectories.has_starts:
        words += f" of the forecast from {clock.moment(trajectories.start(rank))}"
    return words


def _segments(keys: Ints, trajectories: Trajectories, clock: Clock) -> tuple[Ints, list[str]]:
    """Segment of each frame: the unbroken stretches of each trajectory."""
    time = trajectories.times(keys)
    starts = np.flatnonzero(np.diff(trajectories.ranks(keys), prepend=-1))
    ids = np.empty(len(keys), np.int64)
    following = 0
    for start, stop in zip(starts, [*starts[1:], len(keys)], strict=True):
        ids[start:stop] = following + find_segments(time[start:stop], clock).ids
        following = int(ids[stop - 1]) + 1
    oddities = []
    gaps = following - len(starts)
    if gaps:
        inside = np.diff(ids, prepend=ids[0]) != 0
        inside[starts] = False
        where = clock.moment(time[int(np.argmax(inside))])
        oddities.append(f"time has {gaps} gap(s), the first before {where}: no window reaches over a gap")
    if following == len(keys) and len(keys) == 1:
        oddities.append("a single frame: alone it makes no window")
    return ids, oddities
