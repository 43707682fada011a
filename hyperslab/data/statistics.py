"""Moments that can be merged: each part measures its own frames, the store holds them all."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


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
    def of(cls, values: npt.NDArray[np.float32]) -> "Moments":
        """The moments of frames of shape (frame, channel, *space), in float64; NaN does not count."""
        moments = cls.none(values.shape[1])
        for frame in values:
            flat = frame.reshape(len(frame), -1).astype(np.float64)
            there = np.isfinite(flat)
            count = there.sum(axis=1).astype(np.float64)
            mean = np.where(there, flat, 0).sum(axis=1) / np.maximum(count, 1)
            deviation = np.where(there, flat - mean[:, None], 0)
            moments = moments.merge(
                cls(
                    count=count,
                    mean=mean,
                    squares=(deviation**2).sum(axis=1),
                    minimum=np.where(there, flat, np.inf).min(axis=1),
                    maximum=np.where(there, flat, -np.inf).max(axis=1),
                )
            )
        return moments

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
