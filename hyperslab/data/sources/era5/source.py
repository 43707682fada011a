"""Fields on a latitude-longitude grid: ERA5 and its kin, in netCDF, GRIB, zips of those, or Zarr."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hyperslab.data.config import DataSettings
from hyperslab.data.frames import Ints
from hyperslab.data.sources import Block
from hyperslab.data.sources.era5.contents import read_contents
from hyperslab.data.sources.era5.description import describe_contents
from hyperslab.data.sources.era5.formats import damage
from hyperslab.data.sources.era5.indexing import make_index
from hyperslab.data.sources.era5.opened import LOCK, OpenFiles
from hyperslab.data.sources.era5.regrid import regrid_fields
from hyperslab.data.sources.index import Description, Index, RawFile

# Before regridding, fields may take many times the memory that a caller reckons with.
_REGRID_BYTES = 64 << 20

Floats = npt.NDArray[np.float32]


class Era5:
    """Source of frames from fields on a latitude-longitude grid."""

    def __init__(self) -> None:
        self._files = OpenFiles()
        self._bounds: tuple[Index, Ints, Ints] | None = None

    def describe(self, path: str) -> Description:
        """Say what a file is, what would be taken from it, and what is odd in it.

        Raises
        ------
        UserError
            When it cannot be read, or holds no field on a regular grid.
        """
        with LOCK, damage(path, "its header cannot be read"):
            self._files.close()  # see OpenFiles: HDF5 mixes up files that are open together
            return describe_contents(read_contents(path))

    def scan(self, paths: Sequence[str], settings: DataSettings) -> Index:
        """Read all headers and say which frame and channel lies where.

        Raises
        ------
        UserError
            When a file cannot be used, files overlap or disagree, or the campaign asks for what no file has.
        """
        contents = []
        with LOCK:
            self._files.close()  # see OpenFiles: HDF5 mixes up files that are open together
        for path in paths:
            with LOCK, damage(path, "its header cannot be read"):
                contents.append(read_contents(path))
        return make_index(contents, settings)

    def read(self, index: Index, start: int, stop: int) -> Block:
        """Frames `[start, stop)`: `values` of shape (frame, channel, latitude, longitude), north-up and eastward.

        Raises
        ------
        UserError
            When a raw file has changed since the scan, or its data cannot be read.
        """
        regrid = index.attributes.get("regrid")
        if regrid is None:
            return {"values": self._read_frames(index, start, stop, index.space_shape)}
        shape = (len(regrid["latitude"]), len(regrid["longitude"]))
        at_once = max(1, _REGRID_BYTES // (4 * len(index.channels) * shape[0] * shape[1]))
        block = np.empty((stop - start, *index.shape[1:]), np.float32)
        for first in range(start, stop, at_once):
            fields = self._read_frames(index, first, min(first + at_once, stop), shape)
            # One frame at a time: sums over several come out a bit otherwise, and a frame must not depend on those
            # that are read with it.
            for number, frame in enumerate(fields, first - start):
                block[number] = regrid_fields(frame, regrid, *_centres(index))
        return {"values": block}

    def read_statics(self, index: Index) -> Floats:
        """The fields without time, shape (static, latitude, longitude).

        Raises
        ------
        UserError
            When a raw file has changed since the scan, or its data cannot be read.
        """
        regrid = index.attributes.get("regrid")
        shape = (len(regrid["latitude"]), len(regrid["longitude"])) if regrid else index.space_shape
        fields = np.empty((1, len(index.statics), *shape), np.float32)
        numbers = {channel.name: number for number, channel in enumerate(index.statics)}
        for file in index.files:
            if file.details.get("static"):
                self._read_file(file, {name: numbers[name] for name in file.channels}, 0, 1, fields)
        if regrid and len(index.statics):
            return regrid_fields(fields[0], regrid, *_centres(index))
        return np.asarray(fields[0])

    def _read_frames(self, index: Index, start: int, stop: int, shape: tuple[int, ...]) -> Floats:
        block = np.empty((stop - start, len(index.channels), *shape), np.float32)
        filled = np.zeros((stop - start, len(index.channels)), bool)
        numbers = {channel.name: number for number, channel in enumerate(index.channels)}
        for file in self._files_between(index, start, stop):
            own = {name: numbers[name] for name in file.channels} if file.channels else numbers
            for run in file.runs:
                position, frame, count = _overlap(run, start, stop)
                if count > 0:
                    place = slice(frame - start, frame - start + count)
                    self._read_file(file, own, position, count, block[place])
                    filled[place, list(own.values())] = True
        assert filled.all(), "the index covers every frame of every channel"
        return block

    def _read_file(self, file: RawFile, channels: dict[str, int], position: int, count: int, block: Floats) -> None:
        with LOCK, damage(file.path, "its data cannot be read", "download it again"):
            self._files.reader(file).read(channels, position, count, block)

    def _files_between(self, index: Index, start: int, stop: int) -> list[RawFile]:
        """Files that may hold some of these frames: looking through the runs of all would slow each read down."""
        if self._bounds is None or self._bounds[0] is not index:
            firsts = [min((frame for _, frame, _ in file.runs), default=0) for file in index.files]
            lasts = [max((frame + count for _, frame, count in file.runs), default=0) for file in index.files]
            self._bounds = (index, np.asarray(firsts, np.int64), np.asarray(lasts, np.int64))
        _, first, last = self._bounds
        return [index.files[number] for number in np.flatnonzero((first < stop) & (last > start))]


def _overlap(run: tuple[int, int, int], start: int, stop: int) -> tuple[int, int, int]:
    position, frame, count = run
    first, last = max(frame, start), min(frame + count, stop)
    return position + first - frame, first, last - first


def _centres(index: Index) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return index.space[0].values, index.space[1].values


SOURCE = Era5()
