from pathlib import Path

import h5py
import numpy as np
import pytest

from hyperslab.data.sources.lartpc.source import SOURCE
from hyperslab.errors import UserError
from tests.data.sources.lartpc.raw_files import write_backtrack, write_flow
from tests.data.sources.lartpc.reading import feature, label, read, scan

# Event 0 has hits 1, 0; event 1 none; event 2 has 2, 3 and 5, with a pair of event 0 among them. Hit 4 is free.
PAIRS = [(0, 1), (2, 2), (0, 0), (2, 3), (2, 5)]
ROWS = [1, 0, 2, 3, 5]


@pytest.mark.parametrize("backward", [False, True])
def test_references_say_which_hits_an_event_has(tmp_path: Path, backward: bool) -> None:
    table = write_flow(tmp_path / "a.h5", PAIRS, 3, 6, backward=backward)
    index = scan(tmp_path / "a.h5")
    block = read(index)
    assert index.points == (2, 0, 3)
    assert index.frame_labels["event_id"] == (7, 8, 9)
    assert set(index.frame_labels) == {"file", "event_id", "unix_ts", "num_external_triggers"}
    assert [(channel.name, channel.units) for channel in index.channels] == [
        ("t_drift", "us"),
        ("Q", "ke-"),
        ("E", "MeV"),
    ]
    for number, axis in enumerate("xyz"):
        assert np.array_equal(block["position"][:, number], table[axis][ROWS].astype(np.float32))
    assert feature(index, block, "t_drift") == pytest.approx(table["t_drift"][ROWS] * 0.1)
    assert label(index, block, "ts_pps").tolist() == [2**53 + 1 + row for row in ROWS]
    assert label(index, block, "io_group").tolist() == table["io_group"][ROWS].tolist()
    told = "\n".join(index.oddities)
    assert "1 of 6 hits belong to no event" in told
    assert "1 of 3 events have no hit: kept as frames without points" in told
    assert "t_drift times 0.1 to us" in told


def test_lengths_in_mm_become_cm_and_the_clock_is_that_of_the_file(tmp_path: Path) -> None:
    table = write_flow(tmp_path / "a.h5", [(0, 0), (0, 1)], 1, 2, pitch=4.434, ticks=0.05)
    index = scan(tmp_path / "a.h5")
    block = read(index)
    assert block["position"][:, 0] == pytest.approx(table["x"] / 10)
    assert feature(index, block, "t_drift") == pytest.approx(table["t_drift"] * 0.05)
    assert any("the pixel pitch is stated as 4.434, so lengths are in mm" in line for line in index.oddities)


def test_what_a_file_does_not_state_is_told(tmp_path: Path) -> None:
    write_flow(tmp_path / "a.h5", [(0, 0)], 1, 1, pitch=None, ticks=None)
    told = "\n".join(scan(tmp_path / "a.h5").oddities)
    assert "does not state the pixel pitch: positions are taken as cm" in told
    assert "run_info does not state crs_ticks: 0.1 us are taken" in told


@pytest.mark.parametrize("ticks", [0.0, -0.1, np.nan])
def test_a_clock_that_is_none_is_refused(tmp_path: Path, ticks: float) -> None:
    write_flow(tmp_path / "a.h5", [(0, 0)], 1, 1, ticks=ticks)
    with pytest.raises(UserError, match=r"run_info.crs_ticks is .* must be one positive number"):
        scan(tmp_path / "a.h5")


def test_final_hits_are_taken_where_both_are_held_unless_others_are_asked_for(tmp_path: Path) -> None:
    prompt = write_flow(tmp_path / "a.h5", [(0, 0), (0, 1)], 1, 2, hits="prompt")
    final = write_flow(tmp_path / "a.h5", [(0, 0)], 1, 1, hits="final", mode="a")
    index = scan(tmp_path / "a.h5")
    assert index.attributes["hits"] == "final"
    assert read(index)["position"][:, 0] == pytest.approx(final["x"])
    assert any("also holds prompt ones" in line for line in index.oddities)
    index = scan(tmp_path / "a.h5", lartpc={"hits": "prompt"})
    assert read(index)["position"][:, 0] == pytest.approx(prompt["x"])


def test_hits_that_a_file_lacks_are_refused(tmp_path: Path) -> None:
    write_flow(tmp_path / "a.h5", [(0, 0)], 1, 1, hits="prompt")
    with pytest.raises(UserError, match=r"data.lartpc.hits asks for final hits, the file holds prompt"):
        scan(tmp_path / "a.h5", lartpc={"hits": "final"})


def test_the_truth_segment_of_the_largest_share_is_a_label(tmp_path: Path) -> None:
    write_flow(tmp_path / "a.h5", [(0, 0), (0, 1), (0, 2)], 1, 3)
    shares = np.asarray([[0.3, 0.7], [0.0, 0.0], [-0.9, 0.1]])
    write_backtrack(tmp_path / "a.h5", shares, np.asarray([[11, 12], [21, 22], [31, 32]]))
    index = scan(tmp_path / "a.h5")
    assert label(index, read(index), "segment_id").tolist() == [12, -1, 31]
    assert "segment_id" not in [channel.name for channel in index.channels]


def test_negative_charges_are_counted(tmp_path: Path) -> None:
    table = write_flow(tmp_path / "a.h5", [(0, hit) for hit in range(9)], 1, 9)
    lines = SOURCE.describe(str(tmp_path / "a.h5")).oddities
    assert f"{(table['Q'] < 0).sum()} of 9 hits have a negative Q: kept as it is" in lines


def test_a_file_without_references_is_refused(tmp_path: Path) -> None:
    write_flow(tmp_path / "a.h5", [(0, 0)], 1, 1)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["charge/events/ref"]
    with pytest.raises(UserError, match="has no references from charge/events to charge/calib_prompt_hits"):
        scan(tmp_path / "a.h5")
