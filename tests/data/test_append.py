"""Adding later files to a finished store, without a rewrite."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from hyperslab.data import staging
from hyperslab.data.config import DataSettings
from hyperslab.data.recipe import Recipe, extend_recipe, make_recipe
from hyperslab.data.sources import source_of
from hyperslab.data.store import is_finished, open_store
from hyperslab.data.verify import verify
from hyperslab.errors import UserError
from tests.conftest import make_dataset, shard_of, stage, write_netcdf

SHARD_MEBIBYTES = 1600 / 2**20
"""Holds 16 frames of 96 bytes."""


def recipe_of(*files: Path) -> Recipe:
    settings = DataSettings(files=[str(file) for file in files], shard_mebibytes=SHARD_MEBIBYTES)
    return make_recipe(source_of("era5").scan(settings.files, settings), settings)


def extended(recipe: Recipe, *files: Path) -> Recipe:
    settings = DataSettings(files=[str(file) for file in files])
    return extend_recipe(recipe, source_of("era5").scan(settings.files, settings))


@pytest.fixture
def january(tmp_path: Path) -> Path:
    return write_netcdf(tmp_path / "january.nc", frames=40)


@pytest.fixture
def february(tmp_path: Path) -> Path:
    # 40 six-hourly frames are 10 days: the record goes on from the 11th without a gap.
    return write_netcdf(tmp_path / "february.nc", start="2001-01-11T00", frames=30, seed=1)


def test_an_appended_store_is_the_one_that_would_have_been_staged_at_once(
    tmp_path: Path, january: Path, february: Path
) -> None:
    recipe = recipe_of(january)
    path = stage(tmp_path / "store", recipe)
    before = [shard_of(path, part).stat().st_ino for part in range(2)]
    longer = extended(recipe, february)
    stage(path, longer)
    assert list(verify(path)) == []
    store = open_store(path)
    expected = np.concatenate([make_dataset(frames=40)["t2m"], make_dataset(frames=30, seed=1)["t2m"]])
    np.testing.assert_array_equal(store.read(0, 70)[:, 1], expected)
    assert store.segment.tolist() == [0] * 70
    # The same as a store of both files that is split at the same frames.
    assert open_store(stage(tmp_path / "at once", longer)).digest == store.digest
    # Whole shards of the old store were not touched; only the last one, of 8 frames, was filled up.
    assert [shard_of(path, part).stat().st_ino for part in range(2)] == before


def test_statistics_stay_those_of_the_old_training_split(tmp_path: Path, january: Path, february: Path) -> None:
    recipe = recipe_of(january)
    path = stage(tmp_path / "store", recipe)
    before = open_store(path)
    stage(path, extended(recipe, february))
    after = open_store(path)
    assert after.mean.tolist() == before.mean.tolist()
    assert after.splits == {**before.splits, "test": ((before.splits["test"][0][0], 70),)}
    assert after.digest != before.digest


def test_the_old_store_counts_until_the_new_one_is_whole(tmp_path: Path, january: Path, february: Path) -> None:
    recipe = recipe_of(january)
    path = stage(tmp_path / "store", recipe)
    digest, values = open_store(path).digest, open_store(path).read(0, 40)
    longer = extended(recipe, february)
    staging.create(path, longer)
    for part in staging.unfinished_parts(path, longer):
        staging.write_part(path, part)
        assert open_store(path).digest == digest
        np.testing.assert_array_equal(open_store(path).read(0, 40), values)
        assert not staging.is_complete(path)
    staging.finalise(path)
    assert staging.is_complete(path)
    assert len(open_store(path).time) == 70


def test_a_gap_before_the_new_files_begins_a_segment(tmp_path: Path, january: Path) -> None:
    later = write_netcdf(tmp_path / "later.nc", start="2001-03-01T00", frames=10, seed=2)
    assert extended(recipe_of(january), later).index.segment == (0,) * 40 + (1,) * 10


def test_months_join_where_no_month_is_missing(tmp_path: Path) -> None:
    months = np.arange("2001-01", "2001-11", dtype="datetime64[M]").astype("datetime64[ns]")
    first = make_dataset(frames=10).assign_coords(time=("time", months))
    second = make_dataset(frames=10).assign_coords(time=("time", months + np.timedelta64(304, "D")))
    for name, dataset in (("first.nc", first), ("second.nc", second)):
        dataset.to_netcdf(tmp_path / name)
    # 2001-01-01 + 304 days is 2001-11-01: the month after October.
    assert extended(recipe_of(tmp_path / "first.nc"), tmp_path / "second.nc").index.segment[10] == 0


def other_units(dataset: xr.Dataset) -> xr.Dataset:
    dataset["t2m"].attrs["units"] = "degC"
    return dataset


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (
            make_dataset(start="2000-12-31T00", frames=8),
            "begins at 2000-12-31T00:00, the store ends at 2001-01-10T18:00",
        ),
        (make_dataset(start="2001-02-01T00", rows=5, frames=8), r"its space \(latitude 5, longitude 4\) is not that"),
        (
            make_dataset(start="2001-02-01T00", variables=["t2m"], frames=8),
            r"its channels \(none\) differ from .* \(msl \[Pa\]\)",
        ),
        (other_units(make_dataset(start="2001-02-01T00", frames=8)), r"its channels \(t2m \[degC\]\) differ"),
        (
            make_dataset(start="2001-02-01T00", step_hours=12, frames=8),
            "has a frame every 12 h, the store every 6 h; files that are appended must be like the old ones",
        ),
    ],
)
def test_files_that_do_not_continue_the_archive_are_refused(
    tmp_path: Path, january: Path, dataset: xr.Dataset, message: str
) -> None:
    dataset.to_netcdf(tmp_path / "other.nc")
    with pytest.raises(UserError, match=rf"other\.nc: {message}"):
        extended(recipe_of(january), tmp_path / "other.nc")


def test_an_append_whose_raw_file_broke_leaves_the_store_as_it_was(
    tmp_path: Path, january: Path, february: Path
) -> None:
    recipe = recipe_of(january)
    path = stage(tmp_path / "store", recipe)
    digest = open_store(path).digest
    longer = extended(recipe, february)
    february.unlink()
    with pytest.raises(UserError, match="no such file"):
        stage(path, longer)
    assert is_finished(path)
    assert open_store(path).digest == digest
