"""A tiny training run, and what came out of it on one rank."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from hyperslab.data.ahead import Reading
from hyperslab.data.chunks import Piece
from hyperslab.data.clock import Clock
from hyperslab.data.loader import Batch
from hyperslab.data.store import Store
from hyperslab.data.tiles import Space
from hyperslab.model.config import ModelSettings, ObjectiveSettings
from hyperslab.model.fields import Field
from hyperslab.model.positions import Axis
from hyperslab.model.transformer import SpaceTimeTransformer
from hyperslab.parallel.apply import Precision, apply, make_mesh
from hyperslab.parallel.config import CheckpointSettings, TrainSettings
from hyperslab.parallel.layout import Layout
from hyperslab.parallel.tasks import Draws, FieldTask
from hyperslab.parallel.trainer import Run, train

MODEL = ModelSettings(width=16, depth=2, heads=2, patch=2, history=2)
TRAIN: dict[str, Any] = {
    "steps": 5,
    "batch": 4,
    "learning_rate": 3e-3,
    "warmup_steps": 2,
    "clip_norm": 0.3,
    "seed": 1,
    "validate_every": 2,
    "validation_windows": 3,
}
"""Three validation windows share out evenly over neither two nor four ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStore(Store):
    """A store without files."""

    values: npt.NDArray[np.float32]

    def pieces(self, start: int, stop: int, space: Space = (), out: npt.NDArray[Any] | None = None) -> Iterator[Piece]:
        """Frames `[start, stop)` at once."""
        piece = self.values[(slice(start, stop), slice(None), *space)].copy()
        yield tuple(slice(0, size) for size in piece.shape), piece


def make_store() -> Store:
    """A store in memory: 26 frames of waves that travel round the globe, 2 channels on 6 x 8 points."""
    latitude, longitude = np.arange(75.0, -76.0, -30.0), np.arange(0.0, 360.0, 45.0)
    phase = np.deg2rad(longitude) - 0.6 * np.arange(26)[:, None]
    waves = np.stack([np.cos(phase), 3 * np.sin(2 * phase)], axis=1)[:, :, None] * np.cos(np.deg2rad(latitude))[:, None]
    noise = np.random.default_rng(8).normal(scale=0.2, size=waves.shape)
    values = (waves + noise + np.array([280.0, 5.0])[:, None, None]).astype(np.float32)
    values[:, 1, 4, 2:5] = np.nan
    training = values[:16].astype(np.float64)
    return MemoryStore(
        path=Path("campaign/store"),
        digest="a" * 64,
        arrays={},
        values=values,
        source="memory",
        clock=Clock(),
        time=np.arange(26) * 21_600,
        segment=np.zeros(26, np.int64),
        valid=np.ones(26, bool),
        space={"latitude": latitude, "longitude": longitude},
        channels=("t2m", "u10"),
        units={"t2m": "K", "u10": "m s**-1"},
        cadence="6 h",
        mean=np.nanmean(training, axis=(0, 2, 3)),
        std=np.nanstd(training, axis=(0, 2, 3)),
        splits={"train": ((0, 16),), "validation": ((16, 22),), "test": ((22, 26),)},
        frame_start=None,
    )


def make_tasks(
    store: Store, model: ModelSettings = MODEL, objectives: tuple[ObjectiveSettings, ...] = (ObjectiveSettings(),)
) -> tuple[FieldTask, ...]:
    """What is learned from a store, for each objective as if it were an archive of its own."""
    axes = (
        Axis(name="latitude", values=tuple(store.latitude.tolist())),
        Axis(name="longitude", values=tuple(store.longitude.tolist()), periodic=True),
    )
    return tuple(
        FieldTask(
            name="main" if number == 0 else f"other{number}",
            store=store,
            field=Field(channels=len(store.channels), axes=axes, tokens=model, objective=objective, block=model.block),
        )
        for number, objective in enumerate(objectives)
    )


def make_model(
    store: Store, seed: int = 1, settings: ModelSettings = MODEL, tasks: tuple[FieldTask, ...] | None = None
) -> SpaceTimeTransformer:
    """The untrained model, the same on every rank."""
    torch.manual_seed(seed)
    return SpaceTimeTransformer(settings, {task.name: task.field for task in tasks or make_tasks(store)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A run to train, or to go on with."""

    store: Store
    checkpoint_dir: Path
    layout: Layout
    train: Mapping[str, Any] = field(default_factory=dict)
    """Changes to `TRAIN`."""
    model: ModelSettings = MODEL
    objectives: tuple[ObjectiveSettings, ...] = (ObjectiveSettings(),)
    """What is learned; more than one as if each were of an archive of its own."""
    precision: Precision = "fp32"
    every: int = 100
    log_every: int = 1
    stop_at: int | None = None
    """Step after which a stop is asked for."""
    stop_rank: int | None = None
    """The rank that is asked to stop; all of them where absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a rank saw of its run."""

    step: int
    log: list[tuple[int, dict[str, float]]]
    weights: dict[str, torch.Tensor]
    """Whole parameters, by name."""

    def numbers(self, name: str) -> dict[int, float]:
        """Logged numbers of that name, by step."""
        return {step: values[name] for step, values in self.log if name in values}

    @property
    def losses(self) -> dict[int, float]:
        """Training loss by step."""
        return self.numbers("train/loss")


class Log:
    """Metrics that keep what they get."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.entries.append((step, dict(values)))


def make_run(task: Task) -> Run:
    """The run of a task, on a rank."""
    settings = TrainSettings(**(TRAIN | dict(task.train)))
    tasks = make_tasks(task.store, task.model, task.objectives)
    model = make_model(task.store, settings.seed, task.model, tasks)
    return Run(
        model=apply(model, make_mesh(task.layout, "cpu"), task.precision),
        settings=task.model,
        tasks=tasks,
        reading=Reading(),
        layout=task.layout,
        train=settings,
        checkpoints=CheckpointSettings(every=task.every),
        checkpoint_dir=task.checkpoint_dir,
        log_every=task.log_every,
        device=torch.device("cpu"),
    )


def forecast_of(model: nn.Module, store: Store, split: str, numbers: list[int]) -> tuple[torch.Tensor, Batch]:
    """The model's forecast of some windows, and their batch."""
    (task,) = make_tasks(store)
    batch = task.loader(task.windows(split), Reading()).read(numbers)
    sample = task.sample(batch, Draws(seed=0, numbers=numbers, turn=0))
    return model(task.name, sample)["forecast"], batch


def train_task(task: Task) -> Outcome:
    """Train as the rank that this process is."""
    run, metrics, asked = make_run(task), Log(), 0

    def stop_requested() -> bool:
        nonlocal asked
        asked += 1
        return asked == task.stop_at and task.stop_rank in (None, dist.get_rank())

    step = train(run, metrics, stop_requested)
    return Outcome(step=step, log=metrics.entries, weights=whole_weights(run.model))


def whole_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters put together from all ranks, by name."""
    return {
        name: (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach().clone()
        for name, parameter in model.named_parameters()
    }
