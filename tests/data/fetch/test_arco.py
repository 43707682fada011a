import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from hyperslab.data.fetch import arco
from hyperslab.data.fetch.arco import Arco
from hyperslab.data.fetch.download import Downloads
from hyperslab.data.fetch.manifest import opened
from hyperslab.data.fetch.plan import ArcoRequest
from hyperslab.data.fetch.rate import Rate
from hyperslab.errors import UserError
from tests.data.fetch.servers import Site


def dataset() -> xr.Dataset:
    """Six-hourly fields from 2000-01-28 to 2000-02-03."""
    rng = np.random.default_rng(0)
    time = np.datetime64("2000-01-28", "ns") + np.arange(28) * np.timedelta64(6, "h")
    shape = (28, 2, 5, 8)
    values = rng.normal(250, 10, shape).astype(np.float32)
    values[3, 0, 2, 2] = np.nan
    coords = {
        "time": time,
        "level": ("level", np.array([500, 850], np.int64), {"units": "hPa"}),
        "latitude": ("latitude", np.linspace(90, -90, 5), {"units": "degrees_north"}),
        "longitude": ("longitude", np.arange(8) * 45.0, {"units": "degrees_east"}),
    }
    dims = ("time", "level", "latitude", "longitude")
    return xr.Dataset(
        {
            "temperature": (dims, values, {"units": "K", "long_name": "Temperature"}),
            "surface_pressure": (("time", "latitude", "longitude"), values[:, 0] * 400, {"units": "Pa"}),
            "land_sea_mask": (("latitude", "longitude"), np.ones((5, 8), np.float32)),
        },
        coords=coords,
    )


@pytest.fixture
def zarr(tmp_path: Path) -> Path:
    dataset().to_zarr(tmp_path / "era5.zarr", zarr_format=2, consolidated=True)
    return tmp_path / "era5.zarr"


@pytest.fixture
def served(zarr: Path, site: Site) -> str:
    """URL of the Zarr on a web server."""
    site.files = {f"/era5.zarr/{p.relative_to(zarr)}": p.read_bytes() for p in zarr.rglob("*") if p.is_file()}
    return f"{site.url}/era5.zarr"


@pytest.fixture
def downloads(tmp_path: Path) -> Iterator[Downloads]:
    with opened(tmp_path / "out") as manifest:
        yield Downloads(tmp_path / "out", manifest, Rate(None), tries=3, patience_seconds=0.01)


def request(url: str | Path, **changes: object) -> Arco:
    content = {
        "archive": "arco",
        "url": str(url),
        "variables": ["temperature"],
        "start": "2000-01-30",
        "end": "2000-02-01",
    }
    return Arco(ArcoRequest.model_validate({**content, **changes}))


def fetch(archive: Arco, downloads: Downloads) -> list[Path]:
    items = archive.plan(downloads)
    for item in items:
        archive.get(item, downloads)
    return [downloads.out / item.name for item in items]


def test_a_part_of_a_zarr_is_copied_over_the_network_month_by_month(served: str, downloads: Downloads) -> None:
    paths = fetch(request(served, levels=[850]), downloads)
    assert [path.name for path in paths] == ["temperature_200001.nc", "temperature_200002.nc"]
    expected = dataset().temperature.sel(time=slice("2000-01-30", "2000-02-01"), level=[850])
    with xr.open_mfdataset(paths) as found:
        assert found.temperature.dims == expected.dims
        np.testing.assert_array_equal(found.temperature, expected)
        np.testing.assert_array_equal(found.time, expected.time)
        assert found.temperature.attrs["units"] == "K"
        assert found.level.values.tolist() == [850]


def test_hours_choose_frames(zarr: Path, downloads: Downloads) -> None:
    (path, _) = fetch(request(zarr, hours=[0, 12]), downloads)
    with xr.open_dataset(path) as found:
        assert found.time.dt.hour.values.tolist() == [0, 12, 0, 12]
        assert found.level.size == 2


def test_a_variable_without_levels_is_copied_as_it_is(zarr: Path, downloads: Downloads) -> None:
    (path, _) = fetch(request(zarr, variables=["surface_pressure"], levels=[500]), downloads)
    with xr.open_dataset(path) as found:
        assert found.surface_pressure.dims == ("time", "latitude", "longitude")


def test_missing_values_are_counted_in_the_record(zarr: Path, downloads: Downloads) -> None:
    fetch(request(zarr, start="2000-01-28", end="2000-01-28"), downloads)
    entry = downloads.manifest.finished("temperature_200001.nc")
    assert entry is not None
    assert entry["missing_values"] == 1


def test_frames_are_copied_some_at_a_time(zarr: Path, downloads: Downloads, monkeypatch: pytest.MonkeyPatch) -> None:
    # A frame has 2 x 5 x 8 x 4 = 320 bytes: three at a time.
    monkeypatch.setattr(arco, "_BLOCK_BYTES", 1000)
    paths = fetch(request(zarr), downloads)
    with xr.open_mfdataset(paths) as found:
        expected = dataset().temperature.sel(time=slice("2000-01-30", "2000-02-01"))
        np.testing.assert_array_equal(found.temperature, expected)


def test_a_network_that_fails_for_a_while_is_asked_again(served: str, site: Site, downloads: Downloads) -> None:
    archive = request(served, start="2000-01-30", end="2000-01-30")
    (item,) = archive.plan(downloads)
    real = arco._copy

    def failing(month: xr.DataArray, *rest: object) -> int:
        # The metadata are read by now, the values are not.
        site.failures = [503, 500]
        return real(month, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arco, "_copy", failing)
        archive.get(item, downloads)
    assert (downloads.out / item.name).exists()


def test_a_network_that_stays_away_is_named(served: str, site: Site, downloads: Downloads) -> None:
    archive = request(served)
    (item, _) = archive.plan(downloads)
    real = arco._copy

    def failing(month: xr.DataArray, *rest: object) -> int:
        site.failures = [503] * 1000
        return real(month, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arco, "_copy", failing)
        with pytest.raises(UserError, match="the transfer failed again and again"):
            archive.get(item, downloads)
    assert not (downloads.out / item.name).exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"variables": ["temprature"]}, "holds no 'temprature'; near it are temperature"),
        ({"variables": ["land_sea_mask"]}, "land_sea_mask has no time axis"),
        ({"levels": [500, 700]}, r"temperature has no level 700; it has \[500, 850\]"),
        (
            {"start": "2001-01-01", "end": "2001-01-02"},
            "no frame from 2001-01-01 to 2001-01-02; it reaches from 2000-01-28",
        ),
    ],
)
def test_what_the_zarr_does_not_hold_is_named(
    changes: dict[str, object], words: str, zarr: Path, downloads: Downloads
) -> None:
    with pytest.raises(UserError, match=words):
        request(zarr, **changes).plan(downloads)


@pytest.mark.parametrize("place", ["nowhere.zarr", "file.txt"])
def test_a_place_without_a_zarr_is_named(place: str, tmp_path: Path, downloads: Downloads) -> None:
    (tmp_path / "file.txt").write_text("text")
    with pytest.raises(UserError, match=f"{place}: cannot be opened as Zarr"):
        request(tmp_path / place).plan(downloads)


@pytest.mark.usefixtures("served")
def test_a_url_without_a_zarr_is_named_without_its_query(site: Site, downloads: Downloads) -> None:
    with pytest.raises(UserError, match=r"/nowhere: cannot be opened as Zarr") as caught:
        request(f"{site.url}/nowhere?token=secret").plan(downloads)
    assert "secret" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_disk_that_fills_up_is_named(zarr: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a disk here")
    try:
        with opened(disk / "out") as manifest:
            downloads = Downloads(disk / "out", manifest, Rate(None))
            archive = request(zarr)
            (item, _) = archive.plan(downloads)
            with pytest.raises(UserError, match="no space left on the disk"):
                archive.get(item, downloads)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
