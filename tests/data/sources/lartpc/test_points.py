from collections.abc import Sequence

import numpy as np
import pytest

from hyperslab.data.clock import Clock
from hyperslab.data.sources.index import Axis, Channel, Index, RawFile
from hyperslab.data.sources.lartpc.points import Column, odd_values, read_points, recipe, whole_numbers
from hyperslab.data.sources.lartpc.table import Arrays
from hyperslab.errors import UserError


class _Memory:
    """A table in memory."""

    def __init__(self, **columns: object) -> None:
        self._columns = {name: np.asarray(values) for name, values in columns.items()}
        self.rows = len(next(iter(self._columns.values())))
        self.dtypes = {name: values.dtype for name, values in self._columns.items()}
        self.left_out: tuple[str, ...] = ()

    def read(self, names: Sequence[str], start: int, stop: int) -> Arrays:
        return {name: self._columns[name][start:stop] for name in names}


def _index(channels: list[str], labels: list[str]) -> Index:
    return Index(
        source="lartpc",
        clock=Clock(kind="event"),
        time=(0,),
        segment=(0,),
        channels=tuple(Channel(name=name, units="1", long_name=name) for name in channels),
        space=(Axis(name="x", units="cm"),),
        files=(),
        points=(3,),
        labels=tuple(Channel(name=name, units="1", long_name=name) for name in labels),
    )


def _file(positions: list[Column], features: dict[str, Column], labels: dict[str, str]) -> RawFile:
    return RawFile(path="a", size_bytes=0, modified_ns=0, details=recipe(positions, features, labels))


def test_a_column_is_scaled_and_two_are_averaged() -> None:
    table = _Memory(a=[0.0, 2.0], b=[4.0, 8.0], q=[10.0, 20.0])
    file = _file([Column(names=("a", "b"))], {"q": Column(names=("q",), scale=0.1)}, {})
    block = read_points(table, np.asarray([1, 0]), (2,), file, _index(["q"], []))
    assert block["position"].tolist() == [[5.0], [2.0]]  # (2 + 8) / 2 and (0 + 4) / 2, in the order asked for
    assert block["feature"].tolist() == [[2.0], [1.0]]
    assert "labels" not in block


def test_ticks_beyond_53_bits_are_counted_from_the_first_one_exactly() -> None:
    ticks = np.asarray([2**63 + 7, 2**63 + 1, 2**63 + 4, 5, 9], np.uint64)
    file = _file([Column(names=("x",))], {"t": Column(names=("ticks",), scale=0.5, from_first=True)}, {})
    table = _Memory(x=[0.0] * 5, ticks=ticks)
    block = read_points(table, np.arange(5), (3, 0, 2), file, _index(["t"], []))
    assert block["feature"][:, 0].tolist() == [3.0, 0.0, 1.5, 0.0, 2.0]


def test_labels_keep_all_their_bits() -> None:
    file = _file([Column(names=("x",))], {}, {"track": "id"})
    table = _Memory(x=[0.0, 0.0], id=np.asarray([2**53 + 1, 2**63 - 1], np.uint64))
    block = read_points(table, np.arange(2), (2,), file, _index([], ["track"]))
    assert block["labels"].dtype == np.int64
    assert block["labels"][:, 0].tolist() == [2**53 + 1, 2**63 - 1]
    assert block["feature"].shape == (2, 0)


def test_a_label_that_64_bits_with_a_sign_do_not_hold_is_refused() -> None:
    with pytest.raises(UserError, match=r"a: id holds 9223372036854775808, more than 64 bits with a sign"):
        whole_numbers(np.asarray([2**63], np.uint64), "id", "a")


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf])
def test_a_label_that_is_no_whole_number_is_refused(value: float) -> None:
    with pytest.raises(UserError, match="a: id holds what is no whole number"):
        whole_numbers(np.asarray([value]), "id", "a")


def test_a_column_that_has_gone_is_named() -> None:
    file = _file([Column(names=("y",))], {}, {})
    with pytest.raises(UserError, match="a: holds no column y"):
        read_points(_Memory(x=[1.0]), np.arange(1), (1,), file, _index([], []))


def test_odd_values_are_counted_over_all_tables() -> None:
    tables = [_Memory(x=[np.nan, 1, 2], q=[-1.0, 2, np.inf]), _Memory(x=[np.inf, 1], q=[-3.0, -4])]
    lines = list(odd_values(tables, [Column(names=("x",))], {"q": Column(names=("q",))}, "hits"))
    assert lines == [
        "2 of 5 hits have a position that is NaN or infinite: kept as it is",
        "1 of 5 hits have a q that is NaN or infinite: kept as it is",
        "3 of 5 hits have a negative q: kept as it is",
    ]


def test_ordinary_values_are_not_worth_a_line() -> None:
    assert list(odd_values([_Memory(x=[1.0], q=[0.0])], [Column(names=("x",))], {"q": Column(names=("q",))})) == []
