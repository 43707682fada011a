"""The frame of a GRIB message, checked before eccodes sees it: over sections out of place it ends the process."""

import os
from dataclasses import dataclass

_MAGIC, _END = b"GRIB", b"7777"
_BLOCK_BYTES = 1 << 16

# WMO Manual on Codes, FM 92 GRIB edition 2: which section may follow which; 8 is the end of the message.
_NEXT = {0: (1,), 1: (2, 3), 2: (3,), 3: (4,), 4: (5,), 5: (6,), 6: (7,), 7: (2, 3, 4, 8)}
# Edition 1 keeps its length in three bytes; beyond 8 MiB the highest bit is set, and the rest counts otherwise.
_LARGE = 0x80_0000
_HAS_GRID, _HAS_BITMAP = 0x80, 0x40
_NO_LIST = 255

# Octets of section 5 by the number of its template, where they are fixed.
_PACKING_OCTETS = {0: 21, 2: 47, 3: 49, 40: 23, 41: 21, 42: 25}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Where a message lies."""

    offset: int
    num_fields: int
    """Fields in it; edition 2 may pack several."""


def find_message(file: int, position: int) -> Extent | None:
    """The first message at or after a position, or None where there is none.

    Parameters
    ----------
    file
        Descriptor of the open file.

    Raises
    ------
    ValueError
        When the message is cut short, or its sections do not fill it.
    """
    offset = _find_magic(file, position)
    if offset is None:
        return None
    head = _read(file, offset, 16)
    if head[7] == 1:
        _check_first_edition(file, offset, int.from_bytes(head[4:7], "big"))
        return Extent(offset=offset, num_fields=1)
    if head[7] == 2:
        return Extent(offset=offset, num_fields=_count_fields(file, offset, int.from_bytes(head[8:16], "big")))
    raise ValueError(f"edition {head[7]} of GRIB at byte {offset}")


def _find_magic(file: int, position: int) -> int | None:
    while block := os.pread(file, _BLOCK_BYTES, position):
        place = block.find(_MAGIC)
        if place >= 0:
            return position + place
        if len(block) < len(_MAGIC):
            return None
        # The magic may lie across two blocks.
        position += len(block) - len(_MAGIC) + 1
    return None


def _read(file: int, offset: int, size: int) -> bytes:
    data = os.pread(file, size, offset)
    if len(data) < size:
        raise ValueError(f"a message is cut short at byte {offset + len(data)}")
    return data


def _check_end(file: int, offset: int) -> None:
    if _read(file, offset, len(_END)) != _END:
        raise ValueError(f"a message does not end at byte {offset}")


def _check_first_edition(file: int, offset: int, length: int) -> None:
    if length & _LARGE:
        return
    _check_end(file, offset + length - len(_END))
    place, end = offset + 8, offset + length - len(_END)
    flags = _read(file, place, 8)[7]
    for number, is_there in ((1, True), (2, flags & _HAS_GRID), (3, flags & _HAS_BITMAP), (4, True)):
        if not is_there:
            continue
        head = _read(file, place, 5)
        size = int.from_bytes(head[:3], "big")
        list_at = head[4] if number == 2 else _NO_LIST
        if size < 5 or place + size > end or (list_at != _NO_LIST and list_at > size):
            raise ValueError(f"section {number} does not fit its message at byte {place}")
        place += size


def _count_fields(file: int, offset: int, length: int) -> int:
    end, place, number, fields = offset + length - len(_END), offset + 16, 0, 0
    _check_end(file, end)
    while place < end:
        head = _read(file, place, 14)
        size, following = int.from_bytes(head[:4], "big"), head[4]
        if following not in _NEXT[number] or size < _least_octets(following, head):
            raise ValueError(f"section {following} of {size} bytes stands after section {number} at byte {place}")
        number = following
        fields += number == 7
        place += size
    if place != end or 8 not in _NEXT[number]:
        raise ValueError(f"the sections do not fill the message at byte {offset}")
    return fields


def _least_octets(section: int, head: bytes) -> int:
    """Octets that a section has at least, by what its first ones say of the rest."""
    if section == 3:
        # The template of latitudes and longitudes fills 72; lists of points, as reduced grids have, come on top.
        return 72 if head[12:14] in (b"\0\0", b"\0\x28") else 15
    if section == 4:
        return 34 + 4 * int.from_bytes(head[5:7], "big")
    if section == 5:
        return _PACKING_OCTETS.get(int.from_bytes(head[9:11], "big"), 11)
    return 5
