from pathlib import Path

import numpy as np
import pytest
from nilearn.signal import clean

from hyperslab.data.sources.fmri import confounds as module
from hyperslab.data.sources.fmri.confounds import Cleaning, read_confounds, removed_basis
from hyperslab.errors import UserError
from tests.data.sources.fmri.raw import write_table

RUN = Path("run.nii")
FRAMES, PLACES = 40, 25


def table(tmp_path: Path, values: np.ndarray, names: list[str]) -> Path:
    path = write_table(tmp_path / "c.tsv", values, names, "\t")
    path.write_text(path.read_text().replace("nan", "n/a"))
    return path


def courses(seed: int, columns: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(FRAMES, columns)).cumsum(axis=0)


@pytest.mark.parametrize("detrend", [True, False])
@pytest.mark.parametrize("columns", [0, 1, 6])
def test_cleaning_in_pieces_is_what_nilearn_makes_of_the_whole(detrend, columns):
    values = (1000 + 50 * courses(0, PLACES)).astype(np.float32)
    confounds = courses(1, columns) if columns else None
    if not detrend and confounds is None:
        return
    basis = removed_basis(confounds, detrend, FRAMES, RUN)
    cleaning = Cleaning(basis, lambda start, stop: values[start:stop], (PLACES,), RUN)
    expected = clean(values.astype(float), detrend=detrend, standardize=None, confounds=confounds, filter=False)
    found = np.concatenate([cleaning.frames(30, FRAMES), cleaning.frames(0, 30)])
    # float32 holds values near 1000 to 6e-5.
    np.testing.assert_allclose(np.roll(found, 30, axis=0), expected, atol=1e-3)


def test_repeated_and_constant_confounds_take_nothing_more():
    one = courses(1, 1)
    basis = removed_basis(np.hstack([one, one, np.ones((FRAMES, 1))]), False, FRAMES, RUN)
    assert basis.shape == (FRAMES, 1)


def test_a_run_is_read_a_few_frames_at_a_time(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 8 * PLACES * 7)
    values = courses(0, PLACES).astype(np.float32)
    asked = []

    def read(start: int, stop: int) -> np.ndarray:
        asked.append(stop - start)
        return values[start:stop]

    Cleaning(removed_basis(courses(1, 2), True, FRAMES, RUN), read, (PLACES,), RUN).frames(0, FRAMES)
    assert max(asked) == 7


def test_a_place_with_a_missing_value_is_missing_in_all_frames():
    values = courses(0, PLACES).astype(np.float32)
    values[3, 4] = np.nan
    cleaning = Cleaning(removed_basis(None, True, FRAMES, RUN), lambda a, b: values[a:b], (PLACES,), RUN)
    assert np.flatnonzero(np.isnan(cleaning.frames(0, FRAMES)).any(axis=0)).tolist() == [4]
    assert np.isnan(cleaning.frames(0, FRAMES)[:, 4]).all()


def test_coefficients_above_the_bound_are_refused(monkeypatch):
    monkeypatch.setattr(module, "COEFFICIENT_BYTES", 100)
    cleaning = Cleaning(
        removed_basis(None, True, FRAMES, RUN), lambda a, b: np.ones((b - a, 25), np.float32), (25,), RUN
    )
    with pytest.raises(UserError, match="taking 2 courses away from 25 places needs 400 bytes"):
        cleaning.frames(0, 1)


def test_patterns_choose_columns_in_their_order(tmp_path):
    path = table(tmp_path, np.arange(12.0).reshape(3, 4), ["trans_x", "csf", "trans_y", "rot_x"])
    values, oddities = read_confounds(path, ["csf", "trans_?", "*_x"], 3)
    np.testing.assert_array_equal(values[0], [1, 0, 2, 3])
    assert oddities == ["confounds regressed out: csf, trans_x, trans_y, rot_x"]


def test_a_missing_first_value_is_the_second_as_in_nilearn(tmp_path):
    path = table(tmp_path, np.array([[np.nan, 1], [5, 2], [6, 3]]), ["fd", "csf"])
    values, oddities = read_confounds(path, ["*"], 3)
    np.testing.assert_array_equal(values[:, 0], [5, 5, 6])
    assert "1 confounds lack their first value: the second stands in, as in nilearn" in oddities


@pytest.mark.parametrize(
    ("patterns", "frames", "words"),
    [
        (["trans_x"], 3, r"'trans_x' fits no column of .* near it are trans_y"),
        (["csf"], 4, "has 3 rows, its run 4 frames"),
        (["csf"], 3, "csf is missing in row 3"),
    ],
)
def test_confounds_that_do_not_suit_are_refused(tmp_path, patterns, frames, words):
    path = table(tmp_path, np.array([[1, 2], [3, 4], [5, np.nan]]), ["trans_y", "csf"])
    with pytest.raises(UserError, match=words):
        read_confounds(path, patterns, frames)


def test_too_many_confounds_for_a_run_are_refused():
    with pytest.raises(UserError, match="has 40 frames, too few to take 42 courses away"):
        removed_basis(courses(1, 40), True, FRAMES, RUN)


@pytest.mark.parametrize("name", ["test_desc-confounds_regressors.tsv", "test-v21_desc-confounds_timeseries.tsv"])
def test_real_tables_of_fmriprep_are_read(shared_samples, name):
    path = shared_samples / "fmri" / name
    values, _ = read_confounds(path, ["trans_?", "rot_?", "*_derivative1", "cosine*"], 30)
    assert np.isfinite(values).all()
    assert values.shape[1] > 12
