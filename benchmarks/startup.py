"""Where the time goes between `hyperslab run` and the first training step.

Runs the demo up to its first steps several times and reads the journal. Beside it the same staging is
done in this process, without Parsl: the floor. What is left is overhead: imports, Parsl, process starts.

    python benchmarks/startup.py [--runs 5]
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path

from hyperslab.data import staging
from hyperslab.site_configs.loader import load_site
from hyperslab.workflows.campaign import load_campaign
from hyperslab.workflows.steps.plan import make_plan

PHASES = (
    "command line: imports, scan of the raw files",
    "Parsl: start of the graph",
    "staging: worker start, parts, verification",
    "job: submission, import of torch, fork, process group",
    "rank: model, first batch, first step",
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    demo = Path(str(resources.files("hyperslab.workflows") / "demo" / "winds.yaml"))
    rows, floors = [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(demo, Path(folder)))
            floors.append(staging_floor(demo, Path(folder)))
    print(f"seconds, median of {runs} runs (smallest, largest)")
    for number, phase in enumerate(PHASES):
        print(line(phase, [row[number] for row in rows]))
    totals = [sum(row) for row in rows]
    print(line("from command to first step", totals))
    print(line("the same staging in one process, without Parsl", floors))
    print(line("overhead: beyond staging", [total - floor for total, floor in zip(totals, floors, strict=True)]))


def measure(demo: Path, folder: Path) -> list[float]:
    """Seconds of each phase in one run."""
    directory = folder / "campaign"
    command = [sys.executable, "-m", "hyperslab.workflows.cli", "run", str(demo), "--dir", str(directory)]
    began = time.time()
    subprocess.run([*command, "--set", "train.steps=2"], check=True, capture_output=True)
    journal = [json.loads(text) for text in (directory / "journal.jsonl").read_text().splitlines()]
    spool = [json.loads(text) for text in (directory / "metrics" / "0001.jsonl").read_text().splitlines()]

    def moment(events: list[dict[str, float | str]], event: str, step: str | int | None = None) -> float:
        found = next(e for e in events if e["event"] == event and step in (None, e.get("step")))
        return float(found["time"])

    moments = [
        began,
        moment(journal, "driver_started"),
        moment(journal, "step_started", "stage"),
        moment(journal, "step_finished", "stage"),
        moment(spool, "started"),
        moment(spool, "metrics", 1),
    ]
    return [after - before for before, after in itertools.pairwise(moments)]


def staging_floor(demo: Path, folder: Path) -> float:
    """Seconds that staging takes in this process, part after part."""
    plan = make_plan(load_campaign(demo, []), load_site("local"))
    began = time.perf_counter()
    staging.create(folder / "floor", plan.recipe)
    for part in range(plan.recipe.num_parts):
        staging.write_part(folder / "floor", part)
    staging.finalise(folder / "floor")
    return time.perf_counter() - began


def line(title: str, values: list[float]) -> str:
    """A row of the table."""
    return f"{title:58s} {statistics.median(values):6.2f}  ({min(values):.2f}, {max(values):.2f})"


if __name__ == "__main__":
    main()
