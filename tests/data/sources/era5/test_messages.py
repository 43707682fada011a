import struct
from pathlib import Path

import numpy as np
import pytest

from hyperslab.data.sources.era5.header import NO_MEMBER
from hyperslab.data.sources.era5.messages import read_messages
from hyperslab.errors import UserError
from tests.data.sources.era5.raw import write_grib

VALUES = np.arange(12.0).reshape(3, 4)


def test_a_message_is_told_by_its_header(tmp_path: Path) -> None:
    keys = {"shortName": "t", "level": 850, "dataDate": 19991231, "dataTime": 1800, "step": 6, "values": VALUES}
    path = write_grib(tmp_path / "raw.grib", keys, sample="regular_ll_pl_grib2")
    (message,) = read_messages(str(path), "raw.grib")
    # 2000-01-01 is 10,957 days after 1970-01-01.
    assert (message.initial, message.time) == (10_957 * 86_400 - 21_600, 10_957 * 86_400)
    assert (message.offset, message.length) == (0, path.stat().st_size)
    assert message.member == NO_MEMBER
    parameter = message.parameter
    assert (parameter.variable, parameter.level, parameter.level_type) == ("t", 850, "isobaricInhPa")
    assert (parameter.units, parameter.long_name, parameter.step_type) == ("K", "Temperature", "instant")


def test_bytes_between_messages_are_passed_over(tmp_path: Path) -> None:
    keys = {"shortName": "t", "level": 850, "dataDate": 20200101, "values": VALUES}
    path = write_grib(tmp_path / "raw.grib", keys)
    content = path.read_bytes()
    path.write_bytes(content + bytes(40) + content)
    assert [message.offset for message in read_messages(str(path), "raw.grib")] == [0, len(content) + 40]


def test_a_message_of_several_fields_is_refused_with_a_command(tmp_path: Path) -> None:
    path = write_grib(
        tmp_path / "raw.grib",
        {"shortName": "t", "level": 850, "dataDate": 20200101, "values": VALUES},
        sample="regular_ll_pl_grib2",
    )
    content = path.read_bytes()
    # Sections 4 to 7 once more: each has its length in four bytes and its number in the fifth.
    offset, starts = 16, {}
    while content[offset : offset + 4] != b"7777":
        starts[content[offset + 4]] = offset
        offset += struct.unpack(">I", content[offset : offset + 4])[0]
    doubled = bytearray(content[:offset] + content[starts[4] : offset] + b"7777")
    doubled[8:16] = struct.pack(">Q", len(doubled))
    path.write_bytes(doubled)
    with pytest.raises(UserError, match=r"raw\.grib: has messages of several fields.*`grib_copy in\.grib out\.grib`"):
        list(read_messages(str(path), "raw.grib"))


def test_a_date_that_is_none_is_refused(tmp_path: Path) -> None:
    path = write_grib(tmp_path / "raw.grib", {"shortName": "t", "level": 850, "dataDate": 20200101, "values": VALUES})
    content = bytearray(path.read_bytes())
    # Edition 1: section 1 begins at byte 8, its octets 13 to 15 are the year of the century, the month and the day.
    content[8 + 13] = 14
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"raw\.grib: its GRIB messages cannot be read .*download it again"):
        list(read_messages(str(path), "raw.grib"))


@pytest.mark.parametrize("sample", ["regular_ll_pl_grib1", "regular_ll_pl_grib2"])
@pytest.mark.parametrize("unit", [3, 4, 7, 255])
def test_a_step_in_a_unit_without_a_fixed_length_is_refused(tmp_path: Path, sample: str, unit: int) -> None:
    keys = {"shortName": "t", "level": 850, "dataDate": 20200101, "values": VALUES, "indicatorOfUnitOfTimeRange": unit}
    path = write_grib(tmp_path / "raw.grib", keys, sample=sample)
    with pytest.raises(UserError, match=rf"raw\.grib: a message has its step in the unit {unit} .*give it in hours"):
        list(read_messages(str(path), "raw.grib"))


@pytest.mark.parametrize(
    ("unit", "seconds"), [(0, 60), (1, 3600), (2, 86_400), (10, 10_800), (11, 21_600), (12, 43_200)]
)
@pytest.mark.parametrize("sample", ["regular_ll_pl_grib1", "regular_ll_pl_grib2"])
def test_a_step_counts_its_unit(tmp_path: Path, sample: str, unit: int, seconds: int) -> None:
    step = {"regular_ll_pl_grib1": "P1", "regular_ll_pl_grib2": "forecastTime"}[sample]
    keys = {"shortName": "t", "level": 850, "dataDate": 20200101, "values": VALUES, "indicatorOfUnitOfTimeRange": unit}
    path = write_grib(tmp_path / "raw.grib", {**keys, step: 3}, sample=sample)
    (message,) = read_messages(str(path), "raw.grib")
    assert message.time - message.initial == 3 * seconds
