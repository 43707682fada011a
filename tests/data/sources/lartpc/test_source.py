import os
from pathlib import Path

import numpy as np
import pytest

from hyperslab.data.sources.lartpc.source import SOURCE
from hyperslab.errors import UserError
from tests.data.sources.lartpc import raw_files
from tests.data.sources.lartpc.reading import read, scan


def test_every_event_is_a_frame_and_a_segment_of_its_own(tmp_path: Path) -> None:
    first = raw_files.write_segments(tmp_path / "a.h5", [3, 3, 4])
    second = raw_files.write_segments(tmp_path / "b.h5", [3, 5, 5, 6])
    index = scan(tmp_path / "a.h5", tmp_path / "b.h5")
    assert index.clock.kind == "event"
    assert index.time == index.segment == (0, 1, 2, 3, 4)
    assert index.split_by == "segment"
    assert index.points == (2, 1, 1, 2, 1)
    assert index.frame_labels == {"file": (0, 0, 1, 1, 1), "event_id": (3, 4, 3, 5, 6)}
    assert [file.runs for file in index.files] == [((0, 0, 2),), ((0, 2, 3),)]
    assert index.attributes == {"format": "segments"}
    assert np.array_equal(read(index)["position"][:, 0], np.concatenate([first["x"], second["x"]]))
    # A block over the border of two files: the last event of the first and the first of the second.
    block = SOURCE.read(index, 1, 3)
    assert block["position"][:, 0].tolist() == [first["x"][2], second["x"][0]]


def test_no_frames_are_an_empty_block(tmp_path: Path) -> None:
    raw_files.write_segments(tmp_path / "a.h5", [3])
    block = SOURCE.read(scan(tmp_path / "a.h5"), 1, 1)
    assert {name: values.shape for name, values in block.items()} == {
        "position": (0, 3),
        "feature": (0, 4),
        "labels": (0, 3),
    }
    raw_files.write_tar(tmp_path / "a.tar", raw_files.frame_arrays(1))
    assert SOURCE.read(scan(tmp_path / "a.tar"), 0, 0)["values"].shape == (0, 2, 3, 4)


def test_there_are_no_fields_without_time(tmp_path: Path) -> None:
    raw_files.write_tar(tmp_path / "a.tar", raw_files.frame_arrays(1))
    assert SOURCE.read_statics(scan(tmp_path / "a.tar")).shape == (0, 3, 4)


def test_a_file_that_has_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    raw_files.write_segments(path, [3])
    index = scan(path)
    os.utime(path, ns=(0, 1))
    with pytest.raises(UserError, match=r"a\.h5: has changed since it was indexed; start a new campaign"):
        SOURCE.read(index, 0, 1)
    path.unlink()
    with pytest.raises(UserError, match=r"a\.h5: cannot be read \(No such file or directory\)"):
        SOURCE.read(index, 0, 1)


def test_a_file_without_events_is_told_and_left_out(tmp_path: Path) -> None:
    raw_files.write_segments(tmp_path / "a.h5", [])
    raw_files.write_segments(tmp_path / "b.h5", [1])
    index = scan(tmp_path / "a.h5", tmp_path / "b.h5")
    assert [Path(file.path).name for file in index.files] == ["b.h5"]
    assert any(line.endswith("a.h5: holds no event") for line in index.oddities)
    with pytest.raises(UserError, match="no event in 1 file"):
        scan(tmp_path / "a.h5")


def test_a_file_named_twice_is_refused(tmp_path: Path) -> None:
    raw_files.write_segments(tmp_path / "a.h5", [1])
    with pytest.raises(UserError, match=r"a\.h5: is named 2 times in data.files"):
        scan(tmp_path / "a.h5", tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"period": {"start": "2020-01-01"}}, "data.period: lartpc events are numbered, not dated"),
        ({"levels": [500]}, "data.levels: lartpc channels have no levels"),
        ({"lartpc": {"tick_ns": 500}}, "data.lartpc.tick_ns is for wire-cell files only"),
        ({"lartpc": {"wires": [1, 2]}}, "data.lartpc.wires is for wire-cell files only"),
        ({"lartpc": {"hits": "final"}}, "data.lartpc.hits is for ndlar_flow files only"),
    ],
)
def test_a_choice_that_does_not_apply_is_refused(tmp_path: Path, settings: dict[str, object], words: str) -> None:
    raw_files.write_segments(tmp_path / "a.h5", [1])
    with pytest.raises(UserError, match=words):
        scan(tmp_path / "a.h5", **settings)


def test_a_file_is_described_in_words(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    table = raw_files.write_segments(path, [3, 3, 4, 3])
    found = SOURCE.describe(str(path))
    assert found.kind == f"larnd-sim or edep-sim segments, {path.stat().st_size:,} bytes"
    assert found.taken[:3] == (
        "events: 2, with 4 points, 1 to 3 an event",
        "positions: x [cm], y [cm], z [cm]",
        "channel dE: energy deposited [MeV]",
    )
    assert "label pdg_id: pdg_id" in found.taken
    assert found.taken[-1] == "facts about each event: event_id"
    below = int((table["dE"] < 0).sum())
    assert f"{below} of 4 points have a negative dE: kept as it is" in found.oddities


def test_an_image_is_described_in_words(tmp_path: Path) -> None:
    raw_files.write_tar(tmp_path / "a.tar", raw_files.frame_arrays(1))
    taken = SOURCE.describe(str(tmp_path / "a.tar")).taken
    assert taken[:3] == ("events: 1", "image: wire 3 x tick 4", "channel gauss0: Wire-Cell trace tag gauss0 [unknown]")


def test_thousands_of_files_are_scanned_in_seconds(tmp_path: Path) -> None:
    image = raw_files.write_pixel_map(tmp_path / "event_0.gz").tobytes()
    packed, info = (tmp_path / "event_0.gz").read_bytes(), (tmp_path / "event_0.info").read_text()
    for number in range(1, 1500):
        (tmp_path / f"event_{number}.gz").write_bytes(packed)
        (tmp_path / f"event_{number}.info").write_text(info)
    index = scan(tmp_path)
    assert len(index.time) == 1500
    assert SOURCE.read(index, 1499, 1500)["values"].astype(np.uint8).tobytes() == image
