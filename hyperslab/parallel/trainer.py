"""The training loop that every rank runs."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from hyperslab.data.ahead import Reading
from hyperslab.data.loader import Batch, Loader, Sampling, windows_of
from hyperslab.data.order import Order
from hyperslab.data.store import Store
from hyperslab.errors import UserError
from hyperslab.model.objectives import area_weights, weighted_square_error
from hyperslab.parallel import catalog, checkpoint
from hyperslab.parallel.config import CheckpointSettings, TrainSettings
from hyperslab.parallel.layout import Layout

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
    store: Store
    sampling: Sampling
    reading: Reading
    layout: Layout
    train: TrainSettings
    checkpoints: CheckpointSettings
    checkpoint_dir: Path
    log_every: int
    """Steps between two entries of the metrics."""
    device: torch.device


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
    optimizer = make_optimizer(run.model, run.train)
    windows = windows_of(run.store, "train", run.sampling)
    order = Order(seed=run.train.seed, batch=run.train.batch, windows=(windows,))
    loader = Loader(run.store, windows, run.sampling, reading=run.reading)
    weights = area_weights(torch.from_numpy(run.store.latitude)).float().to(run.device)
    step = start = _restore(run, optimizer, order)
    slots = run.layout.slots(dist.get_rank(), run.train.batch)
    batches = loader.training(order, start, run.train.steps, slots)
    meter, stop = _Meter(start), False
    while step < run.train.steps and not stop:
        batch = meter.wait(batches)
        rate = learning_rate(run.train, step)
        loss, norm = _step(run, optimizer, batch, weights, rate)
        step += 1
        loss, stop = _agree(run, loss, stop_requested())
        _check_finite(run, loss, step)
        last = step == run.train.steps
        if step % run.log_every == 0 or step == start + 1 or last or stop:
            numbers = {"train/loss": loss, "train/gradient_norm": norm, "train/learning_rate": rate}
            metrics.log(step, numbers | meter.read(step, run.train.batch))
        if step % run.train.validate_every == 0 or last:
            metrics.log(step, {"validation/loss": validate(run, weights)})
        if step % run.checkpoints.every == 0 or last or stop:
            _save(run, optimizer, order, step)
    batches.close()
    return step


class _Meter:
    """Measures throughput, and the share of time spent waiting for input, between two readings."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.since = time.perf_counter()
        self.waited = 0.0

    def wait(self, batches: Iterator[Batch]) -> Batch:
        asked = time.perf_counter()
        batch = next(batches)
        self.waited += time.perf_counter() - asked
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


def _agree(run: Run, loss: float, stop: bool) -> tuple[float, bool]:
    """The mean loss of all ranks, and whether any of them was asked to stop: one reduction carries both."""
    shared = torch.tensor([loss, float(stop)], dtype=torch.float64, device=run.device)
    dist.all_reduce(shared)
    total, stops = shared.tolist()
    return total / dist.get_world_size(), stops > 0


def _check_finite(run: Run, loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise UserError(
            f"{run.checkpoint_dir}: the loss is {loss} at step {step}; training cannot go on: lower "
            f"train.learning_rate ({run.train.learning_rate:g}) in a new campaign"
        )


def make_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95))


def learning_rate(settings: TrainSettings, step: int) -> float:
    """Learning rate of the step after `step` steps: linear warm-up, then a cosine to a hundredth of the peak."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    rest = max(1, settings.steps - settings.warmup_steps)
    cosine = (1 + math.cos(math.pi * (step - settings.warmup_steps) / rest)) / 2
    return settings.learning_rate * (FINAL_LEARNING_RATE + (1 - FINAL_LEARNING_RATE) * cosine)


def validate(run: Run, weights: torch.Tensor) -> float:
    """Mean loss over validation windows, shared out over the ranks; the same on all of them."""
    windows = windows_of(run.store, "validation", run.sampling)
    count = min(len(windows), run.train.validation_windows)
    numbers = np.linspace(0, len(windows) - 1, count).round().astype(int).tolist()
    # Gathering parameters needs every rank, so all take as many forward passes; surplus ones do not count.
    own = range(dist.get_rank(), -(-count // dist.get_world_size()) * dist.get_world_size(), dist.get_world_size())
    total = torch.zeros((), dtype=torch.float64, device=run.device)
    run.model.eval()
    with torch.no_grad():
        loader = Loader(run.store, windows, run.sampling, reading=run.reading)
        for place, batch in zip(own, loader.in_order([numbers[i % count] for i in own], 1), strict=True):
            total += _loss(run, batch, weights).double() * (place < count)
    run.model.train()
    dist.all_reduce(total)
    return float(total) / count


def _step(
    run: Run, optimizer: torch.optim.Optimizer, batch: Batch, weights: torch.Tensor, rate: float
) -> tuple[float, float]:
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss = _loss(run, batch, weights)
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), run.train.clip_norm)
    optimizer.step()
    return float(loss.detach()), float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def _loss(run: Run, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
    forecast = run.model(batch.inputs.to(run.device), batch.calendar[:, 0].to(run.device))
    return weighted_square_error(forecast, batch.target[:, 0].to(run.device), weights)


def _save(run: Run, optimizer: torch.optim.Optimizer, order: Order, step: int) -> None:
    progress = catalog.Progress(step=step, store_digest=run.store.digest, order_digest=order.digest(step))
    checkpoint.save(run.checkpoint_dir, run.model, optimizer, progress, run.checkpoints.keep)


def _restore(run: Run, optimizer: torch.optim.Optimizer, order: Order) -> int:
    """Load the latest checkpoint, if there is any, and return the steps done."""
    path = catalog.latest(run.checkpoint_dir)
    if path is None:
        return 0
    progress = catalog.read_progress(path)
    if progress.store_digest != run.store.digest:
        raise UserError(
            f"{path}: was trained on the store {progress.store_digest[:12]}, found {run.store.digest[:12]}; "
            "a run goes on only on its own data: restore them, or start a new campaign"
        )
    if progress.order_digest != order.digest(progress.step):
        raise UserError(f"{path}: drew its samples in another order; go on with the same version and settings")
    checkpoint.load(path, run.model, optimizer)
    return progress.step
