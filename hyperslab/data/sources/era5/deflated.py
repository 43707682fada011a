"""Deflated chunks of a netCDF-4 file, inflated by ISA-L: twice as fast as the zlib inside the HDF5 library."""

import itertools
from typing import Any

import h5py
import numcodecs
import numpy as np
import numpy.typing as npt
from isal import isal_zlib

_READ = {"deflate": h5py.h5z.FILTER_DEFLATE, "shuffle": h5py.h5z.FILTER_SHUFFLE}


class DeflatedFile:
    """The variables of a netCDF-4 file whose chunks are deflated, perhaps shuffled, and nothing else.

    The HDF5 library finds the chunks; it does not read, inflate or cache them.
    """

    def __init__(self, path: str) -> None:
        self._file = h5py.File(path, "r")
        self._found: dict[str, h5py.Dataset | None] = {}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, name: str, places: tuple[slice, ...]) -> npt.NDArray[Any] | None:
        """A slab of a variable as it is stored; None where only the netCDF library can read it.

        Parameters
        ----------
        places
            For each dimension of the variable the places to read, with a start and a stop.

        Raises
        ------
        OSError
            When a chunk is damaged.
        """
        if name not in self._found:
            self._found[name] = self._find(name)
        variable = self._found[name]
        if variable is None:
            return None
        chunk = variable.chunks
        ranges = [range(at.start // size, -(-at.stop // size)) for at, size in zip(places, chunk, strict=True)]
        if all(len(numbers) == 1 for numbers in ranges):
            inside = tuple(_shift(at, -n[0] * size) for at, n, size in zip(places, ranges, chunk, strict=True))
            held = self._chunk(variable, tuple(n[0] * size for n, size in zip(ranges, chunk, strict=True)))
            return None if held is None else held[inside]
        slab = np.empty([at.stop - at.start for at in places], variable.dtype)
        for numbers in itertools.product(*ranges):
            corner = tuple(number * size for number, size in zip(numbers, chunk, strict=True))
            held = self._chunk(variable, corner)
            if held is None:
                return None
            shared = [
                slice(max(at.start, low), min(at.stop, low + size))
                for at, low, size in zip(places, corner, chunk, strict=True)
            ]
            into = tuple(_shift(part, -at.start) for part, at in zip(shared, places, strict=True))
            slab[into] = held[tuple(_shift(part, -low) for part, low in zip(shared, corner, strict=True))]
        return slab

    def _find(self, name: str) -> h5py.Dataset | None:
        """A variable of this file whose chunks can be inflated here."""
        if not isinstance(self._file.get(name, getlink=True), h5py.HardLink):
            return None
        variable = self._file[name]
        if not isinstance(variable, h5py.Dataset) or variable.chunks is None or variable.dtype.kind not in "fiu":
            return None
        properties = variable.id.get_create_plist()
        filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
        known = ([_READ["deflate"]], [_READ["shuffle"], _READ["deflate"]])
        return variable if filters in known else None

    def _chunk(self, variable: h5py.Dataset, corner: tuple[int, ...]) -> npt.NDArray[Any] | None:
        """A whole chunk, as it is stored; None where the file has none, or wrote it without its filters."""
        if any(low >= size for low, size in zip(corner, variable.shape, strict=True)):
            return None
        if variable.id.get_chunk_info_by_coord(corner).size == 0:
            return None
        skipped, stored = variable.id.read_direct_chunk(corner)
        if skipped:
            return None
        size = int(np.prod(variable.chunks)) * variable.dtype.itemsize
        try:
            values = isal_zlib.decompress(stored, bufsize=size)
        except Exception as error:  # IsalError, of which the stubs do not say that it is one
            raise OSError(f"{variable.name}: a chunk cannot be inflated: {error}") from None
        if len(values) != size:
            raise OSError(f"{variable.name}: a chunk holds {len(values):,} bytes, {size:,} were expected")
        if variable.shuffle:
            values = numcodecs.Shuffle(variable.dtype.itemsize).decode(values)
        return np.frombuffer(values, variable.dtype).reshape(variable.chunks)


def open_deflated(path: str) -> DeflatedFile | None:
    """The file, where it is HDF5 and can be opened; the netCDF library tells what is wrong with any other."""
    try:
        return DeflatedFile(path) if h5py.is_hdf5(path) else None
    except (OSError, RuntimeError):
        return None


def _shift(places: slice, by: int) -> slice:
    return slice(places.start + by, places.stop + by)
