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
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

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
MAX_OPEN_SHARDS = 256
"""Shards that a process keeps open, of all arrays: a quarter of the files that systems usually let it open."""


class Watch:
    """What some threads read: when an answer last came, what none has come for, and whether it is still wanted."""

    def __init__(self) -> None:
        self.answered = 0.0
        """When a read last came back, on the clock `time.monotonic`."""
        self.over = threading.Event()
        """Set once nobody wants what is read: reading ends with the chunk at hand."""
        self.under_way: dict[int, tuple[ShardedArray, int]] = {}
        """The array and the part that each thread is reading just now."""

    def in_flight(self) -> str:
        """The shards that are being read just now."""
        return ", ".join(sorted({str(array.file(part)) for array, part in list(self.under_way.values())})) or "a read"


WATCH: ContextVar[Watch] = ContextVar("WATCH", default=Watch())  # noqa: B039 (meant to be shared)
"""The watch over what the thread at hand reads."""


class Unwanted(Exception):
    """Nobody wants any more what is being read."""


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


class Shard:
    """One shard, open for reading, and where its chunks lie.

    Parameters
    ----------
    grid
        Chunks along each dimension.
    size_bytes
        Size of the file when it was staged, where that is known.
    """

    def __init__(self, file: Path, grid: tuple[int, ...], size_bytes: int | None = None) -> None:
        self.file = file
        self._remote: Any = file  # a path of fsspec, where it is not of this machine
        self._handle = None
        if isinstance(file, os.PathLike):
            self._handle = os.open(file, os.O_RDONLY)
            # Closed when the last thread lets go of it; what reads on while the interpreter ends, still can.
            weakref.finalize(self, os.close, self._handle).atexit = False
        length = 16 * math.prod(grid) + CRC_BYTES
        index = self._tail(length, size_bytes)
        if len(index) != length or not _is_sound(index):
            raise ChunkError("the index of its chunks is damaged")
        self.index = np.frombuffer(index[:-CRC_BYTES], "<u8").reshape(*grid, 2)

    def _tail(self, length: int, size_bytes: int | None) -> bytes:
        """The last bytes; a chunk says nothing about the place that it belongs to, but a shard's size does."""
        if self._handle is None:
            start, stop = (-length, None) if size_bytes is None else (size_bytes - length, size_bytes)
            return self._part(self._remote.fs.cat_file(self._remote.path, start=start, end=stop), length)
        found = os.fstat(self._handle).st_size
        if size_bytes not in (None, found):
            raise ChunkError(f"has {found:,} bytes, {size_bytes:,} were staged: it is another file, or was cut short")
        return os.pread(self._handle, length, max(0, found - length))

    def _part(self, data: bytes, length: int) -> bytes:
        """What came from elsewhere, as long as it is a part of a file."""
        if len(data) > length:
            raise UserError(
                f"{self.file}: {length:,} bytes of it were asked for, {len(data):,} came: the server does not serve "
                "parts of files (HTTP's Range); use one that does, or copy the store to this machine"
            )
        return data

    def place(self, numbers: tuple[int, ...]) -> tuple[int, int]:
        """The bytes `[start, stop)` of a chunk, checksum included.

        Raises
        ------
        UserError
            When it is not there.
        """
        start, length = self.index[numbers].tolist()
        if start == ABSENT:
            raise UserError(f"{self.file}: has no chunk {numbers}; mend the store with `hyperslab repair`")
        return start, start + length

    def read_into(self, buffer: memoryview, start: int) -> int:
        """Read from a place on into a buffer, on this machine; the bytes that came."""
        assert self._handle is not None, "it lies elsewhere"
        return os.preadv(self._handle, [buffer], start)

    def fetch(self, wanted: list[tuple[int, ...]]) -> list[bytes]:
        """Chunks as they are stored, checksums included; from elsewhere all at once.

        Raises
        ------
        ChunkError
            When one does not come.
        """
        places = [self.place(numbers) for numbers in wanted]
        if self._handle is not None:
            return [os.pread(self._handle, stop - start, start) for start, stop in places]
        starts, stops = ([place[side] for place in places] for side in (0, 1))
        found = self._remote.fs.cat_ranges([self._remote.path] * len(places), starts, stops, on_error="return")
        for numbers, data in zip(wanted, found, strict=True):
            if isinstance(data, Exception):
                raise data if isinstance(data, FileNotFoundError) else ChunkError(f"chunk {numbers}: {data}")
        return [self._part(data, stop - start) for data, (start, stop) in zip(found, places, strict=True)]


class _OpenShards:
    """The shards that were used last, of all arrays.

    Each step is one call of OrderedDict, which Python's lock keeps whole: no lock of ours is held in a fork.
    """

    def __init__(self) -> None:
        self._shards: OrderedDict[tuple[int, int], Shard] = OrderedDict()

    def get(self, array: int, part: int) -> Shard | None:
        """The shard of a part, where it is open."""
        try:
            self._shards.move_to_end((array, part))
            return self._shards[array, part]
        except KeyError:  # another thread may have closed it just now
            return None

    def keep(self, array: int, part: int, shard: Shard) -> None:
        """Keep a shard open, and close the one that was used longest ago where they are too many."""
        self._shards.setdefault((array, part), shard)
        with contextlib.suppress(KeyError):
            while len(self._shards) > MAX_OPEN_SHARDS:
                self._shards.popitem(last=False)

    def drop(self, array: int, part: int) -> None:
        """Close the shard of a part."""
        self._shards.pop((array, part), None)

    def drop_all(self, array: int) -> None:
        """Close all shards of an array."""
        for key in list(self._shards):
            if key[0] == array:
                self._shards.pop(key, None)


_open_shards = _OpenShards()


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class ShardedArray:
    """One large array of a store: a shard holds one part of its first dimension, whole, in chunks."""

    path: Path
    """Directory of the array, or its place on a file system that fsspec knows."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk: tuple[int, ...]
    shard: tuple[int, ...]
    staged_bytes: Callable[[int], int | None] = field(default=lambda _: None)
    """Size of a part's shard when it was staged, where that is known."""

    def __post_init__(self) -> None:
        weakref.finalize(self, _open_shards.drop_all, id(self)).atexit = False

    @property
    def is_local(self) -> bool:
        """Whether this machine's system reads its files."""
        return isinstance(self.path, os.PathLike)

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
        if any(at.stop <= at.start for at in asked):
            return
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
            if self.is_local:
                # One after another, each used while it is in the processor's cache.
                for numbers in wanted:
                    yield part, numbers, self.retrying(part, partial(self._checked, part, numbers, buffer))
            else:
                found = self.retrying(part, partial(self._fetched, part, wanted))
                yield from ((part, numbers, data) for numbers, data in zip(wanted, found, strict=True))

    def _checked(self, part: int, numbers: tuple[int, ...], buffer: npt.NDArray[np.uint8]) -> memoryview:
        """A chunk of a shard on this machine, read into a buffer, without its checksum."""
        shard = self.open_shard(part)
        start, stop = shard.place(numbers)
        view = buffer.data[: stop - start]
        try:
            count = shard.read_into(view, start)
        except OSError as error:
            raise ChunkError(f"chunk {numbers}: {error}") from error
        if count != stop - start:
            raise ChunkError(f"chunk {numbers} is cut short")
        return _sound(numbers, view)

    def _fetched(self, part: int, wanted: list[tuple[int, ...]]) -> list[memoryview]:
        """Chunks of a shard elsewhere, without their checksums."""
        found = self.open_shard(part).fetch(wanted)
        return [_sound(numbers, memoryview(data)) for numbers, data in zip(wanted, found, strict=True)]

    def open_shard(self, part: int) -> Shard:
        """The shard of a part, with its index; the ones that were used last are kept open.

        Raises
        ------
        OSError
            When it is missing, cannot be read, or is of another size than when it was staged.
        """
        shard = _open_shards.get(id(self), part)
        if shard is None:
            grid = tuple(length // size for length, size in zip(self.shard, self.chunk, strict=True))
            shard = Shard(self.file(part), grid, self.staged_bytes(part))
            _open_shards.keep(id(self), part, shard)
        return shard

    def file(self, part: int) -> Path:
        """The shard of a part."""
        return self.path.joinpath("c", str(part), *["0"] * (len(self.shape) - 1))

    def retrying(self, part: int, read: Callable[[], Result]) -> Result:
        """What a function gives, tried again after longer and longer pauses while the file system fails.

        Parameters
        ----------
        read
            What reads that part. It opens the shard itself: one that fails is closed, since its handle may be stale.

        Raises
        ------
        UserError
            When the shard is missing, or the function goes on failing.
        Unwanted
            When nobody waits for it any more.
        """
        thread, watch = threading.get_ident(), WATCH.get()
        # Clients of object stores raise errors of every kind.
        failure = OSError if self.is_local else Exception
        for pause in (*RETRY_SECONDS, None):
            if watch.over.is_set():
                raise Unwanted
            try:
                watch.under_way[thread] = (self, part)
                found = read()
                watch.answered = time.monotonic()
                return found
            except UserError:
                raise
            except FileNotFoundError:
                raise UserError(f"{self.file(part)}: is missing; stage it again with `hyperslab repair`") from None
            except failure as error:
                if pause is None:
                    raise UserError(
                        f"{self.file(part)}: cannot be read ({error}), tried {len(RETRY_SECONDS) + 1} times; "
                        "look at the file system, or mend the store with `hyperslab repair`"
                    ) from None
                logger.warning("%s: %s; tried again in %s s", self.file(part), error, pause)
                _open_shards.drop(id(self), part)
                watch.over.wait(pause)
            finally:
                watch.under_way.pop(thread, None)
        raise AssertionError


def _sound(numbers: tuple[int, ...], data: memoryview) -> memoryview:
    """A chunk without its checksum.

    Raises
    ------
    ChunkError
        When it is not what was written.
    """
    if not _is_sound(data):
        raise ChunkError(f"chunk {numbers} is damaged: its CRC-32C does not fit")
    return data[:-CRC_BYTES]


def _is_sound(data: bytes | memoryview) -> bool:
    """Whether bytes end in their own CRC-32C: that of the whole is then one number, whatever they are."""
    return len(data) > CRC_BYTES and crc32c.crc32c(data) == CRC_RESIDUE
