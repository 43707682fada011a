import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from hyperslab.data.config import DataSettings
from hyperslab.data.recipe import Recipe, make_recipe
from hyperslab.data.sources import source_of
from hyperslab.errors import UserError
from tests.conftest import write_netcdf


def recipe_of(folder: Path, **settings: Any) -> Recipe:
    """The recipe of 40 frames of 2 channels x 3 rows x 4 columns: 2 x 3 x 4 x 4 bytes = 96 bytes a frame."""
    options = DataSettings(files=["raw.nc"], **settings)
    return make_recipe(source_of("era5").scan([str(write_netcdf(folder / "raw.nc"))], options), options)


def test_a_shard_holds_as_many_whole_frames_as_fit(tmp_path: Path) -> None:
    # 1000 bytes hold 10 frames of 96 bytes; 40 frames make 4 parts.
    recipe = recipe_of(tmp_path, shard_mebibytes=1000 / 2**20)
    assert recipe.shard_length == 10
    assert recipe.num_parts == 4
    assert recipe.total_bytes == 40 * 96


def test_the_last_part_holds_what_is_left(tmp_path: Path) -> None:
    # 1200 bytes hold 12 frames: parts of 12, 12, 12 and 4.
    recipe = recipe_of(tmp_path, shard_mebibytes=1200 / 2**20)
    frames = [recipe.part_range(part) for part in range(recipe.num_parts)]
    assert frames == [(0, 12), (12, 24), (24, 36), (36, 40)]


def test_a_shard_holds_one_frame_at_least_and_the_whole_record_at_most(tmp_path: Path) -> None:
    assert recipe_of(tmp_path, shard_mebibytes=1 / 2**20).shard_length == 1
    assert recipe_of(tmp_path, shard_mebibytes=64).shard_length == 40


def test_splits_follow_the_settings(tmp_path: Path) -> None:
    # 4 frames a day: the 8th of January is day 7, frame 28; validation takes 0.25 x 40 = 10 frames before it.
    recipe = recipe_of(tmp_path, validation=0.25, test=date(2001, 1, 8))
    assert recipe.splits == {"train": ((0, 18),), "validation": ((18, 28),), "test": ((28, 40),)}


def test_splits_that_cannot_be_cut_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.validation, data\.test: found 0.6 and 0.6 for 40 frames"):
        recipe_of(tmp_path, validation=0.6, test=0.6)


def test_json_gives_the_same_recipe_back(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_a_lead_over_which_nothing_changes_is_refused(tmp_path: Path) -> None:
    # 40 frames, of which 32 are trained on: 31 is the longest lead.
    assert recipe_of(tmp_path, difference_leads=[1, 31]).difference_leads == (1, 31)
    with pytest.raises(UserError, match=r"difference_leads: found 32, but no two training frames .* so far apart"):
        recipe_of(tmp_path, difference_leads=[1, 32])
