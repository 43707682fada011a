"""Raw archives as frames: each source scans its files into an index, and reads frames by that index."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hyperslab.data.config import DataSettings
from hyperslab.data.sources.index import Description, Index
from hyperslab.errors import UserError

SOURCES = ("era5",)


class Source(Protocol):
    """What every kind of archive offers."""

    def describe(self, path: Path) -> Description:
        """Say what one raw file is, what would be taken from it, and what is odd in it."""
        ...

    def scan(self, paths: Sequence[Path], settings: DataSettings) -> Index:
        """Read the headers of the files: frames, channels, grid, and where each piece lies."""
        ...

    def read(self, index: Index, start: int, stop: int, threads: int) -> npt.NDArray[np.float32]:
        """Frames `[start, stop)` as an array of shape (frame, channel, *space)."""
        ...


def source_of(kind: str) -> Source:
    """The source of that name, as a campaign's `data.source` gives it.

    Raises
    ------
    UserError
        When there is no such source.
    """
    if kind not in SOURCES:
        raise UserError(f"source: found {kind!r}; known are {', '.join(SOURCES)}")
    # Reading raw files takes xarray and dask, a second of import: those who only train do without.
    module = importlib.import_module(f"hyperslab.data.sources.{kind}")
    source: Source = module.SOURCE
    return source


__all__ = ["Description", "Index", "Source", "source_of"]
