from pathlib import Path

import h5py
import numpy as np
import pytest

from hyperslab.data.sources.lartpc.hdf5 import open_hdf5
from hyperslab.data.sources.lartpc.heaps import check_heaps
from hyperslab.errors import UserError
from tests.data.sources.lartpc.raw_files import write_event_display
from tests.data.sources.lartpc.reading import scan

ARRAYS = [np.arange(3, dtype=np.float32), np.empty(0, np.float32), np.arange(2000, dtype=np.float32)]


def _write(path: Path, **options: object) -> None:
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", (len(ARRAYS),), h5py.vlen_dtype(np.float32), **options)
        for number, values in enumerate(ARRAYS):
            data[number] = values
            file[f"after_{number}"] = np.zeros(1000)  # so that a heap cannot grow in place


def _check(path: Path, start: int = 0, stop: int = 3) -> None:
    with open_hdf5(str(path)) as file:
        check_heaps(file["x"], str(path), start, stop)


def _heaps(path: Path) -> list[int]:
    content = path.read_bytes()
    return [place for place in range(len(content)) if content[place : place + 4] == b"GCOL"]


def _damage(path: Path, place: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[place : place + len(data)] = data
    path.write_bytes(content)


@pytest.mark.parametrize("options", [{}, {"chunks": (2,)}, {"chunks": (2,), "compression": "gzip"}])
def test_a_damaged_heap_is_found_wherever_its_elements_lie(tmp_path: Path, options: dict[str, object]) -> None:
    path = tmp_path / "a.h5"
    _write(path, **options)
    _check(path)
    # The first object of the first heap: its header stands at byte 16 of it, the size at byte 8 of that. A size of 0
    # of the free rest is what the library never comes out of.
    _damage(path, _heaps(path)[0] + 16, bytes(16))
    with pytest.raises(UserError, match=r"a\.h5: its heap at byte [\d,]+ is damaged at byte 16"):
        _check(path)


def test_only_the_heaps_of_the_elements_asked_for_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    _write(path)
    # 2000 numbers of 4 bytes do not fit the first heap, of 4096.
    first, second = _heaps(path)
    _damage(path, second + 24, b"\xff" * 8)
    _check(path, 0, 2)
    with pytest.raises(UserError, match="is damaged at byte 16"):
        _check(path, 2, 3)
    _damage(path, first, b"XXXX")
    with pytest.raises(UserError, match="has no sound heap at byte"):
        _check(path, 0, 1)


def test_a_heap_that_leaves_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    _write(path)
    _damage(path, _heaps(path)[0] + 8, (10**9).to_bytes(8, "little"))
    with pytest.raises(UserError, match="has no sound heap at byte"):
        _check(path, 0, 1)


def test_heaps_behind_other_filters_are_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    _write(path, chunks=(2,), shuffle=True, compression="gzip")
    _damage(path, _heaps(path)[0] + 16, bytes(16))
    _check(path)


def test_a_damaged_heap_of_region_references_is_found_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write_event_display(path, [slice(0, 2), None, slice(2, 4)], 4)
    scan(path)
    _damage(path, _heaps(path)[0] + 16, bytes(16))
    with pytest.raises(UserError, match=r"a\.h5: its heap at byte [\d,]+ is damaged at byte 16"):
        scan(path)


@pytest.mark.parametrize(
    ("place", "data"),
    [
        # An element is its length (4 bytes), the address of its heap (8) and its number there (4): the first claims 300
        # numbers of the 3 that there are, an object that there is not, or, the second, a length without a place.
        (0, b"\x2c\x01\x00\x00"),
        (12, b"\x09\x00\x00\x00"),
        (16, b"\x05\x00\x00\x00"),
    ],
)
def test_an_element_that_claims_more_than_its_heap_holds_is_found(tmp_path: Path, place: int, data: bytes) -> None:
    path = tmp_path / "a.h5"
    _write(path)
    with open_hdf5(str(path)) as file:
        elements = file["x"].id.get_offset()
    _damage(path, elements + place, data)
    with pytest.raises(UserError, match=r"an element of /x is not what its heap|an array of /x lies nowhere"):
        _check(path)


def test_a_type_that_hdf5_would_crash_over_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    _write(path)
    # A type of varying length, version 1: class 9, three bytes of class bits, the 16 bytes that an element takes.
    _damage(path, path.read_bytes().index(bytes.fromhex("1900000010000000")) + 1, b"\x02")
    with pytest.raises(UserError, match="the type of /x is damaged"):
        _check(path)
