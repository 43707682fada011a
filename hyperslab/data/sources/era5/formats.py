"""What a raw file is, and how it opens: netCDF, GRIB, a zip of those, or Zarr in a directory or behind a URL."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import xarray as xr

from hyperslab.data.sources.era5.classic import classic_size
from hyperslab.errors import UserError

NETCDF, GRIB, ZIP, ZARR = "netCDF", "GRIB", "zip", "Zarr"

ZARR_METADATA = ("zarr.json", ".zmetadata", ".zgroup", ".zattrs", ".zarray")

# Values stay packed and times stay numbers: the header decodes the few that it needs, and reading fields is fast.
RAW: dict[str, Any] = {
    "mask_and_scale": False,
    "decode_times": False,
    "decode_coords": False,
    "create_default_indexes": False,
    "cache": False,
}


def is_url(path: str) -> bool:
    """Whether a path leads through fsspec, such as `s3://bucket/era5.zarr`."""
    return "://" in path


def format_of(path: str) -> str:
    """The format of a raw file, by its first bytes.

    Raises
    ------
    UserError
        When there is no such file, or it is of no format that is read.
    """
    if is_url(path):
        return _format_of_url(path)
    if Path(path).is_dir():
        if any((Path(path) / name).exists() for name in ZARR_METADATA):
            return ZARR
        raise UserError(f"{path}: is a directory; name the netCDF files in it, such as dir/*.nc")
    magic = _magic(path)
    if not magic:
        raise UserError(f"{path}: is empty (0 bytes); download it again")
    if magic.startswith((b"CDF", b"\x89HDF")):
        return NETCDF
    if magic.startswith(b"GRIB"):
        return GRIB
    if magic.startswith(b"PK"):
        return ZIP
    if magic.startswith(b"version "):
        raise UserError(f"{path}: is a Git LFS pointer, not the data; fetch the data with `git lfs pull`")
    raise UserError(
        f"{path}: is not netCDF (it starts with {magic[:8]!r}), nor GRIB, zip or Zarr; name such files in data.files"
    )


def _format_of_url(path: str) -> str:
    if path.lower().split("?")[0].endswith((".nc", ".nc4", ".cdf", ".grib", ".grb", ".grib2", ".grb2", ".zip")):
        raise UserError(f"{path}: only Zarr is read through a URL; download the file and name the copy")
    return ZARR


def _magic(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(16)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check data.files") from None
    except OSError as problem:
        raise UserError(f"{path}: cannot be read: {problem.strerror}; check its permissions") from None


def state_of(path: str) -> tuple[int, int]:
    """Size in bytes and time of the last change in nanoseconds; those of its metadata for Zarr.

    A store of Zarr may hold millions of chunks: only the small files that describe its arrays are looked at.

    Raises
    ------
    UserError
        When there is no such file.
    """
    if is_url(path):
        return _state_of_url(path)
    try:
        state = Path(path).stat()
        if not Path(path).is_dir():
            return state.st_size, state.st_mtime_ns
        states = [file.stat() for file in _zarr_metadata(path)]
    except OSError:
        raise UserError(f"{path}: no such file; check data.files") from None
    return sum(state.st_size for state in states), max((state.st_mtime_ns for state in states), default=0)


def _zarr_metadata(path: str) -> Iterator[Path]:
    with os.scandir(path) as entries:
        folders = [path, *(entry.path for entry in entries if entry.is_dir())]
    for folder in folders:
        for name in ZARR_METADATA:
            if (file := Path(folder) / name).exists():
                yield file


def _state_of_url(path: str) -> tuple[int, int]:
    size = 0
    with damage(path, "cannot be reached"):
        files, root = fsspec.core.url_to_fs(path, **storage_options(path))
        for name in ZARR_METADATA:
            try:
                size += int(files.info(f"{root.rstrip('/')}/{name}").get("size") or 0)
            except FileNotFoundError:
                continue
    # What a server says about the time of a change differs from one kind to the next; the size has to do.
    return size, 0


def storage_options(path: str) -> dict[str, Any]:
    """What opens a public archive behind a URL without keys."""
    protocol = path.split("://")[0].split("::")[-1]
    public: dict[str, dict[str, Any]] = {"s3": {"anon": True}, "gs": {"token": "anon"}, "gcs": {"token": "anon"}}
    return public.get(protocol, {})


@contextmanager
def damage(path: str, what: str, advice: str = "it may be cut short or damaged, download it again") -> Iterator[None]:
    """Turn what a library raises over a bad file into one line that names the file.

    Parameters
    ----------
    what
        What failed, such as `its data cannot be read`.
    """
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; check data.files") from error
    except ImportError as error:
        raise UserError(f"{path}: {what}: {_first_line(error)}; install what is missing") from error
    except Exception as error:
        # netCDF-C, HDF5, zarr, numcodecs, eccodes and the layers around them raise nearly every kind of error over
        # bytes that are not as they should be.
        raise UserError(f"{path}: {what} ({_first_line(error)}); {advice}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def open_raw(path: str) -> xr.Dataset:
    """The variables of a netCDF file or a Zarr store, lazily and as they are stored: packed, times as numbers.

    Raises
    ------
    UserError
        When it cannot be opened.
    """
    with warnings.catch_warnings():
        # xarray warns of Zarr without consolidated metadata, and of fill values that contradict one another.
        warnings.simplefilter("ignore")
        if is_url(path) or Path(path).is_dir():
            return _open_zarr(path)
        _check_length(path)
        with damage(path, "starts as netCDF but cannot be read"):
            return xr.open_dataset(path, engine="netcdf4", **RAW)


def _open_zarr(path: str) -> xr.Dataset:
    advice = "check the path, and that its root is a Zarr group (v2 or v3)"
    with damage(path, "cannot be opened as Zarr", advice):
        options = storage_options(path) if is_url(path) else None
        return xr.open_dataset(path, engine="zarr", storage_options=options, **RAW)


def _check_length(path: str) -> None:
    """Refuse a classic file that was cut short: the library would read what is lacking as zeros."""
    try:
        promised = classic_size(Path(path))
    except (EOFError, OSError, ValueError, LookupError, ArithmeticError, MemoryError):
        raise UserError(f"{path}: its header is cut short; download it again") from None
    found = Path(path).stat().st_size
    if promised is not None and found < promised:
        raise UserError(f"{path}: is cut short: {found:,} bytes of {promised:,}; download it again")
