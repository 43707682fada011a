"""Making a store count: what was prepared beside it is moved into place, and the manifest comes last.

The steps can be done again from any point: a crash leaves either the store as it was, or one that the next `finalise`
completes; `.hyperslab/commit.json` marks the moment in between, in which nobody may read.
"""

import shutil
from pathlib import Path

import hyperslab
from hyperslab.data.files import digest_of, file_digest, sync, write_json
from hyperslab.data.metadata import Merged
from hyperslab.data.recipe import Recipe
from hyperslab.data.store import (
    FORMAT,
    commit_path,
    data_files,
    is_finished,
    manifest_path,
    read_manifest,
    relative_name,
)
from hyperslab.errors import UserError

METADATA = ".hyperslab/metadata"
"""Where the small arrays are prepared."""
NEXT = ".hyperslab/next"
"""Where the shards wait that will replace those of a finished store."""


def commit(path: Path, recipe: Recipe, shards: dict[str, str], merged: Merged) -> str:
    """Move what was prepared into place and write the manifest.

    Parameters
    ----------
    shards
        Digest of each shard, by its name in the store.

    Returns
    -------
    str
        The store's digest.

    Raises
    ------
    UserError
        When another digest comes out than that of the finished store of the same recipe.
    """
    small = {relative_name(path / METADATA, file): file_digest(file) for file in data_files(path / METADATA)}
    files = {**shards, **small}
    digest = digest_of(files)
    recipe_digest = digest_of(recipe.to_json())
    before = read_manifest(path) if is_finished(path) else {}
    if before.get("recipe_digest") == recipe_digest and before["digest"] != digest:
        raise UserError(
            f"{path}: what was staged has the digest {digest[:12]}, the store had {before['digest'][:12]}: the raw "
            "files or the program that reads them have changed; stage anew in a new campaign"
        )
    manifest = {
        "format": FORMAT,
        "digest": digest,
        "files": files,
        "recipe_digest": recipe_digest,
        "missing": merged.missing.tolist(),
        "version": hyperslab.__version__,
    }
    write_json(commit_path(path), manifest)
    for prepared in (METADATA, NEXT):
        _move(path / prepared, path)
    for file in data_files(path):
        if relative_name(path, file) not in files:
            file.unlink()
    commit_path(path).replace(manifest_path(path))
    sync(manifest_path(path).parent)
    return digest


def _move(source: Path, target: Path) -> None:
    """Move every file of a tree to its place in another, over what is there."""
    for file in sorted(source.rglob("*")):
        if file.is_file():
            place = target / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            file.replace(place)
            sync(place.parent)
    shutil.rmtree(source, ignore_errors=True)
