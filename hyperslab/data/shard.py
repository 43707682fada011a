"""Writing one shard of a Zarr array as it comes, and reading the bytes that a shard is made of.

The format is Zarr's `sharding_indexed` codec (Zarr v3 specification, "Sharding codec" version 1.0): encoded chunks one
after another, each followed by its CRC-32C, then an index of (offset, length) pairs in little-endian uint64 and its
CRC-32C. Zarr-Python itself
holds a shard in memory whole, and reads an existing one before it overwrites it.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import crc32c
import numcodecs
import numcodecs.blosc
import numpy as np
import numpy.typing as npt
import xxhash
from zarr.codecs import BloscCodec, Crc32cCodec

from hyperslab.data.chunks import ABSENT, CRC_BYTES
from hyperslab.data.files import file_digest, sync
from hyperslab.data.recipe import ArrayPlan

COMPRESSORS = (BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle"), Crc32cCodec())
"""How chunks are encoded; the checksum lets whoever reads a single chunk see that it is what was written."""


def fill_value(plan: ArrayPlan) -> float | int:
    """What stands for a place without a value: NaN, or the smallest integer."""
    return float("nan") if plan.is_float else int(np.iinfo(plan.dtype).min)


class ShardWriter:
    """Writes the shard of one part of one array: rows are appended, chunks are encoded as soon as they are full.

    The file appears under its name when all of it is on the disk, or not at all.
    """

    def __init__(self, path: Path, plan: ArrayPlan) -> None:
        self._path, self._plan = path, plan
        self._draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._draft.open("wb")
        self._digest = xxhash.xxh3_128()
        self._position = 0
        grid = (plan.shard_length // plan.chunk[0], *plan.tiles)
        self._index = np.full((*grid, 2), ABSENT, "<u8")
        self._next = 0
        self._chunk = np.empty(plan.chunk, plan.dtype)
        self._waiting: npt.NDArray[Any] = np.empty((0, *plan.shape[1:]), plan.dtype)
        self._codec = numcodecs.Blosc(cname="lz4", clevel=5, shuffle=numcodecs.Blosc.BITSHUFFLE, blocksize=0)
        # Blosc's own threads put the blocks of a chunk in the order in which they end: other bytes every time.
        numcodecs.blosc.use_threads = False

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Add rows along the first dimension; shape (row, *rest), of the array's type."""
        if len(self._waiting):
            rows = np.concatenate([self._waiting, rows])
        length = self._plan.chunk[0]
        whole = len(rows) // length * length
        for start in range(0, whole, length):
            self._write_row(rows[start : start + length])
        self._waiting = rows[whole:].copy()

    def close(self) -> str:
        """Write what waits, the index, and give the file its name.

        Returns
        -------
        str
            The digest of the file, as `file_digest` gives it.
        """
        if len(self._waiting):
            self._write_row(self._waiting)
        index = self._index.tobytes()
        self._write_checked(index)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._draft.replace(self._path)
        sync(self._path.parent)
        return self._digest.hexdigest()

    def _write_row(self, rows: npt.NDArray[Any]) -> None:
        """Encode one row of chunks, as many as there are tiles of space; the last one may lack rows."""
        chunk, plan = self._chunk, self._plan
        for place in np.ndindex(*plan.tiles):
            piece = rows[
                (slice(None), *(slice(n * size, (n + 1) * size) for n, size in zip(place, plan.chunk[1:], strict=True)))
            ]
            if piece.shape != chunk.shape:
                chunk.fill(fill_value(plan))
            chunk[tuple(slice(0, size) for size in piece.shape)] = piece
            start = self._position
            self._write_checked(self._codec.encode(chunk))
            self._index[(self._next, *place)] = (start, self._position - start)
        self._next += 1

    def _write_checked(self, data: bytes) -> None:
        """Write bytes and their CRC-32C."""
        self._write(data)
        self._write(crc32c.crc32c(data).to_bytes(CRC_BYTES, "little"))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._position += len(data)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave nothing behind that was not closed."""
        self._file.close()
        self._draft.unlink(missing_ok=True)


def reread_digest(path: Path) -> str:
    """Digest of a file as the disk gives it back, past the memory that still holds what was written."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
    return file_digest(path)
