"""Where a campaign stands, read from its record alone: by anyone, on any login node, with the driver alive or dead."""

import time
from dataclasses import dataclass
from typing import Any

from hyperslab.data import staging
from hyperslab.workflows.campaign import Campaign, CampaignDir, is_driven, lock_owner
from hyperslab.workflows.journal import Journal, spools
from hyperslab.workflows.steps import STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """One step of the graph."""

    name: str
    status: str
    """`waiting`, `running`, `done`, `failed`, or `paused`: begun, and to be carried on."""
    seconds: float
    """Time it has taken so far, in the latest attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where a campaign stands."""

    name: str
    outcome: str
    """`running`, `finished`, `stopped`, `failed`, `interrupted` (its driver died) or `new`."""
    message: str
    """What the driver said when it ended."""
    owner: dict[str, Any]
    steps: tuple[StepState, ...]
    parts_done: int
    num_parts: int
    bytes_done: int
    """Bytes of values that are staged, before compression."""
    bytes_total: int
    step: int
    total_steps: int
    segments: int
    metrics: dict[str, float]
    """The latest number of each metric."""

    @property
    def eta_seconds(self) -> float | None:
        """Time that the rest of training will take at its latest speed."""
        speed = self.metrics.get("steps_per_second", 0)
        return (self.total_steps - self.step) / speed if speed > 0 else None


def read_state(directory: CampaignDir, campaign: Campaign) -> State:
    """Read where a campaign stands."""
    events = list(Journal(directory.journal).read())
    planned = _last(events, "store_planned") or {}
    num_parts, total = planned.get("parts", 0), planned.get("bytes", 0)
    parts_done = staging.count_finished_parts(directory.store)
    outcome, message = _outcome(directory, events)
    step, metrics = _training(directory, campaign)
    return State(
        name=campaign.name,
        outcome=outcome,
        message=message,
        owner=lock_owner(directory),
        steps=tuple(_step_state(name, events, outcome) for name in STEPS),
        parts_done=parts_done,
        num_parts=num_parts,
        bytes_done=total * parts_done // num_parts if num_parts else 0,
        bytes_total=total,
        step=step,
        total_steps=campaign.train.steps,
        segments=sum(event["event"] == "job_submitted" and event["step"] == "pretrain" for event in events),
        metrics=metrics,
    )


def _outcome(directory: CampaignDir, events: list[dict[str, Any]]) -> tuple[str, str]:
    if is_driven(directory):
        return "running", ""
    started, ended = _last(events, "driver_started"), _last(events, "driver_ended")
    if started is None:
        return "new", "its driver never started"
    if ended is None or ended["time"] < started["time"]:
        return "interrupted", "its driver died"
    return ended["how"], ended["message"]


def _step_state(name: str, events: list[dict[str, Any]], outcome: str) -> StepState:
    own = [event for event in events if event.get("step") == name]
    started, finished = _last(own, "step_started"), _last(own, "step_finished")
    if name == "plan" and started is None and _last(events, "planned"):
        return StepState(name=name, status="done", seconds=0)
    if started is None:
        return StepState(name=name, status="waiting", seconds=0)
    if finished and finished["time"] >= started["time"]:
        return StepState(name=name, status="done", seconds=finished["time"] - started["time"])
    driver = _last(events, "driver_started")
    if outcome == "running" and driver and started["time"] >= driver["time"]:
        return StepState(name=name, status="running", seconds=time.time() - started["time"])
    failed = outcome == "failed"
    return StepState(name=name, status="failed" if failed else "paused", seconds=0)


def _training(directory: CampaignDir, campaign: Campaign) -> tuple[int, dict[str, float]]:
    step, metrics = 0, {}
    for spool in reversed(spools(directory.path / "metrics")):
        for event in spool.tail():
            if event["event"] == "metrics":
                step = max(step, event["step"])
                metrics.update(event["values"])
        if metrics:  # the latest segment may not have come to its first step
            break
    if "speed/samples_per_second" in metrics:
        metrics["steps_per_second"] = metrics["speed/samples_per_second"] / campaign.train.batch
    return step, metrics


def _last(events: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((event for event in reversed(events) if event["event"] == name), None)
