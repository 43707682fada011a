import json
from pathlib import Path

import numpy as np
import pytest
import zarr

from hyperslab.data import staging
from hyperslab.data.files import digest_of, file_digest, read_json, write_json
from hyperslab.data.recipe import Recipe
from hyperslab.data.sources import Block, Index, source_of
from hyperslab.data.store import manifest_path, open_store, read_manifest, recipe_path
from hyperslab.data.verify import forget_damaged, is_appended_to, verify
from hyperslab.errors import UserError
from tests.conftest import shard_of


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def seal(path: Path) -> None:
    """Make the manifest fit the files as they are: what remains wrong must be found in the values."""
    manifest = read_json(manifest_path(path))
    manifest["files"] = {name: file_digest(path / name) for name in manifest["files"]}
    manifest["digest"] = digest_of(manifest["files"])
    write_json(manifest_path(path), manifest)


def test_a_changed_value_is_found_by_the_statistics(finished_store: Path) -> None:
    values = zarr.open_array(finished_store / "values", mode="r+")
    values[3, 0] = np.float32(1e6)
    seal(finished_store)
    lines = list(verify(finished_store))
    assert [line.split(":")[0] for line in lines] == ["mean of msl", "std of msl", "maximum of msl"]


def test_a_value_that_went_missing_is_counted(finished_store: Path) -> None:
    values = zarr.open_array(finished_store / "values", mode="r+")
    values[39, 1] = np.nan
    seal(finished_store)
    # A frame of 3 x 4 points, in the test split: statistics do not see it, the count and the flag do.
    assert list(verify(finished_store)) == [
        "t2m: 12 values are missing, the manifest has 0",
        "valid: differs from what the values say",
    ]


def test_an_array_that_was_cut_is_found(finished_store: Path) -> None:
    zarr.open_array(finished_store / "values", mode="r+").resize((39, 2, 3, 4))
    zarr.consolidate_metadata(finished_store)
    seal(finished_store)
    assert next(verify(finished_store)) == "values: has the shape (39, 2, 3, 4), the recipe asks for (40, 2, 3, 4)"


def repair(path: Path) -> list[int]:
    """Stage again what is damaged; the parts."""
    digest = read_manifest(path)["digest"]
    parts = forget_damaged(path)
    for part in staging.unfinished_parts(path, staging.read_recipe(path)):
        staging.write_part(path, part)
    assert staging.finalise(path) == digest
    return parts


@pytest.mark.parametrize("damage", ["flipped", "missing", "cut"])
def test_a_damaged_shard_is_staged_again_and_no_other(finished_store: Path, damage: str) -> None:
    shard, sound = shard_of(finished_store, 1), shard_of(finished_store, 0)
    before = sound.stat().st_ino
    if damage == "flipped":
        flip_a_byte(shard)
    elif damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-7])
    assert list(verify(finished_store))
    assert repair(finished_store) == [1]
    assert list(verify(finished_store)) == []
    assert sound.stat().st_ino == before


@pytest.mark.parametrize("name", ["zarr.json", "mean/c/0", "values/zarr.json", "time/zarr.json"])
def test_small_files_are_written_anew(finished_store: Path, name: str) -> None:
    (finished_store / name).unlink()
    (finished_store / "litter.txt").write_text("mine")
    assert repair(finished_store) == []
    assert list(verify(finished_store)) == []


def test_a_repair_from_other_raw_data_is_refused_and_nothing_replaced(
    finished_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Changed:
        """A source whose files hold other values than when they were staged, under the same dates and sizes."""

        def read(self, index: Index, start: int, stop: int) -> Block:
            return {"values": source_of("era5").read(index, start, stop)["values"] + 1}

    shard = shard_of(finished_store, 2)
    flip_a_byte(shard)
    damaged = shard.read_bytes()
    monkeypatch.setattr(staging, "source_of", lambda kind: Changed())
    with pytest.raises(UserError, match="the raw files or the program that reads them have changed"):
        repair(finished_store)
    assert shard.read_bytes() == damaged


def test_a_damaged_manifest_says_nothing_about_the_rest(finished_store: Path) -> None:
    manifest = read_json(manifest_path(finished_store))
    manifest["files"].popitem()
    manifest_path(finished_store).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="its manifest is damaged, so nothing says what is sound"):
        forget_damaged(finished_store)


def test_an_unfinished_append_is_finished_before_a_repair(finished_store: Path, store_recipe: Recipe) -> None:
    content = store_recipe.to_json()
    content["difference_leads"] = [1, 2]
    write_json(recipe_path(finished_store), content)
    with pytest.raises(UserError, match="an append was begun and not finished"):
        forget_damaged(finished_store)
    # The old store still counts, and its files are sound.
    assert is_appended_to(finished_store)
    assert list(verify(finished_store)) == []
    assert open_store(finished_store).read(0, 1).shape == (1, 2, 3, 4)


@pytest.mark.parametrize("name", ["mean/c/0", "zarr.json", "time/zarr.json"])
def test_a_store_that_lacks_a_small_file_is_not_opened(finished_store: Path, name: str) -> None:
    (finished_store / name).unlink()
    with pytest.raises(UserError, match=rf"{name}: is missing; mend the store with `hyperslab repair`"):
        open_store(finished_store)


@pytest.mark.parametrize("name", ["zarr.json", "mean/c/0"])
def test_a_store_whose_small_file_is_damaged_is_not_opened(finished_store: Path, name: str) -> None:
    path = finished_store / name
    path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(UserError, match=r"store: cannot be opened \(.*; mend the store with `hyperslab repair`"):
        open_store(finished_store)
