"""A campaign small enough to be run, killed and resumed in seconds, and ways to find its processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import xarray as xr
import yaml

from hyperslab.data.store import open_store
from hyperslab.parallel import catalog, checkpoint
from hyperslab.workflows.campaign import CampaignDir
from hyperslab.workflows.journal import read_metrics
from hyperslab.workflows.steps.pretrain import build_model
from hyperslab.workflows.streams import make_tasks, open_stores

FRAMES = 120
TRAIN_STEPS = 90
PATIENCE_SECONDS = 120


def write_raw(path: Path, frames: int = FRAMES) -> Path:
    """A travelling wave in two variables, every six hours on a global 8 x 12 grid."""
    time_axis = np.datetime64("2001-01-01", "ns") + np.arange(frames) * np.timedelta64(6, "h")
    latitude, longitude = np.linspace(80, -80, 8), np.arange(0, 360, 30.0)
    phase = np.deg2rad(longitude)[None, None] * 2 - np.arange(frames)[:, None, None] * 0.4
    wave = np.sin(phase) * np.cos(np.deg2rad(latitude))[None, :, None]
    noise = np.random.default_rng(0).normal(size=(2, *wave.shape)) * 0.1
    dims = ("time", "latitude", "longitude")
    dataset = xr.Dataset(
        {"t2m": (dims, 280 + 10 * wave + noise[0]), "u10": (dims, 5 * np.roll(wave, 3, axis=2) + noise[1])},
        {
            "time": time_axis,
            "latitude": ("latitude", latitude, {"units": "degrees_north"}),
            "longitude": ("longitude", longitude, {"units": "degrees_east"}),
        },
    )
    dataset["t2m"].attrs = {"units": "K", "long_name": "2 metre temperature"}
    dataset["u10"].attrs = {"units": "m s**-1", "long_name": "10 metre U wind component"}
    dataset.to_netcdf(path, encoding={name: {"dtype": "float32"} for name in ("t2m", "u10")})
    return path


def write_campaign(path: Path, **sections: Any) -> Path:
    """A campaign file over `raw.nc` beside it; `sections` are laid over small defaults."""
    content: dict[str, Any] = {
        "data": {"files": ["raw.nc"], "shard_mebibytes": 0.0008},
        "model": {"width": 16, "depth": 1, "heads": 2, "patch": 2},
        "train": {"steps": TRAIN_STEPS, "batch": 4, "validate_every": 50, "validation_windows": 8},
        "checkpoint": {"every": 20},
        "evaluate": {"rollout": 2},
    }
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section}
    path.write_text(yaml.safe_dump(content))
    return path


def command(*arguments: str | Path) -> list[str]:
    """The `hyperslab` command as a list of words."""
    return [sys.executable, "-m", "hyperslab.workflows.cli", *map(str, arguments)]


def run(*arguments: str | Path, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command to its end and give what it printed."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=PATIENCE_SECONDS * 2, **options)
    assert not check or done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def start(*arguments: str | Path) -> subprocess.Popen[bytes]:
    """Start the command and leave it running."""
    return subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(what: Callable[[], Any], driver: "subprocess.Popen[bytes] | None" = None) -> Any:
    """What a function gives, once that is something; fails when the driver ends first or patience does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if found := what():
            return found
        assert driver is None or driver.poll() is None, "the driver ended before"
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def processes(directory: Path, role: str) -> list[psutil.Process]:
    """Living processes of a campaign: its staging `worker`s or its `rank`s."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if not any(str(directory) in word for word in words):
            continue
        try:
            if role == "worker" and any("process_worker_pool" in word for word in words):
                found += [child for child in process.children() if child.status() != psutil.STATUS_ZOMBIE]
            if role == "rank" and "hyperslab.workflows.steps.pretrain" in words:
                found += [child for child in process.children() if child.status() != psutil.STATUS_ZOMBIE]
        except psutil.NoSuchProcess:
            continue
    return found


def events(directory: Path, name: str) -> list[dict[str, Any]]:
    """The journal's events of that name."""
    path = directory / "journal.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for line in lines if (event := json.loads(line))["event"] == name]


def outcome(directory: Path) -> dict[str, Any]:
    """All that must be the same to the last bit, however often a campaign was interrupted."""
    found = CampaignDir(directory)
    campaign, store = found.read(), open_store(found.store)
    path = catalog.latest(found.checkpoints)
    assert path is not None
    model = build_model(campaign, make_tasks(campaign, open_stores(campaign, found)))
    checkpoint.load(path, model, None)
    losses = {
        (entry["step"], name): entry["values"][name]
        for entry in read_metrics(directory / "metrics")
        for name in ("train/loss", "validation/loss")
        if name in entry["values"]
    }
    last = max(step for step, _ in losses)
    return {
        "step": catalog.read_progress(path).step,
        "store": store.digest,
        "order": catalog.read_progress(path).order_digest,
        "train loss": losses[last, "train/loss"],
        "validation loss": losses[last, "validation/loss"],
        "weights": {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()},
        "skill": skill_rows(directory),
    }


def skill_rows(directory: Path, table: int = 0) -> list[dict[str, Any]]:
    """The rows of one of a campaign's skill tables."""
    skill = json.loads((CampaignDir(directory).evaluation / "skill.json").read_text())
    return list(skill["tables"][table]["rows"])


# One thread in this process too: what it computes must not depend on the machine it runs on.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
