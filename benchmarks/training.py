"""What the training loop costs: `hyperslab run`'s own beside a loop that a person would write with PyTorch alone.

    OMP_NUM_THREADS=1 python benchmarks/training.py [--pairs 7] [--steps 20] [--width 192] [--depth 6] [--batch 4]
                                                    [--grid 5] [--layouts replicate,shard]

Two processes with one thread each train the same model from the same weights on the same samples in the same order,
with AdamW of the same groups and learning rates, and clip the gradient by its norm:

- `replicate: 2` beside DistributedDataParallel, whose gradients are views of its buckets, and whose buffers stay put;
- `shard: 2` beside FSDP2, `fully_shard` of each block and of the rest.

Ours is all of `hyperslab.parallel.trainer.train`: it reads and normalises samples from a store on disk, makes the ranks
agree on each step, looks for requests to stop, and writes metrics every 10 steps. The plain loop has all its samples in
memory, ready for the model, which is more than any loop could hope for: what reading costs counts as overhead of ours.

Each pair is two stretches of training from step 0, in turn the one or the other first, of which the steps after the
first few count; neither validation nor checkpoints lie in there. Beside the time on the clock stands the processor's,
of both processes and all their threads: it says more where the machine has other work. Losses are compared at every
step that ours tells.
"""

import argparse
import gc
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # FSDP imports it on its first use
import torch.distributed as dist
from learning import stage
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from hyperslab.data.ahead import Reading
from hyperslab.data.order import Order
from hyperslab.data.store import open_store
from hyperslab.model.fields import FieldSample
from hyperslab.model.transformer import SpaceTimeTransformer
from hyperslab.parallel.apply import apply
from hyperslab.parallel.launch import StopRequest, start_ranks
from hyperslab.parallel.layout import Layout, make_layout
from hyperslab.parallel.mesh import Mesh, make_mesh
from hyperslab.parallel.tasks import Draws, FieldTask
from hyperslab.parallel.team import Team
from hyperslab.parallel.trainer import Run, learning_rate, make_optimizer, train
from hyperslab.workflows.campaign import MAIN, Campaign
from hyperslab.workflows.journal import Journal, Spool
from hyperslab.workflows.steps.pretrain import build_model
from hyperslab.workflows.streams import make_tasks

PROCESSES = 2
WARM_STEPS = 3
"""The first steps make the optimizer's state, and find memory cold."""
NEVER = 10**6
PEERS = {"replicate": "DDP", "shard": "FSDP2"}
TARGET = 0.03
"""Share of the plain loop's time that ours may take more."""
CLOSE = 1e-5
"""Losses of both may differ by such a share."""


def main() -> int:
    """Print the tables; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="steps that are measured of each stretch")
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--batch", type=int, default=4, help="samples in the batch of both processes")
    parser.add_argument("--grid", type=float, default=5.0, help="degrees between grid points")
    parser.add_argument("--layouts", default=",".join(PEERS))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stage(folder, chosen.grid)
        for axis in chosen.layouts.split(","):
            code = start_ranks(partial(measure, chosen, axis, folder), PROCESSES, 600)
            if code:
                return code
    return 0


def measure(chosen: argparse.Namespace, axis: str, folder: Path) -> int:
    """Train pairs of stretches as one rank; the first rank prints their times."""
    torch.set_num_threads(1)
    setup = make_setup(chosen, axis, folder)
    batches = preloaded(setup, WARM_STEPS + chosen.steps)
    leader = dist.get_rank() == 0
    if leader:
        count = sum(parameter.numel() for parameter in build_model(setup.campaign, (setup.task,)).parameters())
        size = f"{count / 1e6:.1f} million parameters, {len(setup.task.lattice)} tokens, batch {chosen.batch}"
        print(f"\n{axis}: {PROCESSES} beside {PEERS[axis]}: {size}; {chosen.steps} steps a stretch")
        print(f"{'pair':>6}{PEERS[axis] + ', ms a step':>20}{'ours':>9}{'ratio':>9}{'of processor time':>20}")
    pairs: list[tuple[Stretch, Stretch]] = []
    for pair in range(chosen.pairs):
        done: dict[bool, Stretch] = {}
        for is_ours in (False, True) if pair % 2 else (True, False):
            clock = Clock(chosen.steps, StopRequest(folder / "stop"))
            done[is_ours] = ours(setup, clock, folder / f"{axis}-{pair}") if is_ours else plain(setup, clock, batches)
        pairs.append((done[False], done[True]))
        if leader:
            other, own = pairs[-1]
            times = f"{1e3 * other.seconds / chosen.steps:20.1f}{1e3 * own.seconds / chosen.steps:9.1f}"
            print(f"{pair + 1:6}{times}{own.seconds / other.seconds:9.3f}{own.processor / other.processor:20.3f}")
    if leader:
        conclude(pairs, PEERS[axis])
    return 0


def conclude(pairs: "list[tuple[Stretch, Stretch]]", peer: str) -> None:
    """Print the medians, and whether losses agree."""
    clock = [own.seconds / other.seconds - 1 for other, own in pairs]
    processor = [own.processor / other.processor - 1 for other, own in pairs]
    overhead = statistics.median(clock)
    spread = f"{min(clock):+.1%} to {max(clock):+.1%}"
    print(
        f"median overhead over {peer}: {overhead:+.1%} of time ({spread}), {statistics.median(processor):+.1%} of",
        end=" ",
    )
    print(f"processor time; the target is at most {TARGET:.0%}: {'reached' if overhead <= TARGET else 'missed'}")
    far = max(abs(own.losses[step] / other.losses[step] - 1) for other, own in pairs for step in own.losses)
    steps = ", ".join(map(str, pairs[0][1].losses))
    print(f"losses of steps {steps} differ by {far:.1e} at most; {'they agree' if far <= CLOSE else 'TOO FAR'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What both loops train."""

    campaign: Campaign
    layout: Layout
    mesh: Mesh
    task: FieldTask


def make_setup(chosen: argparse.Namespace, axis: str, folder: Path) -> Setup:
    """The campaign, as a person would write it, on this rank."""
    campaign = Campaign.model_validate(
        {
            "name": "training",
            "data": {"files": ["-"]},
            "model": {"width": chosen.width, "depth": chosen.depth, "heads": 4, "patch": 4, "history": 2},
            # Both loops scale every gradient down. Validation and checkpoints come only once a stretch is over.
            "train": {"batch": chosen.batch, "clip_norm": 0.01, "steps": NEVER, "validate_every": NEVER},
            "checkpoint": {"every": NEVER},
            "parallel": {"replicate": PROCESSES if axis == "replicate" else 1},
        }
    )
    layout = make_layout(campaign.parallel, PROCESSES, chosen.batch)
    mesh = make_mesh(layout, "cpu")
    (task,) = make_tasks(campaign, {MAIN: open_store(folder / "store")})
    assert isinstance(task, FieldTask)
    own = task.for_team(layout.part(dist.get_rank()), Team(mesh.team))
    return Setup(campaign=campaign, layout=layout, mesh=mesh, task=own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What some steps took, and gave."""

    seconds: float
    processor: float
    """Seconds of the processor, of all ranks."""
    losses: dict[int, float]
    """Loss of the whole batch, by step."""


class Clock:
    """Asked once in each step whether to stop; measures the steps from one such moment to another."""

    def __init__(self, steps: int, request: StopRequest) -> None:
        self._steps, self._request, self._asked = steps, request, 0
        self._began = self._ended = (0.0, 0.0)

    def __call__(self) -> bool:
        """Whether the stretch is over."""
        self._asked += 1
        if self._asked == WARM_STEPS:
            self._began = _now()
        if self._asked == WARM_STEPS + self._steps:
            self._ended = _now()
            return True
        return self._request()

    def stretch(self, losses: dict[int, float]) -> Stretch:
        """What was measured."""
        seconds, processor = (end - start for start, end in zip(self._began, self._ended, strict=True))
        total = torch.tensor(processor, dtype=torch.float64)
        dist.all_reduce(total)
        return Stretch(seconds=seconds, processor=float(total), losses=losses)


def _now() -> tuple[float, float]:
    """Time on the clock and of the processor, when all ranks have come so far."""
    dist.barrier()
    return time.perf_counter(), time.process_time()


class Told:
    """Metrics that are written as `hyperslab run` writes them, on the first rank, and whose losses are kept."""

    def __init__(self, file: Path) -> None:
        self._spool = Spool(Journal(file)) if dist.get_rank() == 0 else None
        self.losses: dict[int, float] = {}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the numbers of a step."""
        if self._spool is not None:
            self._spool.log(step, values)
        self.losses[step] = values["train/loss"]


def ours(setup: Setup, clock: Clock, folder: Path) -> Stretch:
    """A stretch of the trainer's own loop."""
    campaign = setup.campaign
    folder.mkdir(exist_ok=True)
    metrics = Told(folder / "metrics.jsonl")
    run = Run(
        passes=apply(build_model(campaign, (setup.task,)), setup.mesh, "fp32"),
        settings=campaign.model,
        tasks=(setup.task,),
        reading=Reading(),
        train=campaign.train,
        checkpoints=campaign.checkpoint,
        checkpoint_dir=folder / "checkpoints",
        log_every=campaign.track.every,
        device=torch.device("cpu"),
    )
    gc.collect()
    train(run, metrics, clock)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)
    dist.barrier()
    return clock.stretch(metrics.losses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A batch as the model takes it, and what it is to forecast."""

    sample: FieldSample
    target_BCS: torch.Tensor


def preloaded(setup: Setup, steps: int) -> list[Ready]:
    """The batches of this rank, all in memory."""
    windows, train_settings = setup.task.windows("train"), setup.campaign.train
    order = Order(seed=train_settings.seed, batch=train_settings.batch, windows=(windows,))
    slots = setup.layout.slots(dist.get_rank(), train_settings.batch)
    loader = setup.task.loader(windows, Reading())
    ready = []
    for step, batch in enumerate(loader.training(order, 0, steps, slots)):
        sample = setup.task.sample(batch, Draws(seed=train_settings.seed, numbers=slots, turn=step))
        sample = replace(sample, inputs_BTCS=sample.inputs_BTCS.clone())
        ready.append(Ready(sample=sample, target_BCS=batch.target[:, 0].clone()))
    return ready


def plain(setup: Setup, clock: Clock, batches: list[Ready]) -> Stretch:
    """A stretch of a loop written by hand."""
    settings = setup.campaign.train
    built: Any = build_model(setup.campaign, (setup.task,))
    if setup.layout.replicate > 1:
        optimizer = make_optimizer(built, settings)
        model: nn.Module = DistributedDataParallel(built, forward_sync_buffers=False, gradient_as_bucket_view=True)
    else:
        model = shard(built)
        optimizer = make_optimizer(model, settings)
    weights_CS = setup.task.weights()
    losses = []
    gc.collect()
    for step, ready in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step) * group["scale"]
        optimizer.zero_grad(set_to_none=True)
        forecast_BCS = model(MAIN, ready.sample)["forecast"]
        loss = ((forecast_BCS - ready.target_BCS).square() * weights_CS).mean()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        losses.append(float(loss.detach()))
        clock()
        optimizer.step()
    table = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(table)
    means = (table / PROCESSES).tolist()
    return clock.stretch(dict(enumerate(means, start=1)))


def shard(model: SpaceTimeTransformer) -> nn.Module:
    """The model with its parameters shared out, block by block."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


if __name__ == "__main__":
    sys.exit(main())
