from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest

from hyperslab.data.sources.lartpc import table as tables
from hyperslab.data.sources.lartpc.table import Arrays, CompoundTable, DatasetTable, blocks, gather
from hyperslab.errors import UserError


class _Counting:
    """The numbers from 0 on, and which stretches of them were read."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.left_out: tuple[str, ...] = ()
        self.dtypes = {"n": np.dtype(np.int64)}
        self.reads: list[tuple[int, int]] = []

    def read(self, names: Sequence[str], start: int, stop: int) -> Arrays:
        self.reads.append((start, stop))
        return {name: np.arange(start, stop) for name in names}


def test_rows_come_in_the_order_asked_for() -> None:
    rows = np.asarray([7, 3, 3, 99_000, 8, 0])
    table = _Counting(100_000)
    assert gather(table, ["n"], rows)["n"].tolist() == rows.tolist()
    # Rows 0 to 8 are near one another and read at once; the far one by itself.
    assert table.reads == [(0, 9), (99_000, 99_001)]


def test_a_long_stretch_is_read_in_blocks_of_bounded_size() -> None:
    table = _Counting(3 * tables.BLOCK_ROWS)
    rows = np.arange(10, 2 * tables.BLOCK_ROWS + 10)
    assert np.array_equal(gather(table, ["n"], rows)["n"], rows)
    assert table.reads == [(10, 10 + tables.BLOCK_ROWS), (10 + tables.BLOCK_ROWS, 10 + 2 * tables.BLOCK_ROWS)]


def test_no_rows_read_nothing() -> None:
    table = _Counting(5)
    assert gather(table, ["n"], np.empty(0, np.int64))["n"].shape == (0,)
    assert table.reads == []


def test_all_rows_come_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BLOCK_ROWS", 4)
    assert [block["n"].tolist() for block in blocks(_Counting(6), ["n"])] == [[0, 1, 2, 3], [4, 5]]


def test_fields_that_are_no_single_number_are_left_out(tmp_path: Path) -> None:
    kind = [("x", "f4"), ("name", "S4"), ("start", "f4", (3,)), ("ok", "?"), ("ref", h5py.regionref_dtype)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("t", (2,), np.dtype(kind))
        data["x"] = [1.5, 2.5]
        table = CompoundTable(data, "a.h5")
        assert list(table.dtypes) == ["x", "ok"]
        assert table.left_out == ("name", "start", "ref")
        assert table.read(["x"], 1, 2)["x"].tolist() == [2.5]


def test_a_dataset_without_fields_is_no_table(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["t"] = np.zeros(3)
        with pytest.raises(UserError, match=r"/t is of type float64 .* rows with named fields"):
            CompoundTable(file["t"], "a.h5")


def test_columns_of_different_length_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.zeros(3), np.zeros(4)
        with pytest.raises(UserError, match=r"x \(3,\), y \(4,\)"):
            DatasetTable(dict(file), "a.h5")
