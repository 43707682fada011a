"""The demo, whole: it is the first thing that a person runs."""

import re
from pathlib import Path

import pytest
import xarray as xr

from tests.workflows import harness


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_forecasts_winds_better_than_persistence(tmp_path: Path) -> None:
    done = harness.run("demo", "--dir", tmp_path / "winds")
    rows = harness.skill_rows(tmp_path / "winds")
    rmse = {(row["kind"], row["channel"], row["lead"]): row["rmse"] for row in rows}
    for channel in ("u", "v"):
        assert rmse["forecast", channel, 1] < rmse["persistence", channel, 1]
        assert rmse["climatology", channel, 1] is not None
        # The table shows the numbers of the file, climatology too.
        for kind in ("forecast", "persistence", "climatology"):
            assert f"{rmse[kind, channel, 1]:.4g}" in done.stdout
    assert re.search(r"hyperslab ui \S+winds", done.stdout)
    # No frame of the held-out years was seen in training.
    store = xr.open_zarr(tmp_path / "winds" / "store")
    [train], [test] = store.attrs["splits"]["train"], store.attrs["splits"]["test"]
    assert str(store.time.values[train[1] - 1])[:4] == "1989"
    assert str(store.time.values[test[0]])[:4] == "1991"


def test_the_winds_carry_the_values_of_the_original(shared_samples: Path) -> None:
    from importlib import resources

    with (
        resources.as_file(resources.files("hyperslab.workflows") / "demo" / "winds.nc") as path,
        xr.open_dataset(path) as copy,
        xr.open_dataset(shared_samples / "climate" / "monthly_navy_winds.cdf") as original,
    ):
        assert (copy.time.values == original.TIME.values).all()
        for name, source in (("u", "UWND"), ("v", "VWND")):
            # Rounded to 0.05 m/s: half of that, and a little for float32.
            assert abs(copy[name].values - original[source].values).max() <= 0.0251
