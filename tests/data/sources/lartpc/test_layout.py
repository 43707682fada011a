from pathlib import Path

import h5py
import numpy as np
import pytest

from hyperslab.data.sources.lartpc.layout import Quantity, make_layout
from hyperslab.data.sources.lartpc.points import Column
from hyperslab.data.sources.lartpc.table import CompoundTable
from hyperslab.errors import UserError

KNOWN = {
    "dE": Quantity(units="MeV", long_name="energy", is_charge=True),
    "t": Quantity(units="us", long_name="time", scale=0.1),
    "ts": Quantity(units="us", long_name="clock", from_first=True),
}


def _table(tmp_path: Path, fields: list[tuple[str, str]]) -> CompoundTable:
    file = h5py.File(tmp_path / "a.h5", "w")
    return CompoundTable(file.create_dataset("t", (2,), np.dtype(fields)), "a.h5")


def test_fractions_are_features_and_whole_numbers_are_labels(tmp_path: Path) -> None:
    fields = [("x", "f4"), ("dE", "f4"), ("pdg", "i4"), ("event", "i4"), ("t", "i8"), ("ts", "u8"), ("odd", "f8")]
    axes = {"x": Column(names=("x",))}
    layout = make_layout(_table(tmp_path, fields), "a.h5", axes, KNOWN, left_out=("event",), oddities=("more",))
    assert [(channel.name, channel.units) for channel in layout.channels] == [
        ("dE", "MeV"),
        ("t", "us"),
        ("ts", "us"),
        ("odd", "unknown"),
    ]
    assert [label.name for label in layout.labels] == ["pdg"]
    assert list(layout.charges) == ["dE"]
    assert layout.oddities == (
        "converted: t times 0.1 to us",
        "ts: counted from the least value of each event, exactly",
        "the unit of odd is not known: taken as it stands",
        "more",
    )
    assert layout.details["features"]["ts"] == [["ts"], 1.0, True]


def test_points_without_a_position_are_refused(tmp_path: Path) -> None:
    axes = {"x": Column(names=("x",)), "y": Column(names=("y",))}
    with pytest.raises(UserError, match=r"a\.h5: its points lack y \(it holds x, dE\)"):
        make_layout(_table(tmp_path, [("x", "f4"), ("dE", "f4")]), "a.h5", axes, KNOWN)


def test_points_without_a_quantity_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no quantity measured there"):
        make_layout(_table(tmp_path, [("x", "f4"), ("pdg", "i4")]), "a.h5", {"x": Column(names=("x",))}, KNOWN)
