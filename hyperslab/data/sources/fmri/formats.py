"""All formats behind one door: what files say, and readers of them."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from hyperslab.data.sources.fmri.content import Kind, find_file, kind_of
from hyperslab.data.sources.fmri.image import header_path
from hyperslab.data.sources.fmri.series import Reader, Series
from hyperslab.data.sources.fmri.surface import Cifti, Gifti
from hyperslab.data.sources.fmri.table import Table, TableReader, read_table, settle_time, table_series
from hyperslab.data.sources.fmri.volume import open_volume
from hyperslab.errors import UserError

VOLUMES = ("nifti", "afni", "parrec")
TABLES = ("npy", "npz", "mat", "text")


def find_header(path: str) -> Path:
    """The file that describes a run; for AFNI and PAR/REC it is another than that of the data.

    Raises
    ------
    UserError
        When it is not there, or empty.
    """
    return find_file(str(header_path(find_file(path))))


def read_headers(paths: Sequence[Path], variables: Sequence[str] | None, parcels: int | None) -> list[Series]:
    """What each file says.

    Raises
    ------
    UserError
        When a file is no series, or cannot be read.
    """
    found = [read_header(path, variables) for path in paths]
    tables = [item for item in found if isinstance(item, Table)]
    if variables and len(tables) < len(found):
        other = next(item.path for item in found if not isinstance(item, Table))
        raise UserError(f"data.variables: found {list(variables)}; {other} is no table: leave the setting out")
    if parcels is not None and not tables:
        raise UserError(f"data.fmri.parcels: is for tables; {paths[0]} holds its own axes: leave the setting out")
    settled = iter(settle_time(tables, parcels))
    return [table_series(item, *next(settled)) if isinstance(item, Table) else item for item in found]


def read_header(path: Path, variables: Sequence[str] | None) -> Series | Table:
    """What a file says; of a table, before it is known which of its axes is time.

    Raises
    ------
    UserError
        When it is no series, or cannot be read.
    """
    kind = kind_of(path)
    if kind in TABLES:
        table = read_table(path, kind, variables)
        return replace(table, details={**table.details, "format": kind})
    with closing(_open(path, kind)) as reader:
        series: Series = reader.series
    return replace(series, details={**series.details, "format": kind})


def _open(path: Path, kind: Kind) -> Any:
    if kind in VOLUMES:
        return open_volume(path, kind)
    return Cifti(path) if kind == "cifti" else Gifti(path)


def open_reader(path: Path, details: dict[str, Any]) -> Reader:
    """The open file of a run.

    Parameters
    ----------
    details
        Those of its series.

    Raises
    ------
    UserError
        When it cannot be read.
    """
    kind: Kind = details["format"]
    if kind in TABLES:
        return TableReader(path, kind, details)
    reader: Reader = _open(path, kind)
    return reader
