"""Open raw files, kept from one read to the next."""

import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hyperslab.data.sources.era5.array_reader import ArrayReader
from hyperslab.data.sources.era5.deflated import open_deflated
from hyperslab.data.sources.era5.formats import is_url, open_raw, state_of
from hyperslab.data.sources.era5.slabs import ZARR_SLAB_BYTES
from hyperslab.data.sources.era5.zipped import Extracted, extract
from hyperslab.data.sources.index import RawFile
from hyperslab.errors import UserError

_MOST_OPEN = 16

# netCDF-C is not thread-safe (https://github.com/Unidata/netcdf4-python/issues/844): two threads inside it end in a
# segmentation fault.
LOCK = threading.RLock()


class Reader(Protocol):
    """Reads the fields of one open file."""

    def read(self, channels: dict[str, int], position: int, count: int, block: npt.NDArray[np.float32]) -> None:
        """Read frames `[position, position + count)` of the file into a block."""
        ...


class _Open:
    """A reader, and what must live and be closed with it."""

    def __init__(self, file: RawFile) -> None:
        self._unpacked: Extracted | None = None
        path, where = file.path, file.path
        if part := file.details.get("part", ""):
            self._unpacked = extract(path, part)
            path, where = self._unpacked.path, f"{path} ({part})"
        if "messages" in file.details:
            from hyperslab.data.sources.era5.grib_reader import GribReader

            grib = GribReader(path, file.details["messages"], where)
            self.reader: Reader = grib
            self.close = grib.close
        else:
            dataset = open_raw(path)
            if is_url(path) or Path(path).is_dir():
                self.reader = ArrayReader(dataset, where, ZARR_SLAB_BYTES)
            else:
                deflates = any(variable.encoding.get("zlib") for variable in dataset.variables.values())
                self.reader = ArrayReader(dataset, where, deflated=open_deflated(path) if deflates else None)
            self.close = self.reader.close


class OpenFiles:
    """The raw files that were read last, open for the next read.

    The files of another process are never used: a netCDF file that is read on both sides of a fork gives garbage.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[object, ...], _Open] = OrderedDict()
        self._process = os.getpid()

    def reader(self, file: RawFile) -> Reader:
        """The reader of a file, opened where it is not open yet. Call it, and the reader, under `LOCK`.

        Raises
        ------
        UserError
            When the file has changed since the scan, or cannot be opened.
        """
        self._forget_forked()
        key = (file.path, file.size_bytes, file.modified_ns, file.details.get("part"), file.details.get("group"))
        if key in self._open and is_url(file.path):
            # Asking the server each time would take longer than reading.
            return self._open[key].reader
        if state_of(file.path) != (file.size_bytes, file.modified_ns):
            raise UserError(f"{file.path}: has changed since it was indexed; start a new campaign for the new data")
        if key not in self._open:
            while len(self._open) >= _MOST_OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[key] = self._open_alone(file)
        self._open.move_to_end(key)
        return self._open[key].reader

    def _open_alone(self, file: RawFile) -> _Open:
        """Open a file, with all others closed where that is what it takes.

        HDF5 2.0 mixes files up that are open together and hold texts, such as `expver`: it looks for the text of one in
        the other, and then says that the file is damaged.
        """
        try:
            return _Open(file)
        except UserError:
            self.close()
            return _Open(file)

    def close(self) -> None:
        """Close all files."""
        self._forget_forked()
        while self._open:
            self._open.popitem()[1].close()

    def _forget_forked(self) -> None:
        if self._process != os.getpid():
            self._open.clear()
            self._process = os.getpid()
