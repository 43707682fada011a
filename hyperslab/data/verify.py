"""Proving a finished store: every file is reread, every value counted again; and staging again what is damaged."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from hyperslab.data.files import digest_of, file_digest
from hyperslab.data.metadata import Merged, merge_records
from hyperslab.data.recipe import Recipe
from hyperslab.data.staging import blocks_of, read_recipe
from hyperslab.data.store import Store, data_files, open_store, read_manifest, record_path, relative_name
from hyperslab.data.tally import Tally
from hyperslab.errors import UserError


def damaged_files(path: Path, threads: int = 4) -> dict[str, str]:
    """What is wrong with each file of a finished store that is not what was staged: missing, changed or unknown.

    Raises
    ------
    UserError
        When there is no finished store.
    """
    manifest = read_manifest(path)
    files: dict[str, str] = manifest["files"]
    problems = {}
    if digest_of(files) != manifest["digest"]:
        problems[".hyperslab/manifest.json"] = "its own digest does not fit its content"

    def check(item: tuple[str, str]) -> str | None:
        name, digest = item
        file = path / name
        if not file.is_file():
            return "missing"
        found = file_digest(file)
        return None if found == digest else f"changed: XXH3 {found[:12]}, the manifest has {digest[:12]}"

    with ThreadPoolExecutor(threads) as pool:
        found = zip(files, pool.map(check, files.items()), strict=True)
        problems |= {name: problem for name, problem in found if problem}
    for file in data_files(path):
        if relative_name(path, file) not in files:
            problems[relative_name(path, file)] = "not in the manifest"
    return problems


def is_appended_to(path: Path) -> bool:
    """Whether an append to a finished store was begun and not finished: the store is as it was, its recipe longer."""
    manifest = read_manifest(path)
    return bool(digest_of(read_recipe(path).to_json()) != manifest["recipe_digest"])


def verify(path: Path, threads: int = 4) -> Iterator[str]:
    """One line for everything in a finished store that is not as it should be.

    Digests of all files; then, from the values themselves: coverage, missing values, statistics. These wait while an
    append is under way, since the recipe is that of the longer store.

    Raises
    ------
    UserError
        When there is no finished store.
    """
    problems = damaged_files(path, threads)
    if problems:
        yield from (f"{name}: {problem}" for name, problem in problems.items())
        return
    if is_appended_to(path):
        return
    recipe, store = read_recipe(path), open_store(path)
    yield from _uncovered(store, recipe)
    with ThreadPoolExecutor(threads) as pool:
        records = list(pool.map(lambda part: _measure(store, recipe, part), range(recipe.num_parts)))
    yield from _compare(path, recipe, merge_records(recipe, records))


def _uncovered(store: Store, recipe: Recipe) -> Iterator[str]:
    for plan in recipe.arrays:
        found = store.arrays[plan.name].shape
        if found != plan.shape:
            yield f"{plan.name}: has the shape {found}, the recipe asks for {plan.shape}"


def _measure(store: Store, recipe: Recipe, part: int) -> dict[str, Any]:
    """What a part measures now, read from the store instead of the raw files."""
    tally = Tally(recipe)
    read = store.read_points if recipe.index.is_ragged else lambda start, stop: {"values": store.read(start, stop)}
    for _ in blocks_of(recipe, part, tally, read):
        pass
    return tally.to_json()


def _compare(path: Path, recipe: Recipe, found: Merged) -> Iterator[str]:
    group = zarr.open_group(path, mode="r")
    names = [channel.name for channel in recipe.index.channels]
    said = read_manifest(path)["missing"]
    for name, now, then in zip(names, found.missing.tolist(), said, strict=True):
        if now != then:
            yield f"{name}: {now} values are missing, the manifest has {then}"
    if not np.array_equal(found.valid, np.asarray(group["valid"][:])):
        yield "valid: differs from what the values say"
    # Packed values were measured before they were packed.
    tolerance = 1e-9 if recipe.dtype == "float32" else 1e-2
    for statistic in ("mean", "std", "minimum", "maximum"):
        now, then = getattr(found.moments, statistic), np.asarray(group[statistic][:])
        scale = tolerance * np.maximum(np.abs(then), found.moments.std)
        for name in np.asarray(names)[
            ~(np.abs(now - then) <= scale) & ~(np.isnan(now) & np.isnan(then)) & (now != then)
        ]:
            number = names.index(name)
            yield f"{statistic} of {name}: {now[number]:g} from the values, {then[number]:g} in the store"


def forget_damaged(path: Path, threads: int = 4) -> list[int]:
    """Mark every part of a finished store with a damaged shard as unfinished, so that staging writes it again.

    Returns
    -------
    list of int
        The parts.

    Raises
    ------
    UserError
        When the store's bookkeeping is damaged as well, or an append is under way.
    """
    problems = damaged_files(path, threads)
    if ".hyperslab/manifest.json" in problems:
        raise UserError(f"{path}: its manifest is damaged, so nothing says what is sound; stage anew in a new campaign")
    if is_appended_to(path):
        raise UserError(f"{path}: an append was begun and not finished; go on with `hyperslab stage` first")
    arrays = {plan.name for plan in read_recipe(path).arrays}
    parts = set()
    for name in problems:
        pieces = name.split("/")
        if pieces[0] in arrays and len(pieces) > 2 and pieces[1] == "c" and pieces[2].isdigit():
            parts.add(int(pieces[2]))
    for part in parts:
        record_path(path, part).unlink(missing_ok=True)
    return sorted(parts)
