from pathlib import Path

import numpy as np
import pytest

from hyperslab.data.config import DataSettings
from hyperslab.data.sources.lartpc import table as tables
from hyperslab.data.sources.lartpc.segments import Segments
from tests.data.sources.lartpc.raw_files import write_segments
from tests.data.sources.lartpc.reading import read, scan


def test_the_header_says_events_and_columns_and_how_to_read_them(tmp_path: Path) -> None:
    write_segments(tmp_path / "a.h5", [3, 3, 4])
    header = Segments().read_header(str(tmp_path / "a.h5"), DataSettings(files=["a"]))
    assert header.num_frames == 2
    assert header.points is not None
    assert header.points.tolist() == [2, 1]
    assert header.details["positions"] == [[["x"], 1.0, False], [["y"], 1.0, False], [["z"], 1.0, False]]
    assert header.details["pieces"] is None


def test_events_are_the_same_whatever_the_size_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_segments(tmp_path / "a.h5", [2, 2, 2, 2, 7, 7, 1, 2, 2, 1])
    index = scan(tmp_path / "a.h5")
    whole = read(index)
    for rows in (1, 2, 3):
        monkeypatch.setattr(tables, "BLOCK_ROWS", rows)
        assert scan(tmp_path / "a.h5") == index
        assert np.array_equal(read(index)["position"], whole["position"])
