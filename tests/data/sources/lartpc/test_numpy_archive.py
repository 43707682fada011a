import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from hyperslab.data.sources.lartpc.numpy_archive import open_archive, read_arrays, read_headers
from hyperslab.errors import UserError
from tests.data.sources.lartpc.raw_files import npy, write_npz, write_tar

ARRAYS: dict[str, np.ndarray] = {
    "a": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "b": np.arange(1000, dtype=np.int16),
    "empty": np.zeros((0, 3), np.int32),
}


def _add(archive: tarfile.TarFile, name: str, data: bytes, **more: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in more.items():
        setattr(info, key, value)
    archive.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tar.bz2", "a.tar.xz", "a.npz", "a.zip"])
def test_every_packing_gives_the_same_arrays(tmp_path: Path, name: str) -> None:
    if name.endswith("z") and not name.startswith("a.tar"):
        write_npz(tmp_path / name, ARRAYS, compressed=True)
    elif name == "a.zip":
        write_npz(tmp_path / "a.npz", ARRAYS)
        (tmp_path / "a.npz").rename(tmp_path / name)
    else:
        write_tar(tmp_path / name, ARRAYS)
    path = str(tmp_path / name)
    headers = read_headers(path)
    assert {key: (header.shape, header.dtype) for key, header in headers.items()} == {
        key: (values.shape, values.dtype) for key, values in ARRAYS.items()
    }
    for key, values in read_arrays(path, ["a", "b", "empty"]).items():
        assert np.array_equal(values, ARRAYS[key])
    with pytest.raises(UserError, match="holds no c; fetch the archive again"):
        read_arrays(path, ["a", "c"])


def test_folders_and_extended_headers_are_passed_over(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        folder = tarfile.TarInfo("run1")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        # A modification time in fractions of a second makes an extended header.
        _add(archive, "../../run1/a.npy", npy(ARRAYS["a"]), mtime=1.5)
    assert list(read_headers(str(tmp_path / "a.tar"))) == ["a"]


def test_a_link_in_an_archive_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        _add(archive, "a.npy", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")
    with pytest.raises(UserError, match=r"a\.npy is no plain file"):
        read_headers(str(tmp_path / "a.tar"))


def test_an_archive_that_is_cut_short_is_refused_wherever(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "whole.tar", ARRAYS).read_bytes()
    # The end mark, two blocks of zeros, stands after the last member; then tarfile pads with more.
    end = len(whole.rstrip(b"\0"))
    for length in range(1, end + 1, 97):
        (tmp_path / "a.tar").write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"a\.tar: .*fetch"):
            read_headers(str(tmp_path / "a.tar"))


def test_a_cut_between_two_members_is_not_the_end(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "whole.tar", {"a": ARRAYS["a"]}).read_bytes()
    member = 512 + -(-len(npy(ARRAYS["a"])) // 512) * 512
    (tmp_path / "a.tar").write_bytes(whole[:member])
    with pytest.raises(UserError, match="the end mark of the tar archive is missing"):
        read_headers(str(tmp_path / "a.tar"))


def test_a_damaged_header_of_a_member_is_not_the_end(tmp_path: Path) -> None:
    whole = bytearray(write_tar(tmp_path / "a.tar", ARRAYS).read_bytes())
    second = 512 + -(-len(npy(ARRAYS["a"])) // 512) * 512
    whole[second] ^= 1
    (tmp_path / "a.tar").write_bytes(whole)
    with pytest.raises(UserError, match=r"cannot be read as an archive of arrays \(bad checksum\)"):
        read_headers(str(tmp_path / "a.tar"))


def test_what_follows_the_end_is_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", ARRAYS)
    path.write_bytes(path.read_bytes() + path.read_bytes())
    with pytest.raises(UserError, match="data follow the end mark"):
        read_headers(str(path))


def test_an_array_that_stands_twice_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        _add(archive, "x/a.npy", npy(ARRAYS["a"]))
        _add(archive, "y/a.npy", npy(ARRAYS["a"]))
    with pytest.raises(UserError, match=r"holds a\.npy twice"):
        read_headers(str(tmp_path / "a.tar"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"text", "is no npy array"),
        (npy(np.zeros(3)) + b"more", r"\(3,\) of float64 are 24 bytes, the archive holds 28"),
        (npy(np.zeros(9)).replace(b"(9,)", b"(9999999999999,)"), "of float64 are .* bytes, the archive holds"),
        (npy(np.zeros(9)).replace(b"(9,)", b"(-9,)"), "only plain numbers are read"),
        (npy(np.zeros(9)).replace(b"(9,)", b"(9,"), "its npy header cannot be read"),
        (b"\x93NUMPY\2\0" + b"\xff" * 8, "its npy header claims 4,294,967,295 bytes"),
    ],
)
def test_a_member_that_is_no_sound_array_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        _add(archive, "a.npy", data)
    with pytest.raises(UserError, match=words) as caught:
        read_headers(str(tmp_path / "a.tar"))
    assert "\n" not in str(caught.value)


def test_python_objects_are_never_unpacked(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        stream = io.BytesIO()
        np.save(stream, np.asarray([{}], object), allow_pickle=True)
        _add(archive, "a.npy", stream.getvalue())
    with pytest.raises(UserError, match="holds object of shape"):
        read_arrays(str(tmp_path / "a.tar"), ["a"])


def test_a_flipped_byte_is_found_by_the_checksum_of_a_zip(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", b=ARRAYS["b"])
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[1000] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(UserError, match="Bad CRC-32"):
        read_arrays(str(tmp_path / "a.npz"), ["b"])


def test_a_member_is_read_without_those_before_it(tmp_path: Path) -> None:
    path = str(write_tar(tmp_path / "a.tar", ARRAYS))
    with open_archive(path) as members:
        names = [(member.name, member.size) for member in members]
    assert names == [(f"{name}.npy", len(npy(values))) for name, values in ARRAYS.items()]
