"""The store contract: frames in segments, one shard a part, a manifest that is written last.

A store is a Zarr v3 group that `xarray.open_zarr` opens.

- Dense: `values(frame, channel, *space)`; a chunk is one frame (or a tile of it, or a few tiny ones), a shard is many
  frames. Ragged: `position(point, axis)` and `feature(point, channel)`, with `frame_start(frame + 1)`.
- `labels`: truth beside the values, where the raw files hold any. `static(static_name, *space)`: fields without time.
- `time(frame)`, `segment(frame)`, `valid(frame)`, an array for each axis of space, `channel`.
- `mean`, `std`, `minimum`, `maximum`, `difference_std` (and `median`, `interquartile_range`) over the training split.
- `.hyperslab/recipe.json` (what staging follows), `.hyperslab/parts/` (a record for each finished part) and
  `.hyperslab/manifest.json` (a digest for each file). Without its manifest a store is unfinished and refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from hyperslab.data.clock import Clock
from hyperslab.data.files import read_json
from hyperslab.data.frames import SPLITS, Bools, Ints, Ranges
from hyperslab.data.packing import Packed
from hyperslab.data.sources import Block
from hyperslab.errors import UserError

FORMAT = 2
"""Version of the contract."""
LARGE_ARRAYS = ("values", "position", "feature", "scale", "offset", "labels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A finished store, opened for reading."""

    path: Path
    digest: str
    arrays: dict[str, zarr.Array[Any]]
    """The large arrays, by name."""
    source: str
    clock: Clock
    time: Ints
    segment: Ints
    valid: Bools
    space: dict[str, npt.NDArray[np.float64]]
    """Coordinates along each axis of a dense frame, in the order of its dimensions."""
    channels: tuple[str, ...]
    units: dict[str, str]
    cadence: str
    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]
    splits: dict[str, Ranges]
    frame_start: Ints | None
    """First point of each frame, and the number of points; None in a dense store."""

    @property
    def is_ragged(self) -> bool:
        """Whether frames are sets of points."""
        return self.frame_start is not None

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of a dense frame: (channel, *space)."""
        return tuple(self.arrays["values"].shape[1:])

    @property
    def latitude(self) -> npt.NDArray[np.float64]:
        """Degrees north, descending, of a store on a latitude-longitude grid."""
        return self.space["latitude"]

    @property
    def longitude(self) -> npt.NDArray[np.float64]:
        """Degrees east, ascending, of a store on a latitude-longitude grid."""
        return self.space["longitude"]

    @property
    def shard_length(self) -> int:
        """Frames in a shard of a dense store, points in one of a ragged store."""
        return int(next(iter(self.arrays.values())).shards[0])

    def read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Frames `[start, stop)` of a dense store in physical units, shape (frame, channel, *space).

        Raises
        ------
        UserError
            When a shard is missing: Zarr alone would give NaN for it.
        """
        values = self._slab("values", start, stop)
        if "scale" not in self.arrays:
            return values.astype(np.float32, copy=False)
        scale, offset = (self._slab(name, start, stop) for name in ("scale", "offset"))
        return Packed(values=values, scale=scale, offset=offset).unpack()

    def read_points(self, start: int, stop: int) -> Block:
        """All points of frames `[start, stop)` of a ragged store, by array.

        Raises
        ------
        UserError
            When a shard is missing: Zarr alone would give NaN for it.
        """
        assert self.frame_start is not None, "only a ragged store has points"
        first, last = int(self.frame_start[start]), int(self.frame_start[stop])
        return {name: self._slab(name, first, last) for name in self.arrays}

    def _slab(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        array = self.arrays[name]
        for part in range(start // self.shard_length, -(-stop // self.shard_length)):
            shard = shard_path(self.path, name, array.ndim, part)
            if not shard.exists():
                raise UserError(f"{shard}: is missing; stage it again with `hyperslab repair`")
        return np.asarray(array[start:stop])


def open_store(path: Path) -> Store:
    """Open a finished store, or a dataset of anemoi-datasets as one.

    Raises
    ------
    UserError
        When there is no store, or it is unfinished.
    """
    if not is_finished(path):
        # Imported late: it builds on this module.
        from hyperslab.data.anemoi import is_anemoi, open_anemoi

        if is_anemoi(path):
            return open_anemoi(path)
    manifest = read_manifest(path)
    if commit_path(path).exists():
        raise UserError(f"{path}: was being completed when it was interrupted; go on with `hyperslab resume`")
    # Zarr would read a small array that is missing as zeros; a missing shard is found when it is read.
    check_present(path, [name for name in manifest["files"] if name.split("/")[0] not in LARGE_ARRAYS])
    try:
        return _open(path, manifest["digest"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: cannot be opened ({reason}); mend the store with `hyperslab repair`") from None


def _open(path: Path, digest: str) -> Store:
    group = zarr.open_group(path, mode="r")

    def small(name: str) -> npt.NDArray[Any]:
        return np.asarray(group[name][:])

    time, large = group["time"], [name for name in LARGE_ARRAYS if name in group]
    space = group[large[0]].metadata.dimension_names[2:] if "values" in large else ()
    return Store(
        path=path,
        digest=digest,
        arrays={name: group[name] for name in large},
        source=str(group.attrs["source"]),
        clock=Clock(kind=group.attrs["clock"], calendar=time.attrs.get("calendar", "proleptic_gregorian")),
        time=small("time"),
        segment=small("segment"),
        valid=small("valid"),
        space={name: small(name) for name in space},
        channels=tuple(str(name) for name in small("channel")),
        units=dict(group.attrs["units"]),
        cadence=str(group.attrs["cadence"]),
        mean=small("mean"),
        std=small("std"),
        splits={name: tuple((a, b) for a, b in group.attrs["splits"][name]) for name in SPLITS},
        frame_start=small("frame_start") if "frame_start" in group else None,
    )


def check_present(path: Path, names: Iterable[str]) -> None:
    """Look whether files of a store are there, without reading them.

    Raises
    ------
    UserError
        When one is missing.
    """
    for name in names:
        if not (path / name).is_file():
            raise UserError(f"{path / name}: is missing; mend the store with `hyperslab repair`")


def is_finished(path: Path) -> bool:
    """Whether a store has its manifest."""
    return manifest_path(path).exists()


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a finished store.

    Raises
    ------
    UserError
        When there is none, or it cannot be used.
    """
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


def shard_path(path: Path, array: str, ndim: int, part: int) -> Path:
    """The file that holds a part of an array of so many dimensions."""
    return path.joinpath(array, "c", str(part), *["0"] * (ndim - 1))


def manifest_path(path: Path) -> Path:
    """The file whose presence says that a store is finished."""
    return path / ".hyperslab" / "manifest.json"


def commit_path(path: Path) -> Path:
    """The file whose presence says that a store is just being completed."""
    return path / ".hyperslab" / "commit.json"


def recipe_path(path: Path) -> Path:
    """The file that says what a store will hold."""
    return path / ".hyperslab" / "recipe.json"


def record_path(path: Path, part: int) -> Path:
    """The file whose presence says that a part is finished."""
    return path / ".hyperslab" / "parts" / f"{part:06d}.json"


def data_files(path: Path) -> list[Path]:
    """Every file of the store but the bookkeeping, in a fixed order."""
    bookkeeping = path / ".hyperslab"
    return sorted(file for file in path.rglob("*") if file.is_file() and bookkeeping not in file.parents)


def relative_name(path: Path, file: Path) -> str:
    """Name of a file in the manifest."""
    return file.relative_to(path).as_posix()
