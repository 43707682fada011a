from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr

from hyperslab.data.frames import find_windows
from hyperslab.data.store import open_store
from hyperslab.errors import UserError

LATITUDE, LONGITUDE = np.asarray([90.0, 30, -30, -90]), np.arange(0, 360, 60.0)


def write(path: Path, *, members: int = 1, south_up: bool = False, **changes: Any) -> npt.NDArray[np.float32]:
    """A dataset as anemoi-datasets 0.5.47 writes one (Zarr 2, grid points in one row); its data.

    20 six-hourly dates of 2 variables on 4 x 6 points; statistics over the first 12.
    """
    latitude = LATITUDE[::-1] if south_up else LATITUDE
    latitudes, longitudes = (axis.ravel() for axis in np.meshgrid(latitude, LONGITUDE, indexing="ij"))
    data = np.random.default_rng(0).normal(size=(20, 2, members, 24)).astype(np.float32)
    dates = np.datetime64("2001-01-01T00", "s") + np.arange(20) * np.timedelta64(6, "h")
    group = zarr.open_group(path, mode="w", zarr_format=2)
    group.create_array("data", data=data, chunks=(1, 2, members, 24))
    training = data[:12].astype(np.float64)
    for name, values in (
        ("dates", dates.astype(np.int64)),
        ("latitudes", latitudes),
        ("longitudes", longitudes),
        ("mean", training.mean(axis=(0, 2, 3))),
        ("stdev", training.std(axis=(0, 2, 3))),
    ):
        group.create_array(name, data=values)
    group.attrs.update(
        {
            "variables": ["10u", "2t"],
            "variables_metadata": {"2t": {"units": "K"}},
            "field_shape": [4, 6],
            "frequency": "6h",
            "end_date": str(dates[-1]),
            "statistics_end_date": str(dates[11]),
            "missing_dates": [],
            "uuid": "1234",
            **changes,
        }
    )
    return data


def test_a_dataset_is_read_where_it_lies(tmp_path: Path) -> None:
    data = write(tmp_path / "a.zarr")
    before = sorted(tmp_path.rglob("*"))
    store = open_store(tmp_path / "a.zarr")
    np.testing.assert_array_equal(store.read(3, 9), data[3:9, :, 0].reshape(6, 2, 4, 6))
    assert store.channels == ("10u", "2t")
    assert store.units == {"10u": "1", "2t": "K"}
    assert store.cadence == "6 h"
    assert store.latitude.tolist() == LATITUDE.tolist()
    # Statistics of the first 12 dates: they are the training split, and of the other 8 each split has half.
    assert store.splits == {"train": ((0, 12),), "validation": ((12, 16),), "test": ((16, 20),)}
    np.testing.assert_allclose(store.mean, data[:12].mean(axis=(0, 2, 3)), rtol=1e-5)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dataset_from_south_to_north_is_turned(tmp_path: Path) -> None:
    data = write(tmp_path / "a.zarr", south_up=True)
    store = open_store(tmp_path / "a.zarr")
    assert store.latitude.tolist() == LATITUDE.tolist()
    np.testing.assert_array_equal(store.read(0, 20), data[:, :, 0].reshape(20, 2, 4, 6)[:, :, ::-1])


def test_members_are_segments_of_their_own(tmp_path: Path) -> None:
    data = write(tmp_path / "a.zarr", members=3)
    store = open_store(tmp_path / "a.zarr")
    assert store.segment.tolist() == [0] * 20 + [1] * 20 + [2] * 20
    # Frames 18 to 22 are the last two of the first member and the first two of the second.
    np.testing.assert_array_equal(store.read(18, 22)[:2], data[18:, :, 0].reshape(2, 2, 4, 6))
    np.testing.assert_array_equal(store.read(18, 22)[2:], data[:2, :, 1].reshape(2, 2, 4, 6))
    # Each member's 12 training frames hold 11 windows of two.
    assert len(find_windows(store.segment, store.valid, store.splits["train"], 2)) == 33


def test_missing_dates_are_not_valid(tmp_path: Path) -> None:
    write(tmp_path / "a.zarr", missing_dates=["2001-01-01T12:00:00"])
    assert np.flatnonzero(~open_store(tmp_path / "a.zarr").valid).tolist() == [2]


def test_another_dataset_has_another_digest(tmp_path: Path) -> None:
    write(tmp_path / "a.zarr")
    write(tmp_path / "b.zarr", uuid="5678")
    assert open_store(tmp_path / "a.zarr").digest != open_store(tmp_path / "b.zarr").digest


def test_a_reduced_grid_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.zarr", field_shape=[24])
    with pytest.raises(UserError, match=r"its grid \(24 points\) is not a regular latitude-longitude one; create"):
        open_store(tmp_path / "a.zarr")


def test_any_other_zarr_is_no_store(tmp_path: Path) -> None:
    zarr.open_group(tmp_path / "a.zarr", mode="w")
    with pytest.raises(UserError, match="the store is unfinished"):
        open_store(tmp_path / "a.zarr")
