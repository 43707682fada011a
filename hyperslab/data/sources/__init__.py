"""Raw archives as frames: each source scans its files into an index, and reads frames by that index."""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from hyperslab.data.sources.index import Description, Index
from hyperslab.errors import UserError

if TYPE_CHECKING:
    from hyperslab.data.config import DataSettings

SOURCES = ("era5", "lartpc", "fmri")

Block = dict[str, npt.NDArray[Any]]
"""Some frames.

Dense: `values`, float32, shape (frame, channel, *space), NaN where missing; `labels`, int64, shape
(frame, label, *space), where the index has labels. Ragged, all points of the frames one after another: `position`,
float32, shape (point, axis); `feature`, float32, shape (point, channel); `labels`, int64, shape (point, label)."""


class Source(Protocol):
    """What every kind of archive offers. A path is an absolute path, or a URL."""

    def describe(self, path: str) -> Description:
        """Say what one raw file is, what would be taken from it, and what is odd in it."""
        ...

    def scan(self, paths: Sequence[str], settings: "DataSettings") -> Index:
        """Read the headers of the files: frames, channels, space, and where each piece lies."""
        ...

    def read(self, index: Index, start: int, stop: int) -> Block:
        """Frames `[start, stop)`."""
        ...

    def read_statics(self, index: Index) -> npt.NDArray[np.float32]:
        """The fields without time, shape (static, *space)."""
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
    # Reading raw files takes xarray, h5py or nibabel, a second of import: those who only train do without.
    module = importlib.import_module(f"hyperslab.data.sources.{kind}.source")
    source: Source = module.SOURCE
    return source


__all__ = ["SOURCES", "Block", "Description", "Index", "Source", "source_of"]
