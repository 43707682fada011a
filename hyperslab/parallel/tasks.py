"""What the model learns from one archive: batches become samples, and predictions a loss."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import nn

from hyperslab.data.ahead import Reading
from hyperslab.data.frames import Windows
from hyperslab.data.loader import Batch, Loader, Sampling, WindowLoader, windows_of
from hyperslab.data.points import PointBatch, PointLoader
from hyperslab.data.store import Store
from hyperslab.model.config import MaskSettings
from hyperslab.model.fields import Field, FieldSample
from hyperslab.model.hits import Cloud, HitSample, group_hits
from hyperslab.model.lattice import Lattice, make_lattice
from hyperslab.model.masking import generator_of, hide, kept_layers
from hyperslab.model.objectives import area_weights, forecast_loss, hit_loss, reconstruction_loss, roll_out
from hyperslab.model.transformer import Predictions

AnySample = TypeVar("AnySample", FieldSample, HitSample)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What chance decides of a batch, sample by sample: the same on whatever rank a sample lands."""

    seed: int
    numbers: Sequence[int]
    """A number of each sample, such as its place in the run."""
    turn: int
    """Number of the batch."""
    depth: int = 0
    """Layers for stochastic depth; 0 where no layer is ever left out."""
    rate: float = 0.0
    """Rate at which the last layer is left out."""

    def hidden(self, settings: MaskSettings, lattices: Sequence[Lattice]) -> list[torch.Tensor]:
        """Tokens that are hidden of each sample."""
        return [
            hide(settings, lattice, generator_of(self.seed, number, 1))
            for number, lattice in zip(self.numbers, lattices, strict=True)
        ]

    def kept(self) -> torch.Tensor | None:
        """Shares for stochastic depth, shape (layer, batch); None where every layer always counts."""
        if not self.depth or not self.rate:
            return None
        layers = [kept_layers(self.rate, self.depth, generator_of(self.seed, number, 2)) for number in self.numbers]
        return torch.stack(layers, dim=1)

    def lead(self, leads: int) -> int:
        """How far ahead the batch is forecast, from 1 to `leads`: as often each."""
        return 1 + self.turn % leads


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(ABC):
    """One archive and what the model learns from it."""

    name: str
    store: Store
    weight: float = 1.0
    """Share of the steps that draw from this archive, as a proportion to the others."""

    @property
    @abstractmethod
    def sampling(self) -> Sampling:
        """Which frames make a sample in training."""

    @property
    def lattice(self) -> Lattice | None:
        """Where the tokens of a sample lie; None where that differs from sample to sample."""
        return None

    def windows(self, split: str) -> Windows:
        """The windows of a split."""
        return windows_of(self.store, split, self.sampling)

    @abstractmethod
    def loader(self, windows: Windows, reading: Reading) -> WindowLoader[Any]:
        """What reads windows as batches."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, draws: Draws, device: torch.device) -> torch.Tensor:
        """Mean over the batch's samples of what training minimises; a scalar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldTask(Task):
    """A dense archive: forecasts, reconstructions of what is hidden, or both."""

    field: Field

    @property
    def lattice(self) -> Lattice:
        """As `Task.lattice`."""
        return self.field.lattice

    @property
    def sampling(self) -> Sampling:
        """As `Task.sampling`."""
        objective = self.field.objective
        return Sampling(history=self.field.tokens.history, lead=objective.lead, rollout=objective.targets)

    def loader(self, windows: Windows, reading: Reading) -> Loader:
        """As `Task.loader`."""
        return Loader(self.store, windows, self.sampling, reading=reading)

    def area(self) -> torch.Tensor:
        """Weight of each grid point by its area, where it lies on the sphere; broadcasts to (*S)."""
        weights = torch.ones([1] * len(self.field.axes))
        for number, axis in enumerate(self.field.axes):
            if axis.name == "latitude":
                shape = [1] * len(self.field.axes)
                shape[number] = -1
                weights = weights * area_weights(torch.tensor(axis.values)).float().view(shape)
        return weights

    def weights(self) -> torch.Tensor:
        """Weight in the loss of channels, by setting, and of grid points, by area; broadcasts to (C, *S)."""
        chosen = self.field.objective.channel_weights
        by_channel = torch.tensor([chosen.get(name, 1.0) for name in self.store.channels])
        return by_channel.view(-1, *[1] * len(self.field.axes)) * self.area()

    def sample(self, batch: Batch, draws: Draws) -> FieldSample:
        """What the model is given of a batch."""
        objective, b = self.field.objective, len(batch.inputs)
        there = torch.isfinite(batch.inputs)
        if self.field.present is not None:
            if bool((there & ~self.field.present).any()):
                # A place without a token can neither be seen nor told; that it holds something now is said once.
                warnings.warn(
                    f"{self.store.path}: holds values at grid points that were empty in every frame that was looked "
                    "at, which the model does not see; model.empty: tokens, in a new campaign, lets it",
                    stacklevel=2,
                )
            there = there | ~self.field.present
        lead = draws.lead(objective.leads)
        hidden = None
        if objective.masks:
            hidden = torch.stack(draws.hidden(objective.mask, [self.lattice] * b))
        return FieldSample(
            inputs_BTCS=batch.inputs,
            # The time that is forecast, or of the last frame where the batch has none to forecast.
            calendar_BF=batch.calendar[:, self.field.tokens.history - 1 + min(lead, batch.target.shape[1])],
            lead_B=torch.full((b,), lead),
            complete=bool(there.all()),
            hidden_BN=hidden,
            kept_LB=draws.kept(),
        )

    def loss(self, model: nn.Module, batch: Batch, draws: Draws, device: torch.device) -> torch.Tensor:
        """As `Task.loss`."""
        objective, weights = self.field.objective, self.weights().to(device)
        sample = moved(self.sample(batch, draws), device)
        lead = draws.lead(objective.leads)
        losses: list[torch.Tensor] = []
        first: Predictions = {}
        if objective.forecasts:
            target = batch.target.to(device)
            calendars = batch.calendar[:, self.field.tokens.history :].to(device)
            for step, predictions in enumerate(roll_out(model, self.name, sample, calendars, objective.rollout)):
                first = first or predictions
                losses.append(forecast_loss(predictions["forecast"], target[:, (step + 1) * lead - 1], weights))
        else:
            first = model(self.name, sample)
        loss = torch.stack(losses).mean() if losses else torch.zeros((), device=device)
        if objective.masks:
            assert sample.hidden_BN is not None
            hidden = self.field.spread(sample.hidden_BN)
            loss = loss + reconstruction_loss(first["reconstruction"], sample.inputs_BTCS, hidden, weights)
        return loss


@dataclass(frozen=True, slots=True, kw_only=True)
class HitTask(Task):
    """An archive of hits: which parts of hidden cells hold hits, and their features."""

    cloud: Cloud

    @property
    def sampling(self) -> Sampling:
        """As `Task.sampling`."""
        return Sampling(history=self.cloud.tokens.history, lead=self.cloud.objective.lead, rollout=0)

    def loader(self, windows: Windows, reading: Reading) -> PointLoader:
        """As `Task.loader`."""
        return PointLoader(self.store, windows, self.sampling, reading=reading)

    def sample(self, batch: PointBatch, draws: Draws) -> HitSample:
        """What the model is given of a batch."""
        grouped = group_hits(self.cloud, batch.position, batch.feature, batch.frame, batch.start)
        hidden = torch.zeros_like(grouped.valid_BN)
        counts = grouped.valid_BN.sum(1).tolist()
        # Lattices of so many different lengths are not worth keeping.
        lattices = [make_lattice((1, count), (False, False)) for count in counts]
        for row, marks in enumerate(draws.hidden(self.cloud.objective.mask, lattices)):
            hidden[row, : len(marks)] = marks
        return replace(grouped, hidden_BN=hidden, kept_LB=draws.kept())

    def loss(self, model: nn.Module, batch: PointBatch, draws: Draws, device: torch.device) -> torch.Tensor:
        """As `Task.loss`."""
        sample = moved(self.sample(batch, draws), device)
        predictions = model(self.name, sample)
        return hit_loss(predictions["occupancy"], predictions["feature"], sample)


def moved(sample: AnySample, device: torch.device) -> AnySample:
    """The sample on a device."""
    tensors: dict[str, Any] = {
        field.name: value.to(device, non_blocking=True)
        for field in fields(sample)
        if isinstance(value := getattr(sample, field.name), torch.Tensor)
    }
    return replace(sample, **tensors)
