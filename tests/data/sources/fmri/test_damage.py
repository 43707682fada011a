"""Good files corrupted at random: one line, or what was there; never a traceback, never another shape or time."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperslab.data.sources.fmri.source import Fmri
from hyperslab.data.sources.index import Index
from hyperslab.errors import UserError
from tests.data.sources.fmri import raw

EXAMPLES = 150
NAMES = ["V1", "M1", "S1"]


def _nifti(path: Path) -> Path:
    return raw.write_nifti(path)


def _cifti_gz(path: Path) -> Path:
    plain = raw.write_cifti(path.with_suffix(".plain.nii"), parcels=True)
    path.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    return path


def _mat(path: Path) -> Path:
    scipy.io.savemat(path, {"tc": raw.series((8, 3)).astype(float)}, do_compression=True)
    return path


def _npz(path: Path) -> Path:
    np.savez_compressed(path, tc=raw.series((8, 3)))
    return path


def _npy(path: Path) -> Path:
    np.save(path, raw.series((8, 3)))
    return path


def _text(path: Path) -> Path:
    return raw.write_table(path, raw.series((8, 3)), NAMES)


def _afni(path: Path) -> Path:
    return raw.write_afni(path.with_suffix(""), np.arange(5 * 4 * 3 * 8).reshape(5, 4, 3, 8))


WRITERS: dict[str, Callable[[Path], Path]] = {
    "run.nii": _nifti,
    "run.nii.gz": _nifti,
    "run.nii.bz2": _nifti,
    "run.dtseries.nii": raw.write_cifti,
    "run.ptseries.nii.gz": _cifti_gz,
    "run.func.gii": raw.write_gifti,
    "run.mat": _mat,
    "run.npz": _npz,
    "run.npy": _npy,
    "run.csv": _text,
    "run.HEAD": _afni,
}
CHECKED = {"run.nii.gz", "run.nii.bz2", "run.ptseries.nii.gz", "run.npz"}
"""Files whose content carries a checksum: what is read is what was written."""
DATA_AT = {"run.nii": 352, "run.npy": 128}
"""Where the data of plain files begin: damage behind it changes values alone."""


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A cut, some flipped bits, or some bytes overwritten; places are shares of the length."""
    kind = draw(st.sampled_from(["cut", "flip", "overwrite"]))
    share = draw(st.floats(0, 0.9999))
    if kind == "cut":
        return lambda data: data[: int(share * len(data))]
    if kind == "overwrite":
        patch = draw(st.binary(min_size=1, max_size=16))
        return lambda data: data[: int(share * len(data))] + patch + data[int(share * len(data)) + len(patch) :]
    places = draw(st.lists(st.tuples(st.floats(0, 0.9999), st.integers(1, 255)), min_size=1, max_size=4))

    def flip(data: bytes) -> bytes:
        result = bytearray(data)
        for where, mask in places:
            result[int(where * len(result))] ^= mask
        return bytes(result)

    return flip


def attempt(path: Path) -> tuple[Index, np.ndarray] | None:
    """The index and the values, or None where the file is refused with one line."""
    try:
        Fmri().describe(str(path))
        choices: dict[str, Any] = {"parcels": 3} if path.suffix in TABLES else {}
        index = raw.scan(path, repetition_seconds=2.0, **choices)
        return index, raw.read(index)
    except UserError as error:
        lines = str(error).splitlines()
    assert len(lines) == 1
    return None


TABLES = (".mat", ".npz", ".npy", ".csv")


@pytest.mark.parametrize("name", WRITERS)
def test_a_damaged_file_ends_in_one_line_or_in_what_was_there(tmp_path, name):
    path = WRITERS[name](tmp_path / name)
    whole = path.read_bytes()
    good = attempt(path)
    assert good is not None
    index, values = good

    @settings(max_examples=EXAMPLES)
    @given(damage())
    def check(harm):
        harmed = harm(whole)
        path.write_bytes(harmed)
        found = attempt(path)
        if found is None:
            return
        assert found[0].shape == found[1].shape
        if name in CHECKED or harmed == whole:
            assert (found[0].time, found[0].space) == (index.time, index.space)
            np.testing.assert_array_equal(found[1], values)
        elif name in DATA_AT and harmed[: DATA_AT[name]] == whole[: DATA_AT[name]]:
            assert (found[0].time, found[0].shape) == (index.time, index.shape)

    check()


def test_damaged_data_of_afni_change_values_alone(tmp_path):
    header = _afni(tmp_path / "run.HEAD")
    whole = (tmp_path / "run.BRIK").read_bytes()
    index = raw.scan(header)

    @settings(max_examples=EXAMPLES)
    @given(damage())
    def check(harm):
        harmed = harm(whole)
        (tmp_path / "run.BRIK").write_bytes(harmed)
        found = attempt(header)
        assert (found is None) == (len(harmed) != len(whole))
        assert found is None or found[0].time == index.time

    check()


@settings(max_examples=EXAMPLES)
@given(st.binary(max_size=600), st.sampled_from(["", "\x1f\x8b", "n+1\0", "PK\x03\x04", "\x93NUMPY\x01\0"]))
def test_any_bytes_under_any_name_are_refused(tmp_path_factory, content, magic):
    folder = tmp_path_factory.mktemp("bytes")
    for name in WRITERS:
        path = folder / name
        path.write_bytes(magic.encode("latin-1") + content)
        with pytest.raises(UserError):
            Fmri().describe(str(path))
