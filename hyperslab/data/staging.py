"""Staging: raw files into a store, a part at a time.

A part is one whole shard. It is read, written, and then recorded in `.hyperslab/parts/`; what was not recorded is done
again. `finalise` merges the parts' statistics, rereads every shard, and writes the manifest last.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec

from hyperslab.data.files import digest_of, file_digest, read_json, sync, write_json
from hyperslab.data.frames import Bools, find_segments
from hyperslab.data.recipe import Recipe
from hyperslab.data.sources import source_of
from hyperslab.data.statistics import Moments
from hyperslab.data.store import FORMAT, data_files, manifest_path, relative_name, shard_path
from hyperslab.errors import UserError, disk_error

DIMENSIONS = ("frame", "channel", "latitude", "longitude")


def create(path: Path, recipe: Recipe) -> None:
    """Create the arrays of a store, still without values. What a killed `create` left is made anew.

    Raises
    ------
    UserError
        When the place holds a store of another recipe, or cannot be written.
    """
    recipe_path = path / ".hyperslab" / "recipe.json"
    if recipe_path.exists():
        _check_same(recipe_path, recipe)
        return
    try:
        _create_arrays(path, recipe)
        write_json(recipe_path, recipe.to_json())
    except OSError as error:
        raise disk_error(error, path, recipe.total_bytes) or error from None


def _check_same(recipe_path: Path, recipe: Recipe) -> None:
    old, new = digest_of(read_json(recipe_path)), digest_of(recipe.to_json())
    if old != new:
        raise UserError(
            f"{recipe_path.parent.parent}: holds a store of another recipe ({old[:12]}, the campaign asks for "
            f"{new[:12]}): the raw files or the data settings have changed; start a new campaign in a new directory"
        )


def _create_arrays(path: Path, recipe: Recipe) -> None:
    index = recipe.index
    group = zarr.create_group(path, zarr_format=3, overwrite=True)
    group.create_array(
        "values",
        shape=index.shape,
        chunks=(1, *index.shape[1:]),
        shards=(recipe.shard_frames, *index.shape[1:]),
        dtype="float32",
        fill_value=float("nan"),
        compressors=BloscCodec(cname="lz4", shuffle="bitshuffle"),
        dimension_names=DIMENSIONS,
    )


def write_part(path: Path, part: int, threads: int = 1) -> int:
    """Stage one part: read its frames, write its shard whole, then record it.

    A part that is recorded is not read again. Staging a part twice writes the same bytes, and each write is a
    rename, so a worker that outlived its driver does no harm.

    Returns
    -------
    int
        Bytes of the shard on disk.

    Raises
    ------
    UserError
        When the raw data cannot be read, or the disk is full.
    """
    record_path = _part_path(path, part)
    if record_path.exists():
        return int(read_json(record_path)["bytes"])
    recipe = read_recipe(path)
    start, stop = recipe.part_frames(part)
    values = source_of(recipe.index.source).read(recipe.index, start, stop, threads)
    train_start, train_stop = recipe.splits["train"]
    training = values[max(train_start - start, 0) : max(train_stop - start, 0)]
    finite = np.isfinite(values)
    shard = shard_path(path, part)
    try:
        # A frame that is NaN throughout is written all the same: every shard is a file, a missing one is an error.
        array = zarr.open_array(path / "values", mode="r+").with_config({"write_empty_chunks": True})
        # Zarr reads a shard before it writes to it, even when it writes all of it: a broken one would stop it.
        shard.unlink(missing_ok=True)
        array[start:stop] = values
        sync(shard)
        sync(shard.parent)
        record: dict[str, Any] = {
            "part": part,
            "bytes": shard.stat().st_size,
            "digest": file_digest(shard),
            "missing": int(finite.size - finite.sum()),
            # A frame counts as valid when no channel of it is missing altogether.
            "valid": np.all(finite.any(axis=(2, 3)), axis=1).tolist(),
            "training_moments": Moments.of(training).to_json(),
        }
        write_json(record_path, record)
    except OSError as error:
        raise disk_error(error, path, recipe.total_bytes) or error from None
    return int(record["bytes"])


def count_finished_parts(path: Path) -> int:
    """Parts that are recorded as finished."""
    return sum(1 for _ in (path / ".hyperslab" / "parts").glob("[0-9]*.json"))


def finalise(path: Path) -> str:
    """Merge the statistics, reread every shard, and write the manifest: from here on the store counts.

    Returns
    -------
    str
        The store's digest.

    Raises
    ------
    UserError
        When a part is missing or is not what was written, or a channel cannot be normalised.
    """
    manifest_path(path).unlink(missing_ok=True)
    recipe = read_recipe(path)
    records = []
    for part in range(recipe.num_parts):
        if not _part_path(path, part).exists():
            raise UserError(f"{path}: part {part} of {recipe.num_parts} is not staged; go on with `hyperslab resume`")
        records.append(read_json(_part_path(path, part)))
    moments = Moments.none(len(recipe.index.channels))
    for record in records:
        moments = moments.merge(Moments.from_json(record["training_moments"]))
    _check_moments(path, recipe, moments)
    try:
        _write_small_arrays(path, recipe, np.concatenate([record["valid"] for record in records]), moments)
        for litter in path.rglob("*.partial"):
            litter.unlink(missing_ok=True)
        files = {relative_name(path, file): file_digest(file) for file in data_files(path)}
        _check_shards(path, records, files)
        manifest = {
            "format": FORMAT,
            "digest": digest_of(files),
            "files": files,
            "recipe_digest": digest_of(recipe.to_json()),
            "missing": sum(record["missing"] for record in records),
        }
        write_json(manifest_path(path), manifest)
    except OSError as error:
        raise disk_error(error, path, recipe.total_bytes) or error from None
    return str(manifest["digest"])


def _check_shards(path: Path, records: list[dict[str, Any]], files: dict[str, str]) -> None:
    """Compare what was just reread with what each part recorded; a part that differs is to be staged again."""
    for record in records:
        name = relative_name(path, shard_path(path, record["part"]))
        if files.get(name) != record["digest"]:
            _part_path(path, record["part"]).unlink()
            raise UserError(
                f"{path / name}: does not hold what was written; the disk may be failing: "
                "go on with `hyperslab resume`, which stages it again"
            )


def _check_moments(path: Path, recipe: Recipe, moments: Moments) -> None:
    for channel, count, std in zip(recipe.index.channels, moments.count, moments.std, strict=True):
        if count == 0 or std == 0:
            found = "has no value at all" if count == 0 else "never changes"
            raise UserError(
                f"{path}: {channel.name} {found} in the training split, so it cannot be normalised; "
                "leave it out with data.variables, or choose other splits"
            )


def _write_small_arrays(path: Path, recipe: Recipe, valid: Bools, moments: Moments) -> None:
    index, group = recipe.index, zarr.open_group(path, mode="r+")
    segments = find_segments(index.times)
    time = {"standard_name": "time", "units": "seconds since 1970-01-01", "calendar": "proleptic_gregorian"}
    latitude = {"standard_name": "latitude", "units": "degrees_north"}
    longitude = {"standard_name": "longitude", "units": "degrees_east"}
    for name, dim, values, attributes in (
        ("time", "frame", index.times, time),
        ("segment", "frame", segments.ids, {"long_name": "number of the unbroken stretch of frames"}),
        ("valid", "frame", valid, {"long_name": "no channel of the frame is missing altogether"}),
        ("latitude", "latitude", np.asarray(index.latitude), latitude),
        ("longitude", "longitude", np.asarray(index.longitude), longitude),
        ("mean", "channel", moments.mean, {"long_name": "mean over the training split"}),
        ("std", "channel", moments.std, {"long_name": "standard deviation over the training split"}),
        ("minimum", "channel", moments.minimum, {"long_name": "minimum over the training split"}),
        ("maximum", "channel", moments.maximum, {"long_name": "maximum over the training split"}),
    ):
        array = group.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            dimension_names=(dim,),
            attributes=attributes,
            overwrite=True,
        )
        array[:] = values
    names = [channel.name for channel in index.channels]
    channel = group.create_array(
        "channel", shape=(len(names),), dtype=str, dimension_names=("channel",), overwrite=True
    )
    channel[:] = np.asarray(names, dtype=object)
    group.attrs.update(
        {
            "Conventions": "CF-1.11",
            "hyperslab_format": FORMAT,
            "cadence": segments.cadence,
            "units": {channel.name: channel.units for channel in index.channels},
            "long_names": {channel.name: channel.long_name for channel in index.channels},
            "splits": {name: list(bounds) for name, bounds in recipe.splits.items()},
        }
    )
    with warnings.catch_warnings():
        # Consolidated metadata makes opening one read; zarr warns that version 3 does not specify it yet.
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(path, zarr_format=3)


def has_recipe(path: Path) -> bool:
    """Whether staging of a store has begun."""
    return (path / ".hyperslab" / "recipe.json").exists()


def read_recipe(path: Path) -> Recipe:
    """The recipe of a store, finished or not."""
    try:
        return Recipe.from_json(read_json(path / ".hyperslab" / "recipe.json"))
    except FileNotFoundError:
        raise UserError(f"{path}: is no Hyperslab store (it has no recipe); check the path") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: its recipe cannot be read ({error!r}); start a new campaign") from None


def _part_path(path: Path, part: int) -> Path:
    return path / ".hyperslab" / "parts" / f"{part:06d}.json"
