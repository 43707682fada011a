"""Staging: raw files into a store, a part at a time.

A part is one whole shard of each large array. It is read, written, read back, and then recorded in `.hyperslab/parts/`;
what was not recorded is done again. `finalise` merges the parts' statistics and commits: the manifest comes last.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hyperslab.data.commit import METADATA, NEXT, commit
from hyperslab.data.files import digest_of, file_digest, read_json, write_json
from hyperslab.data.metadata import merge_records, write_metadata
from hyperslab.data.packing import pack
from hyperslab.data.recipe import Recipe
from hyperslab.data.shard import ShardWriter, reread_digest
from hyperslab.data.sources import Block, source_of
from hyperslab.data.store import commit_path, is_finished, read_manifest, recipe_path, record_path, shard_path
from hyperslab.data.tally import Tally
from hyperslab.errors import UserError, disk_error

Reader = Callable[[int, int], Block]
"""Gives the frames `[start, stop)`."""

BLOCK_BYTES = 64 << 20
"""Memory for the values that are read at a time."""


def create(path: Path, recipe: Recipe) -> None:
    """Begin a store, still without values, or lengthen its recipe; what was staged already stays.

    Raises
    ------
    UserError
        When the place holds a store of another recipe, or cannot be written.
    """
    if has_recipe(path):
        old = read_recipe(path)
        if digest_of(recipe.to_json()) == digest_of(old.to_json()):
            return
        _check_extends(path, old, recipe)
    try:
        write_json(recipe_path(path), recipe.to_json())
    except OSError as error:
        raise disk_error(error, path, recipe.total_bytes) or error from None


def _check_extends(path: Path, old: Recipe, new: Recipe) -> None:
    """An append changes nothing of what is there; anything else is another store."""
    head = replace(new.index, time=new.index.time[: len(old.index.time)], files=new.index.files[: len(old.index.files)])
    before = replace(new, index=head).to_json()
    kept = ("time", "files", "channels", "space", "source")
    same = all(digest_of(before["index"][name]) == digest_of(old.to_json()["index"][name]) for name in kept)
    if not same or (old.settings, old.shard_length) != (new.settings, new.shard_length):
        raise UserError(
            f"{path}: holds a store of another recipe ({digest_of(old.to_json())[:12]}, the campaign asks for "
            f"{digest_of(new.to_json())[:12]}): the raw files or the data settings have changed; "
            "start a new campaign in a new directory"
        )


def write_part(path: Path, part: int) -> int:
    """Stage one part: read its frames, write its shards whole, read them back, then record it.

    A part that is recorded is not read again. Staging a part twice writes the same bytes, and each write is a
    rename, so a worker that outlived its driver does no harm.

    Returns
    -------
    int
        Bytes of the part on disk.

    Raises
    ------
    UserError
        When the raw data cannot be read, or the disk is full.
    """
    recipe = read_recipe(path)
    record = finished_record(path, recipe, part)
    if record is None:
        try:
            record = _write(path, recipe, part)
            write_json(record_path(path, part), record)
        except OSError as error:
            raise disk_error(error, path, recipe.total_bytes) or error from None
    return int(record["bytes"])


def finished_record(path: Path, recipe: Recipe, part: int) -> dict[str, Any] | None:
    """The record of a part that is finished, as the recipe stands; None where it is to be staged (again)."""
    try:
        record = read_json(record_path(path, part))
    except (FileNotFoundError, ValueError):
        return None
    return record if record.get("range") == list(recipe.part_range(part)) else None


def unfinished_parts(path: Path, recipe: Recipe) -> list[int]:
    """Parts that are still to be staged."""
    return [part for part in range(recipe.num_parts) if finished_record(path, recipe, part) is None]


def is_complete(path: Path) -> bool:
    """Whether a store is finished, and is all that its recipe asks for."""
    if not is_finished(path) or commit_path(path).exists():
        return False
    recipe = read_recipe(path)
    return read_manifest(path)["recipe_digest"] == digest_of(recipe.to_json()) and all(
        record_path(path, part).exists() for part in range(recipe.num_parts)
    )


def count_finished_parts(path: Path) -> int:
    """Parts that are recorded as finished."""
    return sum(1 for _ in (path / ".hyperslab" / "parts").glob("[0-9]*.json"))


def _write(path: Path, recipe: Recipe, part: int) -> dict[str, Any]:
    # What a finished store consists of stays as it is until the next one is committed.
    held = read_manifest(path)["files"] if is_finished(path) else {}
    targets: dict[str, Path] = {}
    for plan in recipe.arrays:
        place = shard_path(path, plan.name, len(plan.shape), part).relative_to(path)
        targets[plan.name] = path / NEXT / place if place.as_posix() in held else path / place
    tally = Tally(recipe)
    with contextlib.ExitStack() as stack:
        writers = {plan.name: stack.enter_context(ShardWriter(targets[plan.name], plan)) for plan in recipe.arrays}
        source = source_of(recipe.index.source)
        try:
            for block in blocks_of(recipe, part, tally, partial(source.read, recipe.index)):
                for name, rows in block.items():
                    writers[name].append(rows)
        except OverflowError as error:
            raise UserError(f"data.dtype: {recipe.dtype} cannot hold the values: {error}; use int16") from None
        digests = {name: writer.close() for name, writer in writers.items()}
    for name, digest in digests.items():
        if reread_digest(targets[name]) != digest:
            raise _broken(targets[name])
    states = {name: target.stat() for name, target in targets.items()}
    return {
        "part": part,
        "range": list(recipe.part_range(part)),
        "bytes": sum(state.st_size for state in states.values()),
        "files": {
            targets[name].relative_to(path).as_posix().removeprefix(f"{NEXT}/"): {
                "digest": digests[name], "bytes": state.st_size, "modified_ns": state.st_mtime_ns,
            }
            for name, state in states.items()
        },
        **tally.to_json(),
    }  # fmt: skip


def blocks_of(recipe: Recipe, part: int, tally: Tally, reader: Reader) -> Iterator[Block]:
    """What a part holds, by array, a bounded number of bytes at a time, measured on the way.

    Parameters
    ----------
    reader
        Where frames are read from: the raw files, or the store itself.
    """
    start, stop = recipe.part_range(part)
    if recipe.index.is_ragged:
        yield from _point_blocks(recipe, start, stop, tally, reader)
        return
    segment = recipe.index.segments
    before = max(0, start - tally.reach)
    if before < start and segment[start - 1] == segment[start]:
        tally.precede(reader(before, start)["values"])
    for first, last in _pieces(recipe, start, stop):
        block = reader(first, last)
        packed = pack(block["values"], recipe.dtype)
        tally.add_frames(first, block["values"], packed)
        block["values"] = packed.values
        if packed.scale is not None and packed.offset is not None:
            block |= {"scale": packed.scale, "offset": packed.offset}
        yield block


def _pieces(recipe: Recipe, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Frame ranges to read at a time: whole chunks of the raw files, as far as memory allows."""
    whole = recipe.index.block_frames
    length = max(1, BLOCK_BYTES // recipe.index.frame_bytes)
    if length > whole:
        length = length // whole * whole
    elif whole * recipe.index.frame_bytes <= 4 * BLOCK_BYTES:
        length = whole
    for first in range(start, stop, length):
        yield first, min(first + length, stop)


def _point_blocks(recipe: Recipe, start: int, stop: int, tally: Tally, reader: Reader) -> Iterator[Block]:
    """Points `[start, stop)` of a ragged archive, frame after frame; the first and the last frame may be cut."""
    offsets = recipe.frame_start
    length = max(1, BLOCK_BYTES // recipe.index.frame_bytes)
    frame = int(np.searchsorted(offsets, start, side="right")) - 1
    while frame < len(offsets) - 1 and offsets[frame] < stop:
        last = max(frame + 1, int(np.searchsorted(offsets, offsets[frame] + length, side="right")) - 1)
        keep = slice(max(0, start - offsets[frame]), min(stop, offsets[last]) - offsets[frame])
        block = {name: rows[keep] for name, rows in reader(frame, last).items()}
        owners = np.repeat(np.arange(frame, last), np.diff(offsets[frame : last + 1]))
        tally.add_points(owners[keep], block["feature"])
        yield block
        frame = last


def finalise(path: Path) -> str:
    """Merge the statistics, write the small arrays, and commit: from here on the store counts.

    A store that was finished by the same recipe must come out with the same digest: a repair, or one that was cut off.

    Returns
    -------
    str
        The store's digest.

    Raises
    ------
    UserError
        When a part is missing or is not what was written, or a channel cannot be normalised.
    """
    recipe = read_recipe(path)
    records = []
    for part in range(recipe.num_parts):
        record = finished_record(path, recipe, part)
        if record is None:
            raise UserError(f"{path}: part {part} of {recipe.num_parts} is not staged; go on with `hyperslab resume`")
        _check_shards(path, record)
        records.append(record)
    merged = merge_records(recipe, records)
    _check_moments(path, recipe, merged.moments.count, merged.moments.std)
    try:
        write_metadata(path / METADATA, recipe, merged)
        shards = {name: said["digest"] for record in records for name, said in record["files"].items()}
        return commit(path, recipe, shards, merged)
    except OSError as error:
        raise disk_error(error, path, recipe.total_bytes) or error from None


def _check_shards(path: Path, record: dict[str, Any]) -> None:
    """Look whether a part's shards are as they were when they were read back; a part that differs is staged again."""
    for name, said in record["files"].items():
        draft = path / NEXT / name
        file = draft if draft.exists() else path / name
        try:
            state = file.stat()
            same = (state.st_size, state.st_mtime_ns) == (said["bytes"], said["modified_ns"])
            same = same or file_digest(file) == said["digest"]
        except FileNotFoundError:
            same = False
        if not same:
            record_path(path, record["part"]).unlink()
            raise _broken(file)


def _broken(file: Path) -> UserError:
    return UserError(
        f"{file}: does not hold what was written; the disk may be failing: "
        "go on with `hyperslab resume`, which stages it again"
    )


def _check_moments(path: Path, recipe: Recipe, count: Any, std: Any) -> None:
    """A dense channel that cannot be normalised is refused; a feature of points may be constant."""
    if recipe.index.is_ragged:
        return
    for channel, number, deviation in zip(recipe.index.channels, count, std, strict=True):
        if number == 0 or deviation == 0:
            found = "has no value at all" if number == 0 else "never changes"
            raise UserError(
                f"{path}: {channel.name} {found} in the training split, so it cannot be normalised; "
                "leave it out, or choose other splits"
            )


def has_recipe(path: Path) -> bool:
    """Whether staging of a store has begun."""
    return recipe_path(path).exists()


def read_recipe(path: Path) -> Recipe:
    """The recipe of a store, finished or not."""
    try:
        return Recipe.from_json(read_json(recipe_path(path)))
    except FileNotFoundError:
        raise UserError(f"{path}: is no Hyperslab store (it has no recipe); check the path") from None
    except (ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: its recipe cannot be read ({reason}); start a new campaign") from None
