"""Every real sample file, alone, through all of staging: a verified store of what its source reads, or one line."""

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyperslab.data.config import DataSettings
from hyperslab.data.recipe import make_recipe
from hyperslab.data.sources import source_of
from hyperslab.data.store import open_store
from hyperslab.data.verify import verify
from hyperslab.errors import UserError
from tests.conftest import stage

SHARED = Path(os.environ.get("HYPERSLAB_SHARED", Path(__file__).parents[3] / "shared")) / "samples"
KINDS = {"era5": "era5", "climate": "era5", "lartpc": "lartpc", "fmri": "fmri"}


def sample_names() -> list[str]:
    if not (SHARED / "INDEX.tsv").is_file():
        return []
    with (SHARED / "INDEX.tsv").open(encoding="utf-8") as file:
        return [row["file"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def settings_of(name: str, **options: Any) -> DataSettings:
    return DataSettings(
        source=KINDS[name.split("/")[0]], files=[str(SHARED / name)], validation=0, test=0, shard_mebibytes=1, **options
    )


@pytest.mark.parametrize("name", sample_names() or [pytest.param("", marks=pytest.mark.skip("no sample files"))])
def test_a_sample_stages_whole_or_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    settings = settings_of(name)
    try:
        try:
            index = source_of(settings.source).scan(settings.files, settings)
        except UserError as error:
            # What the file does not say a person may: then the rest must work.
            options = {"repetition_seconds": 2.0} if "repetition_seconds" in str(error) else {"parcels": 94}
            if settings.source != "fmri" or not set(options) & {word.rstrip(":") for word in _keys(error)}:
                raise
            settings = settings_of(name, fmri=options)
            index = source_of(settings.source).scan(settings.files, settings)
        path = stage(tmp_path / "store", make_recipe(index, settings))
    except UserError as error:
        line = str(error)
        assert "\n" not in line
        assert Path(name).name in line or "never changes" in line or "has no value" in line
        assert not (tmp_path / "store" / ".hyperslab" / "manifest.json").exists()
        return
    assert list(verify(path)) == []
    store, source = open_store(path), source_of(index.source)
    total = len(index.time)
    for start in range(0, total, 200):
        stop = min(start + 200, total)
        expected = source.read(index, start, stop)
        found = store.read_points(start, stop) if index.is_ragged else {"values": store.read(start, stop)}
        for array, values in found.items():
            np.testing.assert_array_equal(values, expected[array])


def _keys(error: UserError) -> list[str]:
    return str(error).replace("fmri.", "").replace("`", "").split()
