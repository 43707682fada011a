"""Slabs of a netCDF file or a Zarr store: unbroken pieces that are read at once, as they are stored."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

# Small enough for the processor's cache, and for memory that is used again: fresh pages cost more than reading them.
SLAB_BYTES = 1 << 20

# Of Zarr, many chunks are fetched at a time, which pays where each takes a while to come.
ZARR_SLAB_BYTES = 32 << 20

Places = dict[str, int | slice]


def frame_sizes(dataset: xr.Dataset, frame_dims: tuple[str, ...]) -> tuple[int, ...]:
    """Size of each dimension that makes frames."""
    return tuple(dataset.sizes[dim] for dim in frame_dims)


def frame_count(dataset: xr.Dataset, frame_dims: tuple[str, ...]) -> int:
    """Frames that these dimensions make; one where there are none."""
    return math.prod(frame_sizes(dataset, frame_dims))


def slabs(
    variable: xr.Variable, frame_dims: tuple[str, ...], position: int, count: int, slab_bytes: int = SLAB_BYTES
) -> Iterator[tuple[int, int, Places]]:
    """Cut frames `[position, position + count)` of a variable into slabs.

    A slab ends where a chunk of the file does, so that none is decompressed twice.

    Parameters
    ----------
    frame_dims
        Dimensions that make frames, outermost first; positions count along the last one first.
    slab_bytes
        Most that a slab holds as it is stored, unless one chunk holds more.

    Yields
    ------
    tuple
        First frame of the slab, counted from `position`; its number of frames; its places along the dimensions.
    """
    if not frame_dims:
        yield 0, 1, {}
        return
    sizes = tuple(variable.sizes[dim] for dim in frame_dims)
    chunk = chunk_frames(variable, frame_dims)
    frame_bytes = variable.dtype.itemsize * variable.size // math.prod(sizes)
    longest = max(1, slab_bytes // max(1, frame_bytes) // chunk) * chunk
    done = 0
    while done < count:
        *outer, start = (int(place) for place in np.unravel_index(position + done, sizes))
        stop = min(sizes[-1], start + count - done, start // chunk * chunk + longest)
        places: Places = dict(zip(frame_dims[:-1], outer, strict=True))
        yield done, stop - start, {**places, frame_dims[-1]: slice(start, stop)}
        done += stop - start


def read_slab(variable: xr.Variable, places: Places, dims: tuple[str, ...]) -> npt.NDArray[Any]:
    """A slab as it is stored, with these dimensions in this order; of any further one the first place."""
    first: Places = {str(dim): 0 for dim in variable.dims if dim not in places and dim not in dims}
    return np.asarray(variable.isel({**first, **places}).transpose(*dims).values)


def whole_slab(variable: xr.Variable, places: Places, dims: tuple[str, ...]) -> tuple[slice, ...]:
    """The slab of `read_slab` as a range along each dimension of the variable."""
    ranges = []
    for dim, size in variable.sizes.items():
        place = places.get(str(dim), slice(0, size) if dim in dims else 0)
        start, stop = (place.start, place.stop) if isinstance(place, slice) else (place, place + 1)
        ranges.append(slice(start, min(stop, size)))
    return tuple(ranges)


def chunk_frames(variable: xr.Variable, frame_dims: tuple[str, ...]) -> int:
    """Frames in a chunk of the file, along the innermost of the dimensions that make frames.

    Without chunks, frames that lie scattered through the file count as one.
    """
    if not frame_dims:
        return 1
    place = variable.dims.index(frame_dims[-1])
    if not _chunks(variable) and not {*variable.dims[:place]} <= {*frame_dims}:
        return int(variable.shape[place])
    return chunk_length(variable, frame_dims[-1])


def chunk_length(variable: xr.Variable, dim: str) -> int:
    """Places in a chunk of the file along a dimension; 1 where the file has no chunks."""
    chunks = _chunks(variable)
    return int(chunks[variable.dims.index(dim)]) if chunks else 1


def chunk_bytes(variable: xr.Variable) -> int:
    """Bytes of a chunk of the file once it is float32; 0 where the file has none."""
    chunks = _chunks(variable)
    return 4 * math.prod(chunks) if chunks else 0


def _chunks(variable: xr.Variable) -> tuple[int, ...]:
    return tuple(variable.encoding.get("chunksizes") or variable.encoding.get("chunks") or ())
