"""Tables of parcellated series: text (csv, tsv, .1D), .mat, .npy and .npz."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperslab.data.sources.fmri.array import read_array
from hyperslab.data.sources.fmri.content import Kind
from hyperslab.data.sources.fmri.series import Floats, Repetition, Series, check_frames, places, to_float32
from hyperslab.data.sources.fmri.text import read_text
from hyperslab.errors import UserError

NAMED_AT_MOST = 8
"""Names of dead parcels that an oddity lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table as it stands in a file, without its values."""

    path: Path
    kind: str
    shape: tuple[int, int]
    names: tuple[str, ...]
    """Names of the parcels, in the order of the axis that is not time; empty where the file names none."""
    time_axis: int | None
    """Axis along which time goes; None where nothing in the file says so."""
    evidence: str
    """What says so."""
    flat: tuple[tuple[int, ...], tuple[int, ...]]
    """Rows, and columns, whose values never change or are all missing."""
    missing: int
    details: dict[str, Any]
    oddities: tuple[str, ...]


def read_table(path: Path, kind: Kind, variables: Sequence[str] | None) -> Table:
    """What a file holds that is known without its neighbours.

    Parameters
    ----------
    variables
        Columns of a text, or the one array of a `.mat` or `.npz`, to take; all of them, or the only one, where None.

    Raises
    ------
    UserError
        When it cannot be read, or is no table of numbers.
    """
    sheet = read_text(path, variables) if kind == "text" else read_array(path, kind, variables)
    values = sheet.values
    if not values.size:
        raise UserError(f"{path}: holds no numbers; leave it out of data.files")
    if np.isinf(values).any():
        raise UserError(f"{path}: holds infinite values; mend the file, writing `nan` where a value is missing")
    missing = int(np.isnan(values).sum())
    return Table(
        path=path,
        kind=f"{sheet.kind}, {values.shape[0]} x {values.shape[1]}",
        shape=(values.shape[0], values.shape[1]),
        names=sheet.names,
        time_axis=sheet.time_axis,
        evidence=sheet.evidence,
        flat=(_flat(values.T), _flat(values)),
        missing=missing,
        details={"variables": list(variables) if variables else None},
        oddities=sheet.oddities,
    )


def _flat(values: npt.NDArray[np.float64]) -> tuple[int, ...]:
    """Columns whose values never change, or are all missing."""
    known = ~np.isnan(values)
    low = np.where(known, values, np.inf).min(axis=0)
    high = np.where(known, values, -np.inf).max(axis=0)
    return tuple(np.flatnonzero(low >= high).tolist())


def settle_time(tables: Sequence[Table], parcels: int | None) -> list[tuple[int, str]]:
    """Which axis of each table is time, and what says so.

    Parameters
    ----------
    parcels
        How many parcels there are, where the campaign says.

    Raises
    ------
    UserError
        When that cannot be known, or what is known disagrees.
    """
    found: dict[Path, tuple[int, str]] = {}
    for table in tables:
        if table.time_axis is not None:
            found[table.path] = (table.time_axis, table.evidence)
        elif parcels is not None:
            found[table.path] = (_other_axis(table, parcels), f"data.fmri.parcels is {parcels}")
    known = {table.shape[1 - found[table.path][0]] for table in tables if table.path in found}
    unknown = [table for table in tables if table.path not in found]
    for table in unknown:
        found[table.path] = _by_neighbours(table, known, unknown)
    result = [found[table.path] for table in tables]
    for table, (axis, evidence) in zip(tables, result, strict=True):
        if parcels is not None and table.shape[1 - axis] != parcels:
            raise UserError(
                f"{table.path}: has {table.shape[1 - axis]} parcels ({evidence}), "
                f"data.fmri.parcels says {parcels}; correct the setting"
            )
    return result


def _other_axis(table: Table, parcels: int) -> int:
    """The axis of time of a table whose other axis has that many parcels."""
    rows, columns = table.shape
    if parcels not in (rows, columns) or rows == columns:
        why = "both axes have that length" if rows == columns == parcels else "no axis has that length"
        raise UserError(
            f"{table.path}: is {rows} x {columns}, data.fmri.parcels says {parcels}: {why}; "
            "correct the setting, or write the table with a first row of names"
        )
    return 0 if columns == parcels else 1


def _by_neighbours(table: Table, known: set[int], unknown: Sequence[Table]) -> tuple[int, str]:
    """The axis that differs between files is time where the other is the same in all."""
    if len(known) == 1 and table.shape[0] != table.shape[1]:
        size = next(iter(known))
        if size in table.shape:
            return _other_axis(table, size), f"the other files have {size} parcels"
    common = [axis for axis in (0, 1) if len({other.shape[axis] for other in unknown}) == 1]
    if len(common) == 1:
        return 1 - common[0], f"all files have {table.shape[common[0]]} {('rows', 'columns')[common[0]]}"
    raise UserError(
        f"{table.path}: is {table.shape[0]} x {table.shape[1]} without names: which axis is time cannot be known; "
        "give data.fmri.parcels, the number of parcels"
    )


def table_series(table: Table, time_axis: int, evidence: str) -> Series:
    """The series of a table whose axis of time is known.

    Raises
    ------
    UserError
        When it holds fewer than two frames.
    """
    frames, parcels = table.shape[time_axis], table.shape[1 - time_axis]
    check_frames(table.path, frames)
    dead = tuple(_name(table, place) for place in table.flat[1 - time_axis])
    oddities = [f"time goes along its {('rows', 'columns')[time_axis]}: {evidence}", *table.oddities]
    if dead:
        listed = ", ".join(dead[:NAMED_AT_MOST]) + (", ..." if len(dead) > NAMED_AT_MOST else "")
        oddities.append(f"{len(dead)} of {parcels} parcels are dead, constant or missing, kept as they are: {listed}")
    if table.missing:
        oddities.append(f"{table.missing} values are missing")
    return Series(
        path=table.path,
        kind=table.kind,
        frames=frames,
        space=(places("parcel", parcels, table.names),),
        repetition=Repetition(seconds=None, reason="a table does not state its repetition time"),
        dead=dead,
        details={**table.details, "time_axis": time_axis, "dead": list(dead)},
        oddities=tuple(oddities),
    )


def _name(table: Table, place: int) -> str:
    return table.names[place] if table.names else str(place)


class TableReader:
    """The values of a table, read whole."""

    def __init__(self, path: Path, kind: Kind, details: dict[str, Any]) -> None:
        variables = details["variables"]
        sheet = read_text(path, variables) if kind == "text" else read_array(path, kind, variables)
        self._values = to_float32(sheet.values if details["time_axis"] == 0 else sheet.values.T)

    def frames(self, start: int, stop: int) -> Floats:
        """Frames `[start, stop)`, shape (frame, parcel)."""
        return self._values[start:stop]

    def close(self) -> None:
        """Nothing is open."""
