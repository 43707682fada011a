"""From what the files say to the index of an archive."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from hyperslab.data.clock import Clock
from hyperslab.data.config import DataSettings
from hyperslab.data.sources.fmri.bids import Labels, Neighbours, find_runs, label_runs
from hyperslab.data.sources.fmri.config import FmriSettings
from hyperslab.data.sources.fmri.confounds import count_courses, describe_cleaning, read_confounds
from hyperslab.data.sources.fmri.content import is_folder
from hyperslab.data.sources.fmri.formats import find_header, read_headers
from hyperslab.data.sources.fmri.repetition import WHAT_TO_DO, choose
from hyperslab.data.sources.fmri.run import stamp
from hyperslab.data.sources.fmri.series import Series
from hyperslab.data.sources.fmri.space import Space, lay_out
from hyperslab.data.sources.index import Channel, Index, RawFile
from hyperslab.errors import UserError

BLOCK_BYTES = 256 << 20
"""Frames read together take no more than this in float32."""
MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One run, and what its name, its neighbours and the campaign say about it."""

    series: Series
    labels: Labels
    repetition_seconds: float
    beside: tuple[Path, ...]
    """Other files that the run is read from."""
    details: dict[str, Any]
    oddities: tuple[str, ...]


def expand(paths: Sequence[str]) -> list[Path]:
    """The files that describe runs: those given, and those in given directories, each once.

    Raises
    ------
    UserError
        When one is not there.
    """
    found: list[Path] = []
    for path in paths:
        held = [str(run) for run in find_runs(Path(path))] if is_folder(path) else [path]
        found += map(find_header, held)
    return list(dict.fromkeys(found))


def scan(paths: Sequence[str], settings: DataSettings) -> Index:
    """The index of an archive, from the headers of its files.

    Raises
    ------
    UserError
        When a file cannot be used, files disagree, or a setting does not suit them.
    """
    _check_settings(settings)
    fmri = settings.fmri
    files = expand(paths)
    all_series = read_headers(files, settings.variables, fmri.parcels)
    neighbours = Neighbours()
    labels = label_runs(files)
    scans = [_scan_run(series, label, fmri, neighbours) for series, label in zip(all_series, labels, strict=True)]
    scans.sort(key=lambda one: one.labels.order)
    own_masks = {one.series.path: Path(one.details["mask"]) for one in scans if "mask" in one.details}
    space = lay_out([one.series for one in scans], fmri, own_masks)
    return _index(scans, space, fmri)


def _check_settings(settings: DataSettings) -> None:
    if settings.levels is not None:
        raise UserError("data.levels: fmri files have no levels; leave the setting out")
    if settings.period.start is not None or settings.period.end is not None:
        raise UserError("data.period: the time of fmri runs is of no calendar; leave the setting out")


def _scan_run(series: Series, labels: Labels, settings: FmriSettings, neighbours: Neighbours) -> Scan:
    path = series.path
    sidecar = neighbours.repetition_seconds(path)
    seconds, odd = choose(path, series.repetition, sidecar, settings.repetition_seconds)
    if seconds is None:
        raise UserError(f"{path}: its repetition time is not known: {series.repetition.reason}; {WHAT_TO_DO}")
    oddities = [*series.oddities, *odd]
    beside, details = list(series.companions), dict(series.details)
    if settings.mask == "brain":
        mask = neighbours.brain_mask(path)
        beside.append(mask)
        details["mask"] = str(mask)
    if settings.confounds is not None or settings.detrend != "none":
        confounds = None
        if settings.confounds is not None:
            table = neighbours.confounds(path)
            confounds, lines = read_confounds(table, settings.confounds, series.frames)
            oddities += lines
            beside.append(table)
            details["confounds"] = str(table)
        count_courses(confounds, settings.detrend == "linear", series.frames, path)
    if labels.oddity:
        oddities.append(labels.oddity)
    return Scan(
        series=series,
        labels=labels,
        repetition_seconds=seconds,
        beside=tuple(beside),
        details=details,
        oddities=tuple(oddities),
    )


def _index(scans: list[Scan], space: Space, settings: FmriSettings) -> Index:
    counts = [one.series.frames for one in scans]
    starts = np.concatenate([[0], np.cumsum(counts)]).tolist()
    time = [round(frame * one.repetition_seconds * MICROSECONDS) for one in scans for frame in range(one.series.frames)]
    frame_bytes = 4 * int(np.prod([len(axis.values) for axis in space.axes]))
    seconds = Counter(one.repetition_seconds for one in scans)
    return Index(
        source="fmri",
        clock=Clock(kind="elapsed"),
        time=tuple(time),
        segment=tuple(np.repeat(np.arange(len(scans)), counts).tolist()),
        channels=(Channel(name="bold", units="1", long_name="blood-oxygen-level-dependent signal, as in the files"),),
        space=space.axes,
        files=tuple(_raw_file(one, start, space) for one, start in zip(scans, starts, strict=False)),
        oddities=(*_gather(scans), *space.oddities, *_differing(seconds)),
        statics=space.statics,
        segment_labels=_segment_labels(scans),
        split_by="subject",
        block_frames=max(1, min(max(counts), BLOCK_BYTES // frame_bytes)),
        robust=True,
        attributes={
            **space.attributes,
            "repetition_seconds": sorted(seconds),
            "nibabel": str(nibabel.__version__),
            **({"cleaning": cleaning} if (cleaning := describe_cleaning(settings.confounds, settings.detrend)) else {}),
        },
    )


def _raw_file(one: Scan, start: int, space: Space) -> RawFile:
    series = one.series
    stamped = stamp(series.path)
    return RawFile(
        path=str(series.path),
        size_bytes=stamped["size_bytes"],
        modified_ns=stamped["modified_ns"],
        runs=((0, start, series.frames),),
        details={
            **one.details,
            **space.details[series.path],
            "beside": [stamp(path) for path in one.beside],
            "repetition_seconds": one.repetition_seconds,
        },
    )


def _segment_labels(scans: list[Scan]) -> dict[str, tuple[str | int | float, ...]]:
    labels: dict[str, tuple[str | int | float, ...]] = {
        name: tuple(getattr(one.labels, name) for one in scans) for name in ("subject", "session", "task", "run")
    }
    labels["repetition_seconds"] = tuple(one.repetition_seconds for one in scans)
    if all("dead" in one.details for one in scans):
        labels["dead"] = tuple(len(one.details["dead"]) for one in scans)
    return labels


def _gather(scans: list[Scan]) -> list[str]:
    """One line for each oddity, however many files share it."""
    held: dict[str, list[str]] = {}
    for one in scans:
        for line in one.oddities:
            held.setdefault(line, []).append(one.series.path.name)
    return [
        f"{names[0]}: {line}" if len(names) == 1 else f"{len(names)} files, such as {names[0]}: {line}"
        for line, names in held.items()
    ]


def _differing(seconds: Counter[float]) -> list[str]:
    if len(seconds) < 2:
        return []
    listed = ", ".join(f"{value:g} s ({count} runs)" for value, count in sorted(seconds.items()))
    return [f"runs differ in their repetition time: {listed}; a window's frames are as far apart as in its run"]
