import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from hyperslab.data.recipe import Recipe
from hyperslab.data.staging import create, finalise, write_part
from hyperslab.data.store import FORMAT, is_finished, open_store
from hyperslab.data.verify import verify
from hyperslab.errors import UserError
from tests.conftest import make_dataset, make_store_recipe, shard_of, stage

SPLITS = {"train": (0, 24), "validation": (24, 32), "test": (32, 40)}


def test_a_store_gives_back_what_the_raw_files_hold(tmp_path: Path) -> None:
    dataset = make_dataset(rows=3, columns=4)
    dataset.to_netcdf(tmp_path / "raw.nc")
    opened = open_store(stage(tmp_path / "store", make_store_recipe([tmp_path / "raw.nc"], SPLITS)))
    expected = np.stack([dataset["msl"].values, dataset["t2m"].values], axis=1)
    np.testing.assert_array_equal(opened.read(0, 40), expected)
    np.testing.assert_array_equal(opened.time, dataset.time.values.astype("datetime64[s]").astype(np.int64))
    assert opened.latitude.tolist() == [90, 0, -90]
    assert opened.longitude.tolist() == [0, 90, 180, 270]
    assert opened.channels == ("msl", "t2m")
    assert opened.units == {"msl": "Pa", "t2m": "K"}
    assert opened.cadence == "6 h"
    assert opened.splits == {name: (bounds,) for name, bounds in SPLITS.items()}
    assert opened.segment.tolist() == [0] * 40
    assert opened.valid.tolist() == [True] * 40


def test_xarray_opens_a_store_without_a_warning(tmp_path: Path) -> None:
    dataset = make_dataset()
    dataset.to_netcdf(tmp_path / "raw.nc")
    path = stage(tmp_path / "store", make_store_recipe([tmp_path / "raw.nc"], SPLITS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = xr.open_zarr(path).load()
    assert opened["values"].dims == ("frame", "channel", "latitude", "longitude")
    assert opened["channel"].values.tolist() == ["msl", "t2m"]
    np.testing.assert_array_equal(opened["values"].sel(channel="t2m").values, dataset["t2m"].values)
    np.testing.assert_array_equal(opened["time"].values, dataset["time"].values)
    np.testing.assert_array_equal(opened["latitude"].values, dataset["latitude"].values)


def test_a_whole_store_has_nothing_to_report_and_may_be_moved(tmp_path: Path, finished_store: Path) -> None:
    assert list(verify(finished_store)) == []
    moved = finished_store.rename(tmp_path / "moved")
    assert list(verify(moved)) == []
    assert open_store(moved).read(0, 40).shape == (40, 2, 3, 4)


@pytest.mark.parametrize("name", ["values/c/1/0/0/0", "values/zarr.json", "mean/c/0", "zarr.json"])
def test_a_changed_byte_is_found_and_its_file_named(finished_store: Path, name: str) -> None:
    content = bytearray((finished_store / name).read_bytes())
    content[len(content) // 2] ^= 0xFF
    (finished_store / name).write_bytes(content)
    [line] = verify(finished_store)
    assert line.startswith(f"{name}: changed: XXH3 ")


def test_a_missing_file_is_named(finished_store: Path) -> None:
    shard_of(finished_store, 2).unlink()
    assert list(verify(finished_store)) == ["values/c/2/0/0/0: missing"]


def test_an_unknown_file_is_named(finished_store: Path) -> None:
    (finished_store / "values" / "notes.txt").write_text("mine")
    assert list(verify(finished_store)) == ["values/notes.txt: not in the manifest"]


def test_a_manifest_that_was_edited_is_found(finished_store: Path) -> None:
    path = finished_store / ".hyperslab" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["files"]["values/c/2/0/0/0"]
    path.write_text(json.dumps(manifest))
    assert list(verify(finished_store)) == [
        ".hyperslab/manifest.json: its own digest does not fit its content",
        "values/c/2/0/0/0: not in the manifest",
    ]


def test_a_manifest_that_is_no_json_is_refused(finished_store: Path) -> None:
    (finished_store / ".hyperslab" / "manifest.json").write_text('{"digest": "ab')
    with pytest.raises(UserError, match=r"manifest\.json: is not valid JSON .*stage the store anew"):
        open_store(finished_store)


def test_a_manifest_that_lacks_its_keys_is_refused(finished_store: Path) -> None:
    (finished_store / ".hyperslab" / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"manifest\.json"):
        open_store(finished_store)


def test_a_store_of_a_later_format_is_refused(finished_store: Path) -> None:
    path = finished_store / ".hyperslab" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": FORMAT + 1}))
    with pytest.raises(UserError, match="format"):
        open_store(finished_store)


def test_a_shard_that_is_gone_is_not_read_as_missing_data(finished_store: Path) -> None:
    shard_of(finished_store, 1).unlink()
    with pytest.raises(UserError, match="values/c/1/0/0/0"):
        open_store(finished_store).read(16, 32)


def test_a_store_counts_only_once_it_is_finalised(tmp_path: Path, store_recipe: Recipe) -> None:
    path = tmp_path / "store"
    with pytest.raises(UserError, match="the store does not exist; stage it with `hyperslab run`"):
        open_store(path)
    create(path, store_recipe)
    for part in range(store_recipe.num_parts):
        write_part(path, part)
    assert not is_finished(path)
    for use in (open_store, lambda path: list(verify(path))):
        with pytest.raises(UserError, match=r"the store is unfinished \(it has no manifest\)"):
            use(path)
    digest = finalise(path)
    assert is_finished(path)
    assert open_store(path).digest == digest
