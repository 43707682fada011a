from pathlib import Path

import numpy as np
import pytest

from hyperslab.errors import UserError
from tests.data.sources.lartpc.raw_files import write_npz
from tests.data.sources.lartpc.reading import feature, label, read, scan


def _write(path: Path, **more: np.ndarray) -> dict[str, np.ndarray]:
    arrays = {
        "event_id": np.asarray([3, 3, 1, 3], np.int32),
        **{axis: np.arange(4, dtype=np.float32) + number for number, axis in enumerate("xyz")},
        "Q": np.asarray([1.5, -2.5, 0.5, 3.5], np.float32),
        "pixels": np.asarray([9, 8, 7, 6]),
        **more,
    }
    write_npz(path, arrays)
    return arrays


def test_arrays_of_an_npz_are_columns(tmp_path: Path) -> None:
    arrays = _write(tmp_path / "a.npz", name=np.asarray(["a"] * 4))
    index = scan(tmp_path / "a.npz")
    block = read(index)
    assert index.points == (3, 1)
    assert index.frame_labels["event_id"] == (3, 1)
    assert block["position"][:, 0].tolist() == arrays["x"][[0, 1, 3, 2]].tolist()
    assert feature(index, block, "Q").tolist() == [1.5, -2.5, 3.5, 0.5]
    assert label(index, block, "pixels").tolist() == [9, 8, 6, 7]
    assert any("no single number are left out: name" in line for line in index.oddities)


def test_arrays_of_different_length_are_refused(tmp_path: Path) -> None:
    _write(tmp_path / "a.npz", Q=np.zeros(3))
    with pytest.raises(UserError, match=r"are no columns of one length .*Q \(3,\)"):
        scan(tmp_path / "a.npz")


def test_python_objects_are_never_loaded(tmp_path: Path) -> None:
    _write(tmp_path / "a.npz", Q=np.asarray([None] * 4))
    with pytest.raises(UserError, match=r"Q\.npy: holds object of shape"):
        scan(tmp_path / "a.npz")
