"""Every real sample: read as the reference library reads it, or refused with a clear line."""

from pathlib import Path

import cfgrib
import cftime
import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr

from hyperslab.data.sources.era5.source import Era5
from hyperslab.data.sources.index import Index
from hyperslab.errors import UserError
from tests.data.sources.era5.raw import read_all, scan

pytestmark = pytest.mark.shared

NETCDF = (
    "era5_2t_1.nc",
    "era5_2t_2.nc",
    "ekd_test4.nc",
    "ekd_test6.nc",
    "ekd_test_single.nc",
    "feedinlib_ERA5_example_data.nc",
    "oggm_sel_era5_monthly_t2m.nc",
    "oggm_sel_era5_monthly_prcp.nc",
    "oggm_sel_era5_invariant.nc",
    "oggm_sel_era5_land_monthly_t2m.nc",
    "oggm_sel_era5_land_monthly_prcp.nc",
    "oggm_sel_era5_land_invariant.nc",
    "oggm_sel_cera20c_pcp.nc",
    "globsim_era5_sa_202301.nc",
    "globsim_era5_to.nc",
    "globsim_era5_sf_202301.nc",
    "globsim_jra3qg_sf.nc",
    "newcds_bd_wind_may2025.nc",
    "newcds_pl_reanalysis.nc",
    "geokube_globe-era5-single-levels.nc",
    "tas_Amon_HadGEM2-ES_203012-205511.nc",
    "tas_Amon_HadGEM2-ES_205512-208011.nc",
    "xclim_cmip6_prsn_CanESM5.nc",
    "../climate/monthly_navy_winds.cdf",
)

GRIB = (
    "era5-levels-members.grib",
    "era5-single-level-scalar-time.grib",
    "fields_with_missing_values.grib",
    "multi_param_on_multi_dims.grib",
    "t_on_different_level_types.grib",
    "step_60m.grib",
    "regular_gg_pl.grib",
    "scanning_mode_64.grib",
    "ERA5_levels.grib",
    "t_time_series.grib",
    "test_single_with_missing.grib",
    "ens_50.grib",
    "ml_data.grib",
)

REFUSED = {
    "feedinlib_era5_point_54-16.nc": r"holds a single grid point \(latitude 54.25, longitude 9\)",
    "feedinlib_era5_point_54-43.nc": r"holds a single grid point \(latitude 54.5, longitude 7.75\)",
    "geokube_point_domain.nc": r"no regular latitude-longitude grid \(dimensions: time, soil1, points\).*stations",
    "wavespectra_era5file.nc": r"\(d2fd: it has the dimension direction \(24\), frequency \(30\), select one",
    "xclim_ERA5_daily_cancities.nc": r"no regular latitude-longitude grid \(dimensions: location, time\).*stations",
    "xclim_ERA5_daily_cancities_old.nc": r"no regular latitude-longitude grid \(dimensions: .*location.*\).*stations",
    "wb2_deterministic_scores.nc": r"no regular latitude-longitude grid \(dimensions: metric, region, lead_time",
    "era5-levels-corrupted.grib": r"its GRIB messages cannot be read \(a message does not end at byte 1584\)",
    "reduced_gg.grib": r"u10: it is on a reduced Gaussian grid; fill it up with `cdo setgridtype,regular",
    "regular_ll_wrong_increment.grib": r"its header contradicts itself: 37 latitudes from 90 to -90 are not 2 degrees",
    "spherical_harmonics.grib": r"z: it is on spherical harmonics; transform them with `cdo sp2gpl",
    "single_gridpoint.grib": r"holds a single grid point \(latitude 51.07, longitude 7.27\)",
    "empty_file.grib": r"is empty \(0 bytes\); download it again",
    "wave_spectra.grib": r"d2fd: it is a wave spectrum of directions and frequencies",
}

MEMBER, STEP = ("number",), ("step",)


def sample(samples: Path, name: str) -> Path:
    return (samples / "era5" / name).resolve()


def fields_of(variable: xr.DataArray, index: Index, names: tuple[str, ...]) -> npt.NDArray[np.float32]:
    """A reference field at the frames and on the grid of an index, shape (frame, latitude, longitude)."""
    time, latitude, longitude = names
    variable = variable.assign_coords({longitude: variable[longitude] % 360}).sortby([latitude, longitude])
    variable = variable.sel(
        {latitude: np.asarray(index.space[0].values), longitude: np.asarray(index.space[1].values) % 360},
        method="nearest",
    )
    frames = [name for name in ("number", time, "step") if name in variable.dims]
    variable = variable.stack(frame=frames, create_index=False) if frames else variable.expand_dims("frame")
    kept = variable.transpose("frame", latitude, longitude, ...)
    return np.asarray(kept.values, np.float32).reshape(kept.sizes["frame"], *index.space_shape)


def names_in(dataset: xr.Dataset) -> tuple[str, str, str]:
    known = {
        "time": ("valid_time", "time", "TIME"),
        "latitude": ("latitude", "lat", "FNOCY"),
        "longitude": ("longitude", "lon", "FNOCX"),
    }
    time, latitude, longitude = (
        next((name for name in names if name in dataset.dims), names[1]) for names in known.values()
    )
    return time, latitude, longitude


@pytest.mark.parametrize("name", NETCDF)
def test_a_netcdf_sample_is_read_as_xarray_reads_it(shared_samples: Path, name: str) -> None:
    path = sample(shared_samples, name)
    index = scan([path])
    values = read_all(index)
    with xr.open_dataset(path, decode_timedelta=False) as dataset:
        names = names_in(dataset)
        for number, channel in enumerate(index.channels):
            variable = dataset[channel.variable]
            level = next((dim for dim in ("level", "pressure_level") if dim in variable.dims), None)
            if level:
                variable = variable.sel({level: channel.level})
            np.testing.assert_array_equal(values[:, number], fields_of(variable, index, names))
            assert channel.units == variable.attrs.get("units")
        times = np.atleast_1d(dataset[names[0]].values)
    members = len(index.time) // len(times)
    if times.dtype.kind == "M":
        expected = (times.astype("datetime64[ms]") + 500).astype("datetime64[s]").astype(np.int64)
    else:
        expected = np.rint(cftime.date2num(times, index.clock.units, index.clock.calendar)).astype(np.int64)
    assert index.time == tuple(np.tile(expected, members).tolist())


@pytest.mark.parametrize("name", GRIB)
def test_a_grib_sample_is_read_as_cfgrib_reads_it(shared_samples: Path, name: str) -> None:
    path = sample(shared_samples, name)
    index = scan([path])
    values = read_all(index)
    seen: set[tuple[int, str]] = set()
    for dataset in cfgrib.open_datasets(str(path), backend_kwargs={"indexpath": ""}):
        for variable in dataset.data_vars.values():
            seen |= _compare(variable, index, values)
    assert seen == {(frame, channel.name) for frame in range(len(index.time)) for channel in index.channels}


def _compare(variable: xr.DataArray, index: Index, values: npt.NDArray[np.float32]) -> set[tuple[int, str]]:
    """Compare each field of a hypercube of cfgrib; the frames and channels that were found."""
    kinds = {"isobaricInhPa": "", "hybrid": "hybrid_"}
    dims = [dim for dim in ("number", "time", "step", *kinds) if dim in variable.coords]
    missing = [dim for dim in dims if dim not in variable.dims]
    cube = variable.expand_dims(missing)
    latitude, longitude = (np.asarray(axis.values) for axis in index.space)
    cube = cube.sel(
        latitude=latitude, longitude=(longitude + 180) % 360 - 180 if cube.longitude.min() < 0 else longitude
    )
    seen = set()
    for place in np.ndindex(*(cube.sizes[dim] for dim in dims)):
        field = cube.isel(dict(zip(dims, place, strict=True)))
        level = next((f"_{word}{field[dim].item():g}" for dim, word in kinds.items() if dim in field.coords), "")
        name = f"{variable.name}{level}"
        number = [channel.name for channel in index.channels].index(name)
        frame = _frame_of(field, index)
        np.testing.assert_array_equal(values[frame, number], field.transpose("latitude", "longitude").values)
        assert index.channels[number].units == variable.attrs["units"]
        seen.add((frame, name))
    return seen


def _frame_of(field: xr.DataArray, index: Index) -> int:
    valid = int((field.time + field.step).values.astype("datetime64[s]").astype(np.int64))
    initial = str(field.time.values.astype("datetime64[m]"))
    for frame, (time, segment) in enumerate(zip(index.time, index.segment, strict=True)):
        member = index.segment_labels.get("member")
        start = index.segment_labels.get("initial_time")
        if (
            time == valid
            and (not member or member[segment] == field.number)
            and (not start or start[segment] == initial)
        ):
            return frame
    raise AssertionError(f"no frame at {valid}")


@pytest.mark.parametrize("name", REFUSED)
def test_a_sample_that_is_no_field_is_refused_with_what_to_do(shared_samples: Path, name: str) -> None:
    path = sample(shared_samples, name)
    for attempt in (lambda: scan([path]), lambda: Era5().describe(str(path))):
        with pytest.raises(UserError, match=REFUSED[name]) as caught:
            attempt()
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)


def test_no_sample_is_left_out(shared_samples: Path) -> None:
    lines = (shared_samples / "INDEX.tsv").read_text().splitlines()[1:]
    files = {line.split("\t")[0] for line in lines if line.startswith(("era5/", "climate/"))}
    tested = {f"era5/{name}" for name in (*NETCDF, *GRIB, *REFUSED) if not name.startswith("../")}
    assert files == tested | {"climate/monthly_navy_winds.cdf"}


@pytest.mark.parametrize("name", [*NETCDF, *GRIB])
def test_a_sample_is_described(shared_samples: Path, name: str) -> None:
    description = Era5().describe(str(sample(shared_samples, name)))
    assert description.taken[0].startswith("frames: ")


def test_files_of_two_packings_follow_one_another(shared_samples: Path) -> None:
    paths = [sample(shared_samples, f"era5_2t_{number}.nc") for number in (2, 1)]
    index = scan(paths)
    assert [index.clock.moment(time) for time in index.time] == ["2021-03-01T12:00", "2021-03-02T12:00"]
    expected = [xr.open_dataset(path)["t2m"].values[0].astype(np.float32) for path in reversed(paths)]
    np.testing.assert_array_equal(read_all(index)[:, 0], expected)


def test_invariants_are_static_beside_monthly_means(shared_samples: Path) -> None:
    names = ("monthly_t2m", "monthly_prcp", "invariant")
    index = scan([sample(shared_samples, f"oggm_sel_era5_{name}.nc") for name in names])
    assert [channel.name for channel in index.channels] == ["t2m", "tp"]
    assert [channel.name for channel in index.statics] == ["lsm", "z"]
    # 40 years of 12 months, 1979 to 2018.
    assert len(index.time) == 480
    with xr.open_dataset(sample(shared_samples, "oggm_sel_era5_invariant.nc")) as dataset:
        expected = np.stack([dataset["lsm"].values[0], dataset["z"].values[0]]).astype(np.float32)
    np.testing.assert_array_equal(Era5().read_statics(index), expected)


def test_new_downloads_by_kind_of_step_and_their_invariants_make_one_record(shared_samples: Path) -> None:
    index = scan([sample(shared_samples, f"globsim_era5_{name}.nc") for name in ("sa_202301", "sf_202301", "to")])
    assert [channel.name for channel in index.channels] == [
        "d2m", "ssrd", "strd", "t2m", "tco3", "tcwv", "tp", "u10", "v10",
    ]  # fmt: skip
    assert [channel.name for channel in index.statics] == ["lsm", "z"]


def test_two_files_of_a_year_of_360_days_follow_one_another(shared_samples: Path) -> None:
    names = ("203012-205511", "205512-208011")
    index = scan([sample(shared_samples, f"tas_Amon_HadGEM2-ES_{name}.nc") for name in names])
    assert index.clock.calendar == "360_day"
    assert len(index.time) == 600
    assert set(index.segment) == {0}


def test_grids_of_two_archives_are_refused(shared_samples: Path) -> None:
    paths = [sample(shared_samples, f"oggm_sel_era5_{name}monthly_t2m.nc") for name in ("", "land_")]
    with pytest.raises(
        UserError, match=r"land_monthly_t2m\.nc: its latitude .* differs from that of .*era5_monthly_t2m"
    ):
        scan(paths)
