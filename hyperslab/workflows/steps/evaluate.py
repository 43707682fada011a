"""Skill of the trained model on the held-out period, beside persistence and climatology."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hyperslab.data.climatology import climatology
from hyperslab.data.files import write_json
from hyperslab.data.frames import measure_segments
from hyperslab.data.loader import Batch, Loader, windows_of
from hyperslab.data.store import Store, open_store
from hyperslab.errors import UserError, exit_code
from hyperslab.model.objectives import area_weights, roll_out
from hyperslab.model.skill import anomaly_correlation, square_error
from hyperslab.parallel import catalog, checkpoint
from hyperslab.site_configs.schema import Site
from hyperslab.workflows.campaign import Campaign, CampaignDir
from hyperslab.workflows.steps.pretrain import build_model, reading, sampling

GROUP_BYTES = 1 << 30
"""Memory for the fields of the forecasts that are scored together."""

KINDS = ("forecast", "persistence", "climatology")
Fields = dict[str, torch.Tensor]
"""Truth and each kind of forecast, in physical units, shape (forecast, lead, channel, latitude, longitude)."""


def main(arguments: list[str] | None = None) -> int:
    """Evaluate the latest checkpoint of a campaign: skill by variable and lead, and one forecast map."""
    parser = argparse.ArgumentParser(prog="python -m hyperslab.workflows.steps.evaluate", description=main.__doc__)
    parser.add_argument("directory", type=Path, help="directory of the campaign")
    directory = CampaignDir(parser.parse_args(arguments).directory.resolve())
    return exit_code(lambda: evaluate(directory))


def evaluate(directory: CampaignDir) -> int:
    """Write `skill.json` and `map.npz` in the campaign's evaluation directory; the exit code."""
    campaign, site, store = directory.read(), directory.read_site(), open_store(directory.store)
    torch.set_num_threads(site.ranks_per_node * site.threads_per_rank)
    path = catalog.latest(directory.checkpoints)
    if path is None:
        raise UserError(f"{directory.checkpoints}: holds no checkpoint; train first with `hyperslab resume`")
    model = build_model(campaign, store)
    checkpoint.load(path, model, None)
    model.eval()
    directory.evaluation.mkdir(exist_ok=True)
    weights = area_weights(torch.from_numpy(store.latitude))
    scores: dict[str, list[torch.Tensor]] = {}
    count = 0
    for batch in _groups(campaign, site, store):
        fields = forecast(store, model, batch)
        if count == 0:
            _write_map(directory.evaluation / "map.npz", store, fields, int(batch.target_time[0, 0]))
        for name, score in _score(fields, weights).items():
            scores.setdefault(name, []).append(score)
        count += len(batch.target_time)
    write_json(
        directory.evaluation / "skill.json",
        {
            "step": catalog.read_progress(path).step,
            "checkpoint": path.name,
            "store": store.digest,
            "cadence": store.cadence,
            "lead_frames": campaign.objective.lead,
            "forecasts": count,
            "rows": list(_rows(store, {name: torch.cat(parts).mean(0) for name, parts in scores.items()})),
        },
    )
    return 0


def _groups(campaign: Campaign, site: Site, store: Store) -> Iterator[Batch]:
    """All windows of the test split, as many at a time as memory allows."""
    plan = sampling(campaign, campaign.evaluate.rollout)
    windows = windows_of(store, "test", plan)
    window_bytes = plan.rollout * int(np.prod(store.frame_shape)) * (len(KINDS) + 1) * 8
    loader = Loader(store, windows, plan, reading=reading(site))
    return loader.in_order(range(len(windows)), max(1, GROUP_BYTES // window_bytes))


def forecast(store: Store, model: torch.nn.Module, batch: Batch) -> Fields:
    """Truth, forecasts, persistence and climatology of a batch."""
    mean = torch.from_numpy(store.mean).float()[:, None, None]
    std = torch.from_numpy(store.std).float()[:, None, None]
    with torch.no_grad():
        samples = zip(torch.split(batch.inputs, 1), torch.split(batch.calendar, 1), strict=True)
        rolled = torch.cat([roll_out(model, inputs, calendar) for inputs, calendar in samples])
    times, where = np.unique(batch.target_time, return_inverse=True)
    normal = climatology(store, times, monthly=measure_segments(store.time, store.segment, store.clock).monthly)
    return {
        "truth": batch.target * std + mean,
        "forecast": rolled * std + mean,
        "persistence": batch.inputs[:, -1:].expand_as(batch.target) * std + mean,
        "climatology": torch.from_numpy(normal)[torch.from_numpy(where.reshape(batch.target_time.shape))],
    }


def _score(fields: Fields, weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Square error and anomaly correlation of each kind, shape (forecast, lead, channel)."""
    scores = {}
    for kind in KINDS:
        scores[f"{kind} error"] = square_error(fields[kind], fields["truth"], weights)
        scores[f"{kind} correlation"] = anomaly_correlation(
            fields[kind], fields["truth"], fields["climatology"], weights
        )
    return scores


def _rows(store: Store, means: dict[str, torch.Tensor]) -> Iterator[dict[str, Any]]:
    """RMSE and ACC of each kind of forecast, by channel and lead; None where one is undefined."""
    for kind in KINDS:
        errors, correlations = means[f"{kind} error"].sqrt(), means[f"{kind} correlation"]
        for lead in range(errors.shape[0]):
            for number, channel in enumerate(store.channels):
                yield {
                    "kind": kind,
                    "channel": channel,
                    "units": store.units[channel],
                    "lead": lead + 1,
                    "rmse": _number(errors[lead, number]),
                    "acc": _number(correlations[lead, number]),
                }


def _number(value: torch.Tensor) -> float | None:
    return float(value) if torch.isfinite(value) else None


def _write_map(path: Path, store: Store, fields: Fields, time: int) -> None:
    """Keep the first forecast at the first lead: truth and forecast of every channel."""
    np.savez_compressed(
        path,
        truth=fields["truth"][0, 0].numpy(),
        forecast=fields["forecast"][0, 0].numpy(),
        time=np.int64(time),
        latitude=store.latitude,
        longitude=store.longitude,
        channels=np.asarray(store.channels),
        units=np.asarray([store.units[channel] for channel in store.channels]),
    )


if __name__ == "__main__":
    sys.exit(main())
