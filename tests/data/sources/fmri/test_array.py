import zipfile

import numpy as np
import pytest
import scipy.io

from hyperslab.data.sources.fmri import array
from hyperslab.data.sources.fmri.array import read_array
from hyperslab.errors import UserError

VALUES = np.arange(12.0).reshape(3, 4)


def test_arrays_are_read_as_they_stand(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    np.savez_compressed(tmp_path / "a.npz", series=VALUES)
    scipy.io.savemat(tmp_path / "a.mat", {"tc": VALUES, "note": "text"})
    for kind in ("npy", "npz", "mat"):
        sheet = read_array(tmp_path / f"a.{kind}", kind, None)
        np.testing.assert_array_equal(sheet.values, VALUES)
        assert sheet.time_axis is None


def test_one_of_several_arrays_is_named(tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"tc": VALUES, "sc": VALUES})
    with pytest.raises(UserError, match=r"found sc, tc; name it in data.variables"):
        read_array(tmp_path / "a.mat", "mat", None)
    assert read_array(tmp_path / "a.mat", "mat", ["tc"]).kind == "MATLAB, variable 'tc', float64"
    with pytest.raises(UserError, match="which holds sc, tc"):
        read_array(tmp_path / "a.mat", "mat", ["ts"])


def test_a_single_series_has_its_long_axis_in_time(tmp_path):
    for shape, axis in (((9,), 0), ((9, 1), 0), ((1, 9), 1)):
        np.save(tmp_path / "a.npy", np.ones(shape))
        assert read_array(tmp_path / "a.npy", "npy", None).time_axis == axis


@pytest.mark.parametrize("values", [np.ones((2, 3), complex), np.ones((2, 3, 4)), np.array([["a"]]), np.ones(2, bool)])
def test_what_is_no_table_of_real_numbers_is_refused(tmp_path, values):
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(UserError, match="write"):
        read_array(tmp_path / "a.npy", "npy", None)


def test_a_pickle_is_never_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="not real numbers"):
        read_array(tmp_path / "a.npy", "npy", None)
    np.savez(tmp_path / "a.npz", a=np.array([print], dtype=object))
    with pytest.raises(UserError, match="cannot be read"):
        read_array(tmp_path / "a.npz", "npz", None)


def test_an_npy_that_claims_more_than_it_holds_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    raw = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(raw.replace(b"(3, 4)", b"(9, 4)"))
    with pytest.raises(UserError, match="is cut short"):
        read_array(tmp_path / "a.npy", "npy", None)


def test_an_array_above_the_bound_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(array, "TABLE_BYTES", 50)
    np.save(tmp_path / "a.npy", VALUES)
    np.savez(tmp_path / "a.npz", a=VALUES)
    scipy.io.savemat(tmp_path / "a.mat", {"a": VALUES})
    for kind in ("npy", "npz", "mat"):
        with pytest.raises(UserError, match="a table at most 50"):
            read_array(tmp_path / f"a.{kind}", kind, None)


def test_an_archive_without_arrays_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with pytest.raises(UserError, match="found none"):
        read_array(tmp_path / "a.npz", "npz", None)
