import threading
import warnings
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import fsspec
import numpy as np
import pytest
import s3fs
import xarray as xr
from moto.server import ThreadedMotoServer

from hyperslab.data.sources.era5.source import Era5
from hyperslab.errors import UserError
from tests.conftest import make_dataset
from tests.data.sources.era5.raw import read_all, scan, write

# As WeatherBench 2 has it: levels of integers without a unit, latitude ascending, longitude before latitude.
WEATHERBENCH = ("time", "level", "longitude", "latitude")


def make_weatherbench(frames: int = 10) -> xr.Dataset:
    """Fields on levels and on the surface, and one without time."""
    dataset = make_dataset(variables=["t"], levels=[500, 850], frames=frames).rename(pressure_level="level")
    dataset = dataset.assign_coords(level=("level", [500, 850]))
    dataset["2m_temperature"] = make_dataset(variables=["t2m"], frames=frames, seed=1)["t2m"]
    dataset["land_sea_mask"] = dataset["2m_temperature"].isel(time=0, drop=True)
    return dataset.sortby("latitude").transpose(*WEATHERBENCH)


def expected_of(dataset: xr.Dataset) -> np.ndarray:
    """Its fields in the order of the index: surface, then levels; north-up."""
    turned = dataset.sortby("latitude", ascending=False).transpose("time", "level", "latitude", "longitude")
    levels = [turned["t"].sel(level=level).values for level in (500, 850)]
    return np.stack([turned["2m_temperature"].values, *levels], axis=1)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [True, False])
def test_zarr_is_read_as_xarray_reads_it(tmp_path: Path, zarr_format: int, consolidated: bool) -> None:
    dataset = make_weatherbench()
    store = tmp_path / "raw.zarr"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset.to_zarr(store, zarr_format=zarr_format, consolidated=consolidated)
    index = scan([store])
    assert [channel.name for channel in index.channels] == ["2m_temperature", "t_500", "t_850"]
    np.testing.assert_array_equal(read_all(index), expected_of(dataset))
    mask = dataset["land_sea_mask"].sortby("latitude", ascending=False).transpose("latitude", "longitude")
    np.testing.assert_array_equal(Era5().read_statics(index), mask.values[None])


def test_zarr_behind_a_url_in_memory_is_read(tmp_path: Path) -> None:
    dataset = make_weatherbench()
    dataset.to_zarr("memory://bucket/raw.zarr", zarr_format=3, consolidated=False, mode="w")
    index = scan(["memory://bucket/raw.zarr"])
    np.testing.assert_array_equal(read_all(index), expected_of(dataset))
    assert index.files[0].path == "memory://bucket/raw.zarr"
    fsspec.filesystem("memory").rm("/bucket", recursive=True)
    with pytest.raises(UserError, match=r"memory://bucket/raw\.zarr: .*"):
        scan(["memory://bucket/raw.zarr"])


def test_zarr_behind_a_url_of_a_file_is_read(tmp_path: Path) -> None:
    dataset = make_weatherbench()
    dataset.to_zarr(tmp_path / "raw.zarr", zarr_format=2)
    index = scan([f"file://{tmp_path}/raw.zarr"])
    np.testing.assert_array_equal(read_all(index), expected_of(dataset))


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Address of a web server for the directory."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path))) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()
        thread.join()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_on_a_web_server_is_read(tmp_path: Path, server: str, zarr_format: int) -> None:
    dataset = make_weatherbench()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset.to_zarr(tmp_path / "raw.zarr", zarr_format=zarr_format, consolidated=True)
    index = scan([f"{server}/raw.zarr"])
    np.testing.assert_array_equal(read_all(index), expected_of(dataset))
    with pytest.raises(UserError, match=r"absent\.zarr: no such file"):
        scan([f"{server}/absent.zarr"])


def test_packed_zarr_is_unpacked_as_xarray_does_it(tmp_path: Path) -> None:
    dataset = make_dataset(variables=["t2m"])
    dataset["t2m"][2, 1, 1] = np.nan
    packing = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32767}
    dataset.to_zarr(tmp_path / "raw.zarr", encoding={"t2m": packing}, zarr_format=2)
    with xr.open_zarr(tmp_path / "raw.zarr") as decoded:
        np.testing.assert_array_equal(
            read_all(scan([tmp_path / "raw.zarr"]))[:, 0], decoded["t2m"].values.astype("float32")
        )


def test_a_chunk_that_cannot_be_decompressed_is_refused(tmp_path: Path) -> None:
    make_dataset(variables=["t2m"]).to_zarr(tmp_path / "raw.zarr", zarr_format=3, consolidated=False)
    index = scan([tmp_path / "raw.zarr"])
    for chunk in (tmp_path / "raw.zarr" / "t2m" / "c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(chunk.read_bytes()[:20])
    with pytest.raises(UserError, match=r"raw\.zarr: its data cannot be read \(.*\); download it again"):
        read_all(index)


def test_metadata_that_changed_are_noticed(tmp_path: Path) -> None:
    store = tmp_path / "raw.zarr"
    make_dataset(variables=["t2m"]).to_zarr(store, zarr_format=3, consolidated=False)
    index = scan([store])
    later = make_dataset(variables=["t2m"], start="2001-01-11")
    later.to_zarr(store, append_dim="time", consolidated=False)
    with pytest.raises(UserError, match=r"raw\.zarr: has changed since it was indexed"):
        read_all(index)


def test_a_directory_of_damaged_metadata_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "raw.zarr"
    make_dataset(variables=["t2m"]).to_zarr(store, zarr_format=3, consolidated=False)
    (store / "zarr.json").write_text("{")
    with pytest.raises(UserError, match=r"raw\.zarr: cannot be opened as Zarr \(.*\); check the path"):
        scan([store])


@pytest.mark.parametrize("chunks", [(1, 1, 3, 4), (4, 1, 3, 4), (4, 2, 2, 2), (10, 3, 3, 4), None])
def test_levels_and_frames_are_read_whatever_the_chunks(tmp_path: Path, chunks: tuple[int, ...] | None) -> None:
    dataset = make_dataset(variables=["t"], levels=[1000, 850, 500], frames=10)
    path = write(tmp_path / "raw.nc", dataset, encoding={"t": {"chunksizes": chunks}} if chunks else {})
    index = scan([path], levels=[1000, 500])
    expected = dataset["t"].sel(pressure_level=[1000, 500]).values
    np.testing.assert_array_equal(read_all(index), expected)
    np.testing.assert_array_equal(Era5().read(index, 3, 7)["values"], expected[3:7])


def test_large_fields_are_read_in_slabs_and_small_ones_together(tmp_path: Path) -> None:
    # A field of 80 x 100 float32 is 32 kB: 32 of them make a slab of 1 MiB.
    dataset = make_dataset(variables=["t2m"], rows=80, columns=100, frames=70)
    index = scan([write(tmp_path / "raw.nc", dataset.sortby("latitude"))])
    np.testing.assert_array_equal(read_all(index)[:, 0], dataset["t2m"].values)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A public bucket of an S3 server on this machine."""
    s3 = ThreadedMotoServer(port=0, verbose=False)
    s3.start()
    host, port = s3.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    boto3.client("s3", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x").create_bucket(
        Bucket="public", ACL="public-read-write"
    )
    yield "s3://public"
    s3fs.S3FileSystem.clear_instance_cache()
    s3.stop()


def test_zarr_in_a_public_bucket_is_read_without_keys(bucket: str) -> None:
    dataset = make_weatherbench()
    dataset.to_zarr(f"{bucket}/raw.zarr", zarr_format=2, storage_options={"anon": True})  # type: ignore[dict-item]
    index = scan([f"{bucket}/raw.zarr"])
    np.testing.assert_array_equal(read_all(index), expected_of(dataset))
    with pytest.raises(UserError, match=r"s3://public/absent\.zarr: no such file"):
        scan([f"{bucket}/absent.zarr"])
