"""Which compressor a store should have: bytes, and speed of one core, on values of the sciences it is made for.

    python benchmarks/compression.py [--megabytes 64]

A chunk is one frame, as in a store. Every codec gets the same chunks, one after another, without threads of its own.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nibabel
import numcodecs
import numcodecs.blosc
import numpy as np
import numpy.typing as npt
import xarray as xr

from hyperslab.data.sources.synthetic.archive import Order
from hyperslab.data.sources.synthetic.simulate import simulate

Frames = list[npt.NDArray[np.float32]]
SHUFFLES = {
    "": numcodecs.Blosc.NOSHUFFLE,
    " shuffle": numcodecs.Blosc.SHUFFLE,
    " bitshuffle": numcodecs.Blosc.BITSHUFFLE,
}
CODECS: dict[str, numcodecs.abc.Codec] = {
    **{
        f"blosc {name} {level}{shuffle}": numcodecs.Blosc(cname=name, clevel=level, shuffle=kind)
        for name, level in (("lz4", 1), ("lz4", 5), ("zstd", 1), ("zstd", 3))
        for shuffle, kind in SHUFFLES.items()
    },
    "zstd 3 (zarr's own)": numcodecs.Zstd(level=3),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64, help="values of each kind")
    size = parser.parse_args().megabytes * 10**6
    numcodecs.blosc.use_threads = False
    with tempfile.TemporaryDirectory() as folder:
        for kind, read in (("era5", weather), ("fmri", brains)):
            out = Path(folder) / kind
            form = {"era5": "cds", "fmri": "nifti"}[kind]
            simulate(kind, Order(out=out, size_bytes=size // 2, seed=0, form=form, workers=2))
            table(kind, read(out, size))


def weather(folder: Path, size: int) -> Frames:
    """Frames of all variables."""
    with xr.open_dataset(next(folder.glob("era5_pl_*.nc"))) as dataset:
        count = max(1, size // sum(4 * variable[0].size for variable in dataset.data_vars.values()))
        fields = [variable[:count].values for variable in dataset.data_vars.values()]
    return [np.ascontiguousarray(np.stack(frame), np.float32) for frame in zip(*fields, strict=True)]


def brains(folder: Path, size: int) -> Frames:
    """Volumes of a run."""
    image = nibabel.load(next(folder.rglob("*_bold.nii.gz")))
    volumes = np.moveaxis(np.asarray(image.dataobj, np.float32), -1, 0)
    return [np.ascontiguousarray(volume) for volume in volumes[: max(1, size // volumes[0].nbytes)]]


def table(kind: str, frames: Frames) -> None:
    """Print the table of one kind."""
    total = sum(frame.nbytes for frame in frames)
    title = f"{kind}: {len(frames)} frames of {frames[0].nbytes / 1e6:.2f} MB"
    print(f"\n{title:40}{'ratio':>8}{'write MB/s':>12}{'read MB/s':>11}")
    for name, codec in CODECS.items():
        encoded = [codec.encode(frame) for frame in frames]
        write = seconds(lambda codec=codec: [codec.encode(frame) for frame in frames])  # type: ignore[misc]
        read = seconds(lambda codec=codec, encoded=encoded: [codec.decode(chunk) for chunk in encoded])  # type: ignore[misc]
        ratio = total / sum(len(chunk) for chunk in encoded)
        print(f"  {name:38}{ratio:8.2f}{total / write / 1e6:12.0f}{total / read / 1e6:11.0f}")


def seconds(work: Callable[[], object]) -> float:
    """Median of three runs, in seconds of the processor."""
    taken = []
    for _ in range(3):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
