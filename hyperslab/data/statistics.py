"""Moments and histograms that can be merged: each part measures its own frames, the store holds them all."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Values = npt.NDArray[np.float32]

PIECE = 1 << 16
"""Values that are measured at a time: in float64 they fit a core's own cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Count, mean, sum of squared deviations and extremes of each channel; every array has shape (channel,)."""

    count: Floats
    mean: Floats
    squares: Floats
    minimum: Floats
    maximum: Floats

    @classmethod
    def none(cls, num_channels: int) -> "Moments":
        """The moments of no values at all."""
        zeros = np.zeros(num_channels)
        return cls(
            count=zeros, mean=zeros, squares=zeros,
            minimum=np.full(num_channels, np.inf), maximum=np.full(num_channels, -np.inf),
        )  # fmt: skip

    @classmethod
    def of(cls, values: Values, minus: Values | None = None) -> "Moments":
        """The moments of frames, in float64; NaN and infinity do not count.

        Parameters
        ----------
        values
            Frames, shape (frame, channel, *space).
        minus
            Frames to take away from them first, of the same shape.
        """
        channels = [
            _of_channel(values[:, number], None if minus is None else minus[:, number])
            for number in range(values.shape[1])
        ]
        columns = np.asarray(channels, np.float64).reshape(values.shape[1], 5).T
        return cls(count=columns[0], mean=columns[1], squares=columns[2], minimum=columns[3], maximum=columns[4])

    def merge(self, other: "Moments") -> "Moments":
        """The moments of both sets together (Chan, Golub and LeVeque 1983, equation 2.1)."""
        count = self.count + other.count
        total = np.maximum(count, 1)
        difference = other.mean - self.mean
        return Moments(
            count=count,
            mean=self.mean + difference * other.count / total,
            squares=self.squares + other.squares + difference**2 * self.count * other.count / total,
            minimum=np.minimum(self.minimum, other.minimum),
            maximum=np.maximum(self.maximum, other.maximum),
        )

    @property
    def std(self) -> Floats:
        """Standard deviation of each channel (of the population); NaN where nothing was counted."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.sqrt(self.squares / self.count)

    def to_json(self) -> dict[str, list[float]]:
        """A form that JSON holds without losing a bit."""
        return {name: getattr(self, name).tolist() for name in self.__slots__}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Moments":
        """The inverse of `to_json`."""
        return cls(**{name: np.asarray(content[name], np.float64) for name in cls.__slots__})


def _of_channel(values: Values, minus: Values | None) -> tuple[float, float, float, float, float]:
    """Count, mean, squared deviations and extremes of one channel, shape (frame, *space)."""
    count, mean, squares, low, high = 0.0, 0.0, 0.0, np.inf, -np.inf
    held = np.empty(PIECE, np.float64)
    for piece in _pieces(values, minus):
        least, most = float(piece.min()), float(piece.max())
        if not math.isfinite(most - least):
            piece = piece[np.isfinite(piece)]
            if len(piece) == 0:
                continue
            least, most = float(piece.min()), float(piece.max())
        # Deviations from any value of the piece: their squares do not cancel, and those of equal values are 0.
        size, origin = len(piece), float(piece[0])
        deviation = held[:size]
        np.copyto(deviation, piece)
        deviation -= origin
        total = float(deviation.sum())
        # Not `dot`: its sum depends on the processor and the number of threads.
        deviation *= deviation
        own, own_squares = origin + total / size, float(deviation.sum()) - total * total / size
        difference = own - mean
        squares += max(0.0, own_squares) + difference * difference * count * size / (count + size)
        count += size
        mean += difference * size / count
        low, high = min(low, least), max(high, most)
    return count, mean, squares, low, high


def _pieces(values: Values, minus: Values | None) -> Iterator[Values]:
    """Some values at a time, at most `PIECE`; shape (value,)."""
    shape = (len(values), math.prod(values.shape[1:]))
    flat = values.reshape(shape)
    other = None if minus is None else minus.reshape(shape)
    rows = max(1, PIECE // max(1, shape[1]))
    for row in range(0, shape[0], rows):
        for column in range(0, shape[1], PIECE):
            place = (slice(row, row + rows), slice(column, column + PIECE))
            yield (flat[place] if other is None else flat[place] - other[place]).ravel()


def pairs(segment: Ints, taken: Bools, lead: int) -> Ints:
    """First frames of all pairs that are `lead` frames apart in one segment, both of them taken.

    Parameters
    ----------
    segment, taken
        Segment of each frame, and whether it counts; shape (frame,).
    """
    return np.flatnonzero((segment[lead:] == segment[:-lead]) & taken[lead:] & taken[:-lead])


_BINS_IN_SPREAD = 4096
_MOST_BINS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How often values of each size occur in one channel: quantiles that merge.

    Bins are as wide as a power of two, so that those of two histograms fit one another: the finer one is coarsened. A
    part's bins are a 4096th of its own interquartile range wide (at most twice that), so a quantile of the whole is off
    by a 4096th of the widest interquartile range of a part.
    """

    exponent: int
    """A bin is 2 to this power wide."""
    bins: Ints
    """Numbers of the bins that are not empty, ascending; a bin begins at its number times the width."""
    counts: Ints

    @classmethod
    def none(cls) -> "Histogram":
        """The histogram of no values at all."""
        empty = np.empty(0, np.int64)
        return cls(exponent=-1074, bins=empty, counts=empty)

    @classmethod
    def of(cls, values: Values) -> "Histogram":
        """The histogram of all finite values."""
        finite = values[np.isfinite(values)].astype(np.float64)
        if len(finite) == 0:
            return cls.none()
        low, high = np.quantile(finite, [0.25, 0.75], method="inverted_cdf")
        spread = float(high - low) or float(np.ptp(finite)) or abs(float(finite[0])) or 1.0
        exponent = math.frexp(spread / _BINS_IN_SPREAD)[1] - 1
        # Values far apart would make bins without number.
        exponent = max(exponent, math.frexp(float(np.abs(finite).max()))[1] - 52)
        bins, counts = np.unique(_bins(finite, exponent), return_counts=True)
        histogram = cls(exponent=exponent, bins=bins, counts=counts.astype(np.int64))
        while len(histogram.bins) > _MOST_BINS:
            histogram = histogram._coarser(histogram.exponent + 1)
        return histogram

    def _coarser(self, exponent: int) -> "Histogram":
        """The same in wider bins."""
        bins, where = np.unique(self.bins >> min(exponent - self.exponent, 63), return_inverse=True)
        counts = np.zeros(len(bins), np.int64)
        np.add.at(counts, where, self.counts)
        return Histogram(exponent=exponent, bins=bins, counts=counts)

    def merge(self, other: "Histogram") -> "Histogram":
        """The histogram of both sets together."""
        exponent = max(self.exponent, other.exponent)
        a, b = self._coarser(exponent), other._coarser(exponent)
        bins, where = np.unique(np.concatenate([a.bins, b.bins]), return_inverse=True)
        counts = np.zeros(len(bins), np.int64)
        np.add.at(counts, where, np.concatenate([a.counts, b.counts]))
        return Histogram(exponent=exponent, bins=bins, counts=counts)

    def quantile(self, share: float) -> float:
        """Value below which that share of the values lies; NaN where there are none."""
        if len(self.counts) == 0:
            return float("nan")
        number = int(np.searchsorted(np.cumsum(self.counts), share * self.counts.sum()))
        return math.ldexp(int(self.bins[min(number, len(self.bins) - 1)]) + 0.5, self.exponent)

    def to_json(self) -> dict[str, Any]:
        """A form that JSON holds."""
        return {"exponent": self.exponent, "bins": self.bins.tolist(), "counts": self.counts.tolist()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Histogram":
        """The inverse of `to_json`."""
        bins, counts = (np.asarray(content[name], np.int64) for name in ("bins", "counts"))
        return cls(exponent=int(content["exponent"]), bins=bins, counts=counts)


def _bins(values: Floats, exponent: int) -> Ints:
    return np.asarray(np.floor(np.ldexp(values, -exponent)), np.int64)
