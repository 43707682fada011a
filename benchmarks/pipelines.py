"""Random samples from the shards of one store, by everything that can read them: why Hyperslab has a reader of its own.

One thread of the caller; libraries that bring threads of their own are held to `--threads`. A sample is a window of
frames, whole or a quarter of space, in memory as float32.

    python benchmarks/pipelines.py STORE [--frames 2] [--seconds 3] [--threads 1]

Beside Hyperslab: `pip install zarrs==0.2.3 tensorstore==0.1.86 obstore==0.12.1`. What is not installed is left out.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import zarr

from hyperslab.data import chunks
from hyperslab.data.chunks import Shard
from hyperslab.data.store import Store, open_store
from hyperslab.data.tiles import make_tile

Read = Callable[[int, int, tuple[slice, ...]], np.ndarray]


Make = Callable[[Store, int], Read]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--frames", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    store = open_store(chosen.store)
    readers: dict[str, Make] = {"hyperslab": own, "zarr-python": zarr_python}
    others: dict[str, Make] = {"zarrs": zarrs, "tensorstore": tensorstore, "obstore": obstore}
    readers |= {name: make for name, make in others.items() if importlib.util.find_spec(name)}
    readers["np.memmap, not compressed"] = memmap
    whole, quarter = (make_tile(store.frame_shape[1:], (parts, 1), 0).own for parts in (1, 4))
    print(f"{'':28}{'whole/s':>9}{'MB/s':>8}{'quarter/s':>11}{'MB/s':>8}")
    expected = store.read(5, 5 + chosen.frames)
    for name, make in readers.items():
        read = make(store, chosen.threads)
        np.testing.assert_array_equal(read(5, 5 + chosen.frames, whole), expected)
        line = f"{name:28}"
        for space, width in ((whole, 9), (quarter, 11)):
            count, values = speed(read, len(store.time), chosen.frames, space, chosen.seconds)
            line += f"{count:{width}.0f}{values / 1e6:8.0f}"
        print(line, flush=True)


def speed(read: Read, total: int, frames: int, space: tuple[slice, ...], seconds: float) -> tuple[float, float]:
    """Samples, and bytes of values, a second."""
    draw = np.random.default_rng(0)
    for warm in (True, False):
        count, size, began = 0, 0, time.perf_counter()
        while (taken := time.perf_counter() - began) < (seconds / 3 if warm else seconds):
            start = int(draw.integers(0, total - frames + 1))
            size += read(start, start + frames, space).nbytes
            count += 1
    return count / taken, size / taken


def own(store: Store, _threads: int) -> Read:
    """Hyperslab's reader, always in one thread."""
    return store.read


def zarr_python(store: Store, threads: int) -> Read:
    """Zarr-Python's own pipeline."""
    zarr.config.set({"threading.max_workers": threads, "async.concurrency": max(threads, 1)})
    array = zarr.open_group(store.path, mode="r")["values"]
    return lambda start, stop, space: np.asarray(array[(slice(start, stop), slice(None), *space)])


def zarrs(store: Store, threads: int) -> Read:
    """The pipeline of zarrs, under Zarr-Python."""
    import zarrs  # noqa: F401

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "threading.max_workers": threads})
    array = zarr.open_group(store.path, mode="r")["values"]
    zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"})
    return lambda start, stop, space: np.asarray(array[(slice(start, stop), slice(None), *space)])


def tensorstore(store: Store, threads: int) -> Read:
    """Tensorstore."""
    import tensorstore

    array = tensorstore.open(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(store.path / "values")}},
        context=tensorstore.Context({"data_copy_concurrency": {"limit": threads}}), open=True, read=True,
    ).result()  # fmt: skip
    return lambda start, stop, space: array[(slice(start, stop), slice(None), *space)].read().result()


def obstore(store: Store, _threads: int) -> Read:
    """Hyperslab's reader, with obstore to fetch the bytes."""
    import obstore

    root = obstore.store.LocalStore(str(store.path))

    class Fetched(Shard):
        def read_into(self, buffer: memoryview, start: int) -> int:
            name = self.file.relative_to(store.path).as_posix()
            buffer[:] = obstore.get_range(root, name, start=start, length=len(buffer))
            return len(buffer)

    def read(start: int, stop: int, space: tuple[slice, ...]) -> np.ndarray:
        with mock.patch.object(chunks, "Shard", Fetched):
            return other.read(start, stop, space)

    other = open_store(store.path)
    return read


def memmap(store: Store, _threads: int) -> Read:
    """The same values, not compressed, copied out of mapped memory: what no store can beat."""
    path = store.path.parent / "values.raw"
    shape = (len(store.time), *store.frame_shape)
    if not path.exists():
        raw = np.memmap(path, np.float32, "w+", shape=shape)
        for start in range(0, shape[0], 32):
            raw[start : start + 32] = store.read(start, min(start + 32, shape[0]))
        raw.flush()
    raw = np.memmap(path, np.float32, "r", shape=shape)
    return lambda start, stop, space: np.array(raw[(slice(start, stop), slice(None), *space)])


if __name__ == "__main__":
    main()
