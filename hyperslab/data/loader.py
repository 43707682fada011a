"""Batches for one rank: windows of frames from a store, its tile of space, normalised."""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from hyperslab.data.ahead import Attempt, Job, Reading, read_ahead
from hyperslab.data.buffers import Later, shared_buffers
from hyperslab.data.chunks import ShardedArray
from hyperslab.data.clock import DAY_SECONDS, Clock
from hyperslab.data.frames import Ints, Windows, find_windows, mask_of
from hyperslab.data.order import Order
from hyperslab.data.store import Store
from hyperslab.data.tiles import Tile, make_tile
from hyperslab.errors import UserError

AnyBatch = TypeVar("AnyBatch")
Work = TypeVar("Work")

Hyperslab = tuple[ShardedArray, tuple[slice, ...]]
"""An array, and a range along some of its dimensions."""

RUN_FRAMES = 16
"""Frames that are read at a time, at most, where a chunk holds one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples of one rank at one step."""

    inputs: torch.Tensor
    """Normalised past frames, NaN where missing; shape (batch, time, channel, *space)."""
    target: torch.Tensor
    """Normalised frames to forecast, NaN where missing; shape (batch, lead, channel, *space)."""
    calendar: torch.Tensor
    """Phase of the year and of the day at each frame, those that go in first; shape (batch, time + lead, 4)."""
    target_time: Ints
    """Seconds since 1970-01-01 of each target; shape (batch, lead)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Which frames of a window go in and which are forecast, as distances from its first frame."""

    history: int
    """Past frames that go in, at least 1."""
    lead: int
    """Frames between two inputs, and from the last input to the first target."""
    rollout: int = 1
    """Targets, one every `lead` frames; none where all frames go in."""

    @property
    def span(self) -> int:
        """Frames from the first input to the last target, both counted."""
        return (self.history + self.rollout - 1) * self.lead + 1

    @property
    def offsets(self) -> tuple[int, ...]:
        """Distance of each input and then each target from the window's first frame."""
        return tuple(range(0, self.span, self.lead))


@dataclass(frozen=True, slots=True)
class SampleWindows(Windows):
    """Windows, and what is taken of each: an order that draws from them is that of their samples."""

    sampling: Sampling


def windows_of(store: Store, split: str, sampling: Sampling) -> SampleWindows:
    """The windows of a split of a store.

    Raises
    ------
    UserError
        When the split holds none.
    """
    windows = find_windows(store.segment, store.valid, store.splits[split], sampling.span)
    if len(windows) == 0:
        frames = mask_of(store.splits[split], len(store.segment))
        raise UserError(
            f"{store.path}: the {split} split ({frames.sum()} frames in "
            f"{len(np.unique(store.segment[frames]))} segment(s)) has no unbroken window of {sampling.span} "
            "frames; choose a smaller objective.lead, model.history or evaluate.rollout, or larger splits"
        )
    return SampleWindows(windows.starts, windows.offsets, windows.span, sampling)


def calendar_phases(time: Ints, clock: Clock) -> npt.NDArray[np.float32]:
    """Sine and cosine of the phase of the year and of the day; shape (*time.shape, 4)."""
    days = time / DAY_SECONDS
    angles = 2 * np.pi * np.stack([days / clock.year_days, days], axis=-1)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).astype(np.float32)


class WindowLoader(ABC, Generic[AnyBatch]):
    """Reads windows of a store as batches, some batches ahead of their use."""

    def __init__(self, store: Store, windows: Windows, sampling: Sampling, reading: Reading) -> None:
        if windows.span < sampling.span:
            raise ValueError(
                f"{store.path}: a sample spans {sampling.span} frames, the windows {windows.span}; "
                "find them with `windows_of` and the same sampling"
            )
        self.store = store
        self.windows = windows
        self.sampling = sampling
        self.reading = reading

    def _frames(self, numbers: Ints) -> Ints:
        """Frames of windows, shape (window, time)."""
        return self.windows.first_frames(numbers)[:, None] + np.asarray(self.sampling.offsets, np.int64)

    def _shared_out(self, work: list[Work]) -> list[list[Work]]:
        """What each thread does of a batch; of an empty one, one of them nothing."""
        count = max(1, min(len(work), self.reading.workers))
        return [work[n::count] for n in range(count)]

    def _ready(self, batch: AnyBatch) -> AnyBatch:
        """The batch with all of its tensors in page-locked memory, where that is asked for."""
        if not self.reading.pin:
            return batch
        tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}  # type: ignore[arg-type]
        pinned = {name: held.pin_memory() for name, held in tensors.items() if isinstance(held, torch.Tensor)}
        return replace(batch, **pinned)  # type: ignore[type-var]

    @abstractmethod
    def hyperslabs(self, numbers: Ints) -> Iterator[Hyperslab]:
        """What the batch of these windows reads of each array."""

    @abstractmethod
    def job(self, numbers: Ints) -> Job[AnyBatch]:
        """How to read the batch that holds the windows of these numbers, shape (window,)."""

    def training(self, order: Order, start_step: int, stop_step: int, slots: range) -> Generator[AnyBatch, None, None]:
        """The batches of one rank from `start_step` up to `stop_step`.

        Parameters
        ----------
        slots
            The places in the global batch that belong to this rank.

        Raises
        ------
        ValueError
            When the order draws from other windows.
        """
        order.check_windows([self.windows])
        jobs = (self.job(order.draw(step, slots)[1]) for step in range(start_step, stop_step))
        return read_ahead(jobs, self.reading)

    def in_order(self, numbers: Sequence[int], batch: int) -> Generator[AnyBatch, None, None]:
        """The windows of these numbers, `batch` at a time."""
        jobs = (self.job(np.asarray(numbers[i : i + batch])) for i in range(0, len(numbers), batch))
        return read_ahead(jobs, self.reading)

    def read(self, numbers: Sequence[int]) -> AnyBatch:
        """The batch that holds the windows of these numbers."""
        attempt = self.job(np.asarray(numbers, np.int64)).begin()
        for task in attempt.tasks:
            task()
        return attempt.finish()


def mixed(
    loaders: Sequence[WindowLoader[Any]], order: Order, start_step: int, stop_step: int, pieces: Sequence[range]
) -> Generator[tuple[int, Any], None, None]:
    """The batches of one rank from several stores: of each step its pieces, each the number of the store and its batch.

    Parameters
    ----------
    loaders
        One for each store of the order; the first one says how far is read ahead.
    pieces
        The places in the global batch that belong to this rank, piece by piece.

    Raises
    ------
    ValueError
        When the order draws from other windows.
    """
    order.check_windows([loader.windows for loader in loaders])

    def jobs() -> Iterator[Job[tuple[int, Any]]]:
        for step, slots in itertools.product(range(start_step, stop_step), pieces):
            store, numbers = order.draw(step, slots)
            job = loaders[store].job(numbers)
            yield Job(begin=partial(_numbered, store, job.begin), size_bytes=job.size_bytes)

    return read_ahead(jobs(), loaders[0].reading)


def _numbered(store: int, begin: Callable[[], Attempt[Any]]) -> Attempt[tuple[int, Any]]:
    attempt = begin()
    return Attempt(tasks=attempt.tasks, finish=lambda: (store, attempt.finish()))


class Loader(WindowLoader[Batch]):
    """Batches of a dense store: a rank's tile of each frame, normalised.

    Raises
    ------
    ValueError
        When the store holds points, or its windows are too short for a sample.
    """

    def __init__(
        self,
        store: Store,
        windows: Windows,
        sampling: Sampling,
        *,
        tile: Tile | None = None,
        reading: Reading = Reading(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__(store, windows, sampling, reading)
        if store.is_ragged:
            raise ValueError(f"{store.path}: holds sets of points, no frames on a grid; read it with PointLoader")
        self.tile = tile or make_tile(store.frame_shape[1:], [1] * len(store.space), 0)
        self._boxes = list(self.tile.boxes())
        self._buffers = shared_buffers(pin=reading.pin)

    def job(self, numbers: Ints) -> Job[Batch]:
        """How to read the batch that holds the windows of these numbers, shape (window,)."""
        frames, order, where = self._plan(numbers)
        runs = self._runs(order)
        cells = (len(self.store.channels), *self.tile.shape)

        def begin() -> Attempt[Batch]:
            block = Later(self._buffers, (len(order), *cells))
            return Attempt(
                tasks=[partial(self._read, block, share, order) for share in self._shared_out(runs)],
                finish=lambda: self._ready(self._batch(self._gathered(block(), where), frames)),
            )

        return Job(begin=begin, size_bytes=4 * math.prod(cells) * (len(order) + (0 if where is None else frames.size)))

    def hyperslabs(self, numbers: Ints) -> Iterator[Hyperslab]:
        """What the batch of these windows reads of each array."""
        order = self._plan(numbers)[1]
        channels = slice(0, len(self.store.channels))
        for start, stop in self._runs(order):
            for space, _ in self._boxes:
                first = int(order[start])
                yield self.store.arrays["values"], (slice(first, first + stop - start), channels, *space)

    def _plan(self, numbers: Ints) -> tuple[Ints, Ints, Ints | None]:
        """Frames of each window, shape (window, time); the frames to read, in order; and where each is to be found.

        Where windows share most of their frames each is read once, which is worth another copy.
        """
        frames = self._frames(numbers)
        needed, where = np.unique(frames, return_inverse=True)
        if 2 * len(needed) < frames.size:
            return frames, needed, where.reshape(frames.shape)
        return frames, frames.ravel(), None

    def _runs(self, order: Ints) -> list[tuple[int, int]]:
        """Places of the order that are read at a time: frames that follow one another."""
        longest = max(RUN_FRAMES, 4 * self.store.chunk_length)
        cuts = {0, len(order), *(np.flatnonzero(np.diff(order) != 1) + 1).tolist(), *range(0, len(order), longest)}
        return list(pairwise(sorted(cuts)))

    def _read(self, into: Later, runs: list[tuple[int, int]], frames: Ints) -> None:
        """Read runs of frames, normalised, into their places in a block."""
        out = into().numpy()
        for start, stop in runs:
            for space, at in self._boxes:
                place = (slice(start, stop), slice(None), *at)
                self.store.read_into(out[place], int(frames[start]), space, normalised=True)

    def _gathered(self, block: torch.Tensor, where: Ints | None) -> torch.Tensor:
        """Frames that were read once, each where it is wanted."""
        if where is None:
            return block
        out = self._buffers.empty((where.size, *block.shape[1:]))
        return torch.index_select(block, 0, torch.from_numpy(where.ravel()), out=out)

    def _batch(self, block: torch.Tensor, frames: Ints) -> Batch:
        samples = block.view(*frames.shape, *block.shape[1:])
        history = self.sampling.history
        time = self.store.time[frames]
        return Batch(
            inputs=samples[:, :history],
            target=samples[:, history:],
            calendar=torch.from_numpy(calendar_phases(time, self.store.clock)),
            target_time=time[:, history:],
        )
