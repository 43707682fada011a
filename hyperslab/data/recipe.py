"""The recipe of a store: all that decides what it will hold, and how it is cut into arrays, chunks and shards."""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from hyperslab.data.config import DataSettings
from hyperslab.data.frames import Ints, mask_of
from hyperslab.data.sources import Index
from hyperslab.data.sources.append import append_index
from hyperslab.data.splits import Splits, extend_splits, split_frames
from hyperslab.data.statistics import pairs
from hyperslab.errors import UserError

SHARD_MEBIBYTES = 256.0
"""Size of a shard before compression where neither the campaign nor the site says another."""
SMALL_SHARD_BYTES = 8 << 20
NUM_SHARDS = 8
"""A store has at least so many shards, as long as they do not become small: as many can be written at a time."""
MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 64 << 10, 1024 << 10
"""A chunk fits a core's own cache, and a rank that owns a tile of space reads little beside it."""
MIN_RUN_BYTES = 1 << 10
"""Shorter runs along the last axis are not cut: their copies into a sample would cost more than decompressing them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayPlan:
    """One large array of a store. Its first dimension is cut into parts; a shard holds one part, whole."""

    name: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    chunk: tuple[int, ...]
    shard_length: int
    """Places of the first dimension in a shard, a multiple of those in a chunk."""

    @property
    def tiles(self) -> tuple[int, ...]:
        """Chunks along each dimension but the first."""
        return tuple(-(-size // tile) for size, tile in zip(self.shape[1:], self.chunk[1:], strict=True))

    @property
    def shard(self) -> tuple[int, ...]:
        """Shape of a shard: whole chunks, so that it may reach over the array's end."""
        return (self.shard_length, *(n * tile for n, tile in zip(self.tiles, self.chunk[1:], strict=True)))

    @property
    def is_float(self) -> bool:
        """Whether a place without a value can be NaN."""
        return self.dtype.startswith("float")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides what a store holds: equal recipes over equal raw files give equal stores."""

    index: Index
    splits: Splits
    """Frame ranges `[start, stop)` of each split."""
    shard_length: int
    """Frames in a shard of a dense store, points in one of a ragged store; a part of staging is as long."""
    dtype: Literal["float32", "float16", "int16"] = "float32"
    difference_leads: tuple[int, ...] = (1,)
    """Distances in frames over which the standard deviation of the change is measured."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The data settings of the campaign, to scan later files with."""

    @property
    def total_length(self) -> int:
        """Frames of a dense store, points of a ragged one."""
        return self.index.total_points if self.index.is_ragged else len(self.index.time)

    @property
    def num_parts(self) -> int:
        """Parts to stage; each is one whole shard of each large array."""
        return -(-self.total_length // self.shard_length)

    @property
    def total_bytes(self) -> int:
        """Bytes of all values before compression."""
        return sum(math.prod(plan.shape) * np.dtype(plan.dtype).itemsize for plan in self.arrays)

    @property
    def frame_start(self) -> Ints:
        """First point of each frame of a ragged store, and the number of points; shape (frame + 1,)."""
        return np.concatenate([[0], np.cumsum(np.asarray(self.index.points or (), np.int64))]).astype(np.int64)

    @property
    def arrays(self) -> tuple[ArrayPlan, ...]:
        """The large arrays, in a fixed order."""
        index = self.index
        names = ["position", "feature"] if index.is_ragged else ["values"]
        names += ["scale", "offset"] if self.dtype == "int16" else []
        names += ["labels"] if index.labels else []
        plans = []
        for name in names:
            dimensions, shape, dtype = self._form(name)
            itemsize = np.dtype(dtype).itemsize
            chunk = _chunk(shape, self.shard_length, itemsize, split=not index.is_ragged)
            plans.append(
                ArrayPlan(
                    name=name, dimensions=dimensions, shape=shape, dtype=dtype, chunk=chunk,
                    shard_length=self.shard_length,
                )
            )  # fmt: skip
        return tuple(plans)

    def _form(self, name: str) -> tuple[tuple[str, ...], tuple[int, ...], str]:
        """Dimensions, shape and type of a large array."""
        index, length = self.index, self.total_length
        dtype = {"labels": "int64", "scale": "float32", "offset": "float32"}.get(name, self.dtype)
        second = {"position": "axis", "labels": "label"}.get(name, "channel")
        size = {"axis": len(index.space), "label": len(index.labels), "channel": len(index.channels)}[second]
        if index.is_ragged:
            return ("point", second), (length, size), dtype
        if name in ("scale", "offset"):
            return ("frame", second), (length, size), dtype
        space = tuple(axis.name for axis in index.space)
        return ("frame", second, *space), (length, size, *index.space_shape), dtype

    def part_range(self, part: int) -> tuple[int, int]:
        """Range `[start, stop)` of a part: frames of a dense store, points of a ragged one."""
        start = part * self.shard_length
        return start, min(start + self.shard_length, self.total_length)

    def to_json(self) -> dict[str, Any]:
        """A form that JSON holds."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Recipe":
        """The inverse of `to_json`."""
        return _ADAPTER.validate_python(content)


_ADAPTER = TypeAdapter(Recipe)


def _chunk(shape: tuple[int, ...], shard_length: int, itemsize: int, *, split: bool) -> tuple[int, ...]:
    """One frame and a tile of space; more frames where a frame is tiny. It divides the shard."""
    tile = list(shape[1:])
    while split and math.prod(tile) * itemsize > MAX_CHUNK_BYTES and max(tile[1:], default=1) > 1:
        axes = range(1, len(tile))
        long = tile[-1] * itemsize >= 2 * MIN_RUN_BYTES
        uncut = [axis for axis in axes if tile[axis] > 1 and (long or axis != axes[-1])] or [axes[-1]]
        longest = max(uncut, key=lambda axis: tile[axis])
        tile[longest] = -(-tile[longest] // 2)
    row_bytes = max(1, math.prod(tile) * itemsize)
    length = max(1, min(shard_length, MIN_CHUNK_BYTES // row_bytes))
    while shard_length % length:
        length -= 1
    return (length, *tile)


def make_recipe(index: Index, settings: DataSettings, shard_mebibytes: float = SHARD_MEBIBYTES) -> Recipe:
    """The store that an index and a campaign's data settings ask for.

    Parameters
    ----------
    shard_mebibytes
        The site's size of a shard, where the settings say none.

    Raises
    ------
    UserError
        When the splits cannot be cut as asked, or ragged values are to be stored as less than float32.
    """
    if index.is_ragged and settings.dtype != "float32":
        raise UserError(f"data.dtype: found {settings.dtype}, but points are stored as float32; leave it out")
    splits = split_frames(index, settings.validation, settings.test)
    _check_leads(index, splits, settings.difference_leads)
    return Recipe(
        index=index,
        splits=splits,
        shard_length=_shard_length(index, (settings.shard_mebibytes or shard_mebibytes) * 2**20),
        dtype=settings.dtype,
        difference_leads=tuple(settings.difference_leads),
        settings=settings.model_dump(mode="json"),
    )


def _check_leads(index: Index, splits: Splits, leads: list[int]) -> None:
    """A lead over which no change can be measured is refused; archives of single frames do without the usual one."""
    training = mask_of(splits["train"], len(index.time))
    for lead in leads:
        if lead > 1 and (index.is_ragged or len(pairs(index.segments, training, lead)) == 0):
            raise UserError(
                f"data.difference_leads: found {lead}, but no two training frames of a segment are so far apart; "
                "choose smaller leads"
            )


def _shard_length(index: Index, shard_bytes: float) -> int:
    total = index.total_points if index.is_ragged else len(index.time)
    target = min(shard_bytes, max(SMALL_SHARD_BYTES, total * index.frame_bytes / NUM_SHARDS))
    length = max(1, int(target // index.frame_bytes))
    if length >= total:
        return max(1, total)
    # Whole blocks of the raw files, and a length that chunks of several tiny frames divide.
    for unit in (index.block_frames, MIN_CHUNK_BYTES // index.frame_bytes):
        if 1 < unit <= length:
            return length // unit * unit
    return length


def extend_recipe(old: Recipe, new: Index) -> Recipe:
    """The recipe of a store that later frames are appended to; nothing of the old frames changes.

    Raises
    ------
    UserError
        When the new files do not continue the archive.
    """
    settings = DataSettings(**old.settings)
    index = append_index(old.index, new)
    splits = extend_splits(old.splits, index, len(old.index.time), settings.validation, settings.test)
    return replace(old, index=index, splits=splits)
