"""Skill of the trained model on what was held out, beside simple ways to fill it in."""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperslab.data.climatology import climatology
from hyperslab.data.files import write_json
from hyperslab.data.frames import measure_segments
from hyperslab.data.loader import Batch, Loader, Sampling, windows_of
from hyperslab.data.store import Store
from hyperslab.errors import UserError, exit_code
from hyperslab.model.fields import FieldSample
from hyperslab.model.objectives import roll_out
from hyperslab.model.skill import anomaly_correlation, square_error
from hyperslab.parallel import catalog, checkpoint
from hyperslab.parallel.tasks import Draws, FieldTask, HitTask
from hyperslab.site_configs.schema import Site
from hyperslab.workflows.campaign import Campaign, CampaignDir
from hyperslab.workflows.steps.pretrain import build_model, reading
from hyperslab.workflows.steps.reconstruct import field_scores, hit_scores
from hyperslab.workflows.streams import make_tasks, open_stores

GROUP_BYTES = 1 << 30
"""Memory for the fields of the forecasts that are scored together."""

MOST_FIELDS = 5
"""Truth, and as many kinds of forecast as there are."""
Fields = dict[str, torch.Tensor]
"""Truth and each kind of forecast, in physical units, shape (forecast, lead, channel, *space)."""
Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Evaluate the latest checkpoint of a campaign: skill by variable and lead, and one forecast map."""
    parser = argparse.ArgumentParser(prog="python -m hyperslab.workflows.steps.evaluate", description=main.__doc__)
    parser.add_argument("directory", type=Path, help="directory of the campaign")
    directory = CampaignDir(parser.parse_args(arguments).directory.resolve())
    return exit_code(lambda: evaluate(directory))


def evaluate(directory: CampaignDir) -> int:
    """Write `skill.json`, and `map.npz` of a forecast, in the campaign's evaluation directory; the exit code."""
    campaign, site = directory.read(), directory.read_site()
    torch.set_num_threads(site.ranks_per_node * site.threads_per_rank)
    path = checkpoint.choose(directory.checkpoints)
    if path is None:
        raise UserError(f"{directory.checkpoints}: holds no checkpoint; train first with `hyperslab resume`")
    tasks = make_tasks(campaign, open_stores(campaign, directory))
    model = build_model(campaign, tasks)
    checkpoint.load(path, model, None)
    model.eval()
    directory.evaluation.mkdir(exist_ok=True)
    tables = []
    with torch.no_grad():
        for task in tasks:
            of_archive: Row = {"archive": task.name, "store": task.store.digest, "cadence": task.store.cadence}
            if isinstance(task, FieldTask) and task.field.objective.forecasts:
                of_archive["lead_frames"] = task.field.objective.lead
                count, rows = _forecast_scores(directory, campaign, site, task, model)
                tables.append(of_archive | {"what": "forecasts", "samples": count, "rows": rows})
            if isinstance(task, FieldTask) and task.field.objective.masks:
                count, rows = field_scores(task, model, campaign.train.seed, reading(site))
                tables.append(of_archive | {"what": "reconstructions", "samples": count, "rows": rows})
            if isinstance(task, HitTask):
                count, rows = hit_scores(task, model, campaign.train.seed, reading(site))
                tables.append(of_archive | {"what": "reconstructions", "samples": count, "rows": rows})
    step = catalog.read_progress(path).step
    write_json(directory.evaluation / "skill.json", {"step": step, "checkpoint": path.name, "tables": tables})
    return 0


def _forecast_scores(
    directory: CampaignDir, campaign: Campaign, site: Site, task: FieldTask, model: nn.Module
) -> tuple[int, list[Row]]:
    """Forecasts that were scored, and their skill by variable and lead; keeps a map of the first one of the globe."""
    scores: dict[str, list[torch.Tensor]] = {}
    count, weights = 0, task.area()
    for batch in _groups(campaign, site, task):
        fields = forecast(task, model, batch)
        if count == 0 and list(task.store.space) == ["latitude", "longitude"]:
            _write_map(directory.evaluation / "map.npz", task.store, fields, int(batch.target_time[0, 0]))
        for name, score in _score(fields, weights).items():
            scores.setdefault(name, []).append(score)
        count += len(batch.target_time)
    return count, list(_rows(task.store, {name: torch.cat(parts).mean(0) for name, parts in scores.items()}))


def _groups(campaign: Campaign, site: Site, task: FieldTask) -> Iterator[Batch]:
    """All windows of the test split, as many at a time as memory allows."""
    plan = Sampling(history=task.sampling.history, lead=task.field.objective.lead, rollout=campaign.evaluate.rollout)
    windows = windows_of(task.store, "test", plan)
    window_bytes = plan.rollout * int(np.prod(task.store.frame_shape)) * MOST_FIELDS * 8
    loader = Loader(task.store, windows, plan, reading=reading(site))
    return loader.in_order(range(len(windows)), max(1, GROUP_BYTES // window_bytes))


def forecast(task: FieldTask, model: nn.Module, batch: Batch) -> Fields:
    """Truth, forecasts, persistence and climatology of a batch.

    Forecasts go on from one another. Of a model that was trained for several leads there are also direct ones, at one
    stroke, of unknown value (NaN) at leads that it was not trained for.
    """
    store, space = task.store, [1] * len(task.store.space)
    mean, std = (torch.from_numpy(moment).float().view(-1, *space) for moment in (store.mean, store.std))
    windows = [_window(batch, number) for number in range(len(batch.inputs))]
    forecasts = {"forecast": torch.cat([_rolled(task, model, window) for window in windows])}
    if task.field.objective.leads > 1:
        forecasts["direct"] = torch.cat([_direct(task, model, window) for window in windows])
    times, where = np.unique(batch.target_time, return_inverse=True)
    normal = climatology(store, times, monthly=measure_segments(store.time, store.segment, store.clock).monthly)
    return {
        "truth": batch.target * std + mean,
        **{kind: values * std + mean for kind, values in forecasts.items()},
        # Where the last frame misses a value, the mean: it is what the model's forecast starts from, too.
        "persistence": torch.nan_to_num(batch.inputs[:, -1:]).expand_as(batch.target) * std + mean,
        "climatology": torch.from_numpy(normal)[torch.from_numpy(where.reshape(batch.target_time.shape))],
    }


def _window(batch: Batch, number: int) -> Batch:
    """What a forecast from one window of a batch starts from."""
    at = slice(number, number + 1)
    return replace(batch, inputs=batch.inputs[at], calendar=batch.calendar[at])


def _rolled(task: FieldTask, model: nn.Module, window: Batch) -> torch.Tensor:
    """Forecasts one step after another, shape (1, lead, channel, *space)."""
    calendars = window.calendar[:, task.sampling.history :]
    steps = roll_out(model, task.name, _visible(task, window, 1), calendars, calendars.shape[1])
    return torch.stack([predictions["forecast"] for predictions in steps], dim=1)


def _direct(task: FieldTask, model: nn.Module, window: Batch) -> torch.Tensor:
    """Forecasts at one stroke each, shape (1, lead, channel, *space)."""
    shape = (1, window.calendar.shape[1] - task.sampling.history, *window.inputs.shape[2:])
    values = torch.full(shape, torch.nan)
    for lead in range(1, 1 + min(shape[1], task.field.objective.leads)):
        values[:, lead - 1] = model(task.name, _visible(task, window, lead))["forecast"]
    return values


def _visible(task: FieldTask, window: Batch, lead: int) -> FieldSample:
    """What the model is given for a forecast so far ahead: all is visible to it, whatever training hides."""
    sample = task.sample(window, Draws(seed=0, numbers=[0], turn=lead - 1))
    return replace(sample, hidden_BN=None)


def _score(fields: Fields, weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Square error and anomaly correlation of each kind, shape (forecast, lead, channel)."""
    scores = {}
    for kind in fields:
        if kind == "truth":
            continue
        scores[f"{kind} error"] = square_error(fields[kind], fields["truth"], weights)
        scores[f"{kind} correlation"] = anomaly_correlation(
            fields[kind], fields["truth"], fields["climatology"], weights
        )
    return scores


def _rows(store: Store, means: dict[str, torch.Tensor]) -> Iterator[Row]:
    """RMSE and ACC of each kind of forecast, by channel and lead; None where one is undefined."""
    for kind in dict.fromkeys(name.split()[0] for name in means):
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
