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

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from upath import UPath

from hyperslab.data.chunks import Piece, ShardedArray
from hyperslab.data.clock import Clock
from hyperslab.data.files import read_json
from hyperslab.data.frames import SPLITS, Bools, Ints, Ranges
from hyperslab.data.packing import Packed
from hyperslab.data.sources import Block
from hyperslab.data.tiles import Space
from hyperslab.errors import UserError

FORMAT = 3
"""Version of the contract."""
LARGE_ARRAYS = ("values", "position", "feature", "scale", "offset", "labels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A finished store, opened for reading."""

    path: Path
    digest: str
    arrays: dict[str, ShardedArray]
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
        return (len(self.channels), *(len(values) for values in self.space.values()))

    @property
    def latitude(self) -> npt.NDArray[np.float64]:
        """Degrees north, descending, of a store on a latitude-longitude grid."""
        return self.space["latitude"]

    @property
    def longitude(self) -> npt.NDArray[np.float64]:
        """Degrees east, ascending, of a store on a latitude-longitude grid."""
        return self.space["longitude"]

    @property
    def chunk_length(self) -> int:
        """Frames in a chunk of a dense store."""
        return self.arrays["values"].chunk[0] if "values" in self.arrays else 1

    def read(self, start: int, stop: int, space: Space = ()) -> npt.NDArray[np.float32]:
        """Frames `[start, stop)` of a dense store in physical units, shape (frame, channel, *space).

        Parameters
        ----------
        space
            A range along each axis of space; all of it when empty.

        Raises
        ------
        UserError
            When a shard is missing or damaged: Zarr alone would give NaN, or whatever the bytes say.
        """
        sizes = [at.stop - at.start for at in space] or self.frame_shape[1:]
        frames = np.empty((stop - start, len(self.channels), *sizes), np.float32)
        self.read_into(frames, start, space)
        return frames

    def read_into(
        self, out: npt.NDArray[np.float32], start: int, space: Space = (), *, normalised: bool = False
    ) -> None:
        """Read the frames from `start` on into an array, shape (frame, channel, *space); otherwise as `read`.

        Parameters
        ----------
        normalised
            Whether to take away each channel's mean over the training split, and divide by its standard deviation.
        """
        stop = start + len(out)
        packing = None
        if "scale" in self.arrays:
            packing = [self.arrays[name].read(slice(start, stop)) for name in ("scale", "offset")]
        wide = (len(self.channels), *[1] * (out.ndim - 2))
        mean, std = (moment.astype(np.float32).reshape(wide) for moment in (self.mean, self.std))
        for into, piece in self.pieces(start, stop, space, out):
            if packing is not None:
                scale, offset = (given[into[:2]] for given in packing)
                piece = Packed(values=piece, scale=scale, offset=offset).unpack()
            if normalised:
                # In place, while the chunk is in the processor's cache.
                piece = piece.astype(np.float32, copy=False)
                np.subtract(piece, mean[into[1]], out=piece)
                np.divide(piece, std[into[1]], out=out[into])
            elif not np.may_share_memory(piece, out):
                out[into] = piece

    def pieces(self, start: int, stop: int, space: Space = (), out: npt.NDArray[Any] | None = None) -> Iterator[Piece]:
        """Frames `[start, stop)` of a dense store as they are stored, chunk by chunk.

        Parameters
        ----------
        space
            As for `read`.
        out
            Where they are wanted; some pieces may lie there already.
        """
        return self.arrays["values"].pieces(slice(start, stop), slice(0, len(self.channels)), *space, out=out)

    def read_points(self, start: int, stop: int) -> Block:
        """All points of frames `[start, stop)` of a ragged store, by array.

        Raises
        ------
        UserError
            When a shard is missing or damaged.
        ValueError
            When the store holds no points.
        """
        if self.frame_start is None:
            raise ValueError(f"{self.path}: holds frames on a grid, no sets of points")
        points = slice(int(self.frame_start[start]), int(self.frame_start[stop]))
        return {name: array.read(points) for name, array in self.arrays.items()}


def place_of(text: str) -> Path:
    """A path, or the place that a URL names on a file system that fsspec knows (`s3://bucket/store`).

    Raises
    ------
    UserError
        When no file system is known for the URL.
    """
    if "://" not in text:
        return Path(text)
    try:
        place = UPath(text)
        str(place)  # a URL is taken apart late
        return place  # type: ignore[return-value]  # it has all that is used of a Path
    except (ValueError, ImportError) as error:
        raise UserError(f"{text}: {_first_line(error)}; give a path, or a URL such as s3://bucket/store") from None


def open_group(path: Path) -> "zarr.Group":
    """A Zarr group, opened for reading, wherever it lies."""
    if isinstance(path, UPath) and path.protocol:
        return zarr.open_group(str(path), mode="r", storage_options=dict(path.storage_options))
    return zarr.open_group(path, mode="r")


def open_store(path: Path) -> Store:
    """Open a finished store, or a dataset of anemoi-datasets as one.

    Parameters
    ----------
    path
        A directory, or what `place_of` gives for a URL.

    Raises
    ------
    UserError
        When there is no store, it is unfinished, may not be read, or its file system cannot be reached.
    """
    try:
        return _open_finished(path)
    except UserError:
        raise
    except PermissionError as error:
        raise UserError(
            f"{error.filename or path}: cannot be read ({_first_line(error)}); ask its owner for the right to read it"
        ) from None
    except Exception as error:
        if isinstance(path, os.PathLike):
            raise
        # Clients of object stores raise errors of every kind.
        raise UserError(
            f"{path}: cannot be reached ({_first_line(error)}); check the URL, and the keys for it"
        ) from None


def _open_finished(path: Path) -> Store:
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
        return _open(path, manifest)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UserError(
            f"{path}: cannot be opened ({_first_line(error)}); mend the store with `hyperslab repair`"
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _open(path: Path, manifest: dict[str, Any]) -> Store:
    group = open_group(path)

    def small(name: str) -> npt.NDArray[Any]:
        return np.asarray(group[name][:])

    time, large = group["time"], [name for name in LARGE_ARRAYS if name in group]
    space = group[large[0]].metadata.dimension_names[2:] if "values" in large else ()
    return Store(
        path=path,
        digest=manifest["digest"],
        arrays={name: _sharded(path, name, group[name], manifest["files"]) for name in large},
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


def _sharded(path: Path, name: str, array: "zarr.Array[Any]", digests: dict[str, str]) -> ShardedArray:
    return ShardedArray(
        path=path / name,
        shape=array.shape,
        dtype=array.dtype,
        chunk=array.chunks,
        shard=array.shards or array.chunks,
        staged_bytes=cache(partial(_staged_bytes, path, digests, name, array.ndim)),
    )


def _staged_bytes(path: Path, digests: dict[str, str], name: str, ndim: int, part: int) -> int | None:
    """Size of a shard when it was staged, as the record of its part says.

    None where no record says it of the shard that the manifest names: it is gone while its part is mended, and from the
    moment that an append has staged the part anew it is that of another shard.
    """
    shard = shard_path(Path(), name, ndim, part).as_posix()
    try:
        said = json.loads(_content(record_path(path, part)))["files"][shard]
        return int(said["bytes"]) if said["digest"] == digests[shard] else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


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
    if isinstance(path, os.PathLike):
        return manifest_path(path).exists()
    try:
        _content(manifest_path(path))
    except FileNotFoundError:
        return False
    return True


def _content(file: Any) -> bytes:
    """What a file holds, wherever it lies: `exists` and `open` take a server that is down for one without the file."""
    return bytes(file.read_bytes() if isinstance(file, Path) else file.fs.cat_file(file.path))


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a finished store.

    Raises
    ------
    UserError
        When there is none, or it cannot be used.
    """
    if not is_finished(path):
        local = isinstance(path, os.PathLike)
        if local and path.is_file():
            raise UserError(f"{path}: is a file, no store; give the directory that `hyperslab run` stages files into")
        state = "is unfinished (it has no manifest)" if path.exists() else "does not exist"
        advice = "stage it with `hyperslab run`, or `hyperslab resume`" if local else "check the URL"
        raise UserError(f"{path}: the store {state}; {advice}")
    try:
        manifest = read_json(manifest_path(path))
    except ValueError as error:
        raise UserError(f"{manifest_path(path)}: is not valid JSON ({error}); stage the store anew") from None
    said = manifest.get("format") if isinstance(manifest, dict) else manifest
    if said != FORMAT or not isinstance(manifest, dict):
        raise UserError(
            f"{manifest_path(path)}: is no manifest of format {FORMAT} (it says {repr(said)[:40]}); "
            "use the version that staged the store, or stage it anew"
        )
    if not isinstance(manifest.get("digest"), str) or not isinstance(manifest.get("files"), dict):
        raise UserError(f"{manifest_path(path)}: says no digest of the store, or none of its files; stage it anew")
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
