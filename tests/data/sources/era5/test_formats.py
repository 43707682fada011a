from pathlib import Path

import pytest

from hyperslab.data.sources.era5.formats import GRIB, NETCDF, ZARR, ZIP, format_of, open_raw, state_of, storage_options
from hyperslab.data.sources.era5.source import Era5
from hyperslab.errors import UserError
from tests.conftest import make_dataset
from tests.data.sources.era5.raw import write


@pytest.mark.parametrize(
    ("content", "found"),
    [(b"CDF\x01", NETCDF), (b"\x89HDF\r\n", NETCDF), (b"GRIB\x00", GRIB), (b"PK\x03\x04", ZIP)],
)
def test_a_format_is_known_by_its_first_bytes_whatever_the_name(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "download.dat"
    path.write_bytes(content)
    assert format_of(str(path)) == found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is empty \(0 bytes\); download it again"),
        (b"<html>Not found", r"is not netCDF \(it starts with b'<html>No'\), nor GRIB, zip or Zarr; name such files"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer, .* `git lfs pull`"),
        (b"CDF\x01", "its header is cut short; download it again"),
        (b"\x89HDF\r\n\x1a\n", "starts as netCDF but cannot be read .*download it again"),
        (b"GRIB\x00\x00\x00\x02 and so on", "its GRIB messages cannot be read .*download it again"),
        (b"PK\x03\x04 and so on", "cannot be read as a zip archive .*download it again"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_for_what_it_is(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "raw.nc"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"raw\.nc: {message}"):
        Era5().describe(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.nc: no such file; check data\.files"):
        Era5().describe(str(tmp_path / "absent.nc"))
    with pytest.raises(UserError, match=r"absent\.nc: no such file; check data\.files"):
        state_of(str(tmp_path / "absent.nc"))


def test_a_directory_that_is_no_zarr_store_is_answered_with_a_pattern(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a directory; name the netCDF files in it, such as dir/\*\.nc"):
        format_of(str(tmp_path))


def test_a_file_that_cannot_be_opened_is_said_with_the_systems_reason(tmp_path: Path) -> None:
    path = tmp_path / "loop.nc"
    path.symlink_to(path)
    with pytest.raises(UserError, match=r"loop\.nc: cannot be read: Too many levels of symbolic links"):
        format_of(str(path))


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_netcdf4_file_that_was_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    path = write(tmp_path / "raw.nc", make_dataset(frames=200))
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UserError, match=r"raw\.nc: starts as netCDF but cannot be read .*it may be cut short"):
        open_raw(str(path))


def test_a_netcdf3_file_that_was_cut_short_is_refused_before_it_reads_as_zeros(tmp_path: Path) -> None:
    # The axes come first, as in files of the old Climate Data Store, so that only fields are cut off.
    dataset = make_dataset(frames=200)
    path = tmp_path / "raw.nc"
    fields = list(dataset.data_vars)
    dataset.drop_vars(fields).to_netcdf(path, format="NETCDF3_64BIT")
    dataset[fields].drop_vars(list(dataset.coords)).to_netcdf(path, mode="a", format="NETCDF3_64BIT")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"raw\.nc: is cut short: [\d,]+ bytes of [\d,]+; download it again"):
        open_raw(str(path))


@pytest.mark.parametrize("name", ["s3://bucket/era5.nc", "https://host/era5.grib", "https://host/all.zip?key=1"])
def test_through_a_url_only_zarr_is_read(name: str) -> None:
    with pytest.raises(UserError, match="only Zarr is read through a URL; download the file"):
        format_of(name)


def test_a_zarr_store_is_known_by_its_metadata(tmp_path: Path) -> None:
    make_dataset().to_zarr(tmp_path / "two", zarr_format=2)
    make_dataset().to_zarr(tmp_path / "three", zarr_format=3, consolidated=False)
    assert format_of(str(tmp_path / "two")) == format_of(str(tmp_path / "three")) == ZARR
    assert format_of("s3://bucket/era5") == ZARR


def test_the_state_of_a_zarr_store_is_that_of_its_metadata(tmp_path: Path) -> None:
    store = tmp_path / "raw.zarr"
    make_dataset().to_zarr(store, zarr_format=3, consolidated=False)
    # The group and its five arrays have a zarr.json each.
    files = list(store.rglob("zarr.json"))
    assert len(files) == 6
    size = sum(file.stat().st_size for file in files)
    assert state_of(str(store)) == (size, max(file.stat().st_mtime_ns for file in files))


def test_public_buckets_are_opened_without_keys() -> None:
    assert storage_options("s3://bucket/era5.zarr") == {"anon": True}
    assert storage_options("gs://bucket/era5.zarr") == {"token": "anon"}
    assert storage_options("https://host/era5.zarr") == {}
