import os
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
from pydantic import ValidationError

from hyperslab.data.sources.era5.source import Era5
from hyperslab.errors import UserError
from tests.conftest import make_dataset, write_netcdf
from tests.data.sources.era5.raw import read_all, scan, write


def as_xarray_reads(path: Path, *variables: str) -> npt.NDArray[np.float32]:
    """Fields as xarray decodes and sorts them: (time, variable, latitude, longitude), 90..-90, 0..360."""
    with xr.open_dataset(path) as dataset:
        turned = dataset.assign_coords(longitude=dataset.longitude % 360)
        turned = turned.sortby("longitude").sortby("latitude", ascending=False)
        fields = [turned[name].transpose("time", "latitude", "longitude").values for name in variables]
    return np.stack(fields, axis=1).astype(np.float32)


def test_all_variables_are_taken_in_the_order_of_their_names_as_xarray_reads_them(tmp_path: Path) -> None:
    path = write_netcdf(tmp_path / "raw.nc")
    index = scan([path])
    assert [channel.name for channel in index.channels] == ["msl", "t2m"]
    np.testing.assert_array_equal(read_all(index), as_xarray_reads(path, "msl", "t2m"))


def test_south_up_files_are_read_north_up(tmp_path: Path) -> None:
    path = write(tmp_path / "raw.nc", make_dataset(rows=5).sortby("latitude"))
    index = scan([path])
    assert index.space[0].values == (90, 45, 0, -45, -90)
    np.testing.assert_array_equal(read_all(index), as_xarray_reads(path, "msl", "t2m"))


def test_longitudes_from_180_west_are_read_from_0_eastward(tmp_path: Path) -> None:
    dataset = make_dataset(columns=8)
    west = dataset.assign_coords(longitude=("longitude", np.arange(-180, 180, 45.0), dataset.longitude.attrs))
    path = write(tmp_path / "raw.nc", west)
    index = scan([path])
    assert index.space[1].values == (0, 45, 90, 135, 180, 225, 270, 315)
    np.testing.assert_array_equal(read_all(index), as_xarray_reads(path, "msl", "t2m"))
    # The column at 0 degrees was the fifth of the file.
    np.testing.assert_array_equal(read_all(index)[:, 1, :, 0], dataset["t2m"].values[:, :, 4])


def test_a_region_over_greenwich_stays_whole(tmp_path: Path) -> None:
    dataset = make_dataset(columns=5)
    # Cut from a global file in two pieces, as 0..360 gives them: 0, 10, 20 and then 340, 350.
    region = dataset.assign_coords(longitude=("longitude", [0.0, 10, 20, 340, 350], dataset.longitude.attrs))
    index = scan([write(tmp_path / "raw.nc", region)])
    assert index.space[1].values == (-20, -10, 0, 10, 20)
    expected = dataset["t2m"].values[:, :, [3, 4, 0, 1, 2]]
    np.testing.assert_array_equal(read_all(index)[:, 1], expected)


@pytest.mark.parametrize(
    "order",
    [("longitude", "latitude", "time"), ("latitude", "time", "longitude"), ("time", "longitude", "latitude")],
)
def test_dimensions_may_come_in_any_order(tmp_path: Path, order: tuple[str, ...]) -> None:
    path = write(tmp_path / "raw.nc", make_dataset().transpose(*order))
    np.testing.assert_array_equal(read_all(scan([path])), as_xarray_reads(path, "msl", "t2m"))


def test_packed_integers_are_unpacked_and_their_fill_value_is_missing(tmp_path: Path) -> None:
    dataset = make_dataset()
    dataset["t2m"][3, 1, 2] = np.nan
    packing = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32767}
    path = write(tmp_path / "raw.nc", dataset, encoding={"t2m": packing})
    values = read_all(scan([path]))
    np.testing.assert_array_equal(values, as_xarray_reads(path, "msl", "t2m"))
    # Rounding to hundredths errs by half a hundredth; float32 near 280 adds 2e-5.
    np.testing.assert_allclose(values[:, 1], dataset["t2m"].values, atol=0.005 + 2e-5)
    assert np.argwhere(np.isnan(values)).tolist() == [[3, 1, 1, 2]]


def test_levels_are_read_as_channels(tmp_path: Path) -> None:
    dataset = make_dataset(variables=["t", "z"], levels=[850, 700, 500])
    index = scan([write(tmp_path / "raw.nc", dataset)], levels=[500, 850], variables=["z", "t"])
    # Variables come as asked for, their levels as they stand in the file.
    assert [channel.name for channel in index.channels] == ["z_850", "z_500", "t_850", "t_500"]
    expected = [dataset[name].sel(pressure_level=level).values for name in ("z", "t") for level in (850, 500)]
    np.testing.assert_array_equal(read_all(index), np.stack(expected, axis=1))


def test_levels_of_a_variable_may_lie_in_several_files(tmp_path: Path) -> None:
    datasets = [make_dataset(variables=["t"], levels=[level], seed=int(level)) for level in (850, 500)]
    paths = [write(tmp_path / f"{number}.nc", dataset) for number, dataset in enumerate(datasets)]
    index = scan(paths)
    assert [channel.name for channel in index.channels] == ["t_850", "t_500"]
    expected = np.concatenate([dataset["t"].values for dataset in datasets], axis=1)
    np.testing.assert_array_equal(read_all(index), expected)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_surface_field_is_not_mixed_up_with_levels_of_the_same_name(tmp_path: Path, order: tuple[int, int]) -> None:
    # In ERA5 the geopotential is `z` both at the surface and on pressure levels.
    surface = make_dataset(variables=["z"], seed=1)
    upper = make_dataset(variables=["z"], levels=[500], seed=2)
    paths = [write(tmp_path / "surface.nc", surface), write(tmp_path / "upper.nc", upper)]
    index = scan([paths[number] for number in order])
    values = read_all(index)
    fields = {"z": surface["z"].values, "z_500": upper["z"].values[:, 0]}
    assert {channel.name for channel in index.channels} == set(fields)
    for number, channel in enumerate(index.channels):
        np.testing.assert_array_equal(values[:, number], fields[channel.name])


def test_two_variables_may_lie_in_two_files(tmp_path: Path) -> None:
    first = write_netcdf(tmp_path / "t2m.nc", variables=["t2m"], seed=1)
    second = write_netcdf(tmp_path / "msl.nc", variables=["msl"], seed=2)
    values = read_all(scan([first, second], variables=["msl", "t2m"]))
    expected = np.concatenate([as_xarray_reads(second, "msl"), as_xarray_reads(first, "t2m")], axis=1)
    np.testing.assert_array_equal(values, expected)


def test_files_may_follow_one_another_in_any_order(tmp_path: Path) -> None:
    # 40 six-hourly frames are ten days.
    late = write_netcdf(tmp_path / "a.nc", start="2001-01-11", seed=1)
    early = write_netcdf(tmp_path / "b.nc", start="2001-01-01", seed=2)
    index = scan([late, early])
    expected = np.concatenate([as_xarray_reads(path, "msl", "t2m") for path in (early, late)])
    np.testing.assert_array_equal(read_all(index), expected)
    assert np.diff(index.times).tolist() == [6 * 3600] * 79


def test_times_of_two_files_may_interleave(tmp_path: Path) -> None:
    dataset = make_dataset(frames=11)
    even = write(tmp_path / "even.nc", dataset.isel(time=slice(0, None, 2)))
    odd = write(tmp_path / "odd.nc", dataset.isel(time=slice(1, None, 2)))
    index = scan([odd, even])
    expected = np.stack([dataset["msl"].values, dataset["t2m"].values], axis=1)
    np.testing.assert_array_equal(read_all(index), expected)


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (3, 9), (5, 6), (10, 11), (0, 11)])
def test_any_stretch_of_frames_is_read_alone(tmp_path: Path, start: int, stop: int) -> None:
    dataset = make_dataset(frames=11)
    first = write(tmp_path / "first.nc", dataset.isel(time=slice(0, 6)))
    second = write(tmp_path / "second.nc", dataset.isel(time=slice(6, None)))
    block = Era5().read(scan([first, second]), start, stop)["values"]
    expected = np.stack([dataset["msl"].values, dataset["t2m"].values], axis=1)[start:stop]
    np.testing.assert_array_equal(block, expected)


def test_no_two_files_are_opened_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # netCDF-C is not thread-safe (https://github.com/Unidata/netcdf4-python/issues/844,
    # https://github.com/pydata/xarray/issues/9779): two threads inside it end in a segmentation fault.
    inside: list[int] = []
    most: list[int] = []

    def open_slowly(path: Path, **_: object) -> xr.Dataset:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()
        raise FileNotFoundError

    paths = [tmp_path / f"{number}.nc" for number in range(8)]
    for path in paths:
        path.write_bytes(b"\x89HDF")
    monkeypatch.setattr(xr, "open_dataset", open_slowly)
    with pytest.raises(UserError, match="no such file"):
        scan(paths)
    assert max(most) == 1


def test_a_period_takes_both_of_its_ends(tmp_path: Path) -> None:
    path = write_netcdf(tmp_path / "raw.nc")
    index = scan([path], period={"start": "2001-01-02", "end": "2001-01-03"})
    # Four frames a day: the 2nd and 3rd of January are frames 4 to 11.
    np.testing.assert_array_equal(read_all(index), as_xarray_reads(path, "msl", "t2m")[4:12])


def test_an_unknown_variable_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    path = write_netcdf(tmp_path / "raw.nc")
    with pytest.raises(UserError, match="unknown variable 't3m'; the files hold msl, t2m"):
        scan([path], variables=["t2m", "t3m"])


def test_a_variable_that_cannot_be_taken_is_refused_with_the_reason(tmp_path: Path) -> None:
    dataset = make_dataset()
    dataset["d2fd"] = dataset["t2m"].expand_dims(direction=24)
    path = write(tmp_path / "raw.nc", dataset)
    with pytest.raises(UserError, match=r"d2fd cannot be taken: it has the dimension direction \(24\), select one"):
        scan([path], variables=["d2fd"])


def test_a_file_without_any_field_is_refused_with_the_reasons(tmp_path: Path) -> None:
    spectra = make_dataset(variables=["t2m"]).expand_dims(direction=24)
    with pytest.raises(UserError, match=r"no variable can be taken \(t2m: it has the dimension direction \(24\)"):
        scan([write(tmp_path / "raw.nc", spectra)])
    with pytest.raises(UserError, match=r"no variable can be taken \(the file holds none\)"):
        scan([write(tmp_path / "bare.nc", make_dataset(variables=[]))])


def test_an_unknown_level_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    path = write_netcdf(tmp_path / "raw.nc", variables=["t"], levels=[850, 500])
    with pytest.raises(UserError, match="unknown level 400; the files hold 500, 850"):
        scan([path], levels=[850, 400])
    surface = write_netcdf(tmp_path / "surface.nc")
    with pytest.raises(UserError, match="unknown level 400; the files hold none"):
        scan([surface], levels=[400])


def test_one_variable_in_two_units_is_refused(tmp_path: Path) -> None:
    kelvin = write_netcdf(tmp_path / "kelvin.nc")
    dataset = make_dataset(start="2002-01-01")
    dataset["t2m"].attrs["units"] = "degC"
    celsius = write(tmp_path / "celsius.nc", dataset)
    with pytest.raises(UserError, match=r"celsius\.nc: t2m is in 'degC', in .*kelvin\.nc in 'K'; .*convert"):
        scan([kelvin, celsius])


@pytest.mark.parametrize(("axis", "size"), [("latitude", "rows"), ("longitude", "columns")])
def test_files_of_two_grids_are_refused(tmp_path: Path, axis: str, size: str) -> None:
    coarse = write_netcdf(tmp_path / "coarse.nc")
    fine = write_netcdf(tmp_path / "fine.nc", start="2002-01-01", **{size: 6})
    message = rf"fine\.nc: its {axis} \(6 values, .*differs from that of .*coarse\.nc .*all files need one grid"
    with pytest.raises(UserError, match=message):
        scan([coarse, fine])


def test_grids_that_are_shifted_by_a_cell_are_refused(tmp_path: Path) -> None:
    first = write_netcdf(tmp_path / "first.nc")
    dataset = make_dataset(start="2002-01-01")
    shifted = dataset.assign_coords(longitude=("longitude", [1.0, 91, 181, 271], dataset.longitude.attrs))
    with pytest.raises(UserError, match=r"its longitude \(4 values, 1 to 271\) differs"):
        scan([first, write(tmp_path / "shifted.nc", shifted)])


def test_the_rounding_noise_of_float32_is_no_other_grid(tmp_path: Path) -> None:
    dataset = make_dataset()
    exact = dataset.assign_coords(latitude=("latitude", [10.6, 10.5, 10.4], dataset.latitude.attrs))
    noisy = exact.assign_coords(
        time=exact.time + np.timedelta64(10, "D"),
        latitude=("latitude", np.asarray([10.6, 10.5, 10.4], np.float32), dataset.latitude.attrs),
    )
    index = scan([write(tmp_path / "exact.nc", exact), write(tmp_path / "noisy.nc", noisy)])
    assert index.shape == (80, 2, 3, 4)


def test_files_that_overlap_are_refused_with_both_names(tmp_path: Path) -> None:
    # Ten days from the 1st and from the 9th share the 9th and 10th: 8 frames.
    first = write_netcdf(tmp_path / "first.nc")
    second = write_netcdf(tmp_path / "second.nc", start="2001-01-09")
    message = r"first\.nc and .*second\.nc overlap: both hold msl at 2001-01-09T00:00 \(8 frames in all\)"
    with pytest.raises(UserError, match=message):
        scan([first, second])


def test_files_that_overlap_outside_the_period_are_no_matter(tmp_path: Path) -> None:
    first = write_netcdf(tmp_path / "first.nc")
    second = write_netcdf(tmp_path / "second.nc", start="2001-01-09")
    assert len(scan([first, second], period={"end": "2001-01-08"}).time) == 32


def test_a_variable_that_lacks_frames_is_refused(tmp_path: Path) -> None:
    whole = write_netcdf(tmp_path / "t2m.nc", variables=["t2m"])
    short = write_netcdf(tmp_path / "msl.nc", variables=["msl"], frames=30)
    # Frame 30 of four a day is 7 days and 12 hours after the beginning.
    message = r"msl has no frame at 2001-01-08T12:00 \(10 of 40 frames are missing\) where other variables have one"
    with pytest.raises(UserError, match=message):
        scan([whole, short])


def test_a_period_without_frames_is_refused(tmp_path: Path) -> None:
    path = write_netcdf(tmp_path / "raw.nc")
    with pytest.raises(UserError, match=r"data\.period: no frame lies in 1990-01-01 to 1990-12-31; choose one"):
        scan([path], period={"start": "1990-01-01", "end": "1990-12-31"})


def test_a_variable_named_twice_is_refused_as_such(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="must name each one once"):
        scan([tmp_path / "raw.nc"], variables=["t2m", "t2m"])


def test_files_that_hold_nothing_that_was_asked_for_are_pointed_out(tmp_path: Path) -> None:
    wanted = write_netcdf(tmp_path / "t2m.nc", variables=["t2m"])
    other = write_netcdf(tmp_path / "msl.nc", variables=["msl"], rows=7)
    index = scan([wanted, other], variables=["t2m"])
    assert index.oddities == ("msl.nc: holds nothing that was asked for",)
    assert [Path(file.path).name for file in index.files] == ["t2m.nc"]


def test_what_is_odd_in_a_file_is_said_with_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "raw.nc", make_dataset().sortby("latitude"))
    assert scan([path]).oddities == ("raw.nc: latitude ascends: stored north-up",)


def test_a_file_that_changed_since_the_scan_is_refused(tmp_path: Path) -> None:
    path = write_netcdf(tmp_path / "raw.nc")
    index = scan([path])
    write_netcdf(path, seed=1)
    os.utime(path, ns=(0, index.files[0].modified_ns + 1))
    with pytest.raises(UserError, match=r"raw\.nc: has changed since it was indexed; start a new campaign"):
        read_all(index)


def test_a_file_that_vanished_since_the_scan_is_named(tmp_path: Path) -> None:
    path = write_netcdf(tmp_path / "raw.nc")
    index = scan([path])
    path.unlink()
    with pytest.raises(UserError, match=r"raw\.nc: no such file"):
        read_all(index)


def test_data_that_cannot_be_decompressed_is_refused(tmp_path: Path) -> None:
    dataset = make_dataset(variables=["t2m"], frames=200, rows=10, columns=20)
    path = write(tmp_path / "raw.nc", dataset, encoding={"t2m": {"zlib": True}})
    index = scan([path])
    # Blank out a piece inside the compressed field, which is most of the file, as a failing disk would.
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 1000] = bytes(1000)
    path.write_bytes(content)
    os.utime(path, ns=(0, index.files[0].modified_ns))
    with pytest.raises(UserError, match=r"raw\.nc: its data cannot be read \(.*\); download it again"):
        read_all(index)


def test_a_description_says_what_would_be_taken_and_what_is_odd(tmp_path: Path) -> None:
    dataset = make_dataset(variables=["t2m"]).sortby("latitude")
    dataset["t2m"].attrs["long_name"] = "2 metre temperature"
    dataset["lsm"] = dataset["t2m"].isel(time=0, drop=True)
    path = write(tmp_path / "raw.nc", dataset)
    description = Era5().describe(str(path))
    assert description.path == str(path)
    assert description.kind.startswith(f"netCDF, {path.stat().st_size:,} bytes (")
    assert "time 40" in description.kind
    # Frame 39 of four a day is 9 days and 18 hours after the beginning.
    assert description.taken == (
        "frames: 40, 2001-01-01T00:00 to 2001-01-10T18:00, every 6 h, in 1 segment(s)",
        "grid: 3 x 4, latitude 90 to -90, longitude 0 to 270",
        "channel t2m: 2 metre temperature [K]",
        "static field lsm: 2 metre temperature [K]",
    )
    assert description.oddities == ("latitude ascends: stored north-up",)


def test_a_single_frame_is_not_described_as_coming_every_no_days(tmp_path: Path) -> None:
    description = Era5().describe(str(write_netcdf(tmp_path / "raw.nc", frames=1)))
    assert "every 0" not in description.taken[0]


@pytest.mark.shared
def test_real_pressure_levels_are_read_as_xarray_reads_them(shared_samples: Path) -> None:
    path = shared_samples / "era5" / "newcds_pl_reanalysis.nc"
    index = scan([path], variables=["t", "z"], levels=[500, 825, 975])
    assert [channel.name for channel in index.channels] == [
        "t_975",
        "t_825",
        "t_500",
        "z_975",
        "z_825",
        "z_500",
    ]
    with xr.open_dataset(path) as dataset:
        fields = [dataset[name].sel(pressure_level=level).values for name in ("t", "z") for level in (975, 825, 500)]
        assert index.space[0].values == tuple(dataset.latitude.values)
        assert index.space[1].values == tuple(dataset.longitude.values + 360)
    np.testing.assert_array_equal(read_all(index), np.stack(fields, axis=1))


@pytest.mark.shared
def test_a_real_hourly_year_of_packed_fields_is_read_as_xarray_reads_it(shared_samples: Path) -> None:
    path = shared_samples / "era5" / "feedinlib_ERA5_example_data.nc"
    index = scan([path])
    names = [channel.name for channel in index.channels]
    assert sorted(names) == sorted(["u100", "v100", "fsr", "sp", "fdir", "ssrd", "t2m", "u10", "v10"])
    block = Era5().read(index, 4000, 4500)["values"]
    np.testing.assert_array_equal(block, as_xarray_reads(path, *names)[4000:4500])


@pytest.mark.shared
def test_two_real_files_of_one_variable_each_make_one_record(shared_samples: Path) -> None:
    paths = [shared_samples / "era5" / f"oggm_sel_era5_monthly_{name}.nc" for name in ("t2m", "prcp")]
    index = scan(paths)
    assert [channel.name for channel in index.channels] == ["t2m", "tp"]
    # 40 years of 12 months, 1979 to 2018.
    assert len(index.time) == 480
    expected = [as_xarray_reads(path, name) for path, name in zip(paths, ("t2m", "tp"), strict=True)]
    np.testing.assert_array_equal(read_all(index), np.concatenate(expected, axis=1))


@pytest.mark.shared
def test_real_monthly_winds_are_turned_north_up_and_eastward(shared_samples: Path) -> None:
    path = shared_samples / "climate" / "monthly_navy_winds.cdf"
    index = scan([path])
    assert [channel.name for channel in index.channels] == ["UWND", "VWND"]
    with xr.open_dataset(path) as dataset:
        turned = dataset.assign_coords(FNOCX=dataset.FNOCX % 360).sortby("FNOCX").sortby("FNOCY", ascending=False)
        expected = np.stack([turned["UWND"].values, turned["VWND"].values], axis=1)
    np.testing.assert_array_equal(read_all(index), expected)


@pytest.mark.shared
def test_a_real_netcdf3_file_that_was_cut_short_is_refused(shared_samples: Path, tmp_path: Path) -> None:
    content = (shared_samples / "era5" / "feedinlib_ERA5_example_data.nc").read_bytes()
    path = tmp_path / "cut.nc"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"cut\.nc: .*cut short"):
        read_all(scan([path]))
