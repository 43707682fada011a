from pathlib import Path

import numpy as np
import pytest

from hyperslab.data.sources.fmri.table import Table, read_table, settle_time, table_series
from hyperslab.errors import UserError
from tests.data.sources.fmri.raw import read, scan, write_table

RNG = np.random.default_rng(0)


def nameless(tmp_path: Path, *shapes: tuple[int, int]) -> list[Table]:
    return [
        read_table(write_table(tmp_path / f"{n}.csv", RNG.normal(size=shape)), "text", None)
        for n, shape in enumerate(shapes)
    ]


def test_the_number_of_parcels_says_which_axis_is_time(tmp_path):
    tables = nameless(tmp_path, (9, 4), (4, 7))
    assert [axis for axis, _ in settle_time(tables, 4)] == [0, 1]


def test_the_axis_that_is_alike_in_all_files_is_of_parcels(tmp_path):
    assert settle_time(nameless(tmp_path, (4, 9), (4, 7)), None) == [(1, "all files have 4 rows")] * 2


def test_a_table_that_names_its_parcels_speaks_for_the_others(tmp_path):
    named = read_table(write_table(tmp_path / "named.csv", RNG.normal(size=(6, 4)), list("abcd")), "text", None)
    (other,) = nameless(tmp_path, (4, 9))
    assert settle_time([named, other], None)[1] == (1, "the other files have 4 parcels")


@pytest.mark.parametrize("shapes", [[(9, 4)], [(9, 4), (9, 4)], [(4, 4)], [(9, 4), (8, 3)]])
def test_an_axis_that_cannot_be_known_is_asked_for(tmp_path, shapes):
    with pytest.raises(UserError, match=r"which axis is time cannot be known; give data.fmri.parcels"):
        settle_time(nameless(tmp_path, *shapes), None)


def test_a_number_of_parcels_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(UserError, match="no axis has that length"):
        settle_time(nameless(tmp_path, (9, 4)), 5)
    with pytest.raises(UserError, match="both axes have that length"):
        settle_time(nameless(tmp_path, (4, 4)), 4)
    named = read_table(write_table(tmp_path / "named.csv", RNG.normal(size=(6, 4)), list("abcd")), "text", None)
    with pytest.raises(UserError, match=r"has 4 parcels .* data.fmri.parcels says 6"):
        settle_time([named], 6)


def test_dead_parcels_are_named_and_kept(tmp_path):
    values = RNG.normal(size=(6, 4))
    values[:, 1], values[:, 3] = 7, np.nan
    path = write_table(tmp_path / "run.csv", values, list("abcd"))
    series = table_series(read_table(path, "text", None), 0, "")
    assert series.dead == ("b", "d")
    assert "2 of 4 parcels are dead, constant or missing, kept as they are: b, d" in series.oddities
    assert "6 values are missing" in series.oddities
    index = scan(path, repetition_seconds=2)
    assert index.files[0].details["dead"] == ["b", "d"]
    assert (read(index)[:, 0, 1] == 7).all()
    assert np.isnan(read(index)[:, 0, 3]).all()


def test_infinite_values_are_refused(tmp_path):
    path = write_table(tmp_path / "run.csv", np.array([[1, np.inf], [2, 3]]), ["a", "b"])
    with pytest.raises(UserError, match="infinite"):
        read_table(path, "text", None)


def test_a_single_moment_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds 1 frame"):
        scan(write_table(tmp_path / "run.csv", np.ones((1, 3)), list("abc")), repetition_seconds=2)


def test_a_table_whose_rows_are_parcels_is_turned(tmp_path):
    values = RNG.normal(size=(4, 9)).round(3)
    index = scan(write_table(tmp_path / "run.csv", values), parcels=4, repetition_seconds=2)
    np.testing.assert_array_equal(read(index)[:, 0], values.T.astype(np.float32))
