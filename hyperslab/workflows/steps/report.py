"""The outcome of a campaign in pictures and in a table."""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from hyperslab.data.files import read_json
from hyperslab.workflows.campaign import MAIN, CampaignDir
from hyperslab.workflows.journal import read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "forecast": "#1b6ca8",
    "reconstruction": "#1b6ca8",
    "direct": "#2a9d8f",
    "persistence": "#c44e52",
    "interpolation": "#c44e52",
    "climatology": "#8c8c8c",
    "mean": "#8c8c8c",
}
MAP_CHANNELS = 2
LEGEND_CHANNELS = 6

SkillTable = dict[str, Any]
"""The skill on one archive, as `skill.json` holds it."""


def write_report(directory: CampaignDir) -> None:
    """Draw loss, skill and, of the globe, a forecast map; write the skill table as text."""
    skill = read_json(directory.evaluation / "skill.json")
    directory.report.mkdir(exist_ok=True)
    _save(directory.report / "loss.png", draw_loss(read_metrics(directory.path / "metrics")))
    for table in skill["tables"]:
        draw = draw_skill if table["what"] == "forecasts" else draw_reconstructions
        _save(directory.report / f"{file_stem(table)}.png", draw(table))
    if (directory.evaluation / "map.npz").exists():
        with np.load(directory.evaluation / "map.npz", allow_pickle=False) as fields:
            _save(directory.report / "forecast.png", draw_map(dict(fields)))
    (directory.report / "skill.csv").write_text(skill_csv(skill), encoding="utf-8")


def file_stem(table: SkillTable) -> str:
    """Name of the plot of a table: `skill` of the forecasts of a campaign's own archive."""
    words = ["skill"]
    words += [] if table["what"] == "forecasts" else ["reconstruction"]
    words += [] if table["archive"] == MAIN else [table["archive"]]
    return "-".join(words)


def skill_tables(skill: dict[str, Any], leads: int | None = None) -> list[Table]:
    """A table of the skill on each archive; see `skill_table`."""
    return [skill_table(table, skill["step"], leads) for table in skill["tables"]]


def skill_table(skill: SkillTable, step: int, leads: int | None = None) -> Table:
    """Skill by channel and lead, the best RMSE of each row in bold.

    Parameters
    ----------
    leads
        Leads to show, all of them where absent.
    """
    kinds = list(dict.fromkeys(row["kind"] for row in skill["rows"]))
    forecasts = skill["what"] == "forecasts"
    archive = "" if skill["archive"] == MAIN else f" of {skill['archive']}"
    scores = "RMSE (ACC)" if forecasts else "RMSE of what was hidden"
    table = Table(title=f"Skill on held-out frames{archive}: {scores}, {skill['samples']} {skill['what']}, step {step}")
    table.add_column("variable")
    if forecasts:
        table.add_column("lead", justify="right")
    for kind in kinds:
        table.add_column(kind, justify="right")
    for (channel, units, lead), row in _by_row(skill).items():
        if leads is not None and lead > leads:
            continue
        known = [score["rmse"] for score in row.values() if score["rmse"] is not None]
        cells = [lead_words(skill, lead)] if forecasts else []
        for kind in kinds:
            text = _cell(row[kind])
            cells.append(f"[bold]{text}[/bold]" if known and row[kind]["rmse"] == min(known) else text)
        table.add_row(f"{channel} \\[{units}]", *cells)
    return table


def lead_words(skill: SkillTable, lead: int) -> str:
    """A lead in the units of the record, such as `2 month`."""
    number, _, unit = skill["cadence"].partition(" ")
    return f"{int(number) * skill['lead_frames'] * lead} {unit}"


def skill_csv(skill: dict[str, Any]) -> str:
    """All skill tables as comma-separated values."""
    text = io.StringIO()
    names = ("archive", "kind", "channel", "units", "lead", "rmse", "acc")
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for table in skill["tables"]:
        writer.writerows({"archive": table["archive"], **row} for row in table["rows"])
    return text.getvalue()


def draw_loss(metrics: list[dict[str, Any]]) -> "Figure":
    """Training and validation loss by step."""
    figure, axes = _figure(7, 4)
    for name, label in (("train/loss", "training"), ("validation/loss", "validation")):
        points = [(entry["step"], entry["values"][name]) for entry in metrics if name in entry["values"]]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, marker="o" if len(points) < 20 else None)
    axes.set(xlabel="step", ylabel="loss (of normalised values)", yscale="log", title="Loss")
    axes.legend()
    return figure


def draw_reconstructions(skill: SkillTable) -> "Figure":
    """RMSE of what was hidden, a panel for each of the first channels."""
    from matplotlib.figure import Figure

    channels = list(dict.fromkeys(row["channel"] for row in skill["rows"]))[:LEGEND_CHANNELS]
    figure = Figure(figsize=(3.4 * len(channels), 3.2), layout="constrained")
    panels = figure.subplots(1, len(channels), squeeze=False)[0]
    for axes, channel in zip(panels, channels, strict=True):
        rows = [row for row in skill["rows"] if row["channel"] == channel and row["rmse"] is not None]
        kinds = [row["kind"] for row in rows]
        axes.bar(kinds, [row["rmse"] for row in rows], color=[COLOURS[kind] for kind in kinds])
        axes.set(title=channel, ylabel=f"RMSE [{rows[0]['units']}]" if rows else "RMSE")
        axes.tick_params(axis="x", rotation=20)
    return figure


def draw_skill(skill: SkillTable) -> "Figure":
    """RMSE by lead of the forecast and its baselines, a panel for each of the first channels."""
    from matplotlib.figure import Figure

    channels = list(dict.fromkeys(row["channel"] for row in skill["rows"]))[:LEGEND_CHANNELS]
    figure = Figure(figsize=(4.2 * len(channels), 3.6), layout="constrained")
    panels = figure.subplots(1, len(channels), squeeze=False)[0]
    for axes, channel in zip(panels, channels, strict=True):
        rows = [row for row in skill["rows"] if row["channel"] == channel]
        for kind in dict.fromkeys(row["kind"] for row in rows):
            points = [(row["lead"], row["rmse"]) for row in rows if row["kind"] == kind and row["rmse"] is not None]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=kind, color=COLOURS[kind])
        leads = sorted({row["lead"] for row in rows})
        axes.set(title=channel, xlabel="lead", ylabel=f"RMSE [{rows[0]['units']}]")
        axes.set_xticks(leads, [lead_words(skill, lead) for lead in leads])
        axes.set_ylim(bottom=0)
    panels[0].legend()
    return figure


def draw_map(fields: dict[str, Any]) -> "Figure":
    """Truth, forecast and error of the first channels at the first lead, a row for each channel."""
    from matplotlib.figure import Figure

    names, units = fields["channels"][:MAP_CHANNELS], fields["units"]
    figure = Figure(figsize=(13, 2.9 * len(names)), layout="constrained")
    figure.suptitle(f"Forecast for {np.datetime64(int(fields['time']), 's').astype('datetime64[h]')}, first lead")
    panels = figure.subplots(len(names), 3, squeeze=False)
    edges = _edges(fields["longitude"]), _edges(fields["latitude"])
    for number, name in enumerate(names):
        truth, forecast = fields["truth"][number], fields["forecast"][number]
        low, high = np.nanpercentile(truth, [1, 99])
        error = forecast - truth
        reach = np.nanpercentile(np.abs(error), 99)
        for axes, field, title, scale in (
            (panels[number, 0], truth, "truth", {"vmin": low, "vmax": high, "cmap": "viridis"}),
            (panels[number, 1], forecast, "forecast", {"vmin": low, "vmax": high, "cmap": "viridis"}),
            (panels[number, 2], error, "error", {"vmin": -reach, "vmax": reach, "cmap": "RdBu_r"}),
        ):
            mesh = axes.pcolormesh(*edges, field, **scale)
            axes.set_title(f"{name}: {title}")
            figure.colorbar(mesh, ax=axes, label=str(units[number]))
    return figure


def _edges(centres: Any) -> Any:
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = (centres[1:] + centres[:-1]) / 2
    return np.concatenate([[2 * centres[0] - middle[0]], middle, [2 * centres[-1] - middle[-1]]])


def _figure(width: float, height: float) -> "tuple[Figure, Any]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _save(path: Path, figure: "Figure") -> None:
    figure.savefig(path, dpi=110)


def _by_row(skill: SkillTable) -> dict[tuple[str, str, int], dict[str, dict[str, Any]]]:
    table: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = {}
    for row in skill["rows"]:
        table.setdefault((row["channel"], row["units"], row["lead"]), {})[row["kind"]] = row
    return dict(sorted(table.items(), key=lambda item: item[0][2]))


def _cell(score: dict[str, Any]) -> str:
    if score["rmse"] is None:
        return "-"
    return f"{score['rmse']:.4g}" + (f" ({score['acc']:.2f})" if score["acc"] is not None else "")
