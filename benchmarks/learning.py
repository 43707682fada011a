"""What kinds of attention learn in equal time: validation error of forecasts on simulated weather, seed by seed.

    python benchmarks/learning.py [--seconds 60] [--seeds 5] [--grid 5] [--processes 2]

The archive is `hyperslab simulate era5`: rotating shallow water. Every kind trains the same model on the same windows
in the same order, with one thread, for so many seconds of the processor's time; the learning rate rises and falls over
that time.
Learned patterns pay for the steps in which they probe. Nothing of the validation counts as training time.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from hyperslab.data import staging
from hyperslab.data.ahead import Reading
from hyperslab.data.config import DataSettings
from hyperslab.data.order import Order
from hyperslab.data.recipe import make_recipe
from hyperslab.data.sources import source_of
from hyperslab.data.sources.synthetic.archive import Order as Simulation
from hyperslab.data.sources.synthetic.simulate import simulate
from hyperslab.data.store import open_store
from hyperslab.model.probing import attention_errors, set_probing, settle
from hyperslab.model.skill import square_error
from hyperslab.parallel.config import TrainSettings
from hyperslab.parallel.tasks import Draws, FieldTask
from hyperslab.parallel.trainer import learning_rate, make_optimizer
from hyperslab.workflows.campaign import MAIN, Campaign
from hyperslab.workflows.steps.pretrain import build_model
from hyperslab.workflows.streams import make_tasks

DENSITY = 0.1
BLOCKS = {"kind": "block_sparse", "block": 64, "density": DENSITY}
KINDS: dict[str, Any] = {
    "dense": "dense",
    "window": {"kind": "window", "window": 128},
    "learned blocks": BLOCKS | {"pattern": "learned", "probe_steps": 2},
    "learned later": BLOCKS | {"pattern": "learned", "probe_from": 60, "probe_steps": 4},
    "static blocks": BLOCKS | {"pattern": "static"},
    "random blocks": BLOCKS | {"pattern": "random"},
}
BATCH = 2
SCHEDULE_STEPS = 1000
"""The schedule's length: a share of the time is the same share of these."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of each run")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--grid", type=float, default=5.0, help="degrees between grid points")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time")
    parser.add_argument("--kinds", default=",".join(KINDS))
    chosen = parser.parse_args()
    kinds = chosen.kinds.split(",")
    with tempfile.TemporaryDirectory() as folder:
        store = stage(Path(folder), chosen.grid)
        task = task_of(store, "dense", 0)[1]
        print(f"{len(task.lattice):,} tokens, {len(task.store.channels)} channels, {chosen.seconds:g} s a run")
        jobs = [(store, kind, seed, chosen.seconds) for seed in range(chosen.seeds) for kind in kinds]
        context = get_context("spawn")
        with ProcessPoolExecutor(chosen.processes, context) as pool:
            results = list(pool.map(run, *zip(*jobs, strict=True)))
    print(f"{'':16}{'steps':>7}{'RMSE':>9}{'spread':>9}{'best':>9}{'worst':>9}{'mass':>7}   wins over random, dense")
    of_kind = {kind: [result for job, result in zip(jobs, results, strict=True) if job[1] == kind] for kind in kinds}
    scores = {kind: [error for _, error, _ in own] for kind, own in of_kind.items()}
    for kind, own in of_kind.items():
        spread = statistics.stdev(scores[kind]) if len(own) > 1 else 0.0
        rivals = [wins(scores[kind], scores[other]) for other in ("random blocks", "dense") if other in scores]
        print(
            f"{kind:16}{statistics.median(steps for steps, _, _ in own):7.0f}{statistics.mean(scores[kind]):9.4f}"
            f"{spread:9.4f}{min(scores[kind]):9.4f}{max(scores[kind]):9.4f}"
            f"{statistics.mean(mass for _, _, mass in own):7.2f}   " + ", ".join(rivals)
        )


def wins(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Seeds on which the one error is below the other."""
    return f"{sum(a < b for a, b in zip(ours, theirs, strict=True))} of {len(ours)}"


def stage(folder: Path, grid: float) -> Path:
    """Simulate an archive, and stage it."""
    files = simulate(
        "era5", Simulation(out=folder / "raw", size_bytes=60 << 20, seed=0, form="cds", workers=2, grid_degrees=grid)
    )
    settings = DataSettings(files=[str(path) for path in files if path.name.startswith("era5_pl")])
    recipe = make_recipe(source_of("era5").scan(settings.files, settings), settings, 64.0)
    path = folder / "store"
    staging.create(path, recipe)
    for part in range(recipe.num_parts):
        staging.write_part(path, part)
    staging.finalise(path)
    return path


def task_of(store: Path, kind: str, seed: int) -> tuple[Campaign, FieldTask]:
    """The campaign, and what is learned from the store."""
    model = {"width": 64, "depth": 3, "heads": 2, "patch": 1, "history": 1, "attention": KINDS[kind]}
    campaign = Campaign.model_validate(
        {"name": "learning", "data": {"files": ["-"]}, "model": model, "train": {"seed": seed}}
    )
    (task,) = make_tasks(campaign, {MAIN: open_store(store)})
    assert isinstance(task, FieldTask)
    return campaign, task


def run(store: Path, kind: str, seed: int, seconds: float) -> tuple[int, float, float]:
    """Train for so long; steps, validation RMSE of normalised values, and attention mass covered by the layers."""
    torch.set_num_threads(1)
    campaign, task = task_of(store, kind, seed)
    settings = TrainSettings(steps=SCHEDULE_STEPS, warmup_steps=SCHEDULE_STEPS // 20, learning_rate=2e-3, seed=seed)
    model = build_model(campaign, (task,))
    optimizer = make_optimizer(model, settings)
    windows = task.windows("train")
    order = Order(seed=seed, batch=BATCH, windows=(windows,))
    batches = task.loader(windows, Reading(workers=1)).training(order, 0, 10**6, range(BATCH))
    step, began = 0, time.process_time()
    while (passed := (time.process_time() - began) / seconds) < 1:
        if set_probing(model, campaign.model, step):
            settle(model)
        rate = learning_rate(settings, int(passed * SCHEDULE_STEPS))
        for group in optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        draws = Draws(seed=seed, numbers=range(step * BATCH, (step + 1) * BATCH), turn=step)
        loss = task.loss(model, next(batches), draws, torch.device("cpu"))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        step += 1
    batches.close()
    set_probing(model, campaign.model, None)
    return step, *judge(task, model.eval())


def judge(task: FieldTask, model: torch.nn.Module) -> tuple[float, float]:
    """Validation RMSE over all windows and channels, and mean attention mass covered."""
    errors, model_of = [], model
    windows = task.windows("validation")
    loader = task.loader(windows, Reading(workers=1))
    with torch.no_grad():
        for batch in loader.in_order(range(0, len(windows), 2), 1):
            sample = task.sample(batch, Draws(seed=0, numbers=[0], turn=0))
            forecast = model_of(task.name, sample)["forecast"]
            errors.append(square_error(forecast, batch.target[:, 0], task.area()).mean())
        found = attention_errors(model, task.lattice, lambda: model_of(task.name, sample))
    masses = [value for name, value in found.items() if name.endswith("covered_mass")]
    return float(torch.stack(errors).mean().sqrt()), statistics.mean(masses) if masses else 1.0


if __name__ == "__main__":
    main()
