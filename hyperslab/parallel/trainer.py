"""The training loop that every rank runs."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
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
from hyperslab.parallel import catalog, checkpoint
from hyperslab.parallel.config import CheckpointSettings, TrainSettings
from hyperslab.parallel.layout import Layout
from hyperslab.parallel.saver import Saver
from hyperslab.parallel.tasks import Draws, Task

FINAL_LEARNING_RATE = 0.01


class Metrics(Protocol):
    """Where the trainer's numbers go; every rank calls it with the same numbers of a step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the numbers of a step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that a rank needs to train."""

    model: nn.Module
    settings: ModelSettings
    tasks: tuple[Task, ...]
    """What is learned from each archive."""
    reading: Reading
    layout: Layout
    train: TrainSettings
    checkpoints: CheckpointSettings
    checkpoint_dir: Path
    log_every: int
    """Steps between two entries of the metrics."""
    device: torch.device

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
        When the data are not those of the checkpoint, or a checkpoint cannot be written or read.
    """
    with Saver(run.checkpoint_dir, run.checkpoints.keep) as saver:
        return _train(run, metrics, stop_requested, saver)


def _train(run: Run, metrics: Metrics, stop_requested: Callable[[], bool], saver: Saver) -> int:
    optimizer = make_optimizer(run.model, run.train)
    windows = tuple(task.windows("train") for task in run.tasks)
    weights = tuple(task.weight for task in run.tasks)
    order = Order(seed=run.train.seed, batch=run.train.batch, windows=windows, weights=weights)
    loaders = [task.loader(own, run.reading) for task, own in zip(run.tasks, windows, strict=True)]
    step = start = _restore(run, optimizer, order)
    slots = run.layout.slots(dist.get_rank(), run.train.batch)
    batches = mixed(loaders, order, start, run.train.steps, slots)
    meter, stop = _Meter(start), False
    while step < run.train.steps and not stop:
        number, batch = meter.wait(batches)
        rate = learning_rate(run.train, step)
        if set_probing(run.model, run.settings, step):
            _average(influences(run.model))
            settle(run.model)
        numbers = range(step * run.train.batch + slots.start, step * run.train.batch + slots.stop)
        draws = run.draws(step, numbers, training=True)
        loss, norm = _step(run, optimizer, partial(run.tasks[number].loss, run.model, batch, draws, run.device), rate)
        step += 1
        loss, stop, waited = _agree(run, loss, stop_requested(), meter.latest)
        meter.waited += waited
        _check_finite(run, loss, step)
        last = step == run.train.steps
        if step % run.log_every == 0 or step == start + 1 or last or stop:
            values = {"train/loss": loss, "train/gradient_norm": norm, "train/learning_rate": rate}
            if len(run.tasks) > 1:
                values[f"train/loss/{run.tasks[number].name}"] = loss
            metrics.log(step, values | meter.read(step, run.train.batch))
        if step % run.train.validate_every == 0 or last:
            metrics.log(step, validate(run, step))
        if step % run.checkpoints.every == 0 or last or stop:
            _save(run, saver, optimizer, order, step)
    batches.close()
    return step


class _Meter:
    """Measures throughput, and the share of time spent waiting for input, between two readings."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.since = time.perf_counter()
        self.latest = 0.0
        """Seconds that this rank waited for its latest batch."""
        self.waited = 0.0
        """Seconds waited since the last reading, as `_agree` gives them."""

    def wait(self, batches: Iterator[tuple[int, Any]]) -> tuple[int, Any]:
        asked = time.perf_counter()
        batch = next(batches)
        self.latest = time.perf_counter() - asked
        return batch

    def read(self, step: int, batch: int) -> dict[str, float]:
        now = time.perf_counter()
        elapsed = max(now - self.since, 1e-9)
        speed = (step - self.step) * batch / elapsed
        waited = {
            "speed/input_wait_share": self.waited / elapsed,
            "speed/input_wait_seconds": self.waited / (step - self.step),
        }
        self.step, self.since, self.waited = step, now, 0.0
        return {"speed/samples_per_second": speed, **waited}


def _agree(run: Run, loss: float, stop: bool, waited: float) -> tuple[float, bool, float]:
    """The mean loss of all ranks, whether any of them was asked to stop, and the longest wait for input of any.

    One reduction carries all of it. Every rank waits in it for the one that waits for input, so that the longest wait
    is what input costs the step.
    """
    waits = [0.0] * dist.get_world_size()
    waits[dist.get_rank()] = waited
    shared = torch.tensor([loss, float(stop), *waits], dtype=torch.float64, device=run.device)
    dist.all_reduce(shared)
    total, stops, *waits = shared.tolist()
    return total / dist.get_world_size(), stops > 0, max(waits)


def _check_finite(run: Run, loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise UserError(
            f"{run.checkpoint_dir}: the loss is {loss} at step {step}; training cannot go on: lower "
            f"train.learning_rate ({run.train.learning_rate:g}) in a new campaign"
        )


def _average(tensors: list[torch.Tensor]) -> None:
    """Make tensors of every rank their mean over all ranks."""
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


def make_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only, and learning rates by width."""
    groups = parameter_groups(model, settings.learning_rate, settings.weight_decay)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95))


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
    own = range(dist.get_rank(), -(-count // dist.get_world_size()) * dist.get_world_size(), dist.get_world_size())
    total = torch.zeros((), dtype=torch.float64, device=run.device)
    loader = task.loader(windows, run.reading)
    for place, batch in zip(own, loader.in_order([numbers[i % count] for i in own], 1), strict=True):
        draws = run.draws(place, [numbers[place % count]], training=False)
        total += task.loss(run.model, batch, draws, run.device).double() * (place < count)
    dist.all_reduce(total)
    return float(total) / count


def _attention_errors(run: Run) -> dict[str, float]:
    """What attention of each layer misses of exact attention, on one validation window of the first archive."""
    task = run.tasks[0]
    (batch,) = task.loader(task.windows("validation"), run.reading).in_order([0], 1)
    draws = run.draws(0, [0], training=False)
    errors = attention_errors(run.model, task.lattice, lambda: task.loss(run.model, batch, draws, run.device))
    return {f"attention/{name}": value for name, value in errors.items()}


def _step(
    run: Run, optimizer: torch.optim.Optimizer, loss_of: Callable[[], torch.Tensor], rate: float
) -> tuple[float, float]:
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]
    loss = loss_of()
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), run.train.clip_norm)
    optimizer.step()
    return float(loss.detach()), float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def _save(run: Run, saver: Saver, optimizer: torch.optim.Optimizer, order: Order, step: int) -> None:
    # What each rank has measured itself would be lost but for one rank's.
    _average(influences(run.model))
    progress = catalog.Progress(step=step, store_digest=run.data_digest, order_digest=order.digest(step))
    saver.save(run.model, optimizer, progress)


def _restore(run: Run, optimizer: torch.optim.Optimizer, order: Order) -> int:
    """Load the latest checkpoint that is whole, if there is any, and return the steps done."""
    path = checkpoint.choose(run.checkpoint_dir)
    if path is None:
        return 0
    progress = catalog.read_progress(path)
    if progress.store_digest != run.data_digest:
        raise UserError(
            f"{path}: was trained on the store {progress.store_digest[:12]}, found {run.data_digest[:12]}; "
            "a run goes on only on its own data: restore them, or start a new campaign"
        )
    if progress.order_digest != order.digest(progress.step):
        raise UserError(f"{path}: drew its samples in another order; go on with the same version and settings")
    checkpoint.load(path, run.model, optimizer)
    return progress.step
