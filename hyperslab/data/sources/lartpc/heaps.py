"""Whether the heaps that hold arrays of varying length, and region references, are whole.

`H5HG__cache_heap_deserialize` of HDF5 2.0.0 loops without end over a damaged heap; nothing in Python can stop it. The
forms of heaps and of the elements that point into them are those of the HDF5 file format specification, III.E and IV.A.
"""

import zlib
from pathlib import Path
from typing import BinaryIO

import h5py
import numpy as np

from hyperslab.errors import UserError

HEADER_BYTES = 16
"""Of a heap: signature, version, size; of an object in it: number, references, size."""


def check_heaps(dataset: h5py.Dataset, path: str, start: int, stop: int, field: str | None = None) -> None:
    """Go through the heaps that hold the content of the elements `[start, stop)`.

    Elements in chunks with filters other than gzip are not looked at.

    Parameters
    ----------
    dataset
        A list of arrays of varying length, or of rows with a field of region references.
    field
        Name of that field.

    Raises
    ------
    UserError
        When a heap is damaged.
    """
    kind = dataset.id.get_type()
    width, place = kind.get_size(), 4  # an array of varying length: its length, address of its heap, its number there
    if field is not None:
        place = kind.get_member_offset(kind.get_member_index(field.encode()))  # a reference: the address comes first
    with Path(path).open("rb") as file:
        raw = _raw_elements(dataset, file, start, stop, width)
        rows = np.frombuffer(raw, np.uint8).reshape(-1, width)[:, place : place + 8]
        size = Path(path).stat().st_size
        for address in np.unique(np.ascontiguousarray(rows).view("<u8")).tolist():
            if 0 < address < 2**64 - 1:  # neither of these: an empty array or reference
                _check_heap(file, address, size, path)


def _raw_elements(dataset: h5py.Dataset, file: BinaryIO, start: int, stop: int, width: int) -> bytes:
    """Elements as they lie in the file."""
    if dataset.chunks is None:
        offset = dataset.id.get_offset()
        if offset is None:
            return b""
        file.seek(offset + start * width)
        raw = file.read((stop - start) * width)
        return raw[: len(raw) // width * width]
    creation, length = dataset.id.get_create_plist(), dataset.chunks[0]
    filters = [creation.get_filter(number)[0] for number in range(creation.get_nfilters())]
    if filters not in ([], [h5py.h5z.FILTER_DEFLATE]):
        return b""
    parts = []
    for first in range(start // length * length, stop, length):
        _, data = dataset.id.read_direct_chunk((first,))
        chunk = zlib.decompressobj().decompress(data, length * width) if filters else bytes(data)
        parts.append(chunk[max(0, start - first) * width : min(length, stop - first) * width])
    return b"".join(parts)


def _check_heap(file: BinaryIO, address: int, file_bytes: int, path: str) -> None:
    file.seek(min(address, file_bytes))
    header = file.read(HEADER_BYTES)
    size = int.from_bytes(header[8:], "little")
    if header[:4] != b"GCOL" or size < HEADER_BYTES or address + size > file_bytes:
        raise UserError(f"{path}: has no sound heap at byte {address:,}; the file is damaged, fetch it again")
    done = HEADER_BYTES
    while size - done >= HEADER_BYTES:
        file.seek(address + done)
        entry = file.read(HEADER_BYTES)
        number, length = int.from_bytes(entry[:2], "little"), int.from_bytes(entry[8:], "little")
        # Number 0 is the free rest, whose length counts its own header; an object is filled up to eight bytes.
        need = length if number == 0 else HEADER_BYTES + length + -length % 8
        if not 0 < need <= size - done:
            raise UserError(f"{path}: its heap at byte {address:,} is damaged at byte {done:,}; fetch the file again")
        done += need
