"""A synthetic archive of resting brains in the Brain Imaging Data Structure: volumes, or the regions' time series."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hyperslab.data.sources.synthetic.archive import Order, in_order
from hyperslab.data.sources.synthetic.bids import write_image, write_json, write_table
from hyperslab.data.sources.synthetic.brain import Brain, activity, bold, make_brain

REPETITION_SECONDS = 2.0
RUNS_OF_SUBJECT = 2
WARM_UP_SECONDS = 40.0
"""Time that the network runs before the first volume, longer than the blood's answer."""
_BASELINE = 1000.0
"""Brightness of the brain."""
_SIGNAL, _NOISE, _DRIFT = 0.02, 0.01, 0.01
"""Sizes of the blood's answer, the scanner's noise and its slow drift, over the baseline."""
_BLOCK_VOLUMES = 16


@dataclass(frozen=True, slots=True)
class Protocol:
    """What a scanner is told."""

    shape: tuple[int, int, int]
    voxel_mm: float
    num_volumes: int
    num_regions: int


PROTOCOLS = (
    Protocol((64, 64, 36), 3.5, 200, 120),
    Protocol((32, 32, 18), 7.0, 80, 60),
    Protocol((16, 16, 10), 14.0, 30, 20),
)
_RUN_BYTES = {"nifti": (32e6, 1.6e6, 0.08e6), "parcels": (0.25e6, 0.05e6, 0.006e6)}
"""Bytes of a run of each protocol, about."""
_USUAL_RUNS = 4


def write(order: Order) -> list[Path]:
    """Write the archive; the files of its runs in the order of subject and run."""
    wanted = order.size_bytes / (order.runs or _USUAL_RUNS)
    sized = zip(PROTOCOLS, _RUN_BYTES[order.form], strict=True)
    protocol = next((protocol for protocol, run in sized if run <= wanted), PROTOCOLS[-1])
    brain = make_brain(protocol.shape, protocol.voxel_mm, protocol.num_regions, np.random.default_rng([order.seed, 20]))

    def write_run(number: int) -> Path:
        return _write_run(order, protocol, brain, number)

    first = write_run(0)
    num_runs = max(1, round(order.size_bytes / first.stat().st_size))
    _write_about(order, brain, num_subjects=-(-num_runs // RUNS_OF_SUBJECT))
    return [first, *in_order(write_run, range(1, num_runs), order.workers)]


def _write_run(order: Order, protocol: Protocol, brain: Brain, number: int) -> Path:
    """Write one run and its sidecar; a pure function of the seed and the run's number."""
    rng = np.random.default_rng([order.seed, 21, number])
    seconds = WARM_UP_SECONDS + protocol.num_volumes * REPETITION_SECONDS
    signal = bold(activity(brain, seconds, rng), REPETITION_SECONDS, protocol.num_volumes, WARM_UP_SECONDS)
    subject, run = f"sub-{1 + number // RUNS_OF_SUBJECT:02d}", 1 + number % RUNS_OF_SUBJECT
    stem = order.out / subject / "func" / f"{subject}_task-rest_run-{run:02d}"
    if order.form == "nifti":
        path = stem.with_name(f"{stem.name}_bold.nii.gz")
        shape = (*protocol.shape, protocol.num_volumes)
        write_image(path, _volumes(brain, signal, rng), shape, brain.voxel_mm, REPETITION_SECONDS)
        sidecar = stem.with_name(f"{stem.name}_bold.json")
    else:
        path = stem.with_name(f"{stem.name}_atlas-network_timeseries.tsv")
        write_table(path, _region_names(brain), ([f"{value:.6f}" for value in row] for row in signal))
        sidecar = path.with_suffix(".json")
    write_json(sidecar, {"TaskName": "rest", "RepetitionTime": REPETITION_SECONDS, "Manufacturer": "none: synthetic"})
    return path


def _volumes(
    brain: Brain, signal: npt.NDArray[np.float64], rng: np.random.Generator
) -> Iterator[npt.NDArray[np.int16]]:
    """Volumes of int16, made a few at a time."""
    inside = brain.labels > 0
    region = brain.labels[inside] - 1
    baseline = (_BASELINE * rng.uniform(0.7, 1.3, len(region))).astype(np.float32)
    strength = rng.uniform(0.5, 1.5, len(region)).astype(np.float32) * np.float32(_SIGNAL)
    moment = np.linspace(-1, 1, len(signal))
    drift = _DRIFT * (rng.normal() * moment + rng.normal() * np.cos(3 * moment))
    for first in range(0, len(signal), _BLOCK_VOLUMES):
        part = signal[first : first + _BLOCK_VOLUMES].astype(np.float32)
        noise = np.float32(_NOISE) * rng.standard_normal((len(part), len(region)), np.float32)
        change = strength * part[:, region] + noise + drift[first : first + len(part), None].astype(np.float32)
        # Outside of the brain a scanner sees the size of its noise, which is never negative.
        volumes = np.abs(rng.standard_normal((len(part), *brain.labels.shape), np.float32) * 4)
        volumes[:, inside] = baseline * (1 + change)
        yield from np.rint(volumes).astype(np.int16)


def _write_about(order: Order, brain: Brain, num_subjects: int) -> None:
    """Write what BIDS wants beside the runs; the mask and the atlas are the same for all of them."""
    description = {"BIDSVersion": "1.9.0", "License": "CC0", "Authors": ["none: synthetic data"]}
    write_json(order.out / "dataset_description.json", {"Name": "Resting network", "DatasetType": "raw", **description})
    derived = order.out / "derivatives" / "network"
    write_json(
        derived / "dataset_description.json",
        {
            "Name": "Regions",
            "DatasetType": "derivative",
            "GeneratedBy": [{"Name": "hyperslab simulate"}],
            **description,
        },
    )
    write_image(
        derived / "desc-brain_mask.nii.gz", [(brain.labels > 0).astype(np.int16)], brain.labels.shape, brain.voxel_mm
    )
    write_image(derived / "atlas-network_dseg.nii.gz", [brain.labels], brain.labels.shape, brain.voxel_mm)
    write_table(derived / "atlas-network_dseg.tsv", ("index", "name"), enumerate(_region_names(brain), start=1))
    rng = np.random.default_rng([order.seed, 22])
    people = [(f"sub-{1 + n:02d}", rng.integers(20, 61), rng.choice(["F", "M"])) for n in range(num_subjects)]
    write_table(order.out / "participants.tsv", ("participant_id", "age", "sex"), people)


def _region_names(brain: Brain) -> list[str]:
    return [f"region-{1 + n:03d}" for n in range(brain.num_regions)]
