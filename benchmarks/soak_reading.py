"""Memory while a hundred thousand batches are read.

    python benchmarks/soak_reading.py [--batches 100000] [--every 10000]

Prints the memory of the process (resident set) as it goes. It stages a small archive of noise first.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import xarray as xr

from hyperslab.data import staging
from hyperslab.data.ahead import Reading
from hyperslab.data.config import DataSettings
from hyperslab.data.loader import Loader, Sampling, windows_of
from hyperslab.data.order import Order
from hyperslab.data.recipe import make_recipe
from hyperslab.data.sources import source_of
from hyperslab.data.store import Store, open_store


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=10_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder))
        sampling = Sampling(history=2, lead=1)
        windows = windows_of(store, "train", sampling)
        loader = Loader(store, windows, sampling, reading=Reading(workers=2))
        order = Order(seed=0, batch=4, windows=(windows,))
        process, began = psutil.Process(), time.monotonic()
        print(f"{'batches':>9}{'MiB':>8}{'seconds':>9}")
        for number, batch in enumerate(loader.training(order, 0, chosen.batches, range(4)), start=1):
            del batch
            if number % chosen.every == 0:
                taken = time.monotonic() - began
                print(f"{number:9}{process.memory_info().rss / 2**20:8.0f}{taken:9.0f}", flush=True)


def make_store(folder: Path) -> Store:
    """A store of 400 frames of noise, 4 channels on 32 x 64 points, in 25 shards."""
    time_axis = np.datetime64("2001-01-01", "ns") + np.arange(400) * np.timedelta64(6, "h")
    axes = {
        "time": time_axis,
        "latitude": ("latitude", np.linspace(87, -87, 32), {"units": "degrees_north"}),
        "longitude": ("longitude", np.arange(64) * 360 / 64, {"units": "degrees_east"}),
    }
    noise = np.random.default_rng(0).normal(size=(4, 400, 32, 64)).astype(np.float32)
    fields = {name: (("time", "latitude", "longitude"), noise[n], {"units": "1"}) for n, name in enumerate("abcd")}
    xr.Dataset(fields, axes).to_netcdf(folder / "raw.nc")
    settings = DataSettings(files=[str(folder / "raw.nc")], shard_mebibytes=0.5)
    recipe = make_recipe(source_of("era5").scan(settings.files, settings), settings)
    staging.create(folder / "store", recipe)
    for part in range(recipe.num_parts):
        staging.write_part(folder / "store", part)
    staging.finalise(folder / "store")
    return open_store(folder / "store")


if __name__ == "__main__":
    main()
