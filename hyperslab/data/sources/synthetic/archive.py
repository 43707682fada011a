"""What synthetic archives share: their size, files that are there whole or not at all, parallel work in order."""

import errno
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MARGIN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a person asked for."""

    out: Path
    """Directory of the archive."""
    size_bytes: int
    """Size of all files together."""
    seed: int
    """Same seed, same archive."""
    form: str
    """Format of the files; each kind of archive has its own."""
    workers: int
    """Threads that compute and compress."""
    grid_degrees: float | None = None
    """Step of the grid of an `era5` archive; chosen by size where absent."""
    runs: int | None = None
    """Runs that an `fmri` archive has at least, so that they are the smaller; a few where absent."""


def check_room(path: Path, need_bytes: float) -> None:
    """Raise the error of a full disk where a file could not grow by so much.

    HDF5 that meets a full disk may end the process when it closes the file, so it must not come to that.
    """
    free = shutil.disk_usage(path.parent).free
    if free < need_bytes + _MARGIN_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@contextmanager
def draft(path: Path) -> Iterator[Path]:
    """A file to write to, renamed to `path` once the block has ended without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".draft.{path.name}")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def in_order(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Results of a function in the order of its items, computed by threads that run a little ahead.

    No more than two items a thread are held at a time, so memory does not grow with their number.
    """
    with ThreadPoolExecutor(workers) as pool:
        running: deque[Future[Result]] = deque()
        try:
            for item in items:
                running.append(pool.submit(function, item))
                if len(running) >= 2 * workers:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
