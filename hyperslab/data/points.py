"""Batches of sets of points, from a ragged store: packed one after another, or padded with a mask."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from hyperslab.data.ahead import Attempt, Job, Reading
from hyperslab.data.frames import Ints, Windows
from hyperslab.data.loader import Hyperslab, Sampling, WindowLoader
from hyperslab.data.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class PointBatch:
    """The points of the windows of one rank at one step, packed: those of the first window, of the second, …"""

    position: torch.Tensor
    """Where each point lies, in the units of the store's axes; shape (point, axis)."""
    feature: torch.Tensor
    """Normalised values of each point; shape (point, channel)."""
    labels: torch.Tensor | None
    """Truth about each point, where the store holds any; shape (point, label)."""
    frame: torch.Tensor
    """Number of each point's frame in its window; shape (point,)."""
    start: torch.Tensor
    """First point of each window, and the number of points; shape (window + 1,)."""

    def padded(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One of the packed tensors with a row for each window, 0 where a window has fewer points than the largest.

        Returns
        -------
        tuple of torch.Tensor
            Values, shape (window, point, …); and a mask that is true where there is a point, shape (window, point).
        """
        lengths = self.start.diff()
        longest = int(lengths.max()) if len(lengths) else 0
        mask = torch.arange(longest, device=values.device) < lengths[:, None].to(values.device)
        rows = values.new_zeros((*mask.shape, *values.shape[1:]))
        rows[mask] = values
        return rows, mask


class PointLoader(WindowLoader[PointBatch]):
    """Batches of a ragged store.

    Raises
    ------
    ValueError
        When the store holds no points, or its windows are too short for a sample.
    """

    def __init__(
        self,
        store: Store,
        windows: Windows,
        sampling: Sampling,
        *,
        reading: Reading = Reading(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__(store, windows, sampling, reading)
        if store.frame_start is None:
            raise ValueError(f"{store.path}: holds frames on a grid, no sets of points; read it with Loader")
        self._frame_start = store.frame_start
        self._mean = store.mean.astype(np.float32)
        # A feature that never changes is 0, not NaN.
        self._std = np.where(store.std > 0, store.std, 1.0).astype(np.float32)

    def job(self, numbers: Ints) -> Job[PointBatch]:
        """How to read the batch that holds the windows of these numbers, shape (window,)."""
        frames = self._frames(numbers)
        counts = self._frame_start[frames + 1] - self._frame_start[frames]
        first = np.concatenate([[0], np.cumsum(counts)])
        arrays = self.store.arrays
        dtypes = {name: torch.int64 if name == "labels" else torch.float32 for name in arrays}
        # A point's values, and the number of its frame.
        row_bytes = 8 + sum(dtypes[name].itemsize * math.prod(array.shape[1:]) for name, array in arrays.items())

        def begin() -> Attempt[PointBatch]:
            packed = {
                name: torch.empty((int(first[-1]), *array.shape[1:]), dtype=dtypes[name], pin_memory=self.reading.pin)
                for name, array in arrays.items()
            }
            places = [
                (int(frame), slice(int(low), int(high)))
                for frame, low, high in zip(frames.ravel(), first[:-1], first[1:], strict=True)
                if high > low
            ]
            batch = PointBatch(
                position=packed["position"],
                feature=packed["feature"],
                labels=packed.get("labels"),
                frame=torch.from_numpy(np.repeat(np.tile(np.arange(frames.shape[1]), len(frames)), counts.ravel())),
                start=torch.from_numpy(np.concatenate([[0], np.cumsum(counts.sum(axis=1))])),
            )
            tasks = [partial(self._read, share, packed) for share in self._shared_out(places)]
            return Attempt(tasks=tasks, finish=lambda: self._ready(batch))

        return Job(begin=begin, size_bytes=int(first[-1]) * row_bytes)

    def hyperslabs(self, numbers: Ints) -> Iterator[Hyperslab]:
        """What the batch of these windows reads of each array."""
        for frame in self._frames(numbers).ravel().tolist():
            yield from ((array, (self._points(frame),)) for array in self.store.arrays.values())

    def _points(self, frame: int) -> slice:
        return slice(int(self._frame_start[frame]), int(self._frame_start[frame + 1]))

    def _read(self, places: list[tuple[int, slice]], packed: dict[str, torch.Tensor]) -> None:
        """Read the points of frames, by array, into their places."""
        for frame, place in places:
            for name, held in packed.items():
                out = held.numpy()[place]
                for into, piece in self.store.arrays[name].pieces(self._points(frame)):
                    out[into] = (piece - self._mean) / self._std if name == "feature" else piece
