"""The netCDF and GRIB files in a zip archive, as the Climate Data Store sends them."""

import os
import shutil
import tempfile
import weakref
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from hyperslab.data.sources.era5.formats import damage
from hyperslab.errors import UserError

_MAGICS = (b"CDF", b"\x89HDF", b"GRIB")
_BLOCK_BYTES = 1 << 22
# zipfile's own errors beside OSError and RuntimeError (an encrypted member).
_ERRORS = "cannot be read as a zip archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """What a zip archive holds."""

    fields: tuple[str, ...]
    """Names of the members that are netCDF or GRIB."""
    others: tuple[str, ...]
    """Names of the rest, such as a licence."""


def members_of(path: str) -> Members:
    """The members of a zip archive.

    Raises
    ------
    UserError
        When the archive cannot be read, or holds no netCDF or GRIB file.
    """
    with damage(path, _ERRORS), zipfile.ZipFile(path) as archive:
        names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
        if len(set(names)) != len(names):
            raise UserError(f"{path}: two of its members share a name; unzip it and name the files")
        fields = [name for name in names if _starts_as_fields(archive, name)]
    if not fields:
        held = ", ".join(names[:5]) or "nothing"
        raise UserError(f"{path}: is a zip archive without a netCDF or GRIB file (it holds {held}); unzip it")
    return Members(fields=tuple(fields), others=tuple(name for name in names if name not in fields))


def _starts_as_fields(archive: zipfile.ZipFile, name: str) -> bool:
    with archive.open(name) as file:
        return file.read(4).startswith(_MAGICS)


@dataclass(slots=True, weakref_slot=True)
class Extracted:
    """A member unpacked into a directory of its own, which goes when this object does."""

    path: str
    """The unpacked file."""
    folder: str
    _cleaner: object = field(init=False)

    def __post_init__(self) -> None:
        """Have the directory removed with this object, or when the process ends."""
        self._cleaner = weakref.finalize(self, _remove, self.folder, os.getpid())


def _remove(folder: str, process: int) -> None:
    """Remove a directory, unless this is a fork of the process that made it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def extract(path: str, name: str) -> Extracted:
    """Unpack one member into a private directory. Its name plays no part in where it goes.

    Raises
    ------
    UserError
        When the archive is damaged, or the disk has no room.
    """
    try:
        folder = tempfile.mkdtemp(prefix="hyperslab-")
    except OSError as error:
        raise UserError(f"{path}: cannot be unpacked: {error}; set TMPDIR to a directory with room") from None
    extracted = Extracted(str(Path(folder) / "member"), folder)
    with damage(path, _ERRORS), zipfile.ZipFile(path) as archive:
        need, free = archive.getinfo(name).file_size, shutil.disk_usage(folder).free
        if need > free:
            raise UserError(
                f"{path}: unpacking {name} needs {need:,} bytes in {tempfile.gettempdir()}, which has {free:,}; "
                "set TMPDIR to a directory with room"
            )
        # zipfile checks the member's checksum as its last byte is read.
        with archive.open(name) as source, Path(extracted.path).open("xb") as target:
            shutil.copyfileobj(source, target, _BLOCK_BYTES)
    return extracted
