"""The store contract: frames in segments, one shard a part, a manifest that is written last.

A store is a Zarr v3 group that `xarray.open_zarr` opens:

- `values(frame, channel, latitude, longitude)`, float32; a chunk is one frame, a shard is many frames.
- `time(frame)`, `segment(frame)`, `valid(frame)`, `latitude`, `longitude`, `channel`.
- `mean`, `std`, `minimum`, `maximum` of each channel over the training split.
- `.hyperslab/recipe.json` (what staging follows), `.hyperslab/parts/` (a record for each finished part) and
  `.hyperslab/manifest.json` (a digest for each file). Without its manifest a store is unfinished and refused.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from hyperslab.data.files import digest_of, file_digest, read_json
from hyperslab.data.frames import SPLITS, Bools, Ints
from hyperslab.errors import UserError

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A finished store, opened for reading."""

    path: Path
    digest: str
    values: zarr.Array[Any]
    time: Ints
    segment: Ints
    valid: Bools
    latitude: npt.NDArray[np.float64]
    longitude: npt.NDArray[np.float64]
    channels: tuple[str, ...]
    units: dict[str, str]
    cadence: str
    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]
    splits: dict[str, tuple[int, int]]

    def read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Frames `[start, stop)` in physical units, shape (frame, channel, latitude, longitude).

        Raises
        ------
        UserError
            When a shard is missing: Zarr alone would give NaN for it.
        """
        for part in range(start // self.shard_frames, -(-stop // self.shard_frames)):
            shard = shard_path(self.path, part)
            if not shard.exists():
                raise UserError(f"{shard}: is missing; restore it from a copy, or stage anew in a new campaign")
        return np.asarray(self.values[start:stop])

    @property
    def shard_frames(self) -> int:
        """Frames in a shard."""
        return int(self.values.shards[0])


def shard_path(path: Path, part: int) -> Path:
    """The file that holds a part."""
    return path / "values" / "c" / str(part) / "0" / "0" / "0"


def open_store(path: Path) -> Store:
    """Open a finished store.

    Raises
    ------
    UserError
        When there is no store, or it is unfinished.
    """
    manifest = _read_manifest(path)
    try:
        group = zarr.open_group(path, mode="r")
    except FileNotFoundError:
        raise UserError(f"{path}: its zarr.json is missing; see `hyperslab verify`, and stage the store anew") from None

    def small(name: str) -> npt.NDArray[Any]:
        return np.asarray(group[name][:])

    return Store(
        path=path,
        digest=manifest["digest"],
        values=group["values"],
        time=small("time"),
        segment=small("segment"),
        valid=small("valid"),
        latitude=small("latitude"),
        longitude=small("longitude"),
        channels=tuple(str(name) for name in small("channel")),
        units=dict(group.attrs["units"]),
        cadence=str(group.attrs["cadence"]),
        mean=small("mean"),
        std=small("std"),
        splits={name: tuple(group.attrs["splits"][name]) for name in SPLITS},
    )


def is_finished(path: Path) -> bool:
    """Whether a store has its manifest."""
    return manifest_path(path).exists()


def verify(path: Path, threads: int = 4) -> Iterator[str]:
    """Reread every file of a finished store; one line for each that is missing, changed or unknown.

    Raises
    ------
    UserError
        When there is no finished store.
    """
    manifest = _read_manifest(path)
    files: dict[str, str] = manifest["files"]
    if digest_of(files) != manifest["digest"]:
        yield ".hyperslab/manifest.json: its own digest does not fit its content"

    def check(item: tuple[str, str]) -> str | None:
        name, digest = item
        file = path / name
        if not file.is_file():
            return f"{name}: missing"
        found = file_digest(file)
        return None if found == digest else f"{name}: changed: SHA-256 {found[:12]}, the manifest has {digest[:12]}"

    with ThreadPoolExecutor(threads) as pool:
        yield from filter(None, pool.map(check, files.items()))
    for file in data_files(path):
        if relative_name(path, file) not in files:
            yield f"{relative_name(path, file)}: not in the manifest"


def _read_manifest(path: Path) -> dict[str, Any]:
    if not is_finished(path):
        state = "is unfinished (it has no manifest)" if path.exists() else "does not exist"
        raise UserError(f"{path}: the store {state}; stage it with `hyperslab run`, or `hyperslab resume`")
    try:
        manifest = dict(read_json(manifest_path(path)))
    except ValueError as error:
        raise UserError(f"{manifest_path(path)}: is not valid JSON ({error}); stage the store anew") from None
    if manifest.get("format") != FORMAT or not {"digest", "files"} <= set(manifest):
        raise UserError(
            f"{manifest_path(path)}: is no manifest of format {FORMAT} (it says {manifest.get('format')!r}); "
            "use the version that staged the store, or stage it anew"
        )
    return manifest


def manifest_path(path: Path) -> Path:
    """The file whose presence says that a store is finished."""
    return path / ".hyperslab" / "manifest.json"


def data_files(path: Path) -> list[Path]:
    """Every file of the store but the bookkeeping, in a fixed order."""
    bookkeeping = path / ".hyperslab"
    files = (file for file in path.rglob("*") if file.is_file() and bookkeeping not in file.parents)
    return sorted(file for file in files if file.suffix != ".partial")


def relative_name(path: Path, file: Path) -> str:
    """Name of a file in the manifest."""
    return file.relative_to(path).as_posix()
