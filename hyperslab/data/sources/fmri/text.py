"""Tables in text: csv, tsv and AFNI's .1D, with or without names."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hyperslab.data.sources.fmri.content import decoding, open_bytes
from hyperslab.data.sources.fmri.sheet import TABLE_BYTES, Sheet
from hyperslab.errors import UserError

MISSING = ("", "na", "n/a", "nan")
MOTION = {"trans_x", "trans_y", "trans_z", "rot_x", "rot_y", "rot_z"}
MOTION |= {"framewise_displacement", "rmsd", "dvars", "std_dvars"}
NO_PARCEL = {"", "index", "unnamed: 0", "time", "times", "frame", "tr", "volume", "scan", "censor"}
NO_PARCEL |= {"event", "events", "stim", "stimulus", "condition", "onset", "duration", "trial_type"}
COMPONENT = re.compile(r"(ica|ic|component)[_-]?\d+", re.IGNORECASE)
COUNTING_AT_LEAST = 3
"""Values from which on 0, 1, 2, ... are taken as numbers of rows or columns, not as data."""

Numbers = npt.NDArray[np.float64]


def read_text(path: Path, columns: Sequence[str] | None) -> Sheet:
    """The table in a text file.

    Parameters
    ----------
    columns
        Names of the columns to take; all of them where None.

    Raises
    ------
    UserError
        When a line is no row of numbers, or a column is no parcel.
    """
    header, values, row_names, oddities = _parse(path)
    if row_names:
        return _by_rows(path, values, row_names, header, columns, oddities)
    if not header:
        return _nameless(path, values, columns, oddities)
    if columns is None:
        _check_parcels(path, header, values)
    chosen = _positions(path, header, columns)
    return Sheet(
        values=values[:, chosen],
        kind="text",
        names=tuple(header[place] for place in chosen),
        time_axis=0,
        evidence="its first line names the columns",
        oddities=tuple(oddities),
    )


def read_columns(path: Path) -> dict[str, Numbers]:
    """All columns of a text by name, whatever they are.

    Raises
    ------
    UserError
        When it is no table of numbers whose first line names its columns.
    """
    header, values, row_names, _ = _parse(path)
    if not header or row_names:
        raise UserError(f"{path}: does not name its columns in its first line; get the file again")
    _positions(path, header, None)
    return dict(zip(header, values.T, strict=True))


def _parse(path: Path) -> tuple[list[str], Numbers, tuple[str, ...], list[str]]:
    """The names of the columns, the numbers, the names of the rows, and what is odd."""
    lines, oddities = _lines(path)
    header, rows, numbers = _split(path, lines, oddities)
    values, row_names = _values(path, rows, numbers)
    if not header and not row_names:
        header, values = _counted_header(values, oddities)
    if header and not row_names and len(header) != values.shape[1]:
        raise UserError(f"{path}: has {len(header)} names for {values.shape[1]} columns; mend its first line")
    return header, values, row_names, oddities


def _lines(path: Path) -> tuple[list[str], list[str]]:
    with decoding(path, "text"), open_bytes(path) as file:
        content = file.read(TABLE_BYTES + 1)
    if len(content) > TABLE_BYTES:
        raise UserError(f"{path}: is text of more than {TABLE_BYTES:,} bytes; write it as .npy")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no text (byte {error.start:,} is no UTF-8); get the file again") from None
    if "\0" in text:
        raise UserError(f"{path}: is no text (byte {text.index(chr(0)):,} is zero); get the file again")
    oddities = [] if text.endswith(("\n", "\r")) else ["its last line has no end: it may be cut short"]
    return text.splitlines(), oddities


def _split(path: Path, lines: list[str], oddities: list[str]) -> tuple[list[str], list[list[str]], list[int]]:
    """The names of the columns, the cells of each row, and the number of its line."""
    comments = [line for line in lines if line.lstrip().startswith("#")]
    held = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")]
    if not held:
        raise UserError(f"{path}: holds no rows of numbers; leave it out of data.files")
    delimiter = next((mark for mark in "\t;," if mark in held[0][1]), " ")
    try:
        rows = [_cells(line, delimiter) for _, line in held]
        comment_cells = [[cell.lstrip("#").strip() for cell in _cells(line, delimiter)] for line in comments]
    except csv.Error as error:
        raise UserError(f"{path}: is no table of numbers ({error}); name tables in data.files") from None
    numbers = [number for number, _ in held]
    header: list[str] = []
    if not any(_is_number(cell) for cell in rows[0]):
        header, rows, numbers = rows[0], rows[1:], numbers[1:]
    elif comments and lines[0] == comments[0] and len(comment_cells[0]) == len(rows[0]) > 1:
        header, comments = comment_cells[0], comments[1:]
    if comments:
        oddities.append(f"{len(comments)} line(s) of comment are left out")
    if not rows:
        raise UserError(f"{path}: holds names but no numbers; leave it out of data.files")
    if all(row[-1] == "" for row in rows) and len(rows[0]) > 1 and (not header or header[-1] == ""):
        return header[:-1], [row[:-1] for row in rows], numbers
    return header, rows, numbers


def _cells(line: str, delimiter: str) -> list[str]:
    if delimiter == " ":
        return line.split()
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]


def _is_number(cell: str) -> bool:
    try:
        _number(cell)
    except ValueError:
        return False
    return cell != ""


def _number(cell: str) -> float:
    if cell.lower() in MISSING:
        return np.nan
    if "_" in cell:  # which Python takes as 1_000 = 1000
        raise ValueError
    return float(cell)


def _values(path: Path, rows: list[list[str]], numbers: list[int]) -> tuple[Numbers, tuple[str, ...]]:
    """The numbers, and the names that stand before each row."""
    width = len(rows[0])
    for row, number in zip(rows, numbers, strict=True):
        if len(row) != width:
            raise UserError(
                f"{path}: line {number} has {len(row)} values, the lines before have {width}; "
                "mend the line, or get the file again where it is cut short"
            )
    named = width > 1 and not any(_is_number(row[0]) or row[0] == "" for row in rows)
    values = np.empty((len(rows), width - named))
    for place, (row, number) in enumerate(zip(rows, numbers, strict=True)):
        values[place] = _numbers(path, row[1:] if named else row, number)
    return values, tuple(row[0] for row in rows) if named else ()


def _numbers(path: Path, cells: list[str], number: int) -> list[float]:
    try:
        return [_number(cell) for cell in cells]
    except ValueError:
        wrong = next(cell for cell in cells if cell and not _is_number(cell))
        raise UserError(
            f"{path}: line {number} holds {wrong[:40]!r}, which is no number; "
            "name tables of parcellated series in data.files, with a point before decimals"
        ) from None


def _counted_header(values: Numbers, oddities: list[str]) -> tuple[list[str], Numbers]:
    """A first row of 0, 1, 2, ... is what pandas writes for columns without names."""
    if len(values) > 1 and _counts(values[0]):
        oddities.append(f"its first line counts the columns ({values[0, 0]:g} to {values[0, -1]:g}): taken as names")
        return [f"{value:g}" for value in values[0]], values[1:]
    return [], values


def _counts(values: Numbers) -> bool:
    return len(values) >= COUNTING_AT_LEAST and values[0] in (0, 1) and bool((np.diff(values) == 1).all())


def _nameless(path: Path, values: Numbers, columns: Sequence[str] | None, oddities: list[str]) -> Sheet:
    if columns is not None:
        raise UserError(f"data.variables: found {list(columns)}; {path} does not name its columns")
    if values.shape[1] > 1 and _counts(values[:, 0]):
        raise UserError(f"{path}: its first column counts the rows and is no parcel; write the table without it")
    time_axis, evidence = None, ""
    if path.name.lower().removesuffix(".gz").endswith(".1d"):
        time_axis, evidence = 0, "rows of a .1D file are moments, as AFNI has them"
    elif 1 in values.shape:
        time_axis, evidence = int(values.shape[0] == 1 and values.shape[1] > 1), "it is a single series"
    return Sheet(values=values, kind="text", time_axis=time_axis, evidence=evidence, oddities=tuple(oddities))


def _by_rows(
    path: Path,
    values: Numbers,
    names: tuple[str, ...],
    header: list[str],
    columns: Sequence[str] | None,
    oddities: list[str],
) -> Sheet:
    counted = not header and len(values) > 1 and _counts(values[0])
    if counted:
        names, values = names[1:], values[1:]
    chosen = _positions(path, list(names), columns)
    if header or counted:
        oddities.append("its first line names moments, not parcels: left out")
    return Sheet(
        values=values[chosen],
        kind="text",
        names=tuple(names[place] for place in chosen),
        time_axis=1,
        evidence="each of its lines begins with a name",
        oddities=tuple(oddities),
    )


def _check_parcels(path: Path, header: list[str], values: Numbers) -> None:
    """Refuse columns that are no parcels, where the campaign did not name the columns."""
    lower = [name.lower() for name in header]
    if len(MOTION.intersection(lower)) > 1:
        raise UserError(
            f"{path}: is a table of confounds (it has {sorted(MOTION.intersection(lower))[0]}), not a series; "
            "leave it out of data.files: the confounds of a run are found beside it"
        )
    if {"onset", "duration"} <= set(lower):
        raise UserError(f"{path}: is a table of events, not a series; leave it out of data.files")
    if all(COMPONENT.fullmatch(name) for name in header):
        raise UserError(
            f"{path}: is a table of components ({header[0]}, ...), not of parcels; leave it out of data.files, "
            "or name its columns in data.variables where they are meant"
        )
    wrong = [name for name in header if name.lower() in NO_PARCEL]
    if not wrong and len(header) > 1 and _counts(values[:, 0]):
        wrong = [header[0]]
    if wrong:
        listed = ", ".join(map(repr, wrong))
        raise UserError(f"{path}: column {listed} is no parcel; name the columns to take in data.variables")


def _positions(path: Path, names: list[str], wanted: Sequence[str] | None) -> list[int]:
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{path}: two parcels have the name {twice!r}; give each its own name")
    if wanted is None:
        return list(range(len(names)))
    for name in wanted:
        if name not in names:
            held = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
            raise UserError(f"data.variables: unknown column {name!r}; {path} holds {held}")
    return [names.index(name) for name in wanted]
