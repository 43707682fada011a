from pathlib import Path

import h5py
import numpy as np
import pytest

from hyperslab.data.sources.lartpc import hdf5
from hyperslab.errors import UserError


def test_a_dataset_deep_in_groups_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["charge/events/data"] = np.arange(3)
    with hdf5.open_hdf5(str(path)) as file:
        assert hdf5.holds(file, "charge/events/data")
        assert not hdf5.holds(file, "charge/hits/data")
        assert not hdf5.holds(file, "charge/events/data/more")
        assert hdf5.dataset(file, "charge/events/data")[:].tolist() == [0, 1, 2]
        with pytest.raises(UserError, match="holds no charge/hits/data"):
            hdf5.dataset(file, "charge/hits/data")
        with pytest.raises(UserError, match="charge/events is no dataset"):
            hdf5.dataset(file, "charge/events")


@pytest.mark.parametrize("link", [h5py.ExternalLink("/etc/passwd", "/x"), h5py.SoftLink("/other")])
def test_a_link_is_not_followed(tmp_path: Path, link: object) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["other"] = np.arange(3)
        file["segments"] = link
    with hdf5.open_hdf5(str(path)) as file:
        assert hdf5.holds(file, "segments/data")
        with pytest.raises(UserError, match=r"a\.h5: segments/data is a .*Link, which may lead out of the file"):
            hdf5.dataset(file, "segments/data")


def test_a_virtual_dataset_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "far.h5", "w") as file:
        file["x"] = np.arange(4)
    layout = h5py.VirtualLayout(shape=(4,), dtype="i8")
    layout[:] = h5py.VirtualSource(tmp_path / "far.h5", "x", shape=(4,))
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("x", layout)
    with hdf5.open_hdf5(str(path)) as file, pytest.raises(UserError, match="lies in other files"):
        hdf5.dataset(file, "x")


def test_data_kept_outside_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raw.bin").write_bytes(bytes(32))
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (4,), "i8", external=[(str(tmp_path / "raw.bin"), 0, 32)])
    with hdf5.open_hdf5(str(path)) as file, pytest.raises(UserError, match="lies in other files"):
        hdf5.dataset(file, "x")


def test_data_that_was_never_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("plain", (4,), "i8")
        file.create_dataset("chunked", (10,), "i8", chunks=(3,))[:3] = 1
    with hdf5.open_hdf5(str(path)) as file:
        with pytest.raises(UserError, match="plain should hold 32 bytes, which are not there"):
            hdf5.dataset(file, "plain")
        # 10 values in chunks of 3 are 4 chunks; the first one was written.
        with pytest.raises(UserError, match="chunked lacks 3 of its 4 chunks"):
            hdf5.dataset(file, "chunked")
        assert hdf5.dataset(file, "chunked", may_have_gaps=True)[:].tolist() == [1, 1, 1, *[0] * 7]


def test_an_absurd_claim_of_size_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (10**12,), "f8", chunks=(10**6,), compression="gzip")
        file.create_dataset("y", (2 * 10**8,), "f8", chunks=(2 * 10**8,), compression="gzip")
    with hdf5.open_hdf5(str(path)) as file:
        with pytest.raises(UserError, match="lacks 1,000,000 of its 1,000,000 chunks"):
            hdf5.dataset(file, "x")
        with pytest.raises(UserError, match="chunks of 1,600,000,000 bytes"):
            hdf5.dataset(file, "y")


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" + bytes(500), b"text"])
def test_what_is_no_hdf5_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.h5: cannot be read as HDF5") as caught, hdf5.open_hdf5(str(path)):
        pass
    assert "\n" not in str(caught.value)
