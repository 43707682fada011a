"""Batches for one rank: windows of frames from a store, normalised."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hyperslab.data.clock import DAY_SECONDS, Clock
from hyperslab.data.frames import Ints, Windows, find_windows, mask_of
from hyperslab.data.order import sample_at
from hyperslab.data.store import Store
from hyperslab.errors import UserError

READ_AHEAD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples of one rank at one step."""

    inputs: torch.Tensor
    """Normalised past frames, NaN where missing; shape (batch, time, channel, latitude, longitude)."""
    target: torch.Tensor
    """Normalised frames to forecast, NaN where missing; shape (batch, lead, channel, latitude, longitude)."""
    calendar: torch.Tensor
    """Phase of the year and of the day at each target; shape (batch, lead, 4)."""
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
    """Targets, one every `lead` frames."""

    @property
    def span(self) -> int:
        """Frames from the first input to the last target, both counted."""
        return (self.history + self.rollout - 1) * self.lead + 1

    @property
    def offsets(self) -> tuple[int, ...]:
        """Distance of each input and then each target from the window's first frame."""
        return tuple(range(0, self.span, self.lead))


def windows_of(store: Store, split: str, sampling: Sampling) -> Windows:
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
    return windows


def calendar_phases(time: Ints, clock: Clock) -> npt.NDArray[np.float32]:
    """Sine and cosine of the phase of the year and of the day; shape (*time.shape, 4)."""
    days = time / DAY_SECONDS
    angles = 2 * np.pi * np.stack([days / clock.year_days, days], axis=-1)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).astype(np.float32)


class Loader:
    """Reads the windows of one split as batches, some batches ahead of their use."""

    def __init__(self, store: Store, windows: Windows, sampling: Sampling) -> None:
        self.store = store
        self.windows = windows
        self.sampling = sampling
        self._mean = store.mean.astype(np.float32)[:, None, None]
        self._std = store.std.astype(np.float32)[:, None, None]

    def training(
        self, seed: int, start_step: int, stop_step: int, batch: int, slots: range
    ) -> Generator[Batch, None, None]:
        """The batches of one rank from `start_step` up to `stop_step`.

        Parameters
        ----------
        batch
            Samples in a global batch: those of all ranks together.
        slots
            The places in the global batch that belong to this rank.
        """
        total = len(self.windows)
        return self._ahead(
            [sample_at(seed, step * batch + slot, total) for slot in slots] for step in range(start_step, stop_step)
        )

    def in_order(self, numbers: Sequence[int], batch: int) -> Generator[Batch, None, None]:
        """The windows of these numbers, `batch` at a time."""
        return self._ahead(list(numbers[i : i + batch]) for i in range(0, len(numbers), batch))

    def read(self, numbers: Sequence[int]) -> Batch:
        """The batch that holds the windows of these numbers."""
        first = np.asarray([self.windows.first_frame(number) for number in numbers], np.int64)
        frames = first[:, None] + np.asarray(self.sampling.offsets, np.int64)
        needed, where = np.unique(frames, return_inverse=True)
        values = (self._read_frames(needed) - self._mean) / self._std
        samples = torch.from_numpy(values[where.reshape(frames.shape)])
        history = self.sampling.history
        target_time = self.store.time[frames[:, history:]]
        return Batch(
            inputs=samples[:, :history],
            target=samples[:, history:],
            calendar=torch.from_numpy(calendar_phases(target_time, self.store.clock)),
            target_time=target_time,
        )

    def _read_frames(self, frames: Ints) -> npt.NDArray[np.float32]:
        """Frames in physical units, shape (frame, channel, latitude, longitude); neighbours are read in one go."""
        runs = np.split(frames, np.flatnonzero(np.diff(frames) != 1) + 1)
        blocks = [self.store.read(int(run[0]), int(run[-1]) + 1) for run in runs]
        return np.concatenate(blocks)

    def _ahead(self, requests: Iterator[list[int]]) -> Generator[Batch, None, None]:
        with ThreadPoolExecutor(1, thread_name_prefix="loader") as pool:
            pending: deque[Future[Batch]] = deque()
            try:
                for numbers in requests:
                    pending.append(pool.submit(self.read, numbers))
                    if len(pending) > READ_AHEAD:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()
