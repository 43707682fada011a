from pathlib import Path

import h5py
import numpy as np
import pytest

from hyperslab.data.sources.lartpc.formats import files_in, recognise
from hyperslab.errors import UserError
from tests.data.sources.lartpc import raw_files


def test_a_format_is_told_by_the_content_not_by_the_name(tmp_path: Path) -> None:
    raw_files.write_segments(tmp_path / "a.dat", [1])
    raw_files.write_tar(tmp_path / "b.tar", raw_files.frame_arrays(1)).rename(tmp_path / "b.h5")
    assert recognise(str(tmp_path / "a.dat")).name == "segments"
    assert recognise(str(tmp_path / "b.h5")).name == "wire-cell"


def test_segments_are_taken_from_a_file_that_also_has_packets(tmp_path: Path) -> None:
    raw_files.write_segments(tmp_path / "a.h5", [1])
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["packets"] = raw_files.noise(3, raw_files.PACKET_FIELDS)
    assert recognise(str(tmp_path / "a.h5")).name == "segments"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", r"is empty \(0 bytes\); fetch it again"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "is a Git LFS pointer.*git lfs pull"),
        (raw_files.npy(np.zeros(3)), "is a single numpy array without events"),
        (b"root\0\0\0\0", "is a ROOT file; convert it"),
        (b"[[1, 2], [3, 4]]", "is JSON: lists of hits without names"),
        (b"event 1\n", "is of no known format .*it begins with b'event 1"),
    ],
)
def test_what_is_no_archive_is_refused_with_what_it_is(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.h5").write_bytes(content)
    with pytest.raises(UserError, match=rf"a\.h5: {words}"):
        recognise(str(tmp_path / "a.h5"))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["msgs", "msg_headers"], "convert_rawhdf5_to_hdf5.py --input_filename"),
        (["raw_packet"], "version 0; version 2 is read"),
        (["charge/packets"], "run ndlar_flow up to the calibrated hits"),
        (["adc", "pixels", "ticks"], "without events and positions"),
        (["a", "b"], r"is HDF5 of no known format \(it holds a, b\)"),
        ([], r"it holds nothing"),
    ],
)
def test_hdf5_without_events_is_refused_with_what_to_do(tmp_path: Path, names: list[str], words: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in names:
            file[name] = np.zeros(2)
    with pytest.raises(UserError, match=words):
        recognise(str(tmp_path / "a.h5"))


def test_a_link_is_not_followed_to_find_out_the_format(tmp_path: Path) -> None:
    raw_files.write_segments(tmp_path / "far.h5", [1])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["segments"] = h5py.ExternalLink(str(tmp_path / "far.h5"), "segments")
    with pytest.raises(UserError, match="is HDF5 of no known format"):
        recognise(str(tmp_path / "a.h5"))


def test_numpy_archives_without_events_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", keys=np.zeros(3), values=np.zeros(3))
    with pytest.raises(UserError, match=r"its arrays \(keys, values\) are no events"):
        recognise(str(tmp_path / "a.npz"))


def test_a_path_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file; check data.files"):
        recognise(str(tmp_path / "a.h5"))
    with pytest.raises(UserError, match="cannot be read"):
        recognise("a\0.h5")


def test_a_directory_stands_for_its_files_of_known_names(tmp_path: Path) -> None:
    for name in ("b.h5", "a.hdf5", "c.tar.bz2", "d.npz", "notes.txt", "b_points.npy"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "deeper.h5").mkdir()
    found = [Path(path).name for path in files_in(str(tmp_path))]
    assert found == ["a.hdf5", "b.h5", "c.tar.bz2", "d.npz"]
    with pytest.raises(UserError, match="is a directory without HDF5, npz, tar or gz files"):
        files_in(str(tmp_path / "deeper.h5"))


def test_a_url_is_refused() -> None:
    with pytest.raises(UserError, match="is a URL; lartpc files are read from a disk"):
        files_in("https://example.org/a.h5")
