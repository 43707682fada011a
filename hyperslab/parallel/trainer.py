"""The training loop that every rank runs."""

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from hyperslab.data.ahead import Reading
from hyperslab.data.files import digest_of
from hyperslab.data.loader import mixed
from hyperslab.data.order import Order
from hyperslab.errors import UserError
from hyperslab.model.config import ModelSettings
from hyperslab.model.probing import attend_as_trained, attention_errors, influences, set_probing, settle
from hyperslab.model.scaling import parameter_groups
from hyperslab.parallel import catalog, checkpoint, gradients
from hyperslab.parallel.agreement import OwnStep, SharedStep, busy_seconds, make_state, name_samples, share, skip_step
from hyperslab.parallel.config import CheckpointSettings, TrainSettings
from hyperslab.parallel.layout import Layout
from hyperslab.parallel.lost import Place, naming
from hyperslab.parallel.mesh import Mesh
from hyperslab.parallel.passes import Passes, Piece
from hyperslab.parallel.saver import Saver
from hyperslab.parallel.tasks import Draws, Task, moved

logger = logging.getLogger(__name__)

FINAL_LEARNING_RATE = 0.01


class Metrics(Protocol):
    """Where the trainer's numbers go; every rank calls it with the same numbers of a step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the numbers of a step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that a rank needs to train."""

    settings: ModelSettings
    tasks: tuple[Task, ...]
    """What is learned from each archive."""
    reading: Reading
    passes: Passes
    train: TrainSettings
    checkpoints: CheckpointSettings
    checkpoint_dir: Path
    log_every: int
    """Steps between two entries of the metrics."""
    device: torch.device

    @property
    def layout(self) -> Layout:
        """How ranks share the work."""
        return self.mesh.layout

    @property
    def model(self) -> nn.Module:
        """The model, or this rank's stage of it."""
        return self.passes.model

    @property
    def mesh(self) -> Mesh:
        """The ranks."""
        return self.passes.mesh

    def pieces(self, task: Task, batches: list[Any], draws: list[Draws]) -> list[Piece]:
        """What passes through the model of a step's batches."""
        samples = task.align([task.sample(batch, own) for batch, own in zip(batches, draws, strict=True)])
        return [
            Piece(task=task, batch=batch, sample=moved(sample, self.device))
            for batch, sample in zip(batches, samples, strict=True)
        ]

    @property
    def data_digest(self) -> str:
        """What stands for the data of all archives: the digest of the store where there is one."""
        digests = [task.store.digest for task in self.tasks]
        return digests[0] if len(digests) == 1 else digest_of(digests)

    def draws(self, turn: int, numbers: range | list[int], *, training: bool) -> Draws:
        """What chance decides of the samples of these numbers."""
        rate = self.settings.stochastic_depth if training else 0.0
        return Draws(seed=self.train.seed, numbers=numbers, turn=turn, depth=self.settings.depth, rate=rate)


def train(run: Run, metrics: Metrics, stop_requested: Callable[[], bool]) -> int:
    """Train from the latest checkpoint to the last step, or to the next step after a request to stop.

    Either way the run ends in a checkpoint.

    Returns
    -------
    int
        Optimizer steps done.

    Raises
    ------
    UserError
        When the data are not those of the checkpoint, a checkpoint cannot be written or read, or too many steps in a
        row are not finite.
    RankLost
        When another rank has ended or hangs.
    """
    place = Place(rank=dist.get_rank(), step=0, doing="reading the checkpoint")
    with naming(place), Saver(run.checkpoint_dir, run.checkpoints.keep) as saver:
        return _train(run, metrics, stop_requested, saver, place)


def _train(run: Run, metrics: Metrics, stop_requested: Callable[[], bool], saver: Saver, place: Place) -> int:
    if run.train.operations == "deterministic":
        _compute_alike()
    optimizer = make_optimizer(run.model, run.train)
    make_state(run.model, optimizer)
    windows = tuple(task.windows("train") for task in run.tasks)
    weights = tuple(task.weight for task in run.tasks)
    order = Order(seed=run.train.seed, batch=run.train.batch, windows=windows, weights=weights)
    loaders = [task.loader(own, run.reading) for task, own in zip(run.tasks, windows, strict=True)]
    start, in_a_row = _restore(run, optimizer, order)
    step = start
    slots = run.layout.pieces_of(dist.get_rank(), run.train.batch)
    batches = mixed(loaders, order, start, run.train.steps, slots)
    meter, stop = _Meter(start), False
    while step < run.train.steps and not stop:
        drawn = meter.wait(batches, len(slots))
        number = drawn[0][0]
        rate = learning_rate(run.train, step)
        place.at(step + 1, "forward and backward")
        if set_probing(run.model, run.settings, step):
            _average(run, influences(run.model))
            settle(run.model)
        first = step * run.train.batch
        draws = [run.draws(step, range(first + own.start, first + own.stop), training=True) for own in slots]
        began = busy_seconds()
        pieces = run.pieces(run.tasks[number], [batch for _, batch in drawn], draws)
        loss, norm = _gradients(run, optimizer, pieces, rate, place)
        # A core's time says nothing about the work of an accelerator.
        busy = busy_seconds() - began if run.device.type == "cpu" else 0.0
        step += 1
        place.at(step, "metrics")
        own = OwnStep(loss=loss, norm=norm, stop=stop_requested(), waited=meter.latest, busy=busy)
        shared = share(own, run.layout.data, run.device)
        meter.add(shared)
        in_a_row = 0 if shared.finite else in_a_row + 1
        if shared.finite:
            optimizer.step()
        else:
            skip_step(optimizer)
            _tell_skipped(run, order, step, shared, in_a_row)
        last, stop = step == run.train.steps, shared.stop
        if step % run.log_every == 0 or step == start + 1 or last or stop or in_a_row:
            values = _values(run, number, shared, rate, in_a_row)
            metrics.log(step, values | meter.read(step, run.train.batch))
        if step % run.train.validate_every == 0 or last:
            place.at(step, "validation")
            metrics.log(step, validate(run, step))
        if step % run.checkpoints.every == 0 or last or stop:
            place.at(step, "checkpoint")
            _save(run, saver, optimizer, order, step, in_a_row)
    batches.close()
    return step


class _Meter:
    """Measures throughput, and the shares of time lost to input and to the slowest rank, between two readings."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.since = time.perf_counter()
        self.latest = 0.0
        """Seconds that this rank waited for its latest batch."""
        self.waited = 0.0
        """Seconds waited since the last reading, by the rank that waited longest in each step."""
        self.slowest = self.mean = 0.0
        """Seconds computed since the last reading: by the slowest rank of each step, and by all in the mean."""

    def wait(self, batches: Iterator[tuple[int, Any]], pieces: int) -> list[tuple[int, Any]]:
        asked = time.perf_counter()
        drawn = [next(batches) for _ in range(pieces)]
        self.latest = time.perf_counter() - asked
        return drawn

    def add(self, shared: SharedStep) -> None:
        self.waited += shared.waited
        self.slowest += shared.slowest
        self.mean += shared.mean

    def read(self, step: int, batch: int) -> dict[str, float]:
        now = time.perf_counter()
        elapsed = max(now - self.since, 1e-9)
        speed = (step - self.step) * batch / elapsed
        waited = {
            "speed/input_wait_share": self.waited / elapsed,
            "speed/input_wait_seconds": self.waited / (step - self.step),
        }
        straggler = {"speed/straggler_share": self.slowest / self.mean - 1} if self.mean else {}
        self.step, self.since = step, now
        self.waited = self.slowest = self.mean = 0.0
        return {"speed/samples_per_second": speed, **waited, **straggler}


def _values(run: Run, number: int, shared: SharedStep, rate: float, in_a_row: int) -> dict[str, float]:
    """What is kept of a step that drew from the archive of that number."""
    if in_a_row:
        # What is not finite is no JSON, and what comes with it would spoil every plot; the log has both.
        return {"train/learning_rate": rate, "train/skipped_in_a_row": in_a_row}
    values = {"train/loss": shared.loss, "train/gradient_norm": shared.norm, "train/learning_rate": rate}
    if len(run.tasks) > 1:
        values[f"train/loss/{run.tasks[number].name}"] = shared.loss
    return values


def _tell_skipped(run: Run, order: Order, step: int, shared: SharedStep, in_a_row: int) -> None:
    """Say which samples a skipped step had; too many such steps in a row end the run."""
    found = f"the loss is {shared.loss} and the norm of the gradient {shared.norm} at step {step}"
    if dist.get_rank() == 0:
        ranks = shared.suspects or range(dist.get_world_size())
        slots = sorted({slot for rank in ranks for slot in run.layout.slots(rank, run.train.batch)})
        samples = name_samples(order, [task.name for task in run.tasks], step - 1, slots)
        of = f"rank {', '.join(map(str, ranks))}" if shared.suspects else "all ranks"
        logger.warning("%s, which is skipped, %d in a row; the samples of %s were %s", found, in_a_row, of, samples)
    if in_a_row >= run.train.max_nonfinite:
        raise UserError(
            f"{run.checkpoint_dir}: {found}, after {in_a_row - 1} such steps in a row (train.max_nonfinite is "
            f"{run.train.max_nonfinite}); training cannot go on: lower train.learning_rate "
            f"({run.train.learning_rate:g}) in a new campaign, or look at the samples that the log names"
        )


def _compute_alike() -> None:
    """Have every operation give the same bits each time; one that cannot raises an error."""
    # cuBLAS reads it when it is first used (docs.nvidia.com/cuda/cublas, "Results Reproducibility").
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def _average(run: Run, tensors: list[torch.Tensor]) -> None:
    """Make tensors of every rank their mean over all ranks that hold the same layers."""
    for tensor in tensors:
        dist.all_reduce(tensor, group=run.mesh.stage)
        tensor /= run.mesh.stage.size()


def make_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only, and learning rates by width."""
    groups = parameter_groups(model, settings.learning_rate, settings.weight_decay)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95), fused=True)


def learning_rate(settings: TrainSettings, step: int) -> float:
    """Learning rate of the step after `step` steps: linear warm-up, then a cosine to a hundredth of the peak."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    rest = max(1, settings.steps - settings.warmup_steps)
    cosine = (1 + math.cos(math.pi * (step - settings.warmup_steps) / rest)) / 2
    return settings.learning_rate * (FINAL_LEARNING_RATE + (1 - FINAL_LEARNING_RATE) * cosine)


def validate(run: Run, step: int) -> dict[str, float]:
    """Mean loss over validation windows, of each archive and of all, and what attention misses; the same on all ranks.

    The windows are shared out over the ranks.
    """
    attend_as_trained(run.model, run.settings, step)
    run.model.eval()
    with torch.no_grad():
        losses = {task.name: _validation_loss(run, task) for task in run.tasks}
        errors = _attention_errors(run)
    run.model.train()
    values = {"validation/loss": sum(losses.values()) / len(losses)} | errors
    if len(losses) > 1:
        values |= {f"validation/loss/{name}": loss for name, loss in losses.items()}
    return values


def _validation_loss(run: Run, task: Task) -> float:
    windows = task.windows("validation")
    count = min(len(windows), run.train.validation_windows)
    numbers = np.linspace(0, len(windows) - 1, count).round().astype(int).tolist()
    # Gathering parameters needs every rank, so all take as many forward passes; surplus ones do not count.
    groups = run.layout.data
    own = range(run.layout.data_rank(dist.get_rank()), -(-count // groups) * groups, groups)
    total = torch.zeros((), dtype=torch.float64, device=run.device)
    loader = task.loader(windows, run.reading)
    for place, batch in zip(own, loader.in_order([numbers[i % count] for i in own], 1), strict=True):
        (piece,) = run.pieces(task, [batch], [run.draws(place, [numbers[place % count]], training=False)])
        total += run.passes.judge(piece).double() * (place < count)
    dist.all_reduce(total)
    return float(total) / count


def _attention_errors(run: Run) -> dict[str, float]:
    """What attention of each layer misses of exact attention, on one validation window of the first archive."""
    if all(run.settings.attention_of(layer).kind == "dense" for layer in range(run.settings.depth)):
        return {}
    task = run.tasks[0]
    (batch,) = task.loader(task.windows("validation"), run.reading).in_order([0], 1)
    (piece,) = run.pieces(task, [batch], [run.draws(0, [0], training=False)])
    errors = attention_errors(run.model, task.lattice, lambda: run.passes.judge(piece))
    # Where ranks share heads out, each has seen some. Errors are roots of means of squares.
    power = {name: 2 if name.endswith("output_error") else 1 for name in errors}
    means = torch.tensor([value ** power[name] for name, value in errors.items()], dtype=torch.float64)
    means = means.to(run.device)
    _average(run, [means])
    own = {f"attention/{name}": mean ** (1 / power[name]) for name, mean in zip(errors, means.tolist(), strict=True)}
    of_stages: list[dict[str, float]] = [{} for _ in range(run.layout.pipeline)]
    dist.all_gather_object(of_stages, own, group=run.mesh.group("pipeline"))
    return {name: value for found in of_stages for name, value in found.items()}


def _gradients(
    run: Run, optimizer: torch.optim.Optimizer, pieces: list[Piece], rate: float, place: Place
) -> tuple[float, float]:
    """The loss of this rank's samples, and the norm of the gradient of all; the optimizer can take its step then."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]
    optimizer.zero_grad(set_to_none=True)
    loss = run.passes.train(pieces)
    place.doing = "gradient norm"
    gradients.complete(run.model.parameters(), run.mesh)
    return float(loss), gradients.clip(run.model.parameters(), run.mesh, run.train.clip_norm)


def _save(run: Run, saver: Saver, optimizer: torch.optim.Optimizer, order: Order, step: int, in_a_row: int) -> None:
    # What each rank has measured itself would be lost but for one rank's.
    _average(run, influences(run.model))
    progress = catalog.Progress(
        step=step, store_digest=run.data_digest, order_digest=order.digest(step), skipped_in_a_row=in_a_row
    )
    saver.save(run.model, optimizer, progress)


def _restore(run: Run, optimizer: torch.optim.Optimizer, order: Order) -> tuple[int, int]:
    """Load the latest checkpoint that is whole; the steps done, and how many were skipped at its end."""
    path = checkpoint.choose(run.checkpoint_dir)
    if path is None:
        return 0, 0
    progress = catalog.read_progress(path)
    if progress.store_digest != run.data_digest:
        raise UserError(
            f"{path}: was trained on the store {progress.store_digest[:12]}, found {run.data_digest[:12]}; "
            "a run goes on only on its own data: restore them, or start a new campaign"
        )
    if progress.order_digest != order.digest(progress.step):
        raise UserError(f"{path}: drew its samples in another order; go on with the same version and settings")
    checkpoint.load(path, run.model, optimizer)
    return progress.step, progress.skipped_in_a_row
