from pathlib import Path

import h5py
import numpy as np
import pytest

from hyperslab.errors import UserError
from tests.data.sources.lartpc.raw_files import write_readout
from tests.data.sources.lartpc.reading import feature, label, read, scan


def test_events_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    # Written as number 0, 1 and 2: their values begin with these.
    write_readout(tmp_path / "a.h5", {"batch_1/event_2": 2, "batch_0/event_10": 1, "batch_0/event_9": 3})
    index = scan(tmp_path / "a.h5")
    block = read(index)
    assert index.frame_labels["event_id"] == (9, 10, 2)
    assert index.frame_labels["batch"] == (0, 0, 1)
    assert index.points == (3, 1, 2)
    assert block["position"][:, 0].tolist() == [2, 3, 4, 1, 0, 1]
    assert feature(index, block, "Q").tolist() == [2, 3, 4, 1, 0, 1]
    assert label(index, block, "pixels").tolist() == [0, 1, 2, 0, 0, 1]


def test_events_of_different_arrays_are_refused(tmp_path: Path) -> None:
    write_readout(tmp_path / "a.h5", {"batch_0/event_0": 2, "batch_0/event_1": 1})
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["batch_0/event_1/adc_clean"] = np.zeros(1)
    with pytest.raises(UserError, match="its events differ in the array adc_clean"):
        scan(tmp_path / "a.h5")


def test_arrays_of_different_length_are_refused(tmp_path: Path) -> None:
    write_readout(tmp_path / "a.h5", {"batch_0/event_0": 2})
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["batch_0/event_0/more"] = np.zeros(5)
    with pytest.raises(UserError, match=r"differ in length .*more \(5,\)"):
        scan(tmp_path / "a.h5")


def test_batches_without_an_event_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("batch_0")
    with pytest.raises(UserError, match="its batches hold no event"):
        scan(tmp_path / "a.h5")
