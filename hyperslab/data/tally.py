"""What a part of staging measures of its frames on the way: missing values, moments, changes, quantiles, losses."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from hyperslab.data.frames import Bools, Ints, mask_of
from hyperslab.data.packing import Packed, Values, loss_of
from hyperslab.data.recipe import Recipe
from hyperslab.data.statistics import Histogram, Moments, pairs


class Tally:
    """Measures the frames of a part as they come."""

    def __init__(self, recipe: Recipe) -> None:
        index = recipe.index
        channels = len(index.channels)
        self._recipe = recipe
        self._segment = index.segments
        self._training = mask_of(recipe.splits["train"], len(index.time))
        self._moments = Moments.none(channels)
        self._differences = {lead: Moments.none(channels) for lead in recipe.difference_leads}
        self._histograms = [Histogram.none()] * channels if index.robust else []
        self._missing = np.zeros(channels, np.int64)
        self._valid: list[bool] = []
        self._worst, self._squares = np.zeros(channels), np.zeros(channels)
        self._tail: Values = np.empty((0, *index.shape[1:]), np.float32)

    @property
    def reach(self) -> int:
        """Frames before a part that its differences look back on."""
        return max(self._recipe.difference_leads)

    def precede(self, values: Values) -> None:
        """Take note of the frames just before the part; they are not measured themselves."""
        self._tail = values

    def add_frames(self, start: int, values: Values, packed: Packed) -> None:
        """Measure frames from number `start` on, shape (frame, channel, *space)."""
        before = self._missing.sum()
        self._add(values, self._training[start : start + len(values)])
        # A frame counts as valid when no channel of it is missing altogether.
        if self._missing.sum() > before:
            there = np.isfinite(values.reshape(*values.shape[:2], -1)).any(axis=2)
            self._valid += [bool(np.all(frame)) for frame in np.asarray(there)]
        else:
            self._valid += [True] * len(values)
        for lead in self._differences:
            for later, earlier in self._changes(start, values, lead):
                self._differences[lead] = self._differences[lead].merge(Moments.of(later, minus=earlier))
        self._tail = np.concatenate([self._tail, values[-self.reach :]])[-self.reach :]
        if self._recipe.dtype != "float32":
            worst, squares = loss_of(values, packed)
            self._worst, self._squares = np.maximum(self._worst, worst), self._squares + squares

    def add_points(self, frames: Ints, feature: Values) -> None:
        """Measure points, shape (point, channel), that belong to these frames, shape (point,)."""
        self._add(feature, self._training[frames])

    def _add(self, values: Values, taken: Bools) -> None:
        training = values if taken.all() else values[taken]
        moments = Moments.of(training)
        self._moments = self._moments.merge(moments)
        others = values[~taken]
        finite = moments.count + np.isfinite(others).sum(axis=(0, *range(2, values.ndim)))
        self._missing += values.size // values.shape[1] - finite.astype(np.int64)
        self._histograms = [
            held.merge(Histogram.of(np.ascontiguousarray(training[:, number])))
            for number, held in enumerate(self._histograms)
        ]

    def _changes(self, start: int, values: Values, lead: int) -> Iterator[tuple[Values, Values]]:
        """The later and the earlier frames of all pairs that end in these frames, as few copies as may be."""
        before = self._tail[-lead:]
        seam = np.concatenate([before, values[:lead]])
        for first, block in ((start - len(before), seam), (start, values)):
            frames = slice(first, first + len(block))
            earlier = pairs(self._segment[frames], self._training[frames], lead)
            for run in np.split(earlier, np.flatnonzero(np.diff(earlier) != 1) + 1):
                if len(run):
                    yield block[run[0] + lead : run[-1] + 1 + lead], block[run[0] : run[-1] + 1]

    def to_json(self) -> dict[str, Any]:
        """All that was measured."""
        return {
            "missing": self._missing.tolist(),
            "valid": self._valid,
            "training_moments": self._moments.to_json(),
            "difference_moments": {str(lead): moments.to_json() for lead, moments in self._differences.items()},
            "histograms": [histogram.to_json() for histogram in self._histograms],
            "largest_loss": self._worst.tolist(),
            "squared_loss": self._squares.tolist(),
        }
