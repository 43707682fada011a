from pathlib import Path

import numpy as np
import pytest

from hyperslab.data.sources.lartpc.source import SOURCE
from hyperslab.errors import UserError
from tests.data.sources.lartpc.raw_files import PACKET_FIELDS, noise, write_packets
from tests.data.sources.lartpc.reading import feature, label, read, scan


def _packets() -> np.ndarray:
    table = noise(8, PACKET_FIELDS)
    table["packet_type"] = [4, 0, 0, 6, 0, 7, 0, 0]
    table["valid_parity"] = [0, 1, 1, 0, 0, 0, 1, 1]
    table["timestamp"] = [0, 2**60 + 30, 2**60 + 10, 0, 0, 0, 2**60 + 20, 2**60 + 5]
    return table


def test_data_packets_of_valid_parity_are_one_frame(tmp_path: Path) -> None:
    table = _packets()
    write_packets(tmp_path / "a.h5", table)
    index = scan(tmp_path / "a.h5")
    block = read(index)
    rows = [1, 2, 6, 7]
    assert index.points == (4,)
    assert [axis.name for axis in index.space] == ["io_group", "io_channel", "chip_id", "channel_id"]
    assert block["position"][:, 2].tolist() == table["chip_id"][rows].tolist()
    assert feature(index, block, "dataword").tolist() == table["dataword"][rows].tolist()
    # Ticks above the least, 2**60 + 5, of 0.1 us.
    assert feature(index, block, "t") == pytest.approx([2.5, 0.5, 1.5, 0.0])
    assert label(index, block, "timestamp").tolist() == [2**60 + ticks for ticks in (30, 10, 20, 5)]
    told = "\n".join(index.oddities)
    assert "1 timestamp, 1 sync, 1 trigger" in told
    assert "1 of 5 data packets have an invalid parity: left out" in told
    assert "build events with ndlar_flow" in told


def test_time_that_goes_back_is_told(tmp_path: Path) -> None:
    write_packets(tmp_path / "a.h5", _packets())
    # Data packets stand at ..30, ..10, 0 (the broken one), ..20, ..5: back three times.
    assert any("go back 3 times" in line for line in SOURCE.describe(str(tmp_path / "a.h5")).oddities)


def test_a_file_without_a_data_packet_holds_no_event(tmp_path: Path) -> None:
    table = _packets()
    table["packet_type"] = 4
    write_packets(tmp_path / "a.h5", table)
    with pytest.raises(UserError, match=r"a\.h5: no event in 1 file"):
        scan(tmp_path / "a.h5")


def test_packets_of_version_1_are_refused_with_what_to_do(tmp_path: Path) -> None:
    write_packets(tmp_path / "a.h5", noise(3, [("chipid", "u1"), ("adc_counts", "u1"), ("timestamp", "u8")]))
    with pytest.raises(UserError, match=r"its packets lack io_group, .* convert with larpix-control"):
        scan(tmp_path / "a.h5")
