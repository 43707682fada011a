"""A tiny training run, and what came out of it on one rank."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
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
from hyperslab.model.hits import Cloud
from hyperslab.model.positions import Axis
from hyperslab.model.transformer import SpaceTimeTransformer
from hyperslab.parallel.apply import Precision, apply
from hyperslab.parallel.config import CheckpointSettings, Schedule, TrainSettings
from hyperslab.parallel.layout import Layout
from hyperslab.parallel.mesh import make_mesh
from hyperslab.parallel.tasks import Draws, FieldTask, HitTask
from hyperslab.parallel.team import Team
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


AnyTask = FieldTask | HitTask


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


def make_volumes() -> Store:
    """A store in memory: 26 volumes of 5 x 4 x 3 points, some of which never hold data."""
    values = np.random.default_rng(9).normal(size=(26, 1, 5, 4, 3)).cumsum(axis=0).astype(np.float32)
    values[:, :, 0, :2] = np.nan
    space = {name: np.arange(size, dtype=np.float64) for name, size in zip("xyz", values.shape[2:], strict=True)}
    known = values[:16].astype(np.float64)
    store = make_store()
    assert isinstance(store, MemoryStore)
    return replace(
        store,
        values=values,
        space=space,
        channels=("bold",),
        units={"bold": "1"},
        mean=np.nanmean(known, axis=(0, 2, 3, 4)),
        std=np.nanstd(known, axis=(0, 2, 3, 4)),
    )


class MemoryArray:
    """An array without files."""

    def __init__(self, values: npt.NDArray[np.float32]) -> None:
        self.values, self.shape = values, values.shape

    def pieces(self, rows: slice) -> Iterator[Piece]:
        """Rows at once."""
        yield (slice(0, rows.stop - rows.start), slice(None)), self.values[rows].copy()


def make_hits() -> Store:
    """A store in memory: 26 events of 20 to 60 hits along tracks in a box of 16 x 16."""
    draw = np.random.default_rng(10)
    counts = draw.integers(20, 60, 26)
    position = np.concatenate(
        [draw.uniform(2, 14, 2) + np.linspace(0, 4, count)[:, None] * draw.normal(size=2) for count in counts]
    )
    feature = np.abs(position.sum(axis=1, keepdims=True) + draw.normal(size=(counts.sum(), 1)))
    arrays: Any = {
        "position": MemoryArray(position.clip(0, 15.9).astype(np.float32)),
        "feature": MemoryArray(feature.astype(np.float32)),
    }
    return replace(
        make_store(),
        arrays=arrays,
        frame_start=np.concatenate([[0], np.cumsum(counts)]),
        space={},
        channels=("charge",),
        units={"charge": "1"},
        mean=feature.mean(axis=0),
        std=feature.std(axis=0),
    )


def spoiled(store: Store, *frames: int) -> Store:
    """The store of `make_store` with values in some frames whose squares are beyond float32."""
    assert isinstance(store, MemoryStore)
    values = store.values.copy()
    values[list(frames)] = 1e30
    return replace(store, values=values)


def make_tasks(
    store: Store, model: ModelSettings = MODEL, objectives: tuple[ObjectiveSettings, ...] = (ObjectiveSettings(),)
) -> tuple[FieldTask, ...]:
    """What is learned from a store, for each objective as if it were an archive of its own."""
    axes = tuple(
        Axis(name=name, values=tuple(values.tolist()), periodic=name == "longitude")
        for name, values in store.space.items()
    )
    present = torch.from_numpy(np.isfinite(store.read(0, len(store.time))).any(axis=(0, 1)))
    return tuple(
        FieldTask(
            name="main" if number == 0 else f"other{number}",
            store=store,
            field=Field(
                channels=len(store.channels),
                axes=axes,
                tokens=model,
                objective=objective,
                present=None if present.all() else present,
                block=model.block,
            ),
        )
        for number, objective in enumerate(objectives)
    )


def make_hit_task(store: Store, model: ModelSettings = MODEL) -> HitTask:
    """What is learned from a store of hits."""
    cloud = Cloud(
        channels=1,
        low=(0.0, 0.0),
        cell=(1.0, 1.0),
        shape=(16, 16),
        tokens=model.model_copy(update={"history": 1}),
        objective=ObjectiveSettings(kind="masked"),
    )
    return HitTask(name="main", store=store, cloud=cloud)


def make_model(
    store: Store, seed: int = 1, settings: ModelSettings = MODEL, tasks: tuple[AnyTask, ...] | None = None
) -> SpaceTimeTransformer:
    """The untrained model, the same on every rank."""
    torch.manual_seed(seed)
    streams: dict[str, Field | Cloud] = {
        task.name: task.field if isinstance(task, FieldTask) else task.cloud for task in tasks or make_tasks(store)
    }
    return SpaceTimeTransformer(settings, streams)


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
    schedule: Schedule = "1f1b"
    offload: bool = False
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
    mesh = make_mesh(task.layout, "cpu")
    part, team = task.layout.part(dist.get_rank()), Team(mesh.team)
    whole: tuple[AnyTask, ...]
    if task.store.is_ragged:
        whole = (make_hit_task(task.store, task.model),)
    else:
        whole = make_tasks(task.store, task.model, task.objectives)
    tasks = tuple(own.for_team(part, team) for own in whole)
    model = make_model(task.store, settings.seed, task.model, tasks)
    return Run(
        passes=apply(model, mesh, task.precision, schedule=task.schedule, offload=task.offload),
        settings=task.model,
        tasks=tasks,
        reading=Reading(),
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
    return {name: whole(parameter) for name, parameter in model.named_parameters()}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor put together from all ranks."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def assert_same_weights(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], far: float) -> None:
    """Each parameter as a whole differs by no more than a share of its norm.

    Single numbers may: where a gradient is nearly zero, Adam makes a step of its rounding.
    """
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert float((found[name] - weight).norm()) <= far * float(weight.norm()), name
