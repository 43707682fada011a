"""What the model learns from one archive: batches become samples, and predictions a loss."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist

from hyperslab.data.ahead import Reading
from hyperslab.data.frames import Windows
from hyperslab.data.loader import Batch, Loader, Sampling, WindowLoader, windows_of
from hyperslab.data.points import PointBatch, PointLoader
from hyperslab.data.store import Store
from hyperslab.data.tiles import Tile
from hyperslab.model.config import MaskSettings
from hyperslab.model.fields import Field, FieldSample
from hyperslab.model.hits import Cloud, HitSample, group_hits, padded, part_of
from hyperslab.model.lattice import Lattice, make_lattice
from hyperslab.model.masking import generator_of, hide, kept_layers
from hyperslab.model.objectives import area_weights, forecast_loss, hit_loss, reconstruction_loss, roll_out
from hyperslab.model.part import Part
from hyperslab.model.transformer import Predictions
from hyperslab.parallel.team import ALONE, Team

AnySample = TypeVar("AnySample", FieldSample, HitSample)
Model = Callable[..., Predictions]
"""A `SpaceTimeModel`, or one that is given more beside the name of an archive and samples."""


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
    team: Team = ALONE
    """The ranks that hold the other parts of this rank's samples."""

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
    def sample(self, batch: Any, draws: Draws) -> Any:
        """What the model is given of a batch, before `align`."""

    def align(self, samples: Sequence[Any]) -> list[Any]:
        """The samples of a step's pieces, all of one shape on all ranks; each a part where the team shares them out."""
        return list(samples)

    @abstractmethod
    def tokens_shape(self, sample: Any) -> tuple[int, int]:
        """Samples and tokens that pass from layer to layer."""

    @abstractmethod
    def loss_of(self, model: Model, batch: Any, sample: Any) -> torch.Tensor:
        """The part that this rank has in the mean over the samples of what training minimises; a scalar.

        The parts of the ranks of a team add up to what a rank that has whole samples computes.
        """

    def loss(self, model: Model, batch: Any, draws: Draws, device: torch.device) -> torch.Tensor:
        """The same of a batch by itself."""
        (sample,) = self.align([self.sample(batch, draws)])
        return self.loss_of(model, batch, moved(sample, device))

    @abstractmethod
    def for_team(self, part: Part, team: Team) -> Self:
        """The same task for one rank of a team."""


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
        return Loader(self.store, windows, self.sampling, tile=self.tile, reading=reading)

    def for_team(self, part: Part, team: Team) -> Self:
        """As `Task.for_team`."""
        return replace(self, field=replace(self.field, part=part), team=team)

    @property
    def tile(self) -> Tile:
        """The space that is read: as far as tokens that are held reach."""
        sizes = self.field.patches.sizes[1:]
        return Tile(own=(self.field.band, *(slice(0, size) for size in sizes[1:])), sizes=sizes)

    def area(self) -> torch.Tensor:
        """Weight of each grid point by its area, where it lies on the sphere; broadcasts to (*S)."""
        weights = torch.ones([1] * len(self.field.axes))
        for number, axis in enumerate(self.field.axes):
            if axis.name == "latitude":
                shape = [1] * len(self.field.axes)
                shape[number] = -1
                weights = weights * area_weights(torch.tensor(axis.values)).float().view(shape)
        return weights[self.field.band] if len(weights) > 1 else weights

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
            present = self.field.present[self.field.band]
            if bool((there & ~present).any()):
                # A place without a token can neither be seen nor told; that it holds something now is said once.
                warnings.warn(
                    f"{self.store.path}: holds values at grid points that were empty in every frame that was looked "
                    "at, which the model does not see; model.empty: tokens, in a new campaign, lets it",
                    stacklevel=2,
                )
            there = there | ~present
        lead = draws.lead(objective.leads)
        hidden = None
        if objective.masks:
            hidden = torch.stack(draws.hidden(objective.mask, [self.lattice] * b))
        return FieldSample(
            inputs_BTCS=batch.inputs,
            # The time that is forecast, or of the last frame where the batch has none to forecast.
            calendar_BF=batch.calendar[:, self.field.tokens.history - 1 + min(lead, batch.target.shape[1])],
            lead_B=torch.full((b,), lead),
            complete=self.team.all(bool(there.all())),
            hidden_BN=hidden,
            kept_LB=draws.kept(),
        )

    def tokens_shape(self, sample: FieldSample) -> tuple[int, int]:
        """As `Task.tokens_shape`."""
        return len(sample.inputs_BTCS), self.field.part.length(len(self.lattice))

    def loss_of(self, model: Model, batch: Batch, sample: FieldSample) -> torch.Tensor:
        """As `Task.loss_of`."""
        device = sample.inputs_BTCS.device
        objective, weights = self.field.objective, self.weights().to(device)
        points = len(self.store.channels) * math.prod(self.field.patches.sizes[1:])
        # A point without a token is not forecast, and one whose token another rank holds is forecast there.
        owned = 1.0 if self.field.owned is None else self.field.owned.to(device)
        lead = int(sample.lead_B[0])
        losses: list[torch.Tensor] = []
        first: Predictions = {}
        if objective.forecasts:
            target = batch.target.to(device)
            calendars = batch.calendar[:, self.field.tokens.history :].to(device)
            for step, predictions in enumerate(roll_out(model, self.name, sample, calendars, objective.rollout)):
                first = first or predictions
                losses.append(
                    forecast_loss(predictions["forecast"], target[:, (step + 1) * lead - 1], weights * owned, points)
                )
        else:
            first = model(self.name, sample)
        loss = torch.stack(losses).mean() if losses else torch.zeros((), device=device)
        if objective.masks:
            assert sample.hidden_BN is not None
            hidden = self.field.spread(self.field.held_alone(sample.hidden_BN))
            loss = loss + reconstruction_loss(
                first["reconstruction"], sample.inputs_BTCS, hidden, weights, self.team.sum
            )
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

    def for_team(self, part: Part, team: Team) -> Self:
        """As `Task.for_team`."""
        return replace(self, cloud=replace(self.cloud, part=part), team=team)

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

    def align(self, samples: Sequence[HitSample]) -> list[HitSample]:
        """As `Task.align`: padded to the most tokens of any, whatever rank has it, and cut.

        Patterns of attention follow from the number of tokens: it must not depend on which samples a rank has.
        """
        most = torch.tensor(max(sample.count for sample in samples))
        if dist.is_initialized():
            dist.all_reduce(most, dist.ReduceOp.MAX)
        return [part_of(padded(sample, int(most)), self.cloud.part) for sample in samples]

    def tokens_shape(self, sample: HitSample) -> tuple[int, int]:
        """As `Task.tokens_shape`."""
        return len(sample.valid_BN), self.cloud.part.length(sample.count)

    def loss_of(self, model: Model, batch: PointBatch, sample: HitSample) -> torch.Tensor:
        """As `Task.loss_of`."""
        del batch
        predictions = model(self.name, sample)
        return hit_loss(predictions["occupancy"], predictions["feature"], sample, self.team.sum)


def moved(sample: AnySample, device: torch.device) -> AnySample:
    """The sample on a device."""
    tensors: dict[str, Any] = {
        field.name: value.to(device, non_blocking=True)
        for field in fields(sample)
        if isinstance(value := getattr(sample, field.name), torch.Tensor)
    }
    return replace(sample, **tensors)
