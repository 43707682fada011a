"""How long a classic netCDF file must be: the library reads one that was cut short as if it held zeros."""

import math
import struct
from pathlib import Path
from typing import BinaryIO

# NetCDF classic format specification: sizes of the external types nc_byte = 1 to nc_uint64 = 11.
_TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 8}
_STREAMING = 0xFFFF_FFFF


def classic_size(path: Path) -> int | None:
    """Least number of bytes that the header of a classic file (CDF-1, -2 or -5) promises; None for other files.

    Raises
    ------
    EOFError
        When the header itself is cut short.
    """
    with path.open("rb") as file:
        magic = file.read(4)
        if magic[:3] != b"CDF" or magic[3] not in (1, 2, 5):
            return None
        return _Header(file, magic[3]).size()


class _Header:
    """Reads the header of the specification's grammar: numrecs, dim_list, gatt_list, var_list."""

    def __init__(self, file: BinaryIO, version: int) -> None:
        self._file = file
        self._count = ">Q" if version == 5 else ">I"
        self._offset = ">I" if version == 1 else ">Q"

    def size(self) -> int:
        records = self._number(self._count)
        lengths = [self._dimension() for _ in range(self._list())]
        self._attributes()
        variables = [self._variable(lengths) for _ in range(self._list())]
        fixed = [begin + size for begin, size, is_record in variables if not is_record]
        per_record = [(begin, size) for begin, size, is_record in variables if is_record]
        # A single record variable is not padded from record to record.
        padded = [(begin, size if len(per_record) == 1 else _padded(size)) for begin, size in per_record]
        stride = sum(size for _, size in padded)
        ends = [begin + (records - 1) * stride + size for begin, size in per_record]
        if records in (0, _STREAMING):
            ends = []
        return max([self._file.tell(), *fixed, *ends])

    def _number(self, form: str) -> int:
        size = struct.calcsize(form)
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError
        return int(struct.unpack(form, data)[0])

    def _skip(self, size: int) -> None:
        self._file.seek(_padded(size), 1)

    def _list(self) -> int:
        """Number of entries of a list; its tag says of what kind they are, and is not needed."""
        self._number(">I")
        return self._number(self._count)

    def _dimension(self) -> int:
        self._skip(self._number(self._count))
        return self._number(self._count)

    def _attributes(self) -> None:
        for _ in range(self._list()):
            self._skip(self._number(self._count))
            kind = self._number(">I")
            self._skip(_TYPE_BYTES.get(kind, 1) * self._number(self._count))

    def _variable(self, lengths: list[int]) -> tuple[int, int, bool]:
        """Where a variable begins, the bytes of it (or of one record of it), and whether it has records."""
        self._skip(self._number(self._count))
        dims = [lengths[self._number(self._count)] for _ in range(self._number(self._count))]
        self._attributes()
        kind = self._number(">I")
        self._number(self._count)  # vsize: redundant, and wrong for large variables
        begin = self._number(self._offset)
        is_record = bool(dims) and dims[0] == 0
        return begin, _TYPE_BYTES.get(kind, 1) * math.prod(dims[1:] if is_record else dims), is_record


def _padded(size: int) -> int:
    return -(-size // 4) * 4
