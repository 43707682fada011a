from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hyperslab.workflows.steps import report

SKILL: dict[str, Any] = {
    "step": 7,
    "forecasts": 3,
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


def shown(leads: int | None = None) -> list[str]:
    console = Console(width=120, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(report.skill_table(SKILL, leads))
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
    lines = report.skill_csv(SKILL).splitlines()
    assert lines[0] == "kind,channel,units,lead,rmse,acc"
    assert lines[1] == "forecast,t2m,K,1,1.0,0.9"
    assert lines[6] == "climatology,t2m,K,2,,"
    assert len(lines) == 7


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
