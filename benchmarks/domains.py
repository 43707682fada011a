"""Three sciences on real files: 200 training steps each, then all of them at once; skill beside simple baselines.

    python benchmarks/domains.py SAMPLES [--steps 200] [--site local]

SAMPLES holds `climate/monthly_navy_winds.cdf` (monthly mean winds), `fmri/*_rois_cc200.1D` (BOLD of 200 parcels of four
subjects) and `lartpc/larpix_evd_qc_tpc.h5` (hits of cosmic rays in liquid argon). Each is a campaign of its own, run by
`hyperslab run`; the joint one takes the stores that the others have staged.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from hyperslab.workflows.journal import read_metrics

Content = dict[str, Any]

WINDS: Content = {
    "data": {"validation": "1990-01-01", "test": "1991-01-01", "shard_mebibytes": 1},
    "model": {"width": 64, "depth": 3},
    "objective": {"kind": "forecast"},
    "train": {"learning_rate": 0.002},
}
BRAINS: Content = {
    "data": {"source": "fmri", "fmri": {"repetition_seconds": 2.0}, "validation": 0.25, "test": 0.25},
    "model": {"width": 64, "depth": 3, "history": 8, "patch": 1, "attention": "axial"},
    "objective": {"kind": "masked", "mask": {"kind": "random", "ratio": 0.3}},
    "train": {"learning_rate": 0.002},
}
# Cells are four pixels wide, and as long as an event: the time of a hit says when it was read out, not where it was.
HITS: Content = {
    "data": {"source": "lartpc"},
    "model": {"width": 64, "depth": 3, "history": 1, "cell": [1.7736, 1.7736, 20.0]},
    "objective": {"kind": "masked", "mask": {"ratio": 0.3}},
    "train": {"learning_rate": 0.002, "batch": 16},
}
FILES = {
    "winds": "climate/monthly_navy_winds.cdf",
    "brains": "fmri/*_rois_cc200.1D",
    "hits": "lartpc/larpix_evd_qc_tpc.h5",
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--site", default="local")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        campaigns: dict[str, Content] = {"winds": WINDS, "brains": BRAINS, "hits": HITS}
        for name, content in campaigns.items():
            content["data"]["files"] = [str(chosen.samples.absolute() / FILES[name])]
        campaigns["joint"] = WINDS | {
            "joint": {
                name: {
                    "store": str(Path(folder) / name),
                    "objective": content["objective"],
                    **{key: content["model"][key] for key in ("history", "patch", "cell") if key in content["model"]},
                }
                for name, content in (("brains", BRAINS), ("hits", HITS))
            }
        }
        print(f"{'campaign':10}{'archive':10}{'loss':>17}   skill (RMSE on the test split)")
        for name, content in campaigns.items():
            steps = chosen.steps * (3 if name == "joint" else 1)
            report(name, run(Path(folder), name, content, steps, chosen.site))


def run(folder: Path, name: str, content: Content, steps: int, site: str) -> Path:
    """Run a campaign to its end; its directory."""
    file, directory = folder / f"{name}.yaml", folder / name
    content = content | {"train": content["train"] | {"steps": steps, "validate_every": 100}, "track": {"every": 5}}
    file.write_text(yaml.safe_dump(content))
    command = [
        sys.executable,
        "-m",
        "hyperslab.workflows.cli",
        "run",
        str(file),
        "--dir",
        str(directory),
        "--site",
        site,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    return directory


def report(name: str, directory: Path) -> None:
    """Print a line for each channel of each archive."""
    metrics = read_metrics(directory / "metrics")
    skill = json.loads((directory / "evaluation" / "skill.json").read_text())
    for table in skill["tables"]:
        key = f"train/loss/{table['archive']}" if name == "joint" else "train/loss"
        losses = [entry["values"][key] for entry in metrics if key in entry["values"]]
        part = max(1, len(losses) // 5)
        loss = f"{sum(losses[:part]) / part:.3f} to {sum(losses[-part:]) / part:.3f}"
        for channel in dict.fromkeys(row["channel"] for row in table["rows"]):
            rows = [row for row in table["rows"] if row["channel"] == channel and row["lead"] <= 1]
            scores = ", ".join(f"{row['kind']} {row['rmse']:.4g}" for row in rows if row["rmse"] is not None)
            print(f"{name:10}{table['archive']:10}{loss:>17}   {channel}: {scores}", flush=True)


if __name__ == "__main__":
    main()
