from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr

from hyperslab.data.sources.synthetic import era5
from hyperslab.data.sources.synthetic.archive import Order
from hyperslab.errors import UserError
from tests.data.sources.synthetic.orders import digests, order, size_of

SMALL = 9_000_000


@pytest.fixture(scope="module", params=["cds", "classic", "packed"])
def archive(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Path]]:
    out = tmp_path_factory.mktemp(request.param)
    return request.param, era5.write(order(out, SMALL, request.param))


def test_the_archive_has_the_size_that_was_asked_for(archive: tuple[str, list[Path]]) -> None:
    assert size_of(archive[1][0].parent) == pytest.approx(SMALL, rel=0.2)


def test_files_are_monthly_and_without_a_gap(archive: tuple[str, list[Path]]) -> None:
    form, files = archive
    time = []
    for path in files[1:]:
        with xr.open_dataset(path) as found:
            own = found["valid_time" if form == "cds" else "time"].values
        months = np.unique(own.astype("datetime64[M]"))
        assert path.name == f"era5_pl_{str(months[0]).replace('-', '')}.nc"
        assert len(months) == 1
        time.append(own)
    steps = np.unique(np.diff(np.concatenate(time)))
    assert steps.astype("timedelta64[h]").tolist() == [np.timedelta64(6, "h")]
    assert len(time) >= 2


def test_all_fields_are_there_and_finite(archive: tuple[str, list[Path]]) -> None:
    for path in archive[1][1:]:
        with xr.open_dataset(path) as found:
            assert set(found.data_vars) == {"u", "v", "z", "t"}
            assert {name: found[name].units for name in "uvzt"} == {
                "u": "m s**-1",
                "v": "m s**-1",
                "z": "m**2 s**-2",
                "t": "K",
            }
            assert not any(found[name].isnull().any() for name in "uvzt")
            assert found.latitude.values[0] == 90
            assert found.longitude.values[0] == 0


def test_static_fields_lie_beside(archive: tuple[str, list[Path]]) -> None:
    with xr.open_dataset(archive[1][0]) as found:
        assert {"lsm", "z"} <= set(found.data_vars)
        assert found.lsm.max() == pytest.approx(1, abs=1e-4)


def test_each_old_file_has_a_scale_of_its_own(archive: tuple[str, list[Path]]) -> None:
    form, files = archive
    if form == "cds":
        pytest.skip("new files hold float32")
    scales = []
    for path in files[1:3]:
        with netCDF4.Dataset(path) as raw:
            scales.append(raw["z"].scale_factor)
    assert scales[0] != scales[1]


def test_neighbouring_frames_are_alike_and_far_ones_are_not(archive: tuple[str, list[Path]]) -> None:
    with xr.open_dataset(archive[1][1]) as found:
        v = found.v[:, 1].values.reshape(len(found.v), -1)
    near, far = np.corrcoef(v[40], v[41])[0, 1], np.corrcoef(v[40], v[110])[0, 1]
    assert near > 0.7
    assert far < near - 0.1


@pytest.mark.parametrize("form", ["cds", "classic", "packed"])
def test_the_same_seed_gives_the_same_bytes(form: str, tmp_path: Path) -> None:
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        era5.write(order(tmp_path / name, 300_000, form, seed=seed))
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert digests(tmp_path / "a") != digests(tmp_path / "c")


def test_the_number_of_threads_changes_nothing(tmp_path: Path) -> None:
    for workers in (1, 3):
        era5.write(Order(out=tmp_path / str(workers), size_bytes=300_000, seed=0, form="cds", workers=workers))
    assert digests(tmp_path / "1") == digests(tmp_path / "3")


def test_a_grid_of_the_stores_own_step_is_written_when_asked_for(tmp_path: Path) -> None:
    wanted = Order(out=tmp_path, size_bytes=10**7, seed=0, form="cds", workers=2, grid_degrees=1.0)
    with xr.open_dataset(era5.write(wanted)[1]) as found:
        assert found.u.shape[2:] == (181, 360)
        assert found.longitude.values[-1] == 359


@pytest.mark.parametrize("step", [0.7, 0.01, 20.0, -1.0, float("nan")])
def test_a_step_that_does_not_divide_the_globe_is_refused(step: float, tmp_path: Path) -> None:
    wanted = Order(out=tmp_path, size_bytes=10**6, seed=0, form="cds", workers=1, grid_degrees=step)
    with pytest.raises(UserError, match=r"--grid: found .*must divide 180"):
        era5.write(wanted)


def test_the_files_are_no_child_s_play_for_a_compressor(archive: tuple[str, list[Path]]) -> None:
    _, files = archive
    with xr.open_dataset(files[1]) as found:
        values = 4 * 4 * found.u.size
    # ERA5's own 16-bit fields take somewhat less than half of float32 after deflating, and half without.
    assert 0.3 < files[1].stat().st_size / values < 0.6
