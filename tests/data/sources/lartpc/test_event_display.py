from pathlib import Path

import h5py
import numpy as np
import pytest

from hyperslab.data.sources.lartpc.source import SOURCE
from hyperslab.errors import UserError
from tests.data.sources.lartpc.raw_files import write_event_display
from tests.data.sources.lartpc.reading import feature, label, read, scan


def test_an_event_has_the_hits_that_its_reference_selects(tmp_path: Path) -> None:
    table = write_event_display(tmp_path / "a.h5", [slice(2, 5), None, slice(0, 2)], 6, clock_us=0.5)
    index = scan(tmp_path / "a.h5")
    block = read(index)
    rows = [2, 3, 4, 0, 1]
    assert index.points == (3, 0, 2)
    assert index.frame_labels["event_id"] == (100, 101, 102)
    # mm to cm.
    assert np.array_equal(block["position"][:, 0], (table["px"][rows] * 0.1).astype(np.float32))
    # Ticks fall from hit to hit: 2, 1, 0 above the least of the first event, times 0.5 us.
    assert block["position"][:, 2].tolist() == [1.0, 0.5, 0.0, 0.5, 0.0]
    assert [axis.units for axis in index.space] == ["cm", "cm", "us"]
    assert np.array_equal(feature(index, block, "q"), table["q"][rows].astype(np.float32))
    assert label(index, block, "ts").tolist() == table["ts"][rows].tolist()
    assert any("1 of 6 hits belong to no event: left out" in line for line in index.oddities)


def test_hits_of_an_event_may_be_in_several_stretches(tmp_path: Path) -> None:
    table = write_event_display(tmp_path / "a.h5", [[0, 1, 4, 5], [2]], 6, clock_us=None)
    index = scan(tmp_path / "a.h5")
    block = read(index)
    assert index.points == (4, 1)
    assert np.array_equal(feature(index, block, "q"), table["q"][[0, 1, 4, 5, 2]].astype(np.float32))
    # The clock of 10 MHz: ticks 5, 4, 1, 0 above the least.
    assert block["position"][:, 2] == pytest.approx([0.5, 0.4, 0.1, 0.0, 0.0])


def test_negative_charges_are_kept_and_counted(tmp_path: Path) -> None:
    table = write_event_display(tmp_path / "a.h5", [slice(0, 20)], 20)
    lines = SOURCE.describe(str(tmp_path / "a.h5")).oddities
    assert any(f"{(table['q'] < 0).sum()} of 20 hits have a negative q" in line for line in lines)


@pytest.mark.parametrize("period", [0.0, -1.0, np.nan, "fast", [0.1, 0.2]])
def test_a_clock_period_that_is_none_is_refused(tmp_path: Path, period: object) -> None:
    write_event_display(tmp_path / "a.h5", [slice(0, 2)], 2, clock_us=None)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["tracks"].attrs["clock_period"] = period
    with pytest.raises(UserError, match=r"tracks.clock_period is .* must be the clock's tick in us"):
        scan(tmp_path / "a.h5")


def test_a_reference_to_another_table_is_refused(tmp_path: Path) -> None:
    write_event_display(tmp_path / "a.h5", [slice(0, 2)], 2)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        events = file["events"][:]
        events["hit_ref"][0] = file["tracks"].regionref[0:1]
        file["events"][:] = events
    with pytest.raises(UserError, match="refers to another table than hits"):
        scan(tmp_path / "a.h5")
