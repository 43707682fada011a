"""Brain scans and regional time series: a run is a segment, a frame is a volume, or the values of all places."""

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt

from hyperslab.data.config import DataSettings
from hyperslab.data.sources import Block
from hyperslab.data.sources.fmri.bids import Labels, Neighbours, find_runs, label_runs
from hyperslab.data.sources.fmri.content import is_folder
from hyperslab.data.sources.fmri.formats import find_header, read_header
from hyperslab.data.sources.fmri.grid import Placement
from hyperslab.data.sources.fmri.repetition import WHAT_TO_DO, choose
from hyperslab.data.sources.fmri.run import Run, check_unchanged, inside_of
from hyperslab.data.sources.fmri.scan import scan
from hyperslab.data.sources.fmri.series import Floats, Series
from hyperslab.data.sources.fmri.table import Table, settle_time, table_series
from hyperslab.data.sources.index import Description, Index, RawFile
from hyperslab.errors import UserError


class HeldRun:
    """The run that was read last, kept open: a compressed file is then decompressed once, not once for each block."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._key: tuple[object, ...] = ()
        self._run: Run | None = None

    def fill(self, block: Floats, file: RawFile, index: Index, start: int) -> None:
        """Put the frames of a run from `start` on, counted in its file, into `block`."""
        # Another process must not share the place in an open file; another index may want another mask.
        key = (os.getpid(), file, index.attributes)
        with self._lock:
            run, held = self._run, self._key
            self._run = None
        if run is None or held != key:
            if run is not None and held[0] == os.getpid():
                run.close()
            run = Run(file, index)
        try:
            run.fill(block, start)
        except BaseException:
            run.close()
            raise
        with self._lock:
            other, self._run, self._key = self._run, run, key
        if other is not None:
            other.close()


class Fmri:
    """Source of frames from NIfTI, AFNI, PAR/REC, CIFTI, GIFTI and tables."""

    def __init__(self) -> None:
        self._held = HeldRun()

    def describe(self, path: str) -> Description:
        """Say what a file is, what would be taken from it, and what is odd in it.

        Raises
        ------
        UserError
            When it is no series, or cannot be read.
        """
        if is_folder(path):
            return _describe_folder(Path(path))
        return _describe_file(find_header(path))

    def scan(self, paths: Sequence[str], settings: DataSettings) -> Index:
        """Read all headers and say which frames are of which run.

        Raises
        ------
        UserError
            When a file cannot be used, files disagree, or a setting does not suit them.
        """
        return scan(paths, settings)

    def read(self, index: Index, start: int, stop: int) -> Block:
        """Frames `[start, stop)`, shape (frame, channel, *space).

        Raises
        ------
        UserError
            When a file has changed since the scan, or its data cannot be read.
        """
        block = np.empty((stop - start, *index.shape[1:]), np.float32)
        for file in index.files:
            for position, frame, count in file.runs:
                first, last = max(frame, start), min(frame + count, stop)
                if first < last:
                    check_unchanged(file, index)
                    self._held.fill(block[first - start : last - start, 0], file, index, position + first - frame)
        return {"values": block}

    def read_statics(self, index: Index) -> npt.NDArray[np.float32]:
        """The mask, where there is one; shape (static, *space).

        Raises
        ------
        UserError
            When the mask cannot be read.
        """
        if not index.statics:
            return np.empty((0, *index.space_shape), np.float32)
        everywhere = np.ones(index.space_shape, bool)
        seen = set()
        for file in index.files:
            key = (file.details.get("mask"), tuple(file.details["shape"]))
            if key not in seen:
                seen.add(key)
                check_unchanged(file, index)
                everywhere &= _placed(file, index)
        return everywhere[None].astype(np.float32)


def _placed(file: RawFile, index: Index) -> npt.NDArray[np.bool_]:
    shape = tuple(file.details["shape"])
    inside = inside_of(file, index)
    inside = np.ones(shape, bool) if inside is None else inside
    if "shape" not in index.attributes:
        return inside
    return Placement(shape, tuple(index.attributes["shape"])).mask(inside)


def _describe_folder(folder: Path) -> Description:
    runs = find_runs(folder)
    labels = label_runs(runs)
    subjects = {label.subject for label in labels}
    return Description(
        path=str(folder),
        kind=f"directory of {len(runs)} runs of {len(subjects)} subjects",
        taken=tuple(
            f"run {path.relative_to(folder)}: {_words(label)}" for path, label in zip(runs, labels, strict=True)
        ),
        oddities=tuple(
            f"{path.name}: {label.oddity}" for path, label in zip(runs, labels, strict=True) if label.oddity
        ),
    )


def _describe_file(path: Path) -> Description:
    found = read_header(path, None)
    try:
        series = table_series(found, *settle_time([found], None)[0]) if isinstance(found, Table) else found
    except UserError as error:
        return Description(path=str(path), kind=found.kind, taken=(), oddities=(str(error).removeprefix(f"{path}: "),))
    labels = label_runs([path])[0]
    seconds, odd = choose(path, series.repetition, Neighbours().repetition_seconds(path), None)
    if seconds is None:
        odd = (f"its repetition time is not known: {series.repetition.reason}; {WHAT_TO_DO}",)
    size = sum(file.stat().st_size for file in (path, *series.companions))
    return Description(
        path=str(path),
        kind=f"{series.kind}, {size:,} bytes",
        taken=tuple(_taken(series, labels, seconds)),
        oddities=(*series.oddities, *odd, *([labels.oddity] if labels.oddity else [])),
    )


def _taken(series: Series, labels: Labels, seconds: float | None) -> list[str]:
    every = "" if seconds is None else f", every {seconds:g} s, {series.frames * seconds:g} s in all"
    where = " x ".join(f"{axis.name} ({len(axis.values)})" for axis in series.space)
    zooms = f", voxels of {' x '.join(f'{zoom:g}' for zoom in series.zooms)} mm" if series.zooms else ""
    return [
        f"frames: {series.frames}{every}",
        f"space: {where}{zooms}",
        "channel bold: blood-oxygen-level-dependent signal, as in the file [1]",
        f"run: {_words(labels)}",
    ]


def _words(labels: Labels) -> str:
    named = {key: getattr(labels, key) for key in ("subject", "session", "task", "run")}
    return ", ".join(f"{key} {value}" for key, value in named.items() if value)


SOURCE = Fmri()
