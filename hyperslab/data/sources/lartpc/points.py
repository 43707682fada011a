"""From columns of a table to the points of a ragged block."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperslab.data.frames import Ints
from hyperslab.data.sources import Block
from hyperslab.data.sources.index import Index, RawFile
from hyperslab.data.sources.lartpc.table import Arrays, Table, blocks, gather
from hyperslab.errors import UserError

INT64_MAX = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """How a quantity is made of a file's columns."""

    names: tuple[str, ...]
    """Columns whose mean it is: one, or both ends of a stretch."""
    scale: float = 1.0
    """Factor from the file's unit to the one of the channel."""
    from_first: bool = False
    """Whether it counts from the frame's least value."""

    def to_json(self) -> list[Any]:
        """A form that JSON holds."""
        return [list(self.names), self.scale, self.from_first]


def columns_of(recipe: Sequence[Any]) -> Column:
    """The inverse of `Column.to_json`."""
    names, scale, from_first = recipe
    return Column(names=tuple(names), scale=float(scale), from_first=bool(from_first))


def recipe(positions: Sequence[Column], features: Mapping[str, Column], labels: Mapping[str, str]) -> dict[str, Any]:
    """What `read_points` needs to know of a file, for `RawFile.details`."""
    return {
        "positions": [column.to_json() for column in positions],
        "features": {name: column.to_json() for name, column in features.items()},
        "labels": dict(labels),
    }


def read_points(table: Table, rows: Ints, points: Sequence[int], file: RawFile, index: Index) -> Block:
    """The points of some frames.

    Parameters
    ----------
    rows
        Row of each point, frame after frame.
    points
        Number of points of each frame.

    Raises
    ------
    UserError
        When the file lacks a column, or a label does not fit 64 bits.
    """
    axes = [columns_of(column) for column in file.details["positions"]]
    features = [columns_of(file.details["features"][channel.name]) for channel in index.channels]
    labels = [str(file.details["labels"][label.name]) for label in index.labels]
    names = sorted({*(name for column in (*axes, *features) for name in column.names), *labels})
    for name in names:
        if name not in table.dtypes:
            raise UserError(f"{file.path}: holds no column {name}; start a new campaign for the new data")
    data = gather(table, names, rows)
    # A damaged number may be a NaN that signals, or exceed a float32: it is then infinite.
    with np.errstate(over="ignore", invalid="ignore"):
        block = {
            "position": _stack([_values(column, data, points) for column in axes], len(rows)),
            "feature": _stack([_values(column, data, points) for column in features], len(rows)),
        }
    if labels:
        block["labels"] = np.stack([whole_numbers(data[name], name, file.path) for name in labels], axis=1)
    return block


def _values(column: Column, data: Arrays, points: Sequence[int]) -> npt.NDArray[np.float64]:
    if column.from_first:
        return _from_first(data[column.names[0]], points) * column.scale
    total = sum(data[name].astype(np.float64) for name in column.names)
    return np.asarray(total) / len(column.names) * column.scale


def _from_first(values: npt.NDArray[Any], points: Sequence[int]) -> npt.NDArray[np.float64]:
    """Exact in whole numbers: a clock's count may exceed the 53 bits of a float64."""
    counts = np.asarray([count for count in points if count], np.int64)
    if not len(counts):
        return values.astype(np.float64)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    least = np.minimum.reduceat(values, starts)
    passed: npt.NDArray[np.float64] = (values - np.repeat(least, counts)).astype(np.float64)
    return passed


def _stack(columns: Sequence[npt.NDArray[np.float64]], rows: int) -> npt.NDArray[np.float32]:
    return np.stack(columns, axis=1).astype(np.float32) if columns else np.empty((rows, 0), np.float32)


def whole_numbers(values: npt.NDArray[Any], name: str, path: str) -> Ints:
    """Labels as they are, in 64 bits.

    Raises
    ------
    UserError
        When one is no whole number that 64 bits with a sign hold.
    """
    if values.dtype.kind == "f" and not bool(np.all(np.isfinite(values) & (values == np.trunc(values)))):
        raise UserError(f"{path}: {name} holds what is no whole number; labels must be, check how it was written")
    if len(values) and values.dtype.kind in "uf" and int(values.max()) > INT64_MAX:
        raise UserError(f"{path}: {name} holds {values.max()}, more than 64 bits with a sign; mend the file")
    return values.astype(np.int64)


def odd_values(
    tables: Sequence[Table], positions: Sequence[Column], charges: Mapping[str, Column], what: str = "points"
) -> Iterator[str]:
    """One line for points without a position, and one for each kind of charge that is negative or missing.

    Parameters
    ----------
    tables
        Tables of the same columns.
    charges
        Columns of charge, energy or pulse height, by the names of their channels.
    """
    places = sorted({name for column in positions for name in column.names})
    amounts = {name: column.names[0] for name, column in charges.items()}
    names = sorted({*places, *amounts.values()})
    total, counts = 0, dict.fromkeys(["position", *amounts], 0)
    below = dict.fromkeys(amounts, 0)
    for block in (block for table in tables for block in blocks(table, names)):
        total += len(block[names[0]])
        counts["position"] += int(np.any([~np.isfinite(block[name]) for name in places], axis=0).sum())
        for name, column in amounts.items():
            counts[name] += int((~np.isfinite(block[column])).sum())
            below[name] += int((block[column] < 0).sum())
    for name, count in counts.items():
        if count:
            yield f"{count:,} of {total:,} {what} have a {name} that is NaN or infinite: kept as it is"
    for name, count in below.items():
        if count:
            yield f"{count:,} of {total:,} {what} have a negative {name}: kept as it is"
