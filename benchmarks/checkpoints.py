"""What checkpoints cost training: the time of a step with a checkpoint every so many steps, beside none.

    python benchmarks/checkpoints.py [--pairs 7] [--steps 20] [--width 256] [--depth 6] [--processes 2]

Each pair is two stretches of training, one after the other, in turn the one or the other first: one without a
checkpoint, and one with a checkpoint after its first step, which must be complete by its end. The model is shared out
over the processes, with one thread each.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from hyperslab.model.config import ModelSettings, ObjectiveSettings
from hyperslab.model.fields import Field, FieldSample
from hyperslab.model.positions import Axis
from hyperslab.model.transformer import SpaceTimeTransformer
from hyperslab.parallel.apply import apply
from hyperslab.parallel.catalog import Progress
from hyperslab.parallel.launch import start_ranks
from hyperslab.parallel.layout import Layout
from hyperslab.parallel.mesh import make_mesh
from hyperslab.parallel.saver import Saver

CHANNELS = 4
LATITUDES, LONGITUDES = 32, 64
BATCH = 2
TARGET = 0.05
"""Share of a step's time that one checkpoint in 20 steps may cost."""


def main() -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return start_ranks(lambda: measure(chosen, Path(folder)), chosen.processes, 600)


def measure(chosen: argparse.Namespace, folder: Path) -> int:
    """Train pairs of stretches as one rank; the first rank prints their times."""
    torch.set_num_threads(1)
    trained = Trained(chosen.width, chosen.depth, chosen.processes)
    leader = dist.get_rank() == 0
    with Saver(folder, keep=1) as saver:
        # The first steps make the optimizer's state, the first save the memory that later ones copy into.
        stretch(trained, 2, saver, step=0)
        if leader:
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            print(f"a checkpoint of {size / 1e6:,.1f} MB every {chosen.steps} steps, {chosen.processes} processes")
            print(f"{'pair':>6}{'without, ms a step':>22}{'with, ms a step':>18}{'stall, ms':>12}{'ratio':>9}")
        ratios = []
        for pair in range(chosen.pairs):
            seconds, stalls = {}, {}
            for saves in (False, True) if pair % 2 else (True, False):
                own = saver if saves else None
                seconds[saves], stalls[saves] = stretch(trained, chosen.steps, own, step=pair + 1)
            ratios.append(seconds[True] / seconds[False])
            if leader:
                without, beside = (1e3 * seconds[saves] / chosen.steps for saves in (False, True))
                print(f"{pair + 1:6}{without:22.1f}{beside:18.1f}{1e3 * stalls[True]:12.1f}{ratios[-1]:9.3f}")
    if leader:
        cost = statistics.median(ratios) - 1
        spread = f"{min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%}"
        print(f"median cost of checkpoints: {cost:+.1%} of a step ({spread}); the target is at most {TARGET:.0%}")
    return 0


class Trained:
    """A model on all ranks, and one batch that it is trained on again and again."""

    def __init__(self, width: int, depth: int, num_ranks: int) -> None:
        torch.manual_seed(0)
        settings = ModelSettings(width=width, depth=depth, heads=4, patch=4, history=2)
        axes = (
            Axis(name="latitude", values=tuple(89.0 - 178.0 * row / (LATITUDES - 1) for row in range(LATITUDES))),
            Axis(name="longitude", values=tuple(360.0 * n / LONGITUDES for n in range(LONGITUDES)), periodic=True),
        )
        field = Field(
            channels=CHANNELS, axes=axes, tokens=settings, objective=ObjectiveSettings(), block=settings.block
        )
        mesh = make_mesh(Layout(shard=num_ranks), "cpu")
        self.model: nn.Module = apply(SpaceTimeTransformer(settings, {"main": field}), mesh, "fp32").model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.sample = FieldSample(
            inputs_BTCS=torch.randn(BATCH, settings.history, CHANNELS, LATITUDES, LONGITUDES),
            calendar_BF=torch.zeros(BATCH, 4),
            lead_B=torch.ones(BATCH),
            complete=True,
        )
        self.target = torch.randn(BATCH, CHANNELS, LATITUDES, LONGITUDES)

    def step(self) -> None:
        """One optimizer step."""
        loss = (self.model("main", self.sample)["forecast"] - self.target).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self.optimizer.step()


def stretch(trained: Trained, steps: int, saver: Saver | None, step: int) -> tuple[float, float]:
    """Seconds of so many steps, and seconds in which training stood still for a save after the first of them."""
    dist.barrier()
    began, stall = time.perf_counter(), 0.0
    for number in range(steps):
        trained.step()
        if saver is not None and number == 0:
            before = time.perf_counter()
            saver.save(trained.model, trained.optimizer, Progress(step=step, store_digest="", order_digest=""))
            stall = time.perf_counter() - before
    if saver is not None:
        saver.wait()
    dist.barrier()
    return time.perf_counter() - began, stall


if __name__ == "__main__":
    sys.exit(main())
