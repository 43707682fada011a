"""How fast samples are read, beside peers and the floor: warm and cold, windows of 2 and 8 frames, whole and a quarter.

All read the same values of synthetic ERA5 at random windows, with as many workers and samples in a batch:

- `hyperslab`: its loader; samples come normalised, in one tensor a batch;
- `xbatcher + DataLoader`: xbatcher's PyTorch dataset over `xarray.open_zarr`, of the store itself and of a Zarr
  without shards whose chunks are the same; samples come as they are;
- `anemoi-datasets`: `open_dataset(...)[i : i + frames]` in as many processes, in an environment of its own, over a
  dataset that `anemoi-datasets create` made of the same files; samples come as they are;
- the floor: the chunks of the same windows fetched, and decompressed into memory, by the codec alone.

    python benchmarks/reading.py [--size 300MB] [--seconds 4] [--pairs 3] [--workers 2] [--anemoi VENV] [--folder DIR]

xbatcher is needed beside Hyperslab (`pip install xbatcher==0.4.0`). `--anemoi` as in benchmarks/staging.py. Cold:
before each measurement the system forgets the files of all of them.
"""

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import xarray as xr
import xbatcher
import zarr
from staging import SHARD_MEBIBYTES, anemoi_command, hyperslab, make_archive
from torch.utils.data import DataLoader, RandomSampler
from xbatcher.loaders.torch import MapDataset

from hyperslab.data.ahead import Reading
from hyperslab.data.loader import Loader, Sampling, windows_of
from hyperslab.data.order import samples_at
from hyperslab.data.shard import COMPRESSORS
from hyperslab.data.speed import decode_only, forget, measure
from hyperslab.data.store import Store, open_store
from hyperslab.data.tiles import Tile, make_tile
from hyperslab.workflows.archives import parse_size

BATCH = 8
ANEMOI = """
import sys, time
import numpy as np
from anemoi.datasets import open_dataset
path, words = sys.argv[1], sys.argv[2:]
frames, rows, columns, height, width, seconds, seed = map(int, words)
dataset = open_dataset(path)
draw = np.random.default_rng(seed)
dataset[0:frames]
count, began = 0, time.perf_counter()
while time.perf_counter() - began < seconds:
    start = int(draw.integers(0, len(dataset) - frames + 1))
    block = dataset[start : start + frames]
    if (rows, columns) != (height, width):
        block = np.ascontiguousarray(block.reshape(*block.shape[:3], height, width)[..., :rows, :columns])
    count += 1
print(count / (time.perf_counter() - began))
"""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="300MB", help="bytes of the netCDF files that are staged")
    parser.add_argument("--seconds", type=float, default=4.0, help="about how long each is measured")
    parser.add_argument("--pairs", type=int, default=3, help="rounds in which each is measured once")
    parser.add_argument("--workers", type=int, default=2, help="threads or processes that read")
    parser.add_argument("--anemoi", type=Path, help="environment that holds anemoi-datasets")
    parser.add_argument("--folder", type=Path, help="where the archives and stores stay; nowhere where absent")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        Comparison(chosen, chosen.folder or Path(temporary)).run()


class Comparison:
    """The same samples, read by all."""

    def __init__(self, chosen: argparse.Namespace, folder: Path) -> None:
        self.chosen = chosen
        size = parse_size(chosen.size, "--size")
        self.files, _ = make_archive(folder / f"raw-{size}", size)
        self.store = self._staged(folder / f"reading-{size}")
        self.plain = self._plain(folder / f"reading-{size}" / "plain.zarr")
        self.anemoi = self._anemoi(folder / f"reading-{size}" / "anemoi") if chosen.anemoi else None

    def _staged(self, folder: Path) -> Store:
        if not folder.exists():
            subprocess.run(hyperslab(self.files, folder), check=True, stdout=subprocess.DEVNULL)
        return open_store(folder / "c" / "store")

    def _plain(self, path: Path) -> Path:
        """The store's values in a Zarr without shards."""
        if not path.exists():
            values = zarr.open_group(self.store.path, mode="r")["values"]
            copy = zarr.create_group(path.with_suffix(".draft"), overwrite=True).create_array(
                "values",
                shape=values.shape,
                chunks=values.chunks,
                dtype=values.dtype,
                compressors=COMPRESSORS[0],
                dimension_names=values.metadata.dimension_names,
            )
            step = max(1, (SHARD_MEBIBYTES << 20) // (4 * values[0].size))
            for start in range(0, values.shape[0], step):
                copy[start : start + step] = values[start : start + step]
            path.with_suffix(".draft").rename(path)
        return path

    def _anemoi(self, folder: Path) -> Path:
        if not folder.exists():
            draft = folder.with_suffix(".draft")
            subprocess.run(anemoi_command(self.chosen.anemoi, self.files, draft), check=True, stdout=subprocess.DEVNULL)
            draft.rename(folder)
        return folder / "out.zarr"

    def run(self) -> None:
        """Measure, round after round, and print."""
        print(f"{len(self.store.time)} frames of {' x '.join(map(str, self.store.frame_shape))}, "
              f"{self.chosen.workers} workers, {BATCH} samples in a batch")  # fmt: skip
        print(
            f"{'':24}{'samples/s':>11}{'of the floor':>14}{'xbatcher, store':>18}{'xbatcher, plain':>18}{'anemoi':>9}"
        )
        for cold in (False, True):
            for frames in (2, 8):
                for parts in (1, 4):
                    self._row(cold, frames, parts)
        whole, quarter = (self._stored_bytes(parts) for parts in (1, 4))
        print(f"a quarter tile reads {quarter / whole:.1%} of the bytes of the whole")

    def _row(self, cold: bool, frames: int, parts: int) -> None:
        tile = make_tile(self.store.frame_shape[1:], (parts, 1), 0)
        peers: dict[str, Callable[[], float]] = {
            "xbatcher, store": lambda: self._xbatcher(self.store.path, frames, tile),
            "xbatcher, plain": lambda: self._xbatcher(self.plain, frames, tile),
        }
        if self.anemoi:
            peers["anemoi"] = lambda: self._open_dataset(frames, tile)
        own, floor, others = [], [], {name: [] for name in peers}  # type: ignore[var-annotated]
        for _ in range(self.chosen.pairs):
            taken = measure(self._loader(frames, tile), BATCH, self.chosen.seconds, cold=cold)
            speed = taken.samples / taken.seconds
            own.append(speed)
            floor.append(taken.floor_seconds / taken.seconds)
            for name, peer in peers.items():
                if cold:
                    for folder in filter(None, (self.store.path, self.plain, self.anemoi)):
                        forget(folder)
                others[name].append(speed / peer())
        title = f"{'cold' if cold else 'warm'}, {frames} frames, {'whole' if parts == 1 else 'quarter'}"
        cells = [f"{statistics.median(ratios):.1f}x" for ratios in others.values()] + ([] if self.anemoi else ["-"])
        print(f"{title:24}{statistics.median(own):11.0f}{statistics.median(floor):14.0%}"
              f"{cells[0]:>18}{cells[1]:>18}{cells[2]:>9}", flush=True)  # fmt: skip

    def _loader(self, frames: int, tile: Tile) -> Loader:
        sampling = Sampling(history=frames, lead=1, rollout=0)
        windows = windows_of(self.store, "train", sampling)
        return Loader(self.store, windows, sampling, tile=tile, reading=Reading(workers=self.chosen.workers))

    def _xbatcher(self, path: Path, frames: int, tile: Tile) -> float:
        with xr.open_zarr(path, chunks=None, consolidated=False) as dataset:
            values = dataset["values"].isel(dict(zip(self.store.space, tile.own, strict=True)))
            sizes = {name: frames if name == "frame" else size for name, size in values.sizes.items()}
            generator = xbatcher.BatchGenerator(values, sizes, input_overlap={"frame": frames - 1})
            data = MapDataset(generator)
            loader = DataLoader(
                data, batch_size=BATCH, sampler=RandomSampler(data, replacement=True, num_samples=10**6),
                num_workers=self.chosen.workers, multiprocessing_context="fork",
            )  # fmt: skip
            batches = iter(loader)
            next(batches)  # its processes have started
            count, began = 0, time.perf_counter()
            while time.perf_counter() - began < self.chosen.seconds:
                count += len(next(batches))
            speed = count / (time.perf_counter() - began)
            del batches, loader
        return speed

    def _open_dataset(self, frames: int, tile: Tile) -> float:
        rows, columns = (at.stop - at.start for at in tile.own)
        words = [frames, rows, columns, *tile.sizes, round(self.chosen.seconds)]
        command = [str(self.chosen.anemoi / "bin" / "python"), "-c", ANEMOI, str(self.anemoi), *map(str, words)]
        started = [
            subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for seed in range(self.chosen.workers)
        ]
        speed = 0.0
        for process in started:
            printed, complaint = process.communicate(timeout=120)
            if process.returncode:
                raise RuntimeError(complaint[-2000:])
            speed += float(printed.split()[-1])
        return speed

    def _stored_bytes(self, parts: int) -> int:
        loader = self._loader(2, make_tile(self.store.frame_shape[1:], (parts, 1), 0))
        return decode_only(loader, samples_at(0, np.arange(200), len(loader.windows)), BATCH)[0]


if __name__ == "__main__":
    main()
