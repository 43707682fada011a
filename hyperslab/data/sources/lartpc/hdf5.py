"""HDF5 files, opened so that nothing outside of them is read and no size that they claim is believed."""

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from hyperslab.errors import UserError

CHUNK_LIMIT_BYTES = 1 << 30

# All that h5py was seen to raise, or raises by its code, on a damaged file.
_ERRORS = (
    OSError,
    RuntimeError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    SystemError,
    MemoryError,
    zlib.error,
)


@contextmanager
def open_hdf5(path: str) -> Iterator[h5py.File]:
    """An HDF5 file open for reading; what the library raises inside the `with` becomes one clear line.

    Raises
    ------
    UserError
        When the file, or what is read of it, is damaged.
    """
    try:
        with h5py.File(path, "r") as file:
            yield file
    except UserError:
        raise
    except _ERRORS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path}: cannot be read as HDF5 ({reason}); it may be damaged, fetch it again") from None


def names_in(place: h5py.Group) -> list[str]:
    """Names of what a group holds, in the order of the alphabet."""
    return [name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in place]


def holds(file: h5py.Group, name: str) -> bool:
    """Whether there is something of that path, such as `charge/events/data`, in the file or at a link's far end."""
    place = file
    for part in name.split("/"):
        if not isinstance(place, h5py.Group) or not place.id.links.exists(part.encode()):
            return False
        if not isinstance(place.get(part, getlink=True), h5py.HardLink):
            return True
        place = place[part]
    return True


def find(file: h5py.File, name: str) -> h5py.Group | h5py.Dataset:
    """The group or dataset of that path.

    Raises
    ------
    UserError
        When it is absent, or a link leads to it: a link may leave the file.
    """
    place = file
    for part in name.split("/"):
        if not isinstance(place, h5py.Group) or not place.id.links.exists(part.encode()):
            raise UserError(f"{file.filename}: holds no {name}; it is incomplete, write it again")
        link = place.get(part, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise UserError(
                f"{file.filename}: {name} is a {type(link).__name__}, which may lead out of the file; "
                "links are not followed, copy the data into one file (h5repack, h5copy)"
            )
        place = place[part]
    return place


def dataset(file: h5py.File, name: str, *, may_have_gaps: bool = False) -> h5py.Dataset:
    """The dataset of that path, all of whose data lies in the file.

    Parameters
    ----------
    may_have_gaps
        Whether chunks that were never written, which read as the fill value, are right to be there.

    Raises
    ------
    UserError
        When there is no such dataset, its data lies elsewhere or is incomplete, or its header claims an absurd size.
    """
    found = find(file, name)
    if not isinstance(found, h5py.Dataset):
        raise UserError(f"{file.filename}: {name} is no dataset; it is not of the format it looks like")
    if found.is_virtual or found.external:
        raise UserError(f"{file.filename}: the data of {name} lies in other files; copy it into one file (h5repack)")
    if found.size:
        _check_storage(found, file.filename, name, may_have_gaps)
    return found


def _check_storage(found: h5py.Dataset, path: str, name: str, may_have_gaps: bool) -> None:
    need = math.prod(found.shape) * found.dtype.itemsize
    if found.chunks is None:
        if found.id.get_storage_size() > Path(path).stat().st_size or (not found.id.get_storage_size() and need):
            raise UserError(f"{path}: {name} should hold {need:,} bytes, which are not there; fetch the file again")
        return
    chunk = math.prod(found.chunks) * found.dtype.itemsize
    if chunk > CHUNK_LIMIT_BYTES:
        raise UserError(f"{path}: {name} has chunks of {chunk:,} bytes; at most {CHUNK_LIMIT_BYTES:,}, rechunk it")
    wanted = math.prod(-(-size // part) for size, part in zip(found.shape, found.chunks, strict=True))
    held = found.id.get_num_chunks()
    if held < wanted and not may_have_gaps:
        raise UserError(
            f"{path}: {name} lacks {wanted - held:,} of its {wanted:,} chunks, which would read as zeros; "
            "fetch or write the file again"
        )
