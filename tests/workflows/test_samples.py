"""Real files, from raw to a finished experiment."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from hyperslab.data.store import open_store
from hyperslab.data.verify import verify
from tests.workflows import harness

pytestmark = pytest.mark.shared

SMALL = {
    "model": {"width": 16, "depth": 1, "heads": 2},
    "train": {"steps": 4, "batch": 4, "validate_every": 4, "validation_windows": 4},
    "evaluate": {"rollout": 1},
}


def run_sample(folder: Path, files: list[Path], **sections: Any) -> Path:
    """Run a short campaign over sample files, and check all that must hold whatever they are."""
    content = {**SMALL, **sections}
    content["data"] = {
        "shard_mebibytes": 1,
        "files": [str(path) for path in files],
        **sections.get("data", {}),
    }
    file = harness.write_campaign(folder / "campaign.yaml", **content)
    directory = folder / "campaign"
    harness.run("run", file, "--dir", directory)
    assert list(verify(directory / "store")) == []
    rows = harness.skill_rows(directory)
    store = open_store(directory / "store")
    assert {row["channel"] for row in rows} == set(store.channels)
    forecasts = [row["rmse"] for row in rows if row["kind"] in ("forecast", "persistence")]
    assert all(np.isfinite(forecasts))
    assert {path.name for path in (directory / "report").iterdir()} == {
        "loss.png", "skill.png", "forecast.png", "skill.csv",
    }  # fmt: skip
    return directory


def test_new_cds_pressure_levels_with_gaps_of_a_year(shared_samples: Path, tmp_path: Path) -> None:
    raw = shared_samples / "era5" / "newcds_pl_reanalysis.nc"
    directory = run_sample(tmp_path, [raw], data={"test": 0.2, "validation": 0.2})
    store = open_store(directory / "store")
    with xr.open_dataset(raw) as dataset:
        levels = [f"{level:g}" for level in dataset.pressure_level.values]
        assert store.channels == tuple(f"{name}_{level}" for name in ("t", "u", "v", "z") for level in levels)
        # Frames an hour apart hang together; ten years hold 30 days, each of which is a segment of its own.
        apart = np.diff(dataset.valid_time.values) != np.timedelta64(1, "h")
        assert store.segment[-1] == apart.sum() == 29
        truth = dataset.u.sel(pressure_level=500).values
    channel = store.channels.index("u_500")
    np.testing.assert_array_equal(store.read(0, len(store.time))[:, channel], truth.astype(np.float32))


def test_old_cds_year_of_packed_hourly_fields_on_a_tiny_grid(shared_samples: Path, tmp_path: Path) -> None:
    raw = shared_samples / "era5" / "feedinlib_ERA5_example_data.nc"
    directory = run_sample(tmp_path, [raw])
    store = open_store(directory / "store")
    assert store.arrays["values"].shape == (8760, 9, 2, 3)
    assert store.cadence == "1 h"
    with xr.open_dataset(raw) as dataset:
        channel = store.channels.index("t2m")
        np.testing.assert_array_equal(store.read(0, len(store.time))[:, channel], dataset.t2m.values.astype(np.float32))


def test_two_variables_in_two_files(shared_samples: Path, tmp_path: Path) -> None:
    files = [shared_samples / "era5" / f"oggm_sel_era5_monthly_{name}.nc" for name in ("t2m", "prcp")]
    directory = run_sample(tmp_path, files)
    store = open_store(directory / "store")
    assert store.channels == ("t2m", "tp")
    assert store.cadence == "1 month"
    for file, name in zip(files, store.channels, strict=False):
        with xr.open_dataset(file) as dataset:
            channel = store.channels.index(name)
            np.testing.assert_array_equal(
                store.read(0, len(store.time))[:, channel], dataset[name].values.astype(np.float32)
            )
