"""Skill of reconstructions of what was hidden, beside filling it in with the mean, or by interpolation in time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperslab.data.ahead import Reading
from hyperslab.data.points import PointBatch
from hyperslab.model.objectives import split_values
from hyperslab.parallel.tasks import Draws, FieldTask, HitTask

Scores = tuple[int, list[dict[str, Any]]]
"""Samples that were scored, and a row for each kind of reconstruction and each channel."""


def field_scores(task: FieldTask, model: nn.Module, seed: int, reading: Reading) -> Scores:
    """Error of what the model reconstructs of a dense archive's test split, in physical units, weighted by area."""
    store = task.store
    windows = task.windows("test")
    loader = task.loader(windows, reading)
    totals: dict[str, torch.Tensor] = {}
    weight = torch.zeros(len(store.channels), dtype=torch.float64)
    area = task.area().double()
    over = (0, 1, *range(3, 3 + len(store.space)))
    for number, batch in enumerate(loader.in_order(range(len(windows)), 1)):
        sample = task.sample(batch, Draws(seed=seed, numbers=[number], turn=0))
        assert sample.hidden_BN is not None
        truth = sample.inputs_BTCS
        counted = task.field.spread(sample.hidden_BN) & torch.isfinite(truth)
        weight += (counted * area).sum(over)
        kinds = {
            "reconstruction": model(task.name, sample)["reconstruction"],
            "interpolation": task.field.filled(truth, sample.hidden_BN),
            "mean": torch.zeros_like(truth),
        }
        for kind, found in kinds.items():
            error = torch.where(counted, found - truth, 0.0).double()
            totals[kind] = totals.get(kind, torch.zeros_like(weight)) + (error.square() * area).sum(over)
    rows = [
        row
        for kind, total in totals.items()
        for row in _rows(kind, store.channels, store.units, (total / weight).sqrt().numpy() * store.std)
    ]
    return len(windows), rows


def hit_scores(task: HitTask, model: nn.Module, seed: int, reading: Reading) -> Scores:
    """Error of what the model reconstructs of hidden cells: the chance that a part holds a hit, and hits' features.

    The mean is the best constant there is: that of what is scored itself.
    """
    store, windows = task.store, task.windows("test")
    parts, hits = Tally(1), Tally(len(store.channels))
    for number, batch in enumerate(task.loader(windows, reading).in_order(range(len(windows)), 1)):
        assert isinstance(batch, PointBatch)
        sample = task.sample(batch, Draws(seed=seed, numbers=[number], turn=0))
        assert sample.hidden_BN is not None
        predictions = model(task.name, sample)
        there, feature = split_values(sample, predictions["occupancy"].shape[-1])
        hidden = sample.hidden_BN & sample.valid_BN
        held = there[hidden] > 0
        parts.add(predictions["occupancy"][hidden].sigmoid().view(-1, 1), there[hidden].view(-1, 1))
        hits.add(predictions["feature"][hidden][held], feature[hidden][held])
    names, units = ("occupancy", *store.channels), {"occupancy": "1", **store.units}
    scale = np.concatenate([[1.0], store.std])
    rows = []
    for kind, errors in (("reconstruction", (parts.error, hits.error)), ("mean", (parts.spread, hits.spread))):
        rows += list(_rows(kind, names, units, torch.cat(errors).sqrt().numpy() * scale))
    return len(windows), rows


class Tally:
    """Sums over all that is scored, whatever its number."""

    def __init__(self, channels: int) -> None:
        self._count = 0
        self._sums = torch.zeros(3, channels, dtype=torch.float64)

    def add(self, found: torch.Tensor, truth: torch.Tensor) -> None:
        """Count some more, shape (number, channel)."""
        found, truth = found.double(), truth.double()
        self._count += len(truth)
        self._sums += torch.stack([(found - truth).square().sum(0), truth.sum(0), truth.square().sum(0)])

    @property
    def error(self) -> torch.Tensor:
        """Mean square error, shape (channel,); NaN of nothing."""
        return self._sums[0] / self._count

    @property
    def spread(self) -> torch.Tensor:
        """Mean square difference of the truth from its mean, shape (channel,); NaN of nothing."""
        return (self._sums[2] / self._count - (self._sums[1] / self._count).square()).clamp_min(0)


def _rows(
    kind: str, channels: tuple[str, ...], units: dict[str, str], rmse: "np.ndarray[Any, Any]"
) -> Iterator[dict[str, Any]]:
    for channel, score in zip(channels, rmse.tolist(), strict=True):
        known = score if np.isfinite(score) else None
        yield {"kind": kind, "channel": channel, "units": units[channel], "lead": 0, "rmse": known, "acc": None}
