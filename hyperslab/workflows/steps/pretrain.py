"""One segment of training: what a batch job runs, and every rank in it."""

import argparse
import fcntl
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from hyperslab.data.ahead import Reading
from hyperslab.model.flops import cells_of, layer_flops
from hyperslab.model.transformer import Stream, make_model
from hyperslab.parallel import catalog, weights
from hyperslab.parallel.apply import apply
from hyperslab.parallel.launch import StopRequest, run_rank, start_ranks, under_torchrun
from hyperslab.parallel.layout import make_layout
from hyperslab.parallel.mesh import make_mesh
from hyperslab.parallel.tasks import FieldTask, HitTask, Task
from hyperslab.parallel.team import Team
from hyperslab.parallel.trainer import Metrics, Run, train
from hyperslab.site_configs.schema import Site
from hyperslab.workflows.campaign import Campaign, CampaignDir
from hyperslab.workflows.journal import Journal, Spool
from hyperslab.workflows.streams import make_tasks, open_stores


def main(arguments: list[str] | None = None) -> int:
    """Train one segment of a campaign.

    Under torchrun this process is one rank; by itself it starts the ranks of its node. Exit code 0 means that the
    segment ended at a checkpoint, 2 that a person made a mistake, anything else that it crashed.
    """
    parser = argparse.ArgumentParser(prog="python -m hyperslab.workflows.steps.pretrain", description=main.__doc__)
    parser.add_argument("directory", type=Path, help="directory of the campaign")
    parser.add_argument("--segment", type=int, default=1, help="number of this segment, for its log and metrics")
    chosen = parser.parse_args(arguments)
    directory = CampaignDir(chosen.directory.resolve())
    body = partial(train_rank, directory, chosen.segment)
    site, campaign = directory.read_site(), directory.read()
    if under_torchrun():
        return run_rank(body, "env://", site.timeout_seconds)
    torch.set_num_threads(site.threads_per_rank)
    layout = make_layout(campaign.parallel, site.ranks_per_node, campaign.train.batch)
    with (directory.path / "train.lock").open("w") as lock:
        # A segment whose driver was killed before it noted the job may still be training: wait for its end.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return start_ranks(body, layout.num_ranks, site.timeout_seconds)


def train_rank(directory: CampaignDir, segment: int) -> int:
    """Train as the rank that this process is; the exit code."""
    site, campaign = directory.read_site(), directory.read()
    torch.set_num_threads(site.threads_per_rank)
    layout = make_layout(campaign.parallel, dist.get_world_size(), campaign.train.batch)
    device = torch.device(site.device, int(os.environ["LOCAL_RANK"]) if site.device == "cuda" else 0)
    mesh = make_mesh(layout, site.device)
    part, team = layout.part(dist.get_rank()), Team(mesh.team)
    tasks = tuple(task.for_team(part, team) for task in make_tasks(campaign, open_stores(campaign, directory)))
    journal = Journal(directory.spool(segment))
    leader = dist.get_rank() == 0
    if leader:
        journal.append("started", ranks=layout.num_ranks, layout=layout.to_json(), pid=os.getpid())
        print(f"segment {segment}: {layout.num_ranks} ranks, layout {layout.to_json()}", flush=True)
    model = build_model(campaign, tasks)
    begin = campaign.train.init_from
    # Later segments need it no more: it may be gone by then.
    if begin and catalog.latest(directory.checkpoints) is None:
        weights.initialise(model, Path(begin))
    model = model.to(device)
    compiled = campaign.model.compile == "blocks"
    run = Run(
        passes=apply(
            model,
            mesh,
            site.precision,
            compiled=compiled,
            costs=_costs(campaign, tasks),
            schedule=campaign.parallel.schedule,
            offload=campaign.parallel.offload == "cpu",
        ),
        settings=campaign.model,
        tasks=tasks,
        reading=reading(site),
        train=campaign.train,
        checkpoints=campaign.checkpoint,
        checkpoint_dir=directory.checkpoints,
        log_every=campaign.track.every,
        device=device,
    )
    metrics: Metrics = _Recorded(Spool(journal)) if leader else _Silent()
    step = train(run, metrics, StopRequest(directory.stop_file(segment)))
    if leader:
        journal.append("ended", step=step, finished=step == campaign.train.steps)
        print(f"ended at step {step} of {campaign.train.steps}", flush=True)
    return 0


def build_model(campaign: Campaign, tasks: Sequence[Task]) -> nn.Module:
    """The campaign's untrained model, the same on every rank."""
    streams: dict[str, Stream] = {}
    for task in tasks:
        assert isinstance(task, FieldTask | HitTask)
        streams[task.name] = task.field if isinstance(task, FieldTask) else task.cloud
    torch.manual_seed(campaign.train.seed)
    return make_model(campaign.model, streams)


def _costs(campaign: Campaign, tasks: Sequence[Task]) -> list[float]:
    """Operations of each layer, in the mean over archives."""
    settings = campaign.model
    fields = [task.field for task in tasks if isinstance(task, FieldTask)]
    if settings.module is not None or not fields:
        return []
    return [
        sum(layer_flops(settings, layer, cells_of(field)).total for field in fields) for layer in range(settings.depth)
    ]


def reading(site: Site) -> Reading:
    """How a rank of the site reads ahead."""
    return Reading(
        workers=site.reading_threads, memory_bytes=int(site.reading_mebibytes * 2**20), pin=site.device == "cuda"
    )


class _Recorded:
    """Metrics that go to the spool for machines, and to the log for people."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the numbers of a step, and print them."""
        self._spool.log(step, values)
        print(f"step {step}: " + ", ".join(f"{name} {value:.6g}" for name, value in values.items()), flush=True)


class _Silent:
    """Metrics of the ranks that keep none."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep nothing."""


if __name__ == "__main__":
    sys.exit(main())
