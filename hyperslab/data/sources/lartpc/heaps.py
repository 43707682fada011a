"""Whether the heaps that hold arrays of varying length, and region references, are whole.

`H5HG__cache_heap_deserialize` of HDF5 2.0.0 loops without end over a damaged heap, and an element that claims more than
its object holds is read past its end: the process hangs or dies, and nothing in Python can stop it. The
forms of heaps and of the elements that point into them are those of the HDF5 file format specification, III.E and IV.A.
"""

import zlib
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
import numpy.typing as npt

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
    # An array of varying length: its length, the address of its heap, its number there. A reference lacks the length.
    width, place = kind.get_size(), 4
    base = h5py.check_vlen_dtype(dataset.dtype)
    if field is None and bytes(kind.encode())[3:6] != bytes(3):
        # The class bits of the type (specification, IV.A.2.d): 0 is a sequence. HDF5 reads others through no pointer.
        raise UserError(f"{path}: the type of {dataset.name} is damaged; fetch the file again")
    if field is not None:
        place = kind.get_member_offset(kind.get_member_index(field.encode()))
    with Path(path).open("rb") as file:
        raw = np.frombuffer(_raw_elements(dataset, file, start, stop, width), np.uint8).reshape(-1, width)
        addresses, numbers = _column(raw, place, "<u8"), _column(raw, place + 8, "<u4")
        lengths = _column(raw, 0, "<u4") if field is None else np.zeros(len(raw), np.uint32)
        size = Path(path).stat().st_size
        heaps: dict[int, dict[int, int]] = {}
        for address, number, length in zip(addresses.tolist(), numbers.tolist(), lengths.tolist(), strict=True):
            if address in (0, 2**64 - 1):
                if length:
                    raise UserError(f"{path}: an array of {dataset.name} lies nowhere; the file is damaged")
                continue
            if address not in heaps:
                heaps[address] = _objects(file, address, size, path)
            held = heaps[address].get(number)
            if held is None or (base is not None and length * np.dtype(base).itemsize > held):
                raise UserError(
                    f"{path}: an element of {dataset.name} is not what its heap at byte {address:,} holds; "
                    "the file is damaged, fetch it again"
                )


def _column(rows: npt.NDArray[np.uint8], place: int, dtype: str) -> npt.NDArray[Any]:
    """The numbers that stand at a place of each row."""
    return np.ascontiguousarray(rows[:, place : place + np.dtype(dtype).itemsize]).view(dtype).ravel()


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


def _objects(file: BinaryIO, address: int, file_bytes: int, path: str) -> dict[int, int]:
    """Bytes of each object of a heap, by its number."""
    objects = {}
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
        if number:
            objects[number] = length
    return objects
