import os
import threading
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from hyperslab.data.sources.era5 import opened
from hyperslab.data.sources.era5.formats import open_raw
from hyperslab.data.sources.era5.source import Era5
from hyperslab.errors import UserError
from tests.conftest import make_dataset, write_netcdf
from tests.data.sources.era5.raw import read_all, scan, write, write_grib


def test_a_file_is_opened_once_for_many_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = scan([write_netcdf(tmp_path / "raw.nc", frames=20)])
    calls: list[str] = []

    def count(path: str) -> xr.Dataset:
        calls.append(path)
        return open_raw(path)

    monkeypatch.setattr(opened, "open_raw", count)
    source = Era5()
    for start in range(0, 20, 2):
        source.read(index, start, start + 2)
    assert len(calls) == 1


def num_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_more_than_a_few_files_stay_open(tmp_path: Path) -> None:
    dataset = make_dataset(frames=40, variables=["t2m"])
    values = np.random.default_rng(0).normal(280, 5, (3, 4))
    keys = {"shortName": "t", "level": 850, "values": values}
    paths = [write_grib(tmp_path / f"{n}.grib", {**keys, "dataDate": 20200101 + n}) for n in range(28)]
    source, index = Era5(), scan(paths)
    before = num_open()
    source.read(index, 0, 28)
    assert num_open() <= before + 16
    paths = [write(tmp_path / f"{n}.nc", dataset.isel(time=[n])) for n in range(40)]
    index = scan(paths)
    np.testing.assert_array_equal(source.read(index, 0, 40)["values"][:, 0], dataset["t2m"].values)
    assert num_open() <= before + 16


def test_a_file_that_changes_between_two_reads_is_noticed(tmp_path: Path) -> None:
    path = write_netcdf(tmp_path / "raw.nc")
    index, source = scan([path]), Era5()
    source.read(index, 0, 2)
    os.utime(path, ns=(0, index.files[0].modified_ns + 1))
    with pytest.raises(UserError, match=r"raw\.nc: has changed since it was indexed; start a new campaign"):
        source.read(index, 2, 4)


@pytest.mark.parametrize("file_format", ["NETCDF3_64BIT", "NETCDF4"])
def test_a_fork_reads_with_files_of_its_own(tmp_path: Path, file_format: str) -> None:
    dataset = make_dataset(frames=64, rows=60, columns=80, variables=["t2m"])
    index = scan([write(tmp_path / "raw.nc", dataset, format=file_format)])
    source = Era5()
    source.read(index, 0, 2)
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            same = all(
                np.array_equal(source.read(index, n, n + 1)["values"][0, 0], dataset["t2m"].values[n])
                for n in range(64)
            )
            os._exit(0 if same else 1)
        children.append(child)
    for number in range(64):
        np.testing.assert_array_equal(
            source.read(index, number, number + 1)["values"][0, 0], dataset["t2m"].values[number]
        )
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]


def test_threads_take_turns(tmp_path: Path) -> None:
    dataset = make_dataset(frames=40, variables=["t2m"])
    index = scan([write(tmp_path / "raw.nc", dataset)])
    source = Era5()
    found: dict[int, np.ndarray] = {}

    def read(number: int) -> None:
        found[number] = source.read(index, number, number + 1)["values"][0, 0]

    threads = [threading.Thread(target=read, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(np.stack([found[number] for number in range(40)]), dataset["t2m"].values)


def test_an_index_may_be_read_by_another_source(tmp_path: Path) -> None:
    first = scan([write_netcdf(tmp_path / "a.nc", frames=4)])
    second = scan([write_netcdf(tmp_path / "b.nc", frames=4, seed=1)])
    source = Era5()
    for index in (first, second, first):
        np.testing.assert_array_equal(source.read(index, 0, 4)["values"], read_all(index))


def test_files_with_texts_are_read_again_and_again_whatever_else_is_open(tmp_path: Path) -> None:
    # HDF5 2.0 looks for the text of one open file in another, and calls the file damaged.
    datasets = {}
    for number, frames in enumerate((60, 48, 108)):
        dataset = make_dataset(frames=frames, variables=["t2m"], seed=number)
        dataset["expver"] = ("time", np.asarray(["0001"] * frames))
        path = tmp_path / f"{number}.nc"
        dataset.to_netcdf(path, encoding={"t2m": {"zlib": True, "chunksizes": (1, 3, 4)}})
        datasets[path] = dataset["t2m"].values
    source = Era5()
    for path in [*datasets, *datasets, *reversed(datasets)]:
        index = scan([path])
        for start in (0, 40):
            read = source.read(index, start, start + 8)["values"][:, 0]
            np.testing.assert_array_equal(read, datasets[path][start : start + 8])
