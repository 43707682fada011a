from pathlib import Path

import numpy as np
import numpy.typing as npt
import xarray as xr

from hyperslab.data.climatology import climatology
from hyperslab.data.store import Store, open_store
from tests.conftest import make_dataset, make_store_recipe, stage


def months(first: str, count: int) -> npt.NDArray[np.datetime64]:
    return np.datetime64(first, "M") + np.arange(count)


def seconds(moments: npt.ArrayLike) -> npt.NDArray[np.int64]:
    return np.asarray(moments).astype("datetime64[s]").astype(np.int64)


def store_of(folder: Path, dataset: xr.Dataset, train: int) -> Store:
    """A store of the dataset whose first `train` frames are the training split."""
    dataset.to_netcdf(folder / "raw.nc")
    total = dataset.sizes["time"]
    splits = {"train": (0, train), "validation": (train, train + 1), "test": (train + 1, total)}
    return open_store(stage(folder / "store", make_store_recipe([folder / "raw.nc"], splits)))


def with_time(dataset: xr.Dataset, moments: npt.ArrayLike) -> xr.Dataset:
    return dataset.assign_coords(time=("time", np.asarray(moments).astype("datetime64[ns]")))


def test_the_monthly_mean_is_that_of_the_training_months(tmp_path: Path) -> None:
    # Three and a half years; the last year is held out.
    dataset = with_time(make_dataset(variables=["t2m"], frames=42), months("2000-01", 42))
    dataset["t2m"][5, 1, 2] = np.nan
    store = store_of(tmp_path, dataset, train=30)
    times = months("2003-01", 12)
    found = climatology(store, seconds(times), monthly=True)
    assert found.shape == (12, 1, 3, 4)
    # xarray's own mean by calendar month, in float64, without the missing point.
    expected = dataset["t2m"][:30].astype(np.float64).groupby("time.month").mean(skipna=True)
    np.testing.assert_allclose(found[:, 0], expected.values, rtol=1e-12)


def test_frames_that_are_not_valid_do_not_count(tmp_path: Path) -> None:
    dataset = with_time(make_dataset(frames=38), months("2000-01", 38))
    # Frame 12 (January 2001) lacks one channel, so the other one is left out as well.
    dataset["t2m"][12] = np.nan
    store = store_of(tmp_path, dataset, train=36)
    [found] = climatology(store, seconds(months("2003-01", 1)), monthly=True)
    for channel, name in enumerate(store.channels):
        expected = dataset[name].values[[0, 24]].astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(found[channel], expected, rtol=1e-12)


def test_a_month_without_a_training_frame_has_no_mean(tmp_path: Path) -> None:
    # Training holds January to October.
    dataset = with_time(make_dataset(variables=["t2m"], frames=14), months("2000-01", 14))
    store = store_of(tmp_path, dataset, train=10)
    found = climatology(store, seconds(months("2001-09", 4)), monthly=True)
    assert np.isnan(found).all(axis=(1, 2, 3)).tolist() == [False, False, True, True]


def test_a_point_that_is_never_there_has_no_mean(tmp_path: Path) -> None:
    dataset = with_time(make_dataset(variables=["t2m"], frames=26), months("2000-01", 26))
    dataset["t2m"][[0, 12], 0, 0] = np.nan
    store = store_of(tmp_path, dataset, train=24)
    [found] = climatology(store, seconds(months("2003-01", 1)), monthly=True)
    assert np.argwhere(np.isnan(found)).tolist() == [[0, 0, 0]]


def test_the_daily_mean_takes_fifteen_days_on_either_side(tmp_path: Path) -> None:
    # One year of days, counted from 0. The 15 June 2001 is day 165 (31 + 28 + 31 + 30 + 31 + 14), and the
    # same day of the next year looks back on days 150 to 180. Only these are negative: their mean is -165,
    # and a day more or less on either side moves it.
    dataset = make_dataset(variables=["t2m"], step_hours=24, frames=367)
    days = np.arange(367, dtype=np.float32)
    dataset["t2m"][:] = days[:, None, None]
    dataset["t2m"][150:181] *= -1
    store = store_of(tmp_path, dataset, train=365)
    [found] = climatology(store, seconds([np.datetime64("2002-06-15", "s")]), monthly=False)
    np.testing.assert_allclose(found, np.full((1, 3, 4), -165), rtol=1e-12)


def test_the_days_around_new_year_belong_together(tmp_path: Path) -> None:
    dataset = make_dataset(variables=["t2m"], step_hours=24, frames=367)
    dataset["t2m"][:] = 0
    # The 15 days before a 1 January are the last ones of the year, 17 to 31 December: day 350 to 364.
    dataset["t2m"][350:365] = 31
    store = store_of(tmp_path, dataset, train=365)
    [found] = climatology(store, seconds([np.datetime64("2002-01-01", "s")]), monthly=False)
    # They are 15 of 31 days: 15 x 31 / 31.
    np.testing.assert_allclose(found, np.full((1, 3, 4), 15), rtol=1e-12)


def test_each_time_of_day_has_its_own_mean(tmp_path: Path) -> None:
    dataset = make_dataset(variables=["t2m"], step_hours=12, frames=40)
    dataset["t2m"][0::2] = 270
    dataset["t2m"][1::2] = 290
    store = store_of(tmp_path, dataset, train=38)
    times = ["2002-01-05T00", "2002-01-05T12", "2002-01-05T06"]
    found = climatology(store, seconds(np.asarray(times, "datetime64[s]")), monthly=False)
    assert found[:, 0, 0, 0].tolist()[:2] == [270, 290]
    assert np.isnan(found[2]).all()


def test_daily_means_are_those_of_a_search_through_all_frames(tmp_path: Path) -> None:
    # Every second day of 400 days, some points missing.
    rng = np.random.default_rng(1)
    dataset = make_dataset(variables=["t2m"], step_hours=48, frames=200, rows=2, columns=2)
    dataset["t2m"].values[rng.random(dataset["t2m"].shape) < 0.1] = np.nan
    store = store_of(tmp_path, dataset, train=190)
    training = dataset["t2m"].values[:190].astype(np.float64)
    times = seconds(np.datetime64("2004-01-02", "s") + np.arange(12) * np.timedelta64(31, "D"))
    found = climatology(store, times, monthly=False)
    for number, time in enumerate(times):
        # Apart on the circle of a year of 365.2425 days, by the cosine of the angle between two moments.
        angle = 2 * np.pi * (store.time[:190] - time) / (365.2425 * 86_400)
        near = np.cos(angle) >= np.cos(2 * np.pi * 15.5 / 365.2425)
        np.testing.assert_allclose(found[number, 0], np.nanmean(training[near], axis=0), rtol=1e-12)
