import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hyperslab.data.sources.era5.grib_sections import find_message
from tests.data.sources.era5.raw import write_grib

VALUES = np.arange(12.0).reshape(3, 4)
KEYS = {"shortName": "t", "level": 850, "dataDate": 20200101, "values": VALUES}
SAMPLES = ("regular_ll_pl_grib1", "regular_ll_pl_grib2")


@contextmanager
def opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY)
    yield file
    os.close(file)


@pytest.mark.parametrize("sample", SAMPLES)
def test_messages_are_found_one_after_another(tmp_path: Path, sample: str) -> None:
    path = write_grib(tmp_path / "raw.grib", KEYS, sample=sample)
    content = path.read_bytes()
    # The second magic lies across the end of a block of 64 KiB.
    path.write_bytes(content + bytes((1 << 16) - 2) + content + b"trailing")
    with opened(path) as file:
        first = find_message(file, 0)
        assert first is not None
        assert (first.offset, first.num_fields) == (0, 1)
        second = find_message(file, len(content))
        assert second is not None
        assert second.offset == len(content) + (1 << 16) - 2
        assert find_message(file, second.offset + len(content)) is None


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_message_that_was_cut_is_refused(tmp_path: Path, sample: str, cut: int) -> None:
    path = write_grib(tmp_path / "raw.grib", KEYS, sample=sample)
    path.write_bytes(path.read_bytes()[:-cut])
    with opened(path) as file, pytest.raises(ValueError, match="a message is cut short at byte"):
        find_message(file, 0)


@pytest.mark.parametrize(("sample", "start"), zip(SAMPLES, (8, 16), strict=True))
def test_a_section_that_lost_its_length_is_refused(tmp_path: Path, sample: str, start: int) -> None:
    path = write_grib(tmp_path / "raw.grib", KEYS, sample=sample)
    content = bytearray(path.read_bytes())
    content[start : start + 4] = bytes(4)
    path.write_bytes(content)
    with opened(path) as file, pytest.raises(ValueError, match="section"):
        find_message(file, 0)


def test_an_unknown_edition_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "raw.grib"
    path.write_bytes(b"GRIB\x00\x00\x00\x07" + bytes(20))
    with opened(path) as file, pytest.raises(ValueError, match="edition 7 of GRIB at byte 0"):
        find_message(file, 0)
