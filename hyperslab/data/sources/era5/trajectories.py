"""Trajectories: the runs in time of one member, or of one forecast of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hyperslab.data.frames import Ints
from hyperslab.data.sources.era5.header import NO_MEMBER, Frames, Header
from hyperslab.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectories:
    """How the trajectory and the time of a frame make one number, its key: keys order the frames of an archive."""

    has_members: bool
    has_starts: bool
    """Whether each initial time begins a trajectory of its own."""
    members: Ints
    """Numbers of the members, ascending."""
    first_start: int
    start_span: int
    codes: Ints
    """Member and initial time of each trajectory as one number, ascending; shape (trajectory,)."""
    first_time: int
    time_span: int

    def keys(self, frames: Frames) -> Ints:
        """The key of each frame of a file; shape (position,)."""
        rank = np.searchsorted(self.codes, self._codes(frames))
        return np.asarray(rank * self.time_span + (frames.time - self.first_time), np.int64)

    def times(self, keys: Ints) -> Ints:
        """Time of the frame of each key."""
        return keys % self.time_span + self.first_time

    def ranks(self, keys: Ints) -> Ints:
        """Trajectory of the frame of each key."""
        return keys // self.time_span

    def member(self, rank: int) -> int:
        """Number of the member of a trajectory."""
        return int(self.members[self.codes[rank] // self.start_span])

    def start(self, rank: int) -> int:
        """Initial time of a trajectory."""
        return int(self.codes[rank] % self.start_span) + self.first_start

    def _codes(self, frames: Frames) -> Ints:
        code = np.searchsorted(self.members, frames.member) if self.has_members else np.zeros(len(frames), np.int64)
        if self.has_starts:
            code = code * self.start_span + (frames.initial - self.first_start)
        return np.asarray(code, np.int64)


def find_trajectories(pieces: Sequence[Frames], has_members: bool, has_starts: bool) -> Trajectories:
    """The trajectories of an archive.

    Parameters
    ----------
    pieces
        The frames that are taken from each file; one at least in all.
    has_members
        Whether each member makes trajectories of its own.
    has_starts
        Whether each initial time does.
    """
    time = _bounds([frames.time for frames in pieces])
    start = _bounds([frames.initial for frames in pieces]) if has_starts else (0, 0)
    members = np.unique(np.concatenate([frames.member for frames in pieces])) if has_members else np.zeros(1, np.int64)
    plain = Trajectories(
        has_members=has_members,
        has_starts=has_starts,
        members=members,
        first_start=start[0],
        start_span=start[1] - start[0] + 1,
        codes=np.zeros(0, np.int64),
        first_time=time[0],
        time_span=time[1] - time[0] + 1,
    )
    codes = np.unique(np.concatenate([np.unique(plain._codes(frames)) for frames in pieces]))
    return replace(plain, codes=codes)


def _bounds(arrays: Sequence[Ints]) -> tuple[int, int]:
    filled = [values for values in arrays if len(values)]
    return min(int(values.min()) for values in filled), max(int(values.max()) for values in filled)


def has_steps(frames: Sequence[Frames]) -> bool:
    """Whether some forecast of a field has several steps; its frames may lie in several files."""
    member, initial, time = _columns(frames)
    order = np.lexsort((time, initial, member))
    same = (np.diff(member[order]) == 0) & (np.diff(initial[order]) == 0)
    return bool((same & (np.diff(time[order]) != 0)).any())


def overlaps(frames: Sequence[Frames]) -> bool:
    """Whether forecasts of a field reach over one another: two of a member are of one time."""
    member, initial, time = _columns(frames)
    order = np.lexsort((initial, time, member))
    same = (np.diff(member[order]) == 0) & (np.diff(time[order]) == 0)
    return bool((same & (np.diff(initial[order]) != 0)).any())


def _columns(frames: Sequence[Frames]) -> tuple[Ints, Ints, Ints]:
    member, initial, time = (
        np.concatenate([getattr(piece, name) for piece in frames]) for name in ("member", "initial", "time")
    )
    return member, initial, time


def members_of(headers: Sequence[Header]) -> Ints:
    """Numbers of all members; none where the archive is no ensemble.

    Raises
    ------
    UserError
        When some files know of members and others do not.
    """
    held = [np.unique(header.frames.member) for header in headers if header.frames is not None]
    members = np.unique(np.concatenate(held))
    known = members[members != NO_MEMBER]
    if len(known) < 2:
        return np.zeros(0, np.int64)
    for header, own in zip(headers, held, strict=True):
        if NO_MEMBER in own:
            names = ", ".join(channel.name for channel in header.channels[:3])
            raise UserError(
                f"{header.name}: holds {names} of no ensemble member, while other files hold members "
                f"{known[0]} to {known[-1]}; choose variables of the ensemble in data.variables"
            )
    return np.asarray(known, np.int64)
