from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from hyperslab.data.sources.era5.contents import read_contents
from hyperslab.data.sources.era5.source import Era5
from hyperslab.errors import UserError
from tests.data.sources.era5.raw import Floats, read_all, scan, write_grib

RNG = np.random.default_rng(0)
# 24 bits over the range of these noises: an error below 1e-5.
FIELDS: Floats = RNG.normal(280, 5, (12, 4, 5)).astype(np.float32)


def message(field: int, **keys: Any) -> dict[str, Any]:
    """A message of temperature on 500 hPa, with some keys changed."""
    return {
        "shortName": "t",
        "level": 500,
        "dataDate": 20200101,
        "dataTime": 0,
        "values": FIELDS[field],
        **keys,
    }


def names_of(path: Path) -> list[str]:
    return [channel.name for header in read_contents(str(path)).headers for channel in header.channels]


def test_messages_in_any_order_make_frames_in_the_order_of_time(tmp_path: Path) -> None:
    path = write_grib(tmp_path / "raw.grib", *[message(n, dataTime=600 * n) for n in (2, 0, 3, 1)])
    index = scan([path])
    assert np.diff(index.times).tolist() == [21_600] * 3
    np.testing.assert_allclose(read_all(index)[:, 0], FIELDS[:4], atol=1e-4)


def test_levels_and_variables_are_channels(tmp_path: Path) -> None:
    path = write_grib(
        tmp_path / "raw.grib",
        *[
            message(2 * n + k, level=level, shortName=name)
            for n, name in enumerate(("t", "u"))
            for k, level in enumerate((500, 850))
        ],
    )
    index = scan([path], levels=[850])
    assert [(channel.name, channel.units) for channel in index.channels] == [("t_850", "K"), ("u_850", "m s**-1")]
    np.testing.assert_allclose(read_all(index)[0], FIELDS[[1, 3]], atol=1e-4)


def test_both_editions_and_several_kinds_of_level_stand_in_one_file(tmp_path: Path) -> None:
    path = write_grib(
        tmp_path / "raw.grib",
        message(0),
        message(1, sample="regular_ll_pl_grib2", typeOfLevel="hybrid", level=1),
        message(2, shortName="2t", level=0, sample="regular_ll_sfc_grib1"),
        message(3, shortName="2t", level=2, sample="regular_ll_sfc_grib2", dataTime=600),
    )
    assert sorted(names_of(path)) == ["t2m", "t_500", "t_hybrid_1"]


def test_the_editions_two_ways_to_place_a_field_are_one_channel(tmp_path: Path) -> None:
    # Edition 1 has the temperature at 2 m on the surface, edition 2 at a height of 2 m.
    path = write_grib(
        tmp_path / "raw.grib",
        message(0, shortName="2t", level=0, sample="regular_ll_sfc_grib1"),
        message(1, shortName="2t", level=2, sample="regular_ll_sfc_grib2", dataTime=600),
    )
    index = scan([path])
    assert [channel.name for channel in index.channels] == ["t2m"]
    np.testing.assert_allclose(read_all(index)[:, 0], FIELDS[:2], atol=1e-4)


def test_two_levels_at_one_time_are_told_apart_by_their_kind(tmp_path: Path) -> None:
    path = write_grib(
        tmp_path / "raw.grib",
        message(0, shortName="2t", level=0, sample="regular_ll_sfc_grib1"),
        message(1, shortName="2t", level=2, sample="regular_ll_sfc_grib2"),
    )
    assert sorted(names_of(path)) == ["t2m", "t2m_heightAboveGround"]


def test_members_are_trajectories(tmp_path: Path) -> None:
    keys = {"sample": "regular_ll_pl_grib2", "productDefinitionTemplateNumber": 1}
    path = write_grib(
        tmp_path / "raw.grib",
        *[message(2 * m + t, dataTime=600 * t, **keys, number=m) for t in (0, 1) for m in (0, 1, 2)],
    )
    index = scan([path])
    assert index.segment_labels == {"member": (0, 1, 2)}
    np.testing.assert_allclose(read_all(index)[:, 0], FIELDS[:6], atol=1e-4)
    np.testing.assert_allclose(read_all(scan([path], era5={"members": [1]}))[:, 0], FIELDS[2:4], atol=1e-4)


def test_steps_are_added_to_the_initial_time(tmp_path: Path) -> None:
    path = write_grib(
        tmp_path / "raw.grib",
        *[message(3 * d + s, dataDate=20200101 + d, step=12 * s) for d in (0, 1) for s in (0, 1, 2)],
    )
    index = scan([path])
    assert index.segment_labels == {"initial_time": ("2020-01-01T00:00", "2020-01-02T00:00")}
    hours = [(time - index.time[0]) // 3600 for time in index.time]
    assert hours == [0, 12, 24, 24, 36, 48]


def test_one_field_twice_at_a_time_is_refused(tmp_path: Path) -> None:
    path = write_grib(tmp_path / "raw.grib", message(0), message(1))
    with pytest.raises(UserError, match=r"raw\.grib: holds t_500 at 2020-01-01T00:00 twice; keep each field once"):
        scan([path])


def test_ways_over_time_tell_fields_of_one_name_apart(tmp_path: Path) -> None:
    keys = {"shortName": "t", "sample": "regular_ll_pl_grib2"}
    least = {**keys, "productDefinitionTemplateNumber": 8, "typeOfStatisticalProcessing": 3, "stepRange": "0-6"}
    path = write_grib(tmp_path / "raw.grib", message(0, **keys, step=6), message(1, **least))
    names = names_of(path)
    assert len(set(names)) == 2
    assert "t_500" in names


def test_an_accumulation_is_pointed_out(tmp_path: Path) -> None:
    keys = {
        "shortName": "tp",
        "level": 0,
        "sample": "regular_ll_sfc_grib1",
        "timeRangeIndicator": 4,
        "stepRange": "0-6",
    }
    (header,) = read_contents(str(write_grib(tmp_path / "raw.grib", message(0, **keys)))).headers
    assert header.oddities == ("tp is an accumulation over the time up to each frame: kept as the file has them",)


def test_missing_places_are_nan_and_the_value_9999_is_not(tmp_path: Path) -> None:
    values = FIELDS[0].astype(float).copy()
    values[1, 2] = np.nan
    values[2, 3] = 9999
    path = write_grib(tmp_path / "raw.grib", message(0, values=values))
    read = read_all(scan([path]))[0, 0]
    assert np.argwhere(np.isnan(read)).tolist() == [[1, 2]]
    # 24 bits over a range of 10,000.
    assert read[2, 3] == pytest.approx(9999, abs=1e-3)


def test_rows_from_south_to_north_are_turned(tmp_path: Path) -> None:
    keys = {
        "jScansPositively": 1,
        "latitudeOfFirstGridPointInDegrees": 0,
        "latitudeOfLastGridPointInDegrees": 60,
    }
    path = write_grib(tmp_path / "raw.grib", message(0, **keys))
    index = scan([path])
    assert index.space[0].values == (60, 40, 20, 0)
    np.testing.assert_allclose(read_all(index)[0, 0], FIELDS[0, ::-1], atol=1e-4)


def test_points_that_run_down_columns_are_turned(tmp_path: Path) -> None:
    values = FIELDS[0].T.reshape(4, 5)
    path = write_grib(tmp_path / "raw.grib", message(0, jPointsAreConsecutive=1, values=values))
    np.testing.assert_allclose(read_all(scan([path]))[0, 0], FIELDS[0], atol=1e-4)


def test_two_grids_in_one_file_are_refused(tmp_path: Path) -> None:
    path = write_grib(tmp_path / "raw.grib", message(0), message(1, shortName="u", values=FIELDS[1, :3]))
    with pytest.raises(UserError, match=r"raw\.grib: its latitude \(.*all files need one grid"):
        scan([path])
    assert len(scan([path], variables=["t"]).channels) == 1


def test_the_version_of_each_message_is_kept(tmp_path: Path) -> None:
    path = write_grib(
        tmp_path / "raw.grib",
        *[message(n, dataTime=600 * n, expver=version) for n, version in enumerate(("0001", "0005"))],
    )
    assert scan([path]).frame_labels == {"expver": ("0001", "0005")}


def test_a_field_with_another_set_of_frames_is_refused_unless_it_is_left_out(tmp_path: Path) -> None:
    path = write_grib(
        tmp_path / "raw.grib",
        *[message(n, dataTime=600 * n) for n in range(3)],
        *[message(n, dataTime=600 * n, shortName="u") for n in range(2)],
    )
    with pytest.raises(UserError, match=r"u_500 has no frame at 2020-01-01T12:00 \(1 of 3 frames are missing\)"):
        scan([path])
    np.testing.assert_allclose(read_all(scan([path], variables=["t"]))[:, 0], FIELDS[:3], atol=1e-4)


def test_grib_and_netcdf_make_one_record(tmp_path: Path) -> None:
    first = write_grib(tmp_path / "raw.grib", *[message(n, dataTime=600 * n) for n in range(4)])
    index = scan([first])
    dataset = xr.Dataset(
        {"t": (("time", "level", "latitude", "longitude"), FIELDS[4:6, None], {"units": "K"})},
        coords={
            "time": np.datetime64("2020-01-02", "ns") + np.arange(2) * np.timedelta64(6, "h"),
            "level": ("level", [500], {"units": "millibars"}),
            "latitude": ("latitude", list(index.space[0].values), {"units": "degrees_north"}),
            "longitude": ("longitude", list(index.space[1].values), {"units": "degrees_east"}),
        },
    )
    dataset.to_netcdf(tmp_path / "raw.nc")
    index = scan([first, tmp_path / "raw.nc"])
    assert index.segment == (0,) * 6
    np.testing.assert_allclose(read_all(index)[:, 0], FIELDS[:6], atol=1e-4)


def test_no_index_file_is_left_beside_the_raw_one(tmp_path: Path) -> None:
    path = write_grib(tmp_path / "raw.grib", message(0))
    Era5().describe(str(path))
    read_all(scan([path]))
    assert [file.name for file in tmp_path.iterdir()] == ["raw.grib"]


def test_a_file_cut_inside_a_message_is_refused(tmp_path: Path) -> None:
    path = write_grib(tmp_path / "raw.grib", *[message(n, dataTime=600 * n) for n in range(3)])
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    with pytest.raises(UserError, match=r"raw\.grib: .*download it again"):
        scan([path])
