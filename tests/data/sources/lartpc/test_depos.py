from pathlib import Path

import numpy as np
import pytest

from hyperslab.data.sources.lartpc.source import SOURCE
from hyperslab.errors import UserError
from tests.data.sources.lartpc.raw_files import write_npz
from tests.data.sources.lartpc.reading import label, read, scan


def _depos(points: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(points)
    data = rng.uniform(1, 1000, (7, points)).astype(np.float32)
    data[1] *= -1
    return data, rng.integers(-20, 20, (4, points)).astype(np.int32)


@pytest.mark.parametrize("points", [3, 4, 7])
@pytest.mark.parametrize("turned", [False, True])
def test_deposits_are_converted_whichever_way_they_are_stored(tmp_path: Path, points: int, turned: bool) -> None:
    first, second = _depos(points), _depos(2)
    arrays = {"depo_data_5": first[0], "depo_info_5": first[1], "depo_data_2": second[0], "depo_info_2": second[1]}
    write_npz(tmp_path / "a.npz", {name: values.T if turned else values for name, values in arrays.items()})
    index = scan(tmp_path / "a.npz")
    block = read(index)
    assert index.points == (points, 2)
    assert index.frame_labels["event_id"] == (5, 2)
    data = np.concatenate([first[0], second[0]], axis=1).astype(np.float64)
    # mm to cm, ns to us; q as it stands.
    assert np.array_equal(block["position"], (data[2:5] * 0.1).T.astype(np.float32))
    assert [channel.name for channel in index.channels] == ["q", "t", "extent_long", "extent_tran"]
    assert np.array_equal(block["feature"][:, 0], data[1].astype(np.float32))
    assert np.array_equal(block["feature"][:, 1], (data[0] * 1e-3).astype(np.float32))
    info = np.concatenate([first[1], second[1]], axis=1)
    assert label(index, block, "pdg").tolist() == info[1].tolist()
    assert any("from mm to cm, t from ns to us" in line for line in index.oddities)


@pytest.mark.parametrize(("data", "info"), [((7, 3), (4, 4)), ((6, 3), (4, 3)), ((7,), (4,)), ((7, 3), (3, 4))])
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, data: tuple[int, ...], info: tuple[int, ...]) -> None:
    np.savez(tmp_path / "a.npz", depo_data_0=np.zeros(data), depo_info_0=np.zeros(info, int))
    with pytest.raises(UserError, match=r"depo_data_0 is .* they must be \(7, points\) and \(4, points\)"):
        scan(tmp_path / "a.npz")


def test_deposits_without_their_info_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", depo_data_0=np.zeros((7, 2)))
    with pytest.raises(UserError, match="holds depo_data_0, but no depo_info_0"):
        scan(tmp_path / "a.npz")


def test_odd_deposits_are_counted(tmp_path: Path) -> None:
    data, info = _depos(3)
    data[2, 0], data[1, 1] = np.nan, 5
    np.savez(tmp_path / "a.npz", depo_data_0=data, depo_info_0=info)
    lines = SOURCE.describe(str(tmp_path / "a.npz")).oddities
    assert "1 deposits have a position that is NaN or infinite: kept as it is" in lines
    assert "1 deposits have a positive q, as no electrons have: kept as it is" in lines
