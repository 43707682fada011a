from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hyperslab.workflows.steps import report

SKILL: dict[str, Any] = {
    "archive": "main",
    "what": "forecasts",
    "samples": 3,
    "cadence": "6 h",
    "lead_frames": 2,
    "rows": [
        {"kind": kind, "channel": "t2m", "units": "K", "lead": lead, "rmse": rmse, "acc": acc}
        for lead, rows in (
            (1, (("forecast", 1.0, 0.9), ("persistence", 2.0, 0.5), ("climatology", 3.0, None))),
            (2, (("forecast", 2.5, 0.8), ("persistence", 2.25, 0.4), ("climatology", None, None))),
        )
        for kind, rmse, acc in rows
    ],
}


BRAINS: dict[str, Any] = {
    "archive": "brains",
    "what": "reconstructions",
    "samples": 4,
    "cadence": "2 s",
    "rows": [
        {"kind": kind, "channel": "bold", "units": "1", "lead": 0, "rmse": rmse, "acc": None}
        for kind, rmse in (("reconstruction", 0.5), ("interpolation", 0.75), ("mean", 1.0))
    ],
}


def shown(leads: int | None = None) -> list[str]:
    console = Console(width=120, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(report.skill_table(SKILL, 7, leads))
    return [line for line in capture.get().splitlines() if "t2m" in line]


def test_the_table_marks_the_best_forecast_of_each_row_and_says_what_is_undefined() -> None:
    first, second = shown()
    bold, plain = "\x1b[1m", "\x1b[0m"
    assert f"{bold}1 (0.90){plain}" in first
    assert f"{bold}2.25 (0.40){plain}" in second
    assert "2.5 (0.80)" in second
    assert second.rstrip("│ ").endswith("-")


def test_leads_are_said_in_the_units_of_the_record() -> None:
    # Two frames of six hours make a lead of twelve.
    assert "12 h" in shown()[0]
    assert "24 h" in shown()[1]
    assert len(shown(leads=1)) == 1


def test_the_comma_separated_table_holds_every_row() -> None:
    lines = report.skill_csv({"step": 7, "tables": [SKILL, BRAINS]}).splitlines()
    assert lines[0] == "archive,kind,channel,units,lead,rmse,acc"
    assert lines[1] == "main,forecast,t2m,K,1,1.0,0.9"
    assert lines[6] == "main,climatology,t2m,K,2,,"
    assert lines[7] == "brains,reconstruction,bold,1,0,0.5,"
    assert len(lines) == 7 + 3


def test_a_table_of_reconstructions_has_no_lead_and_names_its_archive() -> None:
    console = Console(width=160)
    with console.capture() as capture:
        for table in report.skill_tables({"step": 7, "tables": [SKILL, BRAINS]}):
            console.print(table)
    printed = capture.get()
    title = "Skill on held-out frames of brains: RMSE of what was hidden, 4 reconstructions, step 7"
    assert title in " ".join(printed.split())
    (line,) = [line for line in printed.splitlines() if "bold" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["bold [1]", "0.5", "0.75", "1"]


def test_a_plot_of_reconstructions_has_a_bar_for_each_way_to_fill_in() -> None:
    (axes,) = report.draw_reconstructions(BRAINS).axes
    assert [bar.get_height() for bar in axes.containers[0]] == [0.5, 0.75, 1.0]
    assert axes.get_title() == "bold"


def test_plots_of_several_archives_have_names_of_their_own() -> None:
    assert [report.file_stem(table) for table in (SKILL, BRAINS)] == ["skill", "skill-reconstruction-brains"]


def test_the_plots_carry_what_they_are_of() -> None:
    figure = report.draw_skill(SKILL)
    (axes,) = figure.axes
    assert axes.get_title() == "t2m"
    assert {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in axes.lines} == {
        "forecast": [1.0, 2.5],
        "persistence": [2.0, 2.25],
        "climatology": [3.0],
    }
    metrics = [{"step": step, "values": {"train/loss": 1 / step}} for step in (1, 2)]
    assert np.asarray(report.draw_loss(metrics).axes[0].lines[0].get_ydata()) == pytest.approx([1.0, 0.5])
