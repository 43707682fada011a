"""What nilearn's cleaning takes away from a series, as a few numbers for each place."""

import difflib
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from hyperslab.data.sources.fmri.series import Floats
from hyperslab.data.sources.fmri.text import read_columns
from hyperslab.errors import UserError

COEFFICIENT_BYTES = 1 << 30
"""Memory that the coefficients of one run may take."""
BLOCK_BYTES = 64 << 20
SEED = 20_011
RANK_TOLERANCE = 1e-8

Numbers = npt.NDArray[np.float64]


def read_confounds(path: Path, patterns: Sequence[str], frames: int) -> tuple[Numbers, list[str]]:
    """The confounds of a run, shape (frame, confound), and what is odd about them.

    Parameters
    ----------
    patterns
        Names of columns, or patterns of names as in file names.
    frames
        Frames of the run.

    Raises
    ------
    UserError
        When a pattern fits no column, the table has another number of frames, or values are missing after the first.
    """
    columns = read_columns(path)
    names = list(dict.fromkeys(name for pattern in patterns for name in _matching(path, pattern, list(columns))))
    values = np.stack([columns[name] for name in names], axis=1)
    if len(values) != frames:
        raise UserError(f"{path}: has {len(values)} rows, its run {frames} frames; they must be of one scan")
    oddities = [f"confounds regressed out: {', '.join(names)}"]
    first = np.isnan(values[0])
    if first.any():
        # As nilearn's load_confounds does: derivatives have no value before the second frame.
        values[0, first] = values[1, first]
        oddities.append(f"{int(first.sum())} confounds lack their first value: the second stands in, as in nilearn")
    if not np.isfinite(values).all():
        frame, column = (int(place[0]) for place in np.nonzero(~np.isfinite(values)))
        raise UserError(f"{path}: {names[column]} is missing in row {frame + 1}; leave the column out")
    return values, oddities


def _matching(path: Path, pattern: str, names: list[str]) -> list[str]:
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        near = difflib.get_close_matches(pattern, names, n=3) or names[:6]
        raise UserError(f"data.fmri.confounds: {pattern!r} fits no column of {path}; near it are {', '.join(near)}")
    return found


def count_courses(confounds: Numbers | None, detrend: bool, frames: int, path: Path) -> int:
    """How many courses of time are taken away at most.

    Raises
    ------
    UserError
        When the run has too few frames.
    """
    courses = (0 if confounds is None else confounds.shape[1]) + (2 if detrend else 1)
    if courses >= frames:
        raise UserError(f"{path}: has {frames} frames, too few to take {courses} courses away; choose fewer confounds")
    return courses


def removed_basis(confounds: Numbers | None, detrend: bool, frames: int, path: Path) -> Numbers:
    """Orthonormal courses of time, shape (frame, course), whose share nilearn's cleaning takes away.

    Without a filter of frequencies, `nilearn.signal.clean` is a projection: what it does to a few random series
    shows all that it takes away, and a run need not be held in memory whole.

    Raises
    ------
    UserError
        When the run has too few frames.
    """
    courses = count_courses(confounds, detrend, frames, path)
    # A second of import, and needed for this alone.
    from nilearn.signal import clean

    probe = np.random.default_rng(SEED).standard_normal((frames, courses + 2))
    cleaned = clean(
        probe, detrend=detrend, standardize=None, confounds=confounds, standardize_confounds=True, filter=False
    )
    removed: Numbers = probe - cleaned
    basis: Numbers = scipy.linalg.orth(removed, rcond=RANK_TOLERANCE)
    return basis


class Cleaning:
    """A run without what nilearn takes away."""

    def __init__(self, basis: Numbers, read: Callable[[int, int], Floats], shape: tuple[int, ...], path: Path) -> None:
        """Take `basis` away from the frames, of that shape, that `read` gives; nothing is read yet."""
        self._basis = basis
        self._read = read
        self._shape = shape
        self._path = path
        self._step = max(1, BLOCK_BYTES // (8 * int(np.prod(shape))))
        self._coefficients: Numbers | None = None

    def frames(self, start: int, stop: int) -> Floats:
        """Frames `[start, stop)`; a place with a missing value is missing in all frames."""
        if self._coefficients is None:
            self._coefficients = self._measure()
        result = np.empty((stop - start, *self._shape), np.float32)
        for first, last in self._pieces(start, stop):
            removed = self._basis[first:last] @ self._coefficients
            result[first - start : last - start] = self._read(first, last) - removed.reshape(-1, *self._shape)
        return result

    def _measure(self) -> Numbers:
        """The share of each course in each place, in one pass over the run."""
        frames, courses = self._basis.shape
        size = int(np.prod(self._shape))
        if 8 * courses * size > COEFFICIENT_BYTES:
            raise UserError(
                f"{self._path}: taking {courses} courses away from {size:,} places needs {8 * courses * size:,} bytes, "
                f"the bound is {COEFFICIENT_BYTES:,}; choose fewer confounds, or give data.fmri.atlas"
            )
        coefficients = np.zeros((courses, size))
        for first, last in self._pieces(0, frames):
            coefficients += self._basis[first:last].T @ self._read(first, last).reshape(last - first, -1)
        return coefficients

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        for first in range(start, stop, self._step):
            yield first, min(stop, first + self._step)


def describe_cleaning(confounds: Sequence[str] | None, detrend: str) -> dict[str, Any]:
    """What was taken away, for the attributes of a store."""
    if confounds is None and detrend == "none":
        return {}
    import nilearn

    return {"confounds": list(confounds or ()), "detrend": detrend, "nilearn": str(nilearn.__version__)}
