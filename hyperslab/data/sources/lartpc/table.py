"""Tables of points: columns of one length, read a stretch of rows at a time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import h5py
import numpy as np
import numpy.typing as npt

from hyperslab.data.frames import Ints
from hyperslab.errors import UserError

Arrays = dict[str, npt.NDArray[Any]]

BLOCK_ROWS = 1 << 18
"""Rows read at once where a whole table is gone through."""
GAP_ROWS = 1 << 10
"""Rows that are rather read and dropped than skipped by a read of their own."""


class Table(Protocol):
    """Columns of one length."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        ...

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """Type of each column that holds one number, or truth value, a row."""
        ...

    @property
    def left_out(self) -> Sequence[str]:
        """Columns of anything else."""
        ...

    def read(self, names: Sequence[str], start: int, stop: int) -> Arrays:
        """Rows `[start, stop)` of some columns."""
        ...


class CompoundTable:
    """A one-dimensional HDF5 dataset whose elements have named fields."""

    def __init__(self, dataset: h5py.Dataset, path: str) -> None:
        if dataset.dtype.names is None or dataset.ndim != 1:
            raise UserError(
                f"{path}: {dataset.name} is of type {dataset.dtype} and shape {dataset.shape}; "
                "it must be a list of rows with named fields, check how it was written"
            )
        self._dataset = dataset
        self.rows = int(dataset.shape[0])
        fields = {name: dataset.dtype[name] for name in dataset.dtype.names}
        self.dtypes = {name: dtype for name, dtype in fields.items() if dtype.kind in "iufb" and not dtype.shape}
        self.left_out = tuple(name for name in fields if name not in self.dtypes)

    def read(self, names: Sequence[str], start: int, stop: int) -> Arrays:
        """Rows `[start, stop)` of some columns."""
        rows = self._dataset.fields(list(names))[start:stop]
        return {name: rows[name] for name in names}


class DatasetTable:
    """HDF5 datasets of one length, one for each column."""

    def __init__(self, datasets: Mapping[str, h5py.Dataset], path: str) -> None:
        lengths = {name: dataset.shape for name, dataset in datasets.items()}
        if len(set(lengths.values())) > 1 or any(len(shape) != 1 for shape in lengths.values()):
            found = ", ".join(f"{name} {shape}" for name, shape in lengths.items())
            raise UserError(f"{path}: its columns differ in length ({found}); each needs a value for each point")
        self._datasets = datasets
        self.rows = int(next(iter(lengths.values()))[0])
        self.dtypes = {name: dataset.dtype for name, dataset in datasets.items() if dataset.dtype.kind in "iufb"}
        self.left_out = tuple(name for name in datasets if name not in self.dtypes)

    def read(self, names: Sequence[str], start: int, stop: int) -> Arrays:
        """Rows `[start, stop)` of some columns."""
        return {name: self._datasets[name][start:stop] for name in names}


def blocks(table: Table, names: Sequence[str]) -> Iterator[Arrays]:
    """All rows of some columns, a bounded number at a time."""
    for start in range(0, table.rows, BLOCK_ROWS):
        yield table.read(names, start, min(start + BLOCK_ROWS, table.rows))


def gather(table: Table, names: Sequence[str], rows: Ints) -> Arrays:
    """Rows of some columns, in the order asked for.

    Memory is that of the result and of one block.

    Parameters
    ----------
    rows
        Numbers of rows, in any order.
    """
    found = {name: np.empty(len(rows), table.dtypes[name]) for name in names}
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    done = 0
    while done < len(rows):
        start = int(ascending[done])
        last = done + int(np.searchsorted(ascending[done:], start + BLOCK_ROWS))
        far = np.flatnonzero(np.diff(ascending[done:last]) > GAP_ROWS)
        last = done + int(far[0]) + 1 if len(far) else last
        part = table.read(names, start, int(ascending[last - 1]) + 1)
        for name in names:
            found[name][order[done:last]] = part[name][ascending[done:last] - start]
        done = last
    return found
