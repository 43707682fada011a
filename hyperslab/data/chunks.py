"""Reading a hyperslab of a sharded array: only the chunks that it touches, each one checked, decoded where it is used.

Reads what `shard` writes: Zarr's `sharding_indexed` codec over Blosc and CRC-32C. Zarr-Python, zarrs and tensorstore
read the same files; docs/adr/0008 says why this module does not go through one of them.
"""

import contextlib
import itertools
import logging
import math
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import crc32c
import numcodecs.blosc
import numpy as np
import numpy.typing as npt

from hyperslab.errors import UserError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Piece = tuple[tuple[slice, ...], npt.NDArray[Any]]
"""Where in the hyperslab a part of it lies, and its values: the caller may change them, and the next part does."""

CRC_BYTES = 4
CRC_RESIDUE = 0x48674BC7
"""CRC-32C of any bytes that are followed by their own, in little-endian order."""
ABSENT = np.iinfo(np.uint64).max
RETRY_SECONDS = (0.1, 0.5, 2.0, 5.0)
"""Pauses before a failed read is tried again."""
MOST_OVERHEAD_BYTES = 64
"""More than an encoded chunk takes beyond its values, checksum included (Blosc 1: at most 16 bytes)."""
MAX_OPEN_SHARDS = 128
"""Shards of an array whose index is kept at hand."""


_in_flight: dict[int, tuple["ShardedArray", int]] = {}
"""The array and the part that each thread is reading just now."""


_came_back: dict[int, int] = {}
"""Reads that came back, by thread."""


def chunks_read() -> int:
    """Reads that have come back, of all threads."""
    return sum(list(_came_back.values()))


def in_flight() -> str:
    """The shards that are being read just now."""
    return ", ".join(sorted({str(array.file(part)) for array, part in list(_in_flight.values())})) or "a read"


class _Idle(threading.local):
    """Memory that a thread works in: it is in the cache of the thread's core, fresh memory is in none."""

    def __init__(self) -> None:
        self.by_size: dict[int, list[npt.NDArray[np.uint8]]] = {}


_idle = _Idle()


@contextlib.contextmanager
def _lent(size: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Memory to work in, of so many bytes."""
    idle = _idle.by_size.setdefault(size, [])
    memory = idle.pop() if idle else np.empty(size, np.uint8)
    try:
        yield memory
    finally:
        idle.append(memory)


class ChunkError(OSError):
    """A chunk is not what was written."""


class _Place(NamedTuple):
    """Where in a shard a chunk lies."""

    numbers: tuple[int, ...]
    """Number of the chunk along each dimension of the shard."""
    start: int
    stop: int


class Shard:
    """One shard, open for reading, and where its chunks lie."""

    def __init__(self, file: Path, grid: tuple[int, ...]) -> None:
        self.file = file
        self._remote: Any = file  # a path of fsspec, where it is not of this machine
        self._handle = None
        if isinstance(file, os.PathLike):
            self._handle = os.open(file, os.O_RDONLY)
            # Closed when the last thread lets go of it.
            weakref.finalize(self, os.close, self._handle)
        length = 16 * math.prod(grid) + CRC_BYTES
        index = self._tail(length)
        if len(index) != length or not _is_sound(index):
            raise ChunkError("the index of its chunks is damaged")
        self.index = np.frombuffer(index[:-CRC_BYTES], "<u8").reshape(*grid, 2)

    def _tail(self, length: int) -> bytes:
        if self._handle is None:
            return bytes(self._remote.fs.cat_file(self._remote.path, start=-length))
        return os.pread(self._handle, length, max(0, os.fstat(self._handle).st_size - length))

    @property
    def is_local(self) -> bool:
        """Whether this machine's system reads the file."""
        return self._handle is not None

    def read_into(self, buffer: memoryview, start: int) -> int:
        """Read from a place on into a buffer, on this machine; the bytes that came."""
        assert self._handle is not None, "it lies elsewhere"
        return os.preadv(self._handle, [buffer], start)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)`, on this machine."""
        assert self._handle is not None, "it lies elsewhere"
        return os.pread(self._handle, stop - start, start)

    def fetch(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """The bytes `[start, stop)` of each range, all at once, from elsewhere."""
        starts, stops = ([bounds[side] for bounds in ranges] for side in (0, 1))
        return list(self._remote.fs.cat_ranges([self._remote.path] * len(ranges), starts, stops, on_error="raise"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedArray:
    """One large array of a store: a shard holds one part of its first dimension, whole, in chunks."""

    path: Path
    """Directory of the array, or its place on a file system that fsspec knows."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk: tuple[int, ...]
    shard: tuple[int, ...]
    _open: OrderedDict[int, Shard] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pieces(self, *ranges: slice, out: npt.NDArray[Any] | None = None) -> Iterator[Piece]:
        """The parts of a hyperslab, chunk by chunk, in the order in which they lie in the shards.

        Parameters
        ----------
        ranges
            A range with a start and a stop along each dimension; all of those that are left out.
        out
            Where the hyperslab is wanted: a chunk that lies in it unbroken is decoded there, which saves its copy.

        Raises
        ------
        UserError
            When a shard is missing, or cannot be read or is damaged, however often it is tried.
        """
        asked = self._whole(ranges)
        size = math.prod(self.chunk) * self.dtype.itemsize
        with _lent(size) as values, _lent(size + MOST_OVERHEAD_BYTES) as encoded:
            scratch = values.view(self.dtype).reshape(self.chunk)
            for part, numbers, data in self._chunks(ranges, encoded):
                if int.from_bytes(data[4:8], "little") != size:  # the header of Blosc 1, "nbytes"
                    raise UserError(f"{self.file(part)}: chunk {numbers} is of another size; stage the store anew")
                corner = [number * size for number, size in zip(numbers, self.chunk, strict=True)]
                corner[0] += part * self.shard[0]
                inside, into = [], []
                for at, first, length in zip(asked, corner, self.chunk, strict=True):
                    start, stop = max(at.start, first), min(at.stop, first + length)
                    inside.append(slice(start - first, stop - first))
                    into.append(slice(start - at.start, stop - at.start))
                held = scratch
                if out is not None and out.dtype == self.dtype:
                    place = out[tuple(into)]
                    held = place if place.shape == self.chunk and place.flags.c_contiguous else scratch
                numcodecs.blosc.decompress(data, held)
                yield tuple(into), held if held is not scratch else scratch[tuple(inside)]

    def touched(self, *ranges: slice) -> Iterator[tuple[int, list[tuple[int, ...]]]]:
        """Each part that a hyperslab touches, and the numbers of the chunks in its shard; `ranges` as in `pieces`."""
        asked = self._whole(ranges)
        for part in range(asked[0].start // self.shard[0], -(-asked[0].stop // self.shard[0])):
            low = part * self.shard[0]
            rows = slice(max(asked[0].start - low, 0), min(asked[0].stop - low, self.shard[0]))
            places = [
                range(at.start // size, -(-at.stop // size))
                for at, size in zip([rows, *asked[1:]], self.chunk, strict=True)
            ]
            yield part, list(itertools.product(*places))

    def _whole(self, ranges: tuple[slice, ...]) -> list[slice]:
        """A range along every dimension."""
        return [*ranges, *(slice(0, size) for size in self.shape[len(ranges) :])]

    def read(self, *ranges: slice) -> npt.NDArray[Any]:
        """A hyperslab as it is stored; `ranges` and errors as in `pieces`."""
        sizes = [at.stop - at.start for at in ranges] + list(self.shape[len(ranges) :])
        values = np.empty(sizes, self.dtype)
        for into, piece in self.pieces(*ranges):
            values[into] = piece
        return values

    def _chunks(
        self, ranges: tuple[slice, ...], buffer: npt.NDArray[np.uint8]
    ) -> Iterator[tuple[int, tuple[int, ...], memoryview]]:
        """The part, the numbers and the encoded bytes of each chunk that a hyperslab touches, all checked."""
        for part, wanted in self.touched(*ranges):
            shard = self._retrying(part, partial(self.open_shard, part))
            places = []
            for numbers, (offset, length) in zip(
                wanted, shard.index[tuple(np.asarray(wanted).T)].tolist(), strict=True
            ):
                if offset == ABSENT:
                    raise UserError(
                        f"{self.file(part)}: has no chunk {numbers}; mend the store with `hyperslab repair`"
                    )
                places.append(_Place(numbers, offset, offset + length))
            if shard.is_local:
                # One after another, each used while it is in the processor's cache.
                for place in places:
                    yield part, place.numbers, self._retrying(part, partial(self._checked, part, place, buffer))
            else:
                fetched = self._retrying(part, partial(self._fetched, part, places))
                yield from ((part, place.numbers, data) for place, data in zip(places, fetched, strict=True))

    def _checked(self, part: int, place: _Place, buffer: npt.NDArray[np.uint8]) -> memoryview:
        """A chunk of a shard on this machine, read into a buffer, without its checksum."""
        view = buffer.data[: place.stop - place.start]
        if self.open_shard(part).read_into(view, place.start) != place.stop - place.start:
            raise ChunkError(f"chunk {place.numbers} is cut short")
        return _sound(place, view)

    def _fetched(self, part: int, places: list[_Place]) -> list[memoryview]:
        """Chunks of a shard elsewhere, without their checksums."""
        found = self.open_shard(part).fetch([(place.start, place.stop) for place in places])
        return [_sound(place, memoryview(data)) for place, data in zip(places, found, strict=True)]

    def open_shard(self, part: int) -> Shard:
        """The shard of a part, with its index; the ones that were used last are kept open.

        Raises
        ------
        OSError
            When it is missing, or cannot be read.
        """
        with self._lock:
            if part in self._open:
                self._open.move_to_end(part)
                return self._open[part]
        grid = tuple(length // size for length, size in zip(self.shard, self.chunk, strict=True))
        shard = Shard(self.file(part), grid)
        with self._lock:
            self._open[part] = shard
            while len(self._open) > MAX_OPEN_SHARDS:
                self._open.popitem(last=False)
        return shard

    def file(self, part: int) -> Path:
        """The shard of a part."""
        return self.path.joinpath("c", str(part), *["0"] * (len(self.shape) - 1))

    def _retrying(self, part: int, read: Callable[[], Result]) -> Result:
        """What a function gives, tried again after longer and longer pauses while the file system fails."""
        thread = threading.get_ident()
        # Clients of object stores raise errors of every kind.
        failure = OSError if isinstance(self.path, os.PathLike) else Exception
        for pause in (*RETRY_SECONDS, None):
            try:
                _in_flight[thread] = (self, part)
                found = read()
                _came_back[thread] = _came_back.get(thread, 0) + 1
                return found
            except FileNotFoundError:
                raise UserError(f"{self.file(part)}: is missing; stage it again with `hyperslab repair`") from None
            except failure as error:
                if pause is None:
                    raise UserError(
                        f"{self.file(part)}: cannot be read ({error}), tried {len(RETRY_SECONDS) + 1} times; "
                        "look at the file system, or mend the store with `hyperslab repair`"
                    ) from None
                logger.warning("%s: %s; tried again in %s s", self.file(part), error, pause)
                with self._lock:
                    self._open.pop(part, None)  # a handle may have gone stale
                time.sleep(pause)
            finally:
                _in_flight.pop(thread, None)
        raise AssertionError


def _sound(place: _Place, data: memoryview) -> memoryview:
    """A chunk without its checksum.

    Raises
    ------
    ChunkError
        When it is not what was written.
    """
    if len(data) != place.stop - place.start or not _is_sound(data):
        raise ChunkError(f"chunk {place.numbers} is damaged: its CRC-32C does not fit")
    return data[:-CRC_BYTES]


def _is_sound(data: bytes | memoryview) -> bool:
    """Whether bytes end in their own CRC-32C: that of the whole is then one number, whatever they are."""
    return len(data) > CRC_BYTES and crc32c.crc32c(data) == CRC_RESIDUE
