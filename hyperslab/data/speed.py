"""How fast a store is read, beside its floor: the same chunks fetched, and decompressed into memory."""

import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numcodecs.blosc
import numpy as np
import numpy.typing as npt
import torch

from hyperslab.data.ahead import Reading
from hyperslab.data.chunks import CRC_BYTES, ShardedArray
from hyperslab.data.frames import Ints
from hyperslab.data.loader import Hyperslab, Loader, Sampling, WindowLoader, windows_of
from hyperslab.data.order import samples_at
from hyperslab.data.points import PointLoader
from hyperslab.data.store import Store
from hyperslab.data.tiles import Tile


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What reading so many samples took."""

    samples: int
    seconds: float
    floor_seconds: float
    value_bytes: int
    """Bytes of the samples, in memory."""
    stored_bytes: int
    """Bytes of their chunks, on disk."""


def make_loader(
    store: Store, split: str, sampling: Sampling, tile: Tile | None, reading: Reading
) -> "Loader | PointLoader":
    """The loader of a store, dense or ragged."""
    windows = windows_of(store, split, sampling)
    if store.is_ragged:
        return PointLoader(store, windows, sampling, reading=reading)
    return Loader(store, windows, sampling, tile=tile, reading=reading)


def measure(loader: "Loader | PointLoader", batch: int, seconds: float, *, cold: bool = False, seed: int = 0) -> Speed:
    """Read random windows for about so long, once with the loader and once as the floor.

    Parameters
    ----------
    batch
        Samples in a batch.
    cold
        Whether to make the system forget the store's files first; only those of this machine can be.
    """
    total = len(loader.windows)
    count, taken = batch, 0.0
    while True:
        numbers = samples_at(seed, np.arange(count), total)
        if cold:
            forget(loader.store.path)
        value_bytes, taken = _timed(loader, numbers, batch)
        if taken >= seconds / 2:
            break
        count = max(2 * count, int(count * seconds / max(taken, 1e-3)) // batch * batch)
    if cold:
        forget(loader.store.path)
    stored, floor_seconds = decode_only(loader, numbers, batch)
    return Speed(
        samples=len(numbers), seconds=taken, floor_seconds=floor_seconds, value_bytes=value_bytes, stored_bytes=stored
    )


def needed_bytes(loader: "Loader | PointLoader", batch: int) -> int:
    """Memory that `measure` takes: at least three batches while it reads, and one for each thread of the floor."""
    job = loader.job(samples_at(0, np.arange(batch), len(loader.windows)))
    return max(3, loader.reading.workers) * job.size_bytes


def _timed(loader: WindowLoader[Any], numbers: Ints, batch: int) -> tuple[int, float]:
    began, value_bytes = time.perf_counter(), 0
    for read in loader.in_order(numbers.tolist(), batch):
        value_bytes += sum(held.nbytes for held in _tensors(read))
        del read
    return value_bytes, time.perf_counter() - began


def _tensors(batch: object) -> Iterator[torch.Tensor]:
    for name in ("inputs", "target", "position", "feature", "labels"):
        held = getattr(batch, name, None)
        if held is not None:
            yield held


def decode_only(loader: "Loader | PointLoader", numbers: Ints, batch: int) -> tuple[int, float]:
    """Fetch and decompress the chunks of some windows, in as many threads as a loader has.

    Each thread decompresses them one after another into memory of a batch's size, over and over.

    Returns
    -------
    tuple of int and float
        Bytes fetched, and the seconds that it took.
    """
    batches = [list(loader.hyperslabs(numbers[i : i + batch])) for i in range(0, len(numbers), batch)]
    # Batches of a ragged store differ in size: the largest decides.
    size = max(sum(_decoded_bytes(*hyperslab) for hyperslab in wanted) for wanted in batches)
    hyperslabs = [hyperslab for wanted in batches for hyperslab in wanted]
    shares = [hyperslabs[n :: loader.reading.workers] for n in range(loader.reading.workers)]
    memories = [np.ones(size, np.uint8) for _ in shares]
    with ThreadPoolExecutor(len(shares)) as pool:
        began = time.perf_counter()
        stored = sum(pool.map(_decode, shares, memories))
        return stored, time.perf_counter() - began


def _decode(hyperslabs: list[Hyperslab], memory: npt.NDArray[np.uint8]) -> int:
    stored, place = 0, 0
    for array, ranges in hyperslabs:
        size = math.prod(array.chunk) * array.dtype.itemsize
        for part, wanted in array.touched(*ranges):
            # From here one chunk at a time, from elsewhere all at once, as a loader reads.
            for some in ([numbers] for numbers in wanted) if array.is_local else [wanted]:
                for data in array.retrying(part, partial(_stored, array, part, some)):
                    place = place + size if place + 2 * size <= memory.nbytes else 0
                    numcodecs.blosc.decompress(memoryview(data)[:-CRC_BYTES], memory[place : place + size])
                    stored += len(data)
    return stored


def _stored(array: ShardedArray, part: int, wanted: list[tuple[int, ...]]) -> list[bytes]:
    """Chunks of a shard as they are stored."""
    return array.open_shard(part).fetch(wanted)


def _decoded_bytes(array: ShardedArray, ranges: tuple[slice, ...]) -> int:
    """Bytes of all chunks that a hyperslab touches."""
    return math.prod(array.chunk) * array.dtype.itemsize * sum(len(wanted) for _, wanted in array.touched(*ranges))


def forget(folder: Path) -> None:
    """Have the system drop the files of a folder from memory, as far as they lie on this machine."""
    for path in folder.rglob("*") if isinstance(folder, os.PathLike) else ():
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
