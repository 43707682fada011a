from pathlib import Path

import h5py
import numpy as np
import pytest

from hyperslab.data.sources.lartpc import references
from hyperslab.data.sources.lartpc.references import References
from hyperslab.errors import UserError
from tests.data.sources.lartpc.raw_files import write_flow

HITS = "charge/calib_prompt_hits"
REFERENCES = f"charge/events/ref/{HITS}"


def _count_and_rows(path: Path, first: int, points: tuple[int, ...]) -> tuple[list[int], list[int]]:
    with h5py.File(path) as file:
        found = References(file, "charge/events", HITS, str(path))
        return found.count(3, 9).tolist(), found.rows(first, points).tolist()


def test_pairs_are_counted_and_found_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "BLOCK_ROWS", 2)
    write_flow(tmp_path / "a.h5", [(0, 8), (2, 1), (0, 7), (2, 2), (1, 0), (0, 6)], 3, 9)
    assert _count_and_rows(tmp_path / "a.h5", 0, (3, 1, 2)) == ([3, 1, 2], [8, 7, 6, 0, 1, 2])
    assert _count_and_rows(tmp_path / "a.h5", 2, (2,)) == ([3, 1, 2], [1, 2])


def test_events_without_hits_have_no_rows(tmp_path: Path) -> None:
    write_flow(tmp_path / "a.h5", [(0, 8)], 3, 9)
    assert _count_and_rows(tmp_path / "a.h5", 1, (0, 0)) == ([1, 0, 0], [])


@pytest.mark.parametrize("pair", [(3, 0), (0, 9)])
def test_a_reference_to_what_is_not_there_is_refused(tmp_path: Path, pair: tuple[int, int]) -> None:
    write_flow(tmp_path / "a.h5", [(0, 0), (1, 1)], 3, 9)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file[f"{REFERENCES}/ref"][1] = pair
    with pytest.raises(UserError, match="refers to what is not there"):
        _count_and_rows(tmp_path / "a.h5", 0, (1, 1, 0))


def test_regions_that_miss_references_are_found_out(tmp_path: Path) -> None:
    write_flow(tmp_path / "a.h5", [(0, 0), (1, 1), (1, 2)], 3, 9)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file[f"{REFERENCES}/ref_region"][1, "stop"] = 2
    with pytest.raises(UserError, match="leads to 1 hits of event 1, 2 refer to it"):
        _count_and_rows(tmp_path / "a.h5", 0, (1, 2, 0))


@pytest.mark.parametrize("region", [(-1, 1), (0, 99)])
def test_regions_that_leave_the_references_are_refused(tmp_path: Path, region: tuple[int, int]) -> None:
    write_flow(tmp_path / "a.h5", [(0, 0)], 3, 9)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file[f"{REFERENCES}/ref_region"][0] = np.asarray(region, "i8").view([("start", "i8"), ("stop", "i8")])[0]
    with pytest.raises(UserError, match="leaves the references"):
        _count_and_rows(tmp_path / "a.h5", 0, (1, 0, 0))


def test_too_few_regions_are_refused(tmp_path: Path) -> None:
    write_flow(tmp_path / "a.h5", [(0, 0)], 2, 9)
    with pytest.raises(UserError, match="covers 2 of 3 events"):
        _count_and_rows(tmp_path / "a.h5", 0, (1, 0, 0))


def test_references_of_another_form_are_refused(tmp_path: Path) -> None:
    write_flow(tmp_path / "a.h5", [(0, 0)], 3, 9)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file[f"{REFERENCES}/ref"]
        file[f"{REFERENCES}/ref"] = np.zeros((2, 3), "u4")
    with pytest.raises(UserError, match="not pairs"):
        _count_and_rows(tmp_path / "a.h5", 0, (1, 0, 0))
