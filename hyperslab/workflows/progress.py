"""Showing where a campaign stands: live on a terminal, as plain lines elsewhere."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hyperslab.workflows.campaign import Campaign, CampaignDir
from hyperslab.workflows.state import State, read_state

MARKS = {"waiting": "·", "running": "▶", "done": "✓", "failed": "✗", "paused": "‖"}
STYLES = {"waiting": "dim", "running": "bold cyan", "done": "green", "failed": "bold red", "paused": "yellow"}
PLAIN_PERIOD_SECONDS = 5.0


@contextlib.contextmanager
def watching(directory: CampaignDir, campaign: Campaign, console: Console) -> Iterator[Callable[[], None]]:
    """Give a function that shows the campaign's progress whenever it is called."""
    if not console.is_terminal:
        yield _Lines(directory, campaign, console).show
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda: live.update(render(read_state(directory, campaign)), refresh=True)


class _Lines:
    """Progress as lines: one when a step begins or ends, one every few seconds while something counts up."""

    def __init__(self, directory: CampaignDir, campaign: Campaign, console: Console) -> None:
        self._directory = directory
        self._campaign = campaign
        self._console = console
        self._statuses: dict[str, str] = {}
        self._said = ""
        self._when = 0.0

    def show(self) -> None:
        state = read_state(self._directory, self._campaign)
        for step in state.steps:
            if step.status not in (self._statuses.get(step.name, "waiting"), "waiting", "paused"):
                took = f" in {step.seconds:.1f} s" if step.status == "done" else ""
                self._say(f"{step.name}: {step.status}{took}{_counts(state, step.name)}")
                self._statuses[step.name] = step.status
        running = next((step.name for step in state.steps if step.status == "running"), None)
        if running and time.monotonic() - self._when > PLAIN_PERIOD_SECONDS and (counts := _counts(state, running)):
            self._say(f"{running}{counts}")

    def _say(self, line: str) -> None:
        if line != self._said:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
            self._said, self._when = line, time.monotonic()


def render(state: State) -> RenderableType:
    """The state as a table of steps with bars."""
    table = Table.grid(padding=(0, 1))
    for step in state.steps:
        done, total = _progress(state, step.name)
        bar = ProgressBar(total=total, completed=done, width=24) if total and step.status != "waiting" else ""
        seconds = f"{step.seconds:.0f} s" if step.status in ("running", "done") else ""
        mark = Text(f"{MARKS[step.status]} {step.name}", STYLES[step.status])
        table.add_row(mark, bar, Text(seconds, justify="right"), Text(_counts(state, step.name).removeprefix(": ")))
    title = Text.assemble((state.name, "bold"), f"  {state.outcome}", (f"  {state.message}", "dim"))
    return Group(title, table)


def _progress(state: State, step: str) -> tuple[int, int]:
    if step == "stage":
        return state.parts_done, state.num_parts
    if step == "pretrain":
        return state.step, state.total_steps
    return 0, 0


def _counts(state: State, step: str) -> str:
    if step == "stage" and state.num_parts:
        size = f"{_size(state.bytes_done)} of {_size(state.bytes_total)}"
        return f": {state.parts_done} of {state.num_parts} parts, {size}"
    if step != "pretrain" or not state.metrics:
        return ""
    words = [f"step {state.step} of {state.total_steps}"]
    words += [f"loss {state.metrics['train/loss']:.4g}"] if "train/loss" in state.metrics else []
    words += [f"validation {state.metrics['validation/loss']:.4g}"] if "validation/loss" in state.metrics else []
    words += [f"{state.metrics['speed/samples_per_second']:.1f} samples/s"]
    if state.step < state.total_steps and state.eta_seconds is not None:
        words.append(f"ETA {_duration(state.eta_seconds)}")
    return ": " + ", ".join(words)


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
