"""Raw files, a finished store and the samples folder, for all tests."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import xarray as xr

from hyperslab.data import staging
from hyperslab.data.clock import Clock
from hyperslab.data.config import DataSettings
from hyperslab.data.frames import find_segments
from hyperslab.data.recipe import Recipe
from hyperslab.data.sources import source_of
from hyperslab.data.sources.index import Axis, Channel, Index
from hyperslab.data.splits import Splits
from hyperslab.data.store import shard_path

# No deadline: the machine is shared. Derandomised: a run that failed fails again.
hypothesis.settings.register_profile("hyperslab", deadline=None, derandomize=True)
hypothesis.settings.load_profile("hyperslab")

UNITS = {"t2m": "K", "msl": "Pa", "t": "K", "z": "m**2 s**-2"}


def make_dataset(
    *,
    variables: Sequence[str] = ("t2m", "msl"),
    start: str = "2001-01-01T00",
    step_hours: int = 6,
    frames: int = 40,
    rows: int = 3,
    columns: int = 4,
    levels: Sequence[float] = (),
    seed: int = 0,
) -> xr.Dataset:
    """An ERA5-like dataset of noise: north-up, eastward round the globe, with `levels` where given."""
    rng = np.random.default_rng(seed)
    time = np.datetime64(start, "ns") + np.arange(frames) * np.timedelta64(step_hours, "h")
    coords: dict[str, tuple[str, object, dict[str, str]]] = {
        "time": ("time", time, {"standard_name": "time"}),
        "latitude": ("latitude", np.linspace(90, -90, rows), {"units": "degrees_north"}),
        "longitude": ("longitude", np.arange(columns) * 360 / columns, {"units": "degrees_east"}),
    }
    dims, shape = ["time", "latitude", "longitude"], [frames, rows, columns]
    if levels:
        coords["pressure_level"] = ("pressure_level", np.asarray(levels, float), {"units": "hPa"})
        dims.insert(1, "pressure_level")
        shape.insert(1, len(levels))
    fields = {
        name: (dims, rng.normal(280, 10, shape).astype(np.float32), {"units": UNITS.get(name, "1")})
        for name in variables
    }
    return xr.Dataset(fields, coords=coords)


def write_netcdf(path: Path, **options: Any) -> Path:
    """Write the dataset that `make_dataset` makes of these options as a netCDF file."""
    make_dataset(**options).to_netcdf(path)
    return path


def make_index(**options: Any) -> Index:
    """An index without files: 40 six-hourly frames of two channels on 3 x 4 points, but for what is asked for."""
    time = options.pop("time", 6 * 3600 * np.arange(40))
    clock = options.pop("clock", Clock())
    segment = options.pop("segment", None)
    fields: dict[str, Any] = {
        "source": "era5",
        "clock": clock,
        "time": tuple(int(value) for value in time),
        "segment": tuple(int(value) for value in (find_segments(time, clock).ids if segment is None else segment)),
        "channels": tuple(Channel(name=name, units=UNITS[name], long_name=name) for name in ("msl", "t2m")),
        "space": (
            Axis(name="latitude", units="degrees_north", values=(90.0, 0.0, -90.0)),
            Axis(name="longitude", units="degrees_east", values=(0.0, 90.0, 180.0, 270.0)),
        ),
        "files": (),
    }
    return Index(**{**fields, **options})


def make_store_recipe(
    files: Sequence[Path], splits: dict[str, tuple[int, int]], shard_length: int = 16, **options: Any
) -> Recipe:
    """The recipe of a store of these files, cut as asked to the frame."""
    settings = DataSettings(files=[str(file) for file in files])
    index = source_of("era5").scan([str(file) for file in files], settings)
    ranges: Splits = {name: (bounds,) for name, bounds in splits.items()}
    return Recipe(
        index=index,
        shard_length=shard_length,
        splits=ranges,
        settings=settings.model_dump(mode="json"),
        **options,
    )


def stage(path: Path, recipe: Recipe) -> Path:
    """A finished store of that recipe."""
    staging.create(path, recipe)
    for part in staging.unfinished_parts(path, recipe):
        staging.write_part(path, part)
    staging.finalise(path)
    return path


def shard_of(path: Path, part: int) -> Path:
    """The file that holds a part of a store's fields."""
    return shard_path(path, "values", 4, part)


@pytest.fixture
def store_recipe(tmp_path: Path) -> Recipe:
    """40 six-hourly frames in three parts of 16, 16 and 8; training ends inside the second."""
    raw = write_netcdf(tmp_path / "raw.nc")
    return make_store_recipe([raw], {"train": (0, 24), "validation": (24, 32), "test": (32, 40)})


@pytest.fixture
def finished_store(tmp_path: Path, store_recipe: Recipe) -> Path:
    """The finished store of `store_recipe`; its raw file is `raw.nc` beside it."""
    return stage(tmp_path / "store", store_recipe)


@pytest.fixture
def shared_samples() -> Path:
    """The folder of real sample files; the test is skipped where it is absent."""
    beside = Path(__file__).parents[2] / "shared"
    folder = Path(os.environ.get("HYPERSLAB_SHARED", beside)) / "samples"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set HYPERSLAB_SHARED to the folder that holds samples/")
    return folder
