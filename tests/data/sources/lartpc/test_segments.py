from pathlib import Path

import numpy as np
import pytest

from hyperslab.errors import UserError
from tests.data.sources.lartpc.raw_files import SEGMENT_FIELDS, write_columns, write_segments
from tests.data.sources.lartpc.reading import feature, label, read, scan


@pytest.mark.parametrize("name", ["segments", "tracks"])
@pytest.mark.parametrize("event", ["event_id", "eventID", "spillID"])
def test_segments_are_read_by_the_names_of_their_fields(tmp_path: Path, name: str, event: str) -> None:
    fields = [(event, "u4"), *SEGMENT_FIELDS[1:]]
    table = write_segments(tmp_path / "a.h5", [4, 4, 4, 8], name, fields)
    index = scan(tmp_path / "a.h5")
    block = read(index)
    assert index.points == (3, 1)
    assert index.frame_labels["event_id"] == (4, 8)
    assert [channel.name for channel in index.channels] == ["dE", "dEdx", "t0", "n_electrons"]
    assert [channel.units for channel in index.channels] == ["MeV", "MeV cm-1", "us", "1"]
    assert [axis.units for axis in index.space] == ["cm"] * 3
    assert [channel.name for channel in index.labels] == ["traj_id", "pdg_id", "vertex_id"]
    for number, axis in enumerate("xyz"):
        assert np.array_equal(block["position"][:, number], table[axis])
    assert np.array_equal(feature(index, block, "dE"), table["dE"])
    assert np.array_equal(label(index, block, "pdg_id"), table["pdg_id"])


def test_events_in_pieces_are_joined_in_the_order_of_the_file(tmp_path: Path) -> None:
    table = write_segments(tmp_path / "a.h5", [5, 5, 2, 5, 2])
    index = scan(tmp_path / "a.h5")
    assert index.frame_labels["event_id"] == (5, 2)
    assert np.array_equal(read(index)["position"][:, 0], table["x"][[0, 1, 3, 2, 4]])
    assert any("2 events are not in one piece" in line for line in index.oddities)


def test_only_the_variables_asked_for_are_taken_in_their_order(tmp_path: Path) -> None:
    table = write_segments(tmp_path / "a.h5", [1, 2])
    index = scan(tmp_path / "a.h5", variables=["dEdx", "dE"])
    assert [channel.name for channel in index.channels] == ["dEdx", "dE"]
    assert np.array_equal(read(index)["feature"], np.stack([table["dEdx"], table["dE"]], axis=1))


def test_truth_is_never_an_input(tmp_path: Path) -> None:
    write_segments(tmp_path / "a.h5", [1, 2])
    with pytest.raises(UserError, match="pdg_id is truth or a label, kept beside and never an input"):
        scan(tmp_path / "a.h5", variables=["dE", "pdg_id"])


def test_segments_without_an_event_are_refused(tmp_path: Path) -> None:
    write_segments(tmp_path / "a.h5", [1], fields=[("number", "u4"), *SEGMENT_FIELDS[1:]])
    with pytest.raises(UserError, match=r"a\.h5: its points have none of event_id, eventID, spillID"):
        scan(tmp_path / "a.h5")


def test_segments_as_columns_stand_at_the_middle_between_their_ends(tmp_path: Path) -> None:
    columns = write_columns(tmp_path / "a.h5", [0, 0, 3])
    index = scan(tmp_path / "a.h5")
    block = read(index)
    assert index.points == (2, 1)
    assert index.frame_labels["event_id"] == (0, 3)
    middle = (columns["StartYPos"].astype(np.float64) + columns["EndYPos"]) / 2
    assert np.array_equal(block["position"][:, 1], middle.astype(np.float32))
    assert np.array_equal(feature(index, block, "EnergyDep"), columns["EnergyDep"])
    assert np.array_equal(label(index, block, "PDG"), columns["PDG"])
    assert any("states no units" in line for line in index.oddities)
