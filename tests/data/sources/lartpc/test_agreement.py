from pathlib import Path

import h5py
import pytest

from hyperslab.data.sources.lartpc.agreement import join_lines
from hyperslab.errors import UserError
from tests.data.sources.lartpc import raw_files
from tests.data.sources.lartpc.raw_files import SEGMENT_FIELDS, write_segments
from tests.data.sources.lartpc.reading import read, scan


def test_files_of_different_formats_are_refused_with_both_names(tmp_path: Path) -> None:
    write_segments(tmp_path / "a.h5", [1])
    raw_files.write_pilarnet(tmp_path / "b.h5", [[2]])
    with pytest.raises(UserError, match=r"b\.h5: differs from .*a\.h5: PILArNet-M.* beside larnd-sim .* one format"):
        scan(tmp_path / "a.h5", tmp_path / "b.h5")


def test_files_of_different_channels_are_refused_unless_common_ones_are_chosen(tmp_path: Path) -> None:
    write_segments(tmp_path / "a.h5", [1])
    write_segments(tmp_path / "b.h5", [1], fields=[*SEGMENT_FIELDS, ("n_photons", "f4")])
    with pytest.raises(UserError, match=r"b\.h5: differs from .*a\.h5: it has more channels \(n_photons\)"):
        scan(tmp_path / "a.h5", tmp_path / "b.h5")
    with pytest.raises(UserError, match=r"a\.h5: differs from .*b\.h5: it lacks the channel n_photons"):
        scan(tmp_path / "b.h5", tmp_path / "a.h5")
    index = scan(tmp_path / "b.h5", tmp_path / "a.h5", variables=["dE", "dEdx"])
    assert read(index)["feature"].shape == (2, 2)


def test_labels_that_not_all_files_have_are_left_out_and_told(tmp_path: Path) -> None:
    write_segments(tmp_path / "a.h5", [1])
    write_segments(tmp_path / "b.h5", [1], fields=[field for field in SEGMENT_FIELDS if field[0] != "vertex_id"])
    index = scan(tmp_path / "a.h5", tmp_path / "b.h5")
    assert [label.name for label in index.labels] == ["traj_id", "pdg_id"]
    assert "labels that not all files have are left out: vertex_id" in index.oddities
    assert read(index)["labels"].shape == (2, 2)


def test_prompt_and_final_hits_are_not_mixed(tmp_path: Path) -> None:
    raw_files.write_flow(tmp_path / "a.h5", [(0, 0)], 1, 1, hits="prompt")
    raw_files.write_flow(tmp_path / "b.h5", [(0, 0)], 1, 1, hits="final")
    with pytest.raises(UserError, match=r"'final'.* beside .*'prompt'"):
        scan(tmp_path / "a.h5", tmp_path / "b.h5")


def test_an_unknown_variable_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    write_segments(tmp_path / "a.h5", [1])
    with pytest.raises(UserError, match=r"data.variables: unknown variable 'dQ'; .*a\.h5 holds dE, dEdx"):
        scan(tmp_path / "a.h5", variables=["dQ"])


def test_a_name_of_two_lines_is_told_on_one(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["Start\nX"] = [1]
    with pytest.raises(UserError, match=r"it holds Start\?X"):
        scan(tmp_path / "a.h5")


def test_what_is_said_of_many_files_is_said_once() -> None:
    lines = [("/x/a.h5", "odd"), ("/x/b.h5", "odd"), ("/x/b.h5", "very odd")]
    assert join_lines(lines) == ["a.h5 and 1 more: odd", "b.h5: very odd"]
