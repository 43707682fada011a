import os
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hyperslab.data.sources.era5.source import Era5
from hyperslab.data.sources.era5.zipped import extract, members_of
from hyperslab.errors import UserError
from tests.conftest import make_dataset, write_netcdf
from tests.data.sources.era5.raw import read_all, scan, write, write_grib


def zip_of(path: Path, **files: bytes | Path) -> Path:
    """A zip archive of these contents or files; two underscores in a name are a dot."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            data = content.read_bytes() if isinstance(content, Path) else content
            archive.writestr(name.replace("__", "."), data)
    return path


@pytest.fixture
def download(tmp_path: Path) -> Path:
    """What the Climate Data Store sends: instantaneous and accumulated variables apart, and something to read."""
    first = write_netcdf(tmp_path / "1.nc", variables=["t2m"], frames=5)
    second = write_netcdf(tmp_path / "2.nc", variables=["tp"], frames=5, seed=1)
    return zip_of(
        tmp_path / "raw.nc", data_stream_oper_stepType_instant__nc=first, accum__nc=second, licence__txt=b"CC"
    )


def test_the_members_of_a_download_make_one_record(download: Path) -> None:
    index = scan([download])
    assert [channel.name for channel in index.channels] == ["t2m", "tp"]
    assert {file.details["part"] for file in index.files} == {"data_stream_oper_stepType_instant.nc", "accum.nc"}
    expected = [make_dataset(variables=[name], frames=5, seed=seed)[name] for name, seed in (("t2m", 0), ("tp", 1))]
    np.testing.assert_array_equal(read_all(index), np.stack(expected, axis=1))


def test_a_description_names_the_members_and_what_is_left_out(download: Path) -> None:
    description = Era5().describe(str(download))
    assert description.kind.startswith(f"zip, {download.stat().st_size:,} bytes of data_stream")
    assert "accum.nc: netCDF (time 5" in description.kind
    assert "licence.txt is left out: it is neither netCDF nor GRIB" in description.oddities


def test_grib_in_a_zip_is_read(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(280, 5, (3, 4))
    keys = {"shortName": "t", "level": 850, "dataDate": 20200101, "values": values}
    path = zip_of(tmp_path / "raw.zip", data__grib=write_grib(tmp_path / "raw.grib", keys))
    np.testing.assert_allclose(read_all(scan([path]))[0, 0], values, atol=1e-4)


def test_nothing_is_left_behind(download: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(room))
    index = scan([download])
    assert list(room.iterdir()) == []
    source = Era5()
    source.read(index, 0, 5)
    # Two members are kept for the next read, and go with what reads them.
    assert len(list(room.iterdir())) == 2
    del source
    assert list(room.iterdir()) == []


def test_a_fork_leaves_the_unpacked_file_to_its_parent(download: Path) -> None:
    unpacked = extract(str(download), "accum.nc")
    process = os.fork()
    if process == 0:
        del unpacked
        os._exit(0)
    os.waitpid(process, 0)
    assert Path(unpacked.path).exists()


@pytest.mark.parametrize("name", ["../../outside.nc", "/outside.nc", "C:\\outside.nc"])
def test_a_member_is_never_written_where_its_name_points(tmp_path: Path, name: str) -> None:
    path = zip_of(tmp_path / "raw.zip", **{name: write_netcdf(tmp_path / "1.nc", frames=3)})
    (member,) = members_of(str(path)).fields
    unpacked = extract(str(path), member)
    assert Path(unpacked.path).parent.parent == Path(os.environ.get("TMPDIR", "/tmp"))
    assert not (tmp_path.parent / "outside.nc").exists()
    assert len(scan([path]).time) == 3


def test_an_archive_without_fields_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "raw.zip", readme__txt=b"hello", data__csv=b"1,2")
    with pytest.raises(UserError, match=r"raw\.zip: is a zip archive without a netCDF or GRIB file \(it holds readme"):
        scan([path])


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "raw.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.nc", b"CDF")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.nc", b"CDF")
    with pytest.raises(UserError, match=r"raw\.zip: two of its members share a name; unzip it"):
        scan([path])


def test_a_damaged_member_is_refused(download: Path) -> None:
    content = bytearray(download.read_bytes())
    content[200:400] = bytes(200)
    download.write_bytes(content)
    with pytest.raises(UserError, match=r"raw\.nc: cannot be read as a zip archive .*download it again"):
        scan([download])


def test_a_member_that_does_not_fit_the_disk_is_refused_with_its_size(
    download: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(UserError, match=r"raw\.nc: unpacking .* needs [\d,]+ bytes in .*, which has 10; set TMPDIR"):
        scan([download])


def test_static_fields_may_lie_in_a_zip(tmp_path: Path) -> None:
    frames = write_netcdf(tmp_path / "t2m.nc", variables=["t2m"], frames=5)
    fixed = make_dataset(variables=["lsm"], frames=1)
    path = zip_of(tmp_path / "fixed.zip", lsm__nc=write(tmp_path / "lsm.nc", fixed))
    index = scan([frames, path])
    np.testing.assert_array_equal(Era5().read_statics(index), fixed["lsm"].values)
