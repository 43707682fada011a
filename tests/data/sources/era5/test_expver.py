from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from hyperslab.data.sources.era5.expver import version_text
from tests.conftest import make_dataset, write_netcdf
from tests.data.sources.era5.raw import read_all, scan, write


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "0001"), (np.int64(5), "0005"), ("0005", "0005"), (b"0001", "0001"), (5.0, "0005"), ("test", "test")],
)
def test_a_version_is_four_characters(value: object, text: str) -> None:
    assert version_text(value) == text


def stacked(frames: int, final: int, *, seed: int = 0, variables: tuple[str, ...] = ("t2m", "msl")) -> xr.Dataset:
    """What the old Climate Data Store sent for the last months: ERA5, then ERA5T, along a dimension."""
    dataset = make_dataset(frames=frames, seed=seed, variables=variables)
    parts = [dataset.where(dataset.time < dataset.time[final]), dataset.where(dataset.time >= dataset.time[final])]
    both = xr.concat(parts, xr.Variable("expver", [1, 5]))
    for name in variables:
        both[name].attrs = dataset[name].attrs
    return both.transpose("time", "expver", ...)


def test_versions_along_a_dimension_are_merged_frame_by_frame(tmp_path: Path) -> None:
    index = scan([write(tmp_path / "raw.nc", stacked(8, 5))])
    assert index.frame_labels == {"expver": ("0001",) * 5 + ("0005",) * 3}
    dataset = make_dataset(frames=8)
    np.testing.assert_array_equal(read_all(index), np.stack([dataset["msl"], dataset["t2m"]], axis=1))
    assert any(line.endswith("3 of 8 frames are preliminary (ERA5T)") for line in index.oddities)
    assert any("stacked along expver" in line for line in index.oddities)


def test_the_final_version_goes_before_the_preliminary_whatever_their_order(tmp_path: Path) -> None:
    dataset = make_dataset(frames=4, variables=["t2m"])
    both = xr.concat([dataset + 1, dataset], xr.Variable("expver", [5, 1]))
    index = scan([write(tmp_path / "raw.nc", both)])
    assert index.frame_labels == {"expver": ("0001",) * 4}
    np.testing.assert_array_equal(read_all(index)[:, 0], dataset["t2m"].values)


def test_packed_versions_are_merged_by_their_fill_values(tmp_path: Path) -> None:
    packing = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32767}
    path = write(tmp_path / "raw.nc", stacked(6, 2, variables=("t2m",)), encoding={"t2m": packing})
    values = read_all(scan([path]))[:, 0]
    # Rounding to hundredths errs by half a hundredth; float32 near 280 adds 2e-5.
    np.testing.assert_allclose(values, make_dataset(frames=6, variables=["t2m"])["t2m"], atol=0.005 + 2e-5)


def test_levels_of_two_versions_are_merged(tmp_path: Path) -> None:
    dataset = make_dataset(frames=4, variables=["t"], levels=[850, 500])
    parts = [dataset.where(dataset.time < dataset.time[2]), dataset.where(dataset.time >= dataset.time[2])]
    path = write(tmp_path / "raw.nc", xr.concat(parts, xr.Variable("expver", [1, 5])))
    np.testing.assert_array_equal(read_all(scan([path])), dataset["t"].values)


def test_a_frame_that_no_version_holds_stays_missing(tmp_path: Path) -> None:
    dataset = stacked(4, 2, variables=("t2m",))
    dataset["t2m"][3] = np.nan
    index = scan([write(tmp_path / "raw.nc", dataset)])
    assert index.frame_labels == {"expver": ("0001", "0001", "0005", "unknown")}
    assert np.isnan(read_all(index)[3]).all()


def test_a_version_for_each_time_is_the_label_of_its_frame(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3).assign_coords(expver=("time", ["0001", "0001", "0005"]))
    assert scan([write(tmp_path / "raw.nc", dataset)]).frame_labels == {"expver": ("0001", "0001", "0005")}


def test_one_version_for_all_is_that_of_each_frame(tmp_path: Path) -> None:
    dataset = make_dataset(frames=3).assign_coords(expver="0001")
    index = scan([write(tmp_path / "raw.nc", dataset)])
    assert index.frame_labels == {"expver": ("0001",) * 3}
    assert index.oddities == ()


def test_variables_of_two_versions_say_both(tmp_path: Path) -> None:
    first = make_dataset(variables=["t2m"], frames=2).assign_coords(expver="0001")
    second = make_dataset(variables=["msl"], frames=2).assign_coords(expver="0005")
    index = scan([write(tmp_path / "a.nc", first), write(tmp_path / "b.nc", second)])
    assert index.frame_labels == {"expver": ("0001,0005",) * 2}


def test_frames_of_files_that_tell_no_version_are_unknown_beside_others(tmp_path: Path) -> None:
    known = make_dataset(frames=2).assign_coords(expver="0001")
    unknown = write_netcdf(tmp_path / "b.nc", frames=2, start="2001-01-01T12")
    index = scan([write(tmp_path / "a.nc", known), unknown])
    assert index.frame_labels == {"expver": ("0001", "0001", "unknown", "unknown")}
    assert scan([unknown]).frame_labels == {}
