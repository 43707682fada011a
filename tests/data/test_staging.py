import errno
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from hyperslab.data import commit, shard, staging
from hyperslab.data.recipe import Recipe
from hyperslab.data.staging import (
    count_finished_parts,
    create,
    finalise,
    has_recipe,
    read_recipe,
    write_part,
)
from hyperslab.data.store import is_finished, open_store
from hyperslab.data.verify import verify
from hyperslab.errors import UserError
from tests.conftest import make_dataset, make_store_recipe, shard_of, stage

SPLITS = {"train": (0, 24), "validation": (24, 32), "test": (32, 40)}


def recipe_of(path: Path, dataset: xr.Dataset) -> Recipe:
    dataset.to_netcdf(path)
    return make_store_recipe([path], SPLITS)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def test_a_chunk_is_one_frame_and_a_shard_is_many(finished_store: Path) -> None:
    values = open_store(finished_store).arrays["values"]
    # A frame of 96 bytes: as many as fit 64 KiB and divide the shard make a chunk.
    assert values.chunk == (16, 2, 3, 4)
    assert values.shard == (16, 2, 3, 4)
    # 40 frames in shards of 16 are 3 files.
    assert len([path for path in (finished_store / "values" / "c").rglob("*") if path.is_file()]) == 3


def test_statistics_are_those_of_the_training_split_alone(tmp_path: Path) -> None:
    dataset = make_dataset()
    # From frame 24 on, outside of training but inside the second shard of 16, the values are absurd.
    dataset["t2m"][24:] = 1e6
    opened = open_store(stage(tmp_path / "store", recipe_of(tmp_path / "raw.nc", dataset)))
    training = np.stack([dataset[name].values[:24].astype(np.float64) for name in ("msl", "t2m")])
    np.testing.assert_allclose(opened.mean, training.mean(axis=(1, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(opened.std, training.std(axis=(1, 2, 3)), rtol=1e-12)
    with xr.open_zarr(opened.path) as arrays:
        np.testing.assert_array_equal(arrays["minimum"].values, training.min(axis=(1, 2, 3)))
        np.testing.assert_array_equal(arrays["maximum"].values, training.max(axis=(1, 2, 3)))


def test_gaps_in_time_are_recorded_as_segments(tmp_path: Path) -> None:
    dataset = make_dataset(frames=41).drop_isel(time=10)
    opened = open_store(stage(tmp_path / "store", recipe_of(tmp_path / "raw.nc", dataset)))
    assert opened.segment.tolist() == [0] * 10 + [1] * 30


def test_a_frame_that_lacks_a_channel_is_recorded_and_yet_written(tmp_path: Path) -> None:
    dataset = make_dataset()
    dataset["t2m"][3] = np.nan
    dataset["msl"][5, 0, 0] = np.nan
    path = stage(tmp_path / "store", recipe_of(tmp_path / "raw.nc", dataset))
    opened = open_store(path)
    # One point of a frame is missing data inside a valid frame; a whole channel makes the frame invalid.
    assert np.flatnonzero(~opened.valid).tolist() == [3]
    np.testing.assert_array_equal(opened.read(0, 40)[:, 1], dataset["t2m"].values)
    # 12 points of frame 3 and one of frame 5.
    manifest = json.loads((path / ".hyperslab" / "manifest.json").read_text())
    assert manifest["missing"] == [1, 12]


def test_a_part_without_any_value_has_its_shard_all_the_same(tmp_path: Path) -> None:
    dataset = make_dataset()
    for name in ("t2m", "msl"):
        dataset[name][16:32] = np.nan
    path = stage(tmp_path / "store", recipe_of(tmp_path / "raw.nc", dataset))
    assert shard_of(path, 1).is_file()
    assert list(verify(path)) == []
    opened = open_store(path)
    assert np.flatnonzero(~opened.valid).tolist() == list(range(16, 32))
    assert np.isnan(opened.read(16, 32)).all()


def test_a_part_marked_done_is_not_read_again(tmp_path: Path, store_recipe: Recipe) -> None:
    path = tmp_path / "store"
    create(path, store_recipe)
    size = write_part(path, 0)
    (tmp_path / "raw.nc").unlink()
    assert write_part(path, 0) == size == shard_of(path, 0).stat().st_size
    with pytest.raises(UserError, match="no such file"):
        write_part(path, 1)


def test_finished_parts_are_counted(tmp_path: Path, store_recipe: Recipe) -> None:
    path = tmp_path / "store"
    assert not has_recipe(path)
    create(path, store_recipe)
    assert has_recipe(path)
    assert count_finished_parts(path) == 0
    write_part(path, 2)
    write_part(path, 0)
    assert count_finished_parts(path) == 2


def test_a_store_with_a_missing_part_is_not_finalised(tmp_path: Path, store_recipe: Recipe) -> None:
    path = tmp_path / "store"
    create(path, store_recipe)
    write_part(path, 0)
    write_part(path, 2)
    with pytest.raises(UserError, match="part 1 of 3 is not staged; go on with `hyperslab resume`"):
        finalise(path)
    assert not is_finished(path)


def test_a_place_that_is_no_store_has_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no Hyperslab store \(it has no recipe\); check the path"):
        read_recipe(tmp_path)


def test_the_recipe_of_a_store_is_that_of_its_creation(tmp_path: Path, store_recipe: Recipe) -> None:
    create(tmp_path / "store", store_recipe)
    assert read_recipe(tmp_path / "store") == store_recipe


def test_creating_a_store_again_keeps_what_was_staged(tmp_path: Path, store_recipe: Recipe) -> None:
    path = tmp_path / "store"
    create(path, store_recipe)
    write_part(path, 0)
    create(path, store_recipe)
    assert count_finished_parts(path) == 1
    assert shard_of(path, 0).is_file()


def test_a_store_of_another_recipe_is_refused(tmp_path: Path, store_recipe: Recipe) -> None:
    path = tmp_path / "store"
    create(path, store_recipe)
    other = recipe_of(tmp_path / "raw.nc", make_dataset(seed=1))
    message = "holds a store of another recipe .* have changed; start a new campaign in a new directory"
    with pytest.raises(UserError, match=message):
        create(path, other)


def test_two_stagings_of_the_same_files_have_one_digest(tmp_path: Path, store_recipe: Recipe) -> None:
    first = open_store(stage(tmp_path / "first", store_recipe)).digest
    second = open_store(stage(tmp_path / "second", store_recipe)).digest
    assert first == second


def test_the_digest_does_not_depend_on_the_order_of_the_parts(
    tmp_path: Path, store_recipe: Recipe, finished_store: Path
) -> None:
    path = tmp_path / "backwards"
    create(path, store_recipe)
    for part in (2, 0, 1):
        write_part(path, part)
    assert finalise(path) == open_store(finished_store).digest


def test_other_data_has_another_digest(tmp_path: Path, finished_store: Path) -> None:
    dataset = make_dataset()
    dataset["t2m"][39, 2, 3] += 1
    other = stage(tmp_path / "other", recipe_of(tmp_path / "other.nc", dataset))
    assert open_store(other).digest != open_store(finished_store).digest


def test_finalising_twice_changes_nothing(finished_store: Path) -> None:
    digest = open_store(finished_store).digest
    assert finalise(finished_store) == digest
    assert list(verify(finished_store)) == []


@pytest.mark.parametrize("part", [0, 2])
def test_a_shard_that_changed_before_finalising_is_to_be_staged_again(
    tmp_path: Path, store_recipe: Recipe, part: int
) -> None:
    path = tmp_path / "store"
    create(path, store_recipe)
    for number in range(store_recipe.num_parts):
        write_part(path, number)
    flip_a_byte(shard_of(path, part))
    message = rf"values/c/{part}/0/0/0: does not hold what was written; .*`hyperslab resume`, which stages it again"
    with pytest.raises(UserError, match=message):
        finalise(path)
    assert not is_finished(path)
    assert count_finished_parts(path) == 2
    with pytest.raises(UserError, match=f"part {part} of 3 is not staged"):
        finalise(path)


@pytest.mark.parametrize("part", [0, 2])
def test_a_broken_shard_can_be_staged_again(
    tmp_path: Path, store_recipe: Recipe, finished_store: Path, part: int
) -> None:
    path = tmp_path / "again"
    create(path, store_recipe)
    for number in range(store_recipe.num_parts):
        write_part(path, number)
    shard_of(path, part).write_bytes(shard_of(path, part).read_bytes()[:-100])
    with pytest.raises(UserError, match="does not hold what was written"):
        finalise(path)
    write_part(path, part)
    assert finalise(path) == open_store(finished_store).digest


def test_a_shard_that_vanished_before_finalising_is_staged_again(
    tmp_path: Path, store_recipe: Recipe, finished_store: Path
) -> None:
    path = tmp_path / "again"
    create(path, store_recipe)
    for number in range(store_recipe.num_parts):
        write_part(path, number)
    shard_of(path, 1).unlink()
    with pytest.raises(UserError, match="values/c/1/0/0/0: does not hold what was written"):
        finalise(path)
    write_part(path, 1)
    assert finalise(path) == open_store(finished_store).digest


def test_a_channel_that_never_changes_in_training_is_refused(tmp_path: Path) -> None:
    dataset = make_dataset()
    dataset["t2m"][:24] = 273.15
    with pytest.raises(UserError, match="t2m never changes in the training split, so it cannot be normalised"):
        stage(tmp_path / "store", recipe_of(tmp_path / "raw.nc", dataset))


def test_a_channel_without_a_value_in_training_is_refused(tmp_path: Path) -> None:
    dataset = make_dataset()
    dataset["msl"][:24] = np.nan
    with pytest.raises(UserError, match=r"msl has no value at all in the training split.* choose other splits"):
        stage(tmp_path / "store", recipe_of(tmp_path / "raw.nc", dataset))


def test_litter_of_killed_writes_is_removed(tmp_path: Path, store_recipe: Recipe, finished_store: Path) -> None:
    path = tmp_path / "littered"
    create(path, store_recipe)
    for part in range(store_recipe.num_parts):
        write_part(path, part)
    litter = shard_of(path, 1).with_name("0.1234.partial")
    litter.write_bytes(b"half of a shard")
    assert finalise(path) == open_store(finished_store).digest
    assert not litter.exists()


@pytest.mark.parametrize(
    ("number", "message"),
    [
        # 40 frames of 2 x 3 x 4 float32 values of 4 bytes are 3840 bytes.
        (errno.ENOSPC, r"store: no space left on the disk \(3,840 bytes are needed\)"),
        (errno.EACCES, "store: cannot be written: .*; choose a directory you may write to"),
    ],
)
@pytest.mark.parametrize("stage_of_work", ["create", "write_part", "finalise"])
def test_a_disk_that_cannot_be_written_is_a_persons_mistake(
    tmp_path: Path,
    store_recipe: Recipe,
    monkeypatch: pytest.MonkeyPatch,
    stage_of_work: str,
    number: int,
    message: str,
) -> None:
    path = tmp_path / "store"
    if stage_of_work != "create":
        create(path, store_recipe)
    if stage_of_work == "finalise":
        for part in range(store_recipe.num_parts):
            write_part(path, part)

    def refuse(*_: object) -> None:
        raise OSError(number, "the reason")

    for module in (staging, commit):
        monkeypatch.setattr(module, "write_json", refuse)
    work: dict[str, Callable[[], object]] = {
        "create": lambda: create(path, store_recipe),
        "write_part": lambda: write_part(path, 0),
        "finalise": lambda: finalise(path),
    }
    with pytest.raises(UserError, match=message):
        work[stage_of_work]()
    assert count_finished_parts(path) == (3 if stage_of_work == "finalise" else 0)
    assert not is_finished(path)


def test_an_error_of_the_disk_itself_is_not_explained_away(
    tmp_path: Path, store_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    create(tmp_path / "store", store_recipe)
    monkeypatch.setattr(shard, "sync", refuse)
    with pytest.raises(OSError, match="input/output error"):
        write_part(tmp_path / "store", 0)
