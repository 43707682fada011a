"""How fast an archive is staged, beside its peers and its floor, and how cost and memory grow with its size.

Every figure is the wall time of a whole command, as the shell sees it: `hyperslab stage`, a script of plain
`xarray.open_mfdataset(...).to_zarr(...)` into shards of the same size, and `anemoi-datasets create` in an environment
of its own. The floor is the slower of two things done alone by as many processes as staging has: decoding the raw files
with netCDF4, and compressing the same values with Blosc and writing them to the disk.

    python benchmarks/staging.py [--size 2GB] [--pairs 3] [--anemoi VENV] [--growth 1GB 8GB] [--folder DIR]

Sizes are those of the netCDF files; deflated as they are, they hold about 2.3 times as many bytes of float32 values.
Archives that lie in `--folder` from an earlier run are taken again.

`--anemoi` names a virtual environment that holds anemoi-datasets (it pins zarr 2): `python3.11 -m venv VENV &&
VENV/bin/pip install 'anemoi-datasets[create]==0.5.47'`. It gets the archive in one file.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from operator import truediv as divide
from pathlib import Path

import numcodecs
import numcodecs.blosc
import numpy as np
import psutil
import xarray as xr

from hyperslab.data.sources.synthetic.archive import Order
from hyperslab.data.sources.synthetic.era5 import write
from hyperslab.workflows.archives import parse_size

WORKERS = 2
SHARD_MEBIBYTES = 64
XARRAY = """
import sys, xarray as xr
*files, target, shard_bytes = sys.argv[1:]
dataset = xr.open_mfdataset(files, combine="by_coords", data_vars="minimal", chunks={})
encoding, chunks = {}, {}
for name, variable in dataset.data_vars.items():
    time, *rest = variable.shape
    frames = max(1, int(shard_bytes) // (4 * variable[0].size))
    encoding[name] = {"dtype": "float32", "chunks": (1, *rest), "shards": (frames, *rest)}
    for key in ("scale_factor", "add_offset", "_FillValue", "missing_value"):
        variable.encoding.pop(key, None)
    chunks[variable.dims[0]] = frames
dataset.chunk(chunks).drop_encoding().to_zarr(target, encoding=encoding, zarr_format=3, consolidated=False)
"""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="2GB", help="bytes of the netCDF files")
    parser.add_argument("--pairs", type=int, default=3, help="rounds in which each is measured once")
    parser.add_argument("--anemoi", type=Path, help="environment that holds anemoi-datasets")
    parser.add_argument("--growth", nargs="*", default=[], help="further sizes, staged once each")
    parser.add_argument("--folder", type=Path, help="where the archives stay; nowhere where absent")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        compare(folder, parse_size(chosen.size, "--size"), chosen.pairs, chosen.anemoi)
        if chosen.growth:
            grow(folder, [parse_size(size, "--growth") for size in chosen.growth], chosen.pairs)


def make_archive(folder: Path, size_bytes: int) -> tuple[list[Path], int]:
    """Monthly netCDF files of about so many bytes; the files, and the bytes of their values in float32."""
    if not folder.exists():
        draft = folder.with_suffix(".draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        write(Order(out=draft, size_bytes=size_bytes, seed=0, form="cds", workers=WORKERS, grid_degrees=1.0))
        draft.rename(folder)
    files = sorted(folder.glob("era5_pl_*.nc"))
    total = 0
    for path in files:
        with xr.open_dataset(path) as dataset:
            total += sum(4 * variable.size for variable in dataset.data_vars.values() if variable.ndim > 2)
    return files, total


def compare(folder: Path, size_bytes: int, pairs: int, anemoi: Path | None) -> None:
    """Print the table of throughputs."""
    files, total = make_archive(folder / f"raw-{size_bytes}", size_bytes)
    disk = sum(path.stat().st_size for path in files)
    global _held
    _held = (files[0], [np.ascontiguousarray(frame) for block in _values(files[0]) for frame in block])
    print(f"{len(files)} netCDF files, {disk / 1e9:.2f} GB on disk, {total / 1e9:.2f} GB of float32 values")
    if anemoi:
        join(files)
    work: dict[str, Callable[[Path], list[str] | None]] = {
        "hyperslab stage": lambda target: hyperslab(files, target),
        "xarray open_mfdataset, to_zarr": lambda target: [
            sys.executable, "-c", XARRAY, *map(str, files), str(target), str(SHARD_MEBIBYTES << 20)
        ],
        "floor: decode": lambda _: decode(files),
        "floor: compress and write": lambda target: compress(files, target),
    }  # fmt: skip
    if anemoi:
        work["anemoi-datasets create"] = lambda target: anemoi_command(anemoi, files, target)
    seconds: dict[str, list[float]] = {name: [] for name in work}
    memory: dict[str, list[float]] = {name: [] for name in work}
    part_seconds_of = []
    for _ in range(pairs):
        for name, start in work.items():
            taken, peak = measure(start, folder / "out")
            seconds[name].append(taken)
            memory[name].append(peak)
            if name == "hyperslab stage":
                part_seconds_of.append(part_seconds(folder / "out" / "c" / "store"))
            print(f"  {name}: {taken:.1f} s", file=sys.stderr, flush=True)
    own = seconds["hyperslab stage"]
    print(f"\n{'':34}{'seconds':>9}{'MB/s':>8}{'peak MiB':>10}{'hyperslab is faster by':>24}")
    for name, values in seconds.items():
        ratio = statistics.median(b / a for a, b in zip(own, values, strict=True))
        median = statistics.median(values)
        print(f"{name:34}{median:9.1f}{total / median / 1e6:8.0f}{max(memory[name]):10.0f}{ratio:24.2f}")
    floors = [max(pair) for pair in zip(seconds["floor: decode"], seconds["floor: compress and write"], strict=True)]
    print(f"share of the floor, the whole command: {statistics.median(map(divide, floors, own)):.0%}")
    share = statistics.median(map(divide, floors, part_seconds_of))
    print(f"share of the floor, its parts alone ({statistics.median(part_seconds_of):.1f} s): {share:.0%}")


def grow(folder: Path, sizes: list[int], pairs: int) -> None:
    """Print how time and memory grow with the archive."""
    print(
        f"\n{'GB on disk':>11}{'GB of values':>14}{'command s':>11}{'parts s':>9}{'parts s a GB':>14}{'peak MiB':>10}"
    )
    archives = [make_archive(folder / f"raw-{size}", size) for size in sizes]
    target = folder / "out"
    for files, total in archives:
        commands, parts, peaks = [], [], []
        for _ in range(pairs):
            taken, peak = measure(lambda out, files=files: hyperslab(files, out), target)  # type: ignore[misc]
            commands.append(taken)
            parts.append(part_seconds(target / "c" / "store"))
            peaks.append(peak)
        disk, median = sum(path.stat().st_size for path in files) / 1e9, statistics.median(parts)
        print(
            f"{disk:11.2f}{total / 1e9:11.2f}{statistics.median(commands):11.1f}{median:9.1f}{median / disk:12.2f}"
            f"{max(peaks):10.0f}"
        )
    shutil.rmtree(target)


def part_seconds(store: Path) -> float:
    """Seconds that all parts took, by the times of their records: without the start of the command and its workers."""
    moments = sorted(path.stat().st_mtime for path in (store / ".hyperslab" / "parts").glob("*.json"))
    rest = len(moments) - WORKERS
    # The first parts of all workers are recorded at about the same time: from then on the others were written.
    return (moments[-1] - moments[WORKERS - 1]) * len(moments) / rest


def hyperslab(files: list[Path], target: Path) -> list[str]:
    """The command that stages the files into a campaign's directory."""
    target.mkdir()
    campaign = target / "campaign.yaml"
    campaign.write_text(f"data: {{files: ['{files[0].parent}/era5_pl_*.nc'], shard_mebibytes: {SHARD_MEBIBYTES}}}\n")
    return [sys.executable, "-m", "hyperslab.workflows.cli", "stage", str(campaign), "--dir", str(target / "c")]


def anemoi_command(environment: Path, files: list[Path], target: Path) -> list[str]:
    """The command that makes an anemoi dataset of the files."""
    target.mkdir()
    with xr.open_dataset(files[0]) as first, xr.open_dataset(files[-1]) as last:
        name = "valid_time" if "valid_time" in first.dims else "time"
        start, end = first[name].values[0], last[name].values[-1]
        hours = int((first[name].values[1] - start) / np.timedelta64(1, "h"))
    recipe = target / "recipe.yaml"
    recipe.write_text(
        f"dates: {{start: '{str(start)[:19]}', end: '{str(end)[:19]}', frequency: {hours}h}}\n"
        f"input: {{netcdf: {{path: '{join(files)}'}}}}\n"
    )
    return [str(environment / "bin" / "anemoi-datasets"), "create", str(recipe), str(target / "out.zarr")]


def join(files: list[Path]) -> Path:
    """The same archive in one file: over several, anemoi-datasets opens them in threads and netCDF-C crashes."""
    path = files[0].parent / "joined.nc"
    if not path.exists():
        draft = path.with_suffix(".draft")
        with xr.open_mfdataset(files, combine="by_coords", data_vars="minimal", chunks={}) as dataset:
            fields = {name: variable for name, variable in dataset.data_vars.items() if variable.ndim > 2}
            encoding = {
                name: {"zlib": True, "complevel": 1, "shuffle": True, "chunksizes": (1, *variable.shape[1:])}
                for name, variable in fields.items()
            }
            dataset.drop_encoding().to_netcdf(draft, encoding=encoding)
        draft.rename(path)
    return path


def decode(files: list[Path]) -> None:
    """Read all values of the files, in as many processes as staging has."""
    with ProcessPoolExecutor(WORKERS) as pool:
        list(pool.map(_decode, files))


def _decode(path: Path) -> int:
    return sum(block.nbytes for block in _values(path))


def _values(path: Path) -> Iterator[np.ndarray]:
    import netCDF4

    with netCDF4.Dataset(path) as dataset:
        for variable in dataset.variables.values():
            if variable.ndim > 2:
                for start in range(0, variable.shape[0], 16):
                    yield np.asarray(variable[start : start + 16], np.float32)


def compress(files: list[Path], target: Path) -> None:
    """Compress and write as many values as the files hold, in as many processes as staging has.

    The values of one file are compressed again and again: reading them is no part of what is measured.
    """
    target.mkdir()
    with ProcessPoolExecutor(WORKERS) as pool:
        list(pool.map(_compress, files, [target] * len(files)))


def _compress(path: Path, target: Path) -> None:
    numcodecs.blosc.use_threads = False
    codec = numcodecs.Blosc(cname="lz4", clevel=5, shuffle=numcodecs.Blosc.BITSHUFFLE)
    sample, frames = _held
    scale = path.stat().st_size / sample.stat().st_size
    with (target / path.name).open("wb") as file:
        for number in range(round(len(frames) * scale)):
            file.write(codec.encode(frames[number % len(frames)]))
        file.flush()
        os.fsync(file.fileno())


_held: tuple[Path, list[np.ndarray]] = (Path(), [])
"""Frames for the processes that compress; they inherit them."""


def measure(start: Callable[[Path], list[str] | None], target: Path) -> tuple[float, float]:
    """Wall seconds, and the most memory (MiB, shared pages counted once) of a command or of what a function does."""
    shutil.rmtree(target, ignore_errors=True)
    began = time.monotonic()
    stop, peak = threading.Event(), [0.0]
    command = None
    watcher = threading.Thread(target=_watch, args=(stop, peak, target))
    watcher.start()
    try:
        command = start(target)
        if command is not None:
            done = subprocess.run(command, capture_output=True, text=True, env=_environment())
            if done.returncode:
                raise RuntimeError(f"ended with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    finally:
        taken = time.monotonic() - began
        stop.set()
        watcher.join()
    return taken, peak[0]


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _watch(stop: threading.Event, peak: list[float], target: Path) -> None:
    """Note the most memory of all processes of a command, those that it let go of included."""
    while not stop.wait(1):
        own = set(psutil.Process().children(recursive=True))
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(str(target) in word for word in process.cmdline()):
                    own |= {process, *process.children(recursive=True)}
        total = 0
        for process in own:
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        peak[0] = max(peak[0], total / 2**20)


if __name__ == "__main__":
    main()
