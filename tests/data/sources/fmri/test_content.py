import bz2
import gzip
import json
import os

import numpy as np
import pytest

from hyperslab.data.sources.fmri import content
from hyperslab.data.sources.fmri.content import check_length, find_file, kind_of
from hyperslab.errors import UserError
from tests.data.sources.fmri.raw import SHAPE, write_cifti, write_gifti, write_nifti


def test_the_content_says_the_format_whatever_the_name(tmp_path):
    nifti = write_nifti(tmp_path / "run.nii")
    assert kind_of(nifti) == "nifti"
    assert kind_of(nifti.rename(tmp_path / "run.csv")) == "nifti"
    assert kind_of(write_cifti(tmp_path / "run.dtseries.nii")) == "cifti"
    assert kind_of(write_gifti(tmp_path / "run.func.gii")) == "gifti"


def test_compression_is_told_from_the_content(tmp_path):
    raw = write_nifti(tmp_path / "run.nii").read_bytes()
    for name, data in (("a.nii", gzip.compress(raw)), ("b.nii", bz2.compress(raw)), ("c.nii.gz", raw)):
        (tmp_path / name).write_bytes(data)
        assert kind_of(tmp_path / name) == "nifti"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "git lfs pull"),
        (b"/annex/objects/MD5E-s1--d41d8cd98f00b204e9800998ecf8427e.nii.gz\n", "datalad get"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "is HDF5"),
        (bytes(128) + b"DICM" + bytes(100), "dcm2niix"),
        (b"MATLAB 7.3 MAT-file" + bytes(600), "save -v7"),
        (b"\x5c\x01\0\0" + bytes(344), "Analyze"),
        (b"\x5c\x01\0\0" + bytes(340) + b"ni1\0", "one half of a pair"),
        (json.dumps({"RepetitionTime": 2}).encode(), "is JSON"),
        (b"<html>not found</html>", "XML or HTML"),
        (b"\x28\xb5\x2f\xfd" + bytes(40), "unzstd"),
        (b"\x93\x00\x01\x02" * 40, "no fmri format"),
        (b"an error page", "is text"),
    ],
)
def test_what_is_no_series_is_named(tmp_path, data, words):
    path = tmp_path / "run.nii"
    path.write_bytes(data)
    with pytest.raises(UserError, match=words):
        kind_of(path)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no such file; check its path"):
        find_file(str(tmp_path / "absent.nii"))
    (tmp_path / "empty.nii").touch()
    with pytest.raises(UserError, match="is empty"):
        find_file(str(tmp_path / "empty.nii"))
    (tmp_path / "link.nii").symlink_to(tmp_path / "annexed")
    with pytest.raises(UserError, match="datalad get"):
        find_file(str(tmp_path / "link.nii"))
    with pytest.raises(UserError, match="is a URL"):
        find_file("https://example.org/run.nii")
    for odd in ("x" * 5000, "a\0b"):
        with pytest.raises(UserError, match="cannot be reached"):
            find_file(odd)
    with pytest.raises(UserError, match="no ordinary file"):
        find_file(str(tmp_path))


def test_a_length_that_differs_from_the_header_is_refused(tmp_path):
    for name, pack in (("a.nii", bytes), ("b.nii.gz", gzip.compress), ("c.nii.bz2", bz2.compress)):
        path = tmp_path / name
        path.write_bytes(pack(bytes(1000)))
        check_length(path, 1000)
        with pytest.raises(UserError, match="1,001 bytes, 1,000 are there"):
            check_length(path, 1001)
        with pytest.raises(UserError, match="1 bytes more than the 999"):
            check_length(path, 999)


def test_a_gzip_of_several_members_is_counted(tmp_path):
    path = tmp_path / "run.nii.gz"
    path.write_bytes(gzip.compress(bytes(600)) + gzip.compress(bytes(400)))
    check_length(path, 1000)


def test_only_the_trailer_of_a_whole_gzip_is_read(tmp_path, monkeypatch):
    path = tmp_path / "run.nii.gz"
    path.write_bytes(gzip.compress(os.urandom(5000)))
    monkeypatch.setattr(content, "_count", lambda *_: pytest.fail("read the data"))
    check_length(path, 5000)


def test_a_claim_that_no_gzip_of_that_size_can_hold_is_counted(tmp_path):
    # The trailer holds the length modulo 2^32: 1000 and 2^32 + 1000 look alike.
    path = tmp_path / "run.nii.gz"
    path.write_bytes(gzip.compress(bytes(1000)))
    with pytest.raises(UserError, match="1,000 are there"):
        check_length(path, (1 << 32) + 1000)


def test_what_libraries_print_of_odd_headers_is_silenced(tmp_path, capfd):
    path = write_nifti(tmp_path / "run.nii", np.zeros((*SHAPE, 2), np.float32))
    raw = bytearray(path.read_bytes())
    raw[76:80] = np.float32(0).tobytes()  # pixdim[0], which nibabel mends with a printed line
    path.write_bytes(raw)
    from hyperslab.data.sources.fmri.nifti import open_nifti

    image = open_nifti(path)
    image.close()
    assert any("qfac" in line for line in image.oddities)
    assert capfd.readouterr().err == ""
