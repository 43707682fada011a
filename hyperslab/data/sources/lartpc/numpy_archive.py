"""Archives of numpy arrays: tar (plain, gzip, bzip2, xz), zip and npz, gone through without unpacking to a disk."""

import bz2
import gzip
import io
import lzma
import math
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from hyperslab.errors import UserError

TAR_BLOCK = 512
HEADER_LIMIT_BYTES = 1 << 16
"""Longest npy header that is read; real ones have some hundred bytes."""

_OPENERS: dict[bytes, Any] = {b"BZh": bz2.open, b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open}
_ERRORS = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError)
# What a damaged npy or zip header also makes their readers raise.
_MORE_ERRORS = (RuntimeError, LookupError, TypeError, SyntaxError, TokenError, ArithmeticError, MemoryError)


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive; `stream` stands at its first byte and is good until the next member is asked for."""

    name: str
    size: int
    stream: IO[bytes]


def is_compressed_tar(magic: bytes) -> bool:
    """Whether a file that begins so is a compressed stream, which must be read from its beginning."""
    return any(magic.startswith(start) for start in _OPENERS)


@contextmanager
def open_archive(path: str) -> Iterator[Iterator[Member]]:
    """The members of an archive, one after another; names without their folders.

    Raises
    ------
    UserError
        When the archive, or what is read of it, is damaged or cut short.
    """
    try:
        with Path(path).open("rb") as file:
            magic = file.read(8)
            if magic.startswith(b"PK"):
                yield _zip_members(path)
                return
            file.seek(0)
            opener = next((opener for start, opener in _OPENERS.items() if magic.startswith(start)), None)
            yield _tar_members(opener(file) if opener else file, path, None if opener else Path(path).stat().st_size)
    except UserError:
        raise
    except (*_ERRORS, *_MORE_ERRORS) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path}: cannot be read as an archive of arrays ({reason}); fetch it again") from None


def _zip_members(path: str) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            if info.flag_bits & 1:
                raise UserError(f"{path}: {info.filename} is encrypted; decrypt the archive first")
            with archive.open(info) as stream:
                yield Member(info.filename.rsplit("/", 1)[-1], info.file_size, stream)


def _tar_members(stream: IO[bytes], path: str, limit: int | None) -> Iterator[Member]:
    """Members of a tar stream, none of them longer than `limit`.

    The tarfile module takes a damaged header, and a cut between two members, for the end of the archive.
    """
    while True:
        block = stream.read(TAR_BLOCK)
        if len(block) < TAR_BLOCK:
            raise UserError(f"{path}: is cut short: the end mark of the tar archive is missing; fetch it again")
        if not block.strip(b"\0"):
            while rest := stream.read(1 << 20):  # to the end: the checksum of a compressed stream comes last
                if rest.strip(b"\0"):
                    raise UserError(f"{path}: data follow the end mark of the tar archive; unpack and pack it again")
            return
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if info.size < 0 or (limit is not None and info.size > limit):
            raise UserError(f"{path}: {info.name} claims {info.size} bytes; the archive is damaged, fetch it again")
        part = _Part(stream, info.size, path)
        if info.isreg():
            yield Member(info.name.rsplit("/", 1)[-1], info.size, part)  # type: ignore[arg-type]
        elif info.type not in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.DIRTYPE):
            raise UserError(f"{path}: {info.name} is no plain file (tar type {info.type!r}); pack plain files only")
        part.skip(info.size + -info.size % TAR_BLOCK - part.done)


class _Part:
    """A stretch of a stream that can only be read onwards."""

    def __init__(self, stream: IO[bytes], size: int, path: str) -> None:
        self._stream, self._size, self._path = stream, size, path
        self.done = 0

    def read(self, size: int = -1) -> bytes:
        left = self._size - self.done
        data = self._stream.read(left if size < 0 else min(size, left))
        self.done += len(data)
        return data

    def skip(self, size: int) -> None:
        while size > 0:
            data = self._stream.read(min(size, 1 << 20))
            if not data:
                raise UserError(f"{self._path}: is cut short inside the tar archive; fetch it again")
            size -= len(data)


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """Type and shape of an array in npy form."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        """Bytes of the array's data."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npy_header(member: Member, path: str) -> NpyHeader:
    """The header of a member in npy form; the stream then stands at the first byte of the data.

    Raises
    ------
    UserError
        When it is none, holds Python objects, or claims another size than the member has.
    """
    where = f"{path}: {member.name}"
    start = member.stream.read(8)
    if start[:6] != b"\x93NUMPY" or start[6:7] not in (b"\1", b"\2", b"\3"):
        raise UserError(f"{where}: is no npy array (it begins with {start!r}); pack arrays of numpy only")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(member.stream.read(width), "little")
    if length > HEADER_LIMIT_BYTES:
        raise UserError(f"{where}: its npy header claims {length:,} bytes; the archive is damaged, fetch it again")
    header = _parse_header(member.stream.read(length), start[6:8], length, where)
    if header.num_bytes != member.size - 8 - width - length:
        raise UserError(
            f"{where}: {header.shape} of {header.dtype} are {header.num_bytes:,} bytes, the archive holds "
            f"{member.size - 8 - width - length:,}; it is damaged, fetch it again"
        )
    return header


def _parse_header(text: bytes, version: bytes, length: int, where: str) -> NpyHeader:
    read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
    prefix = length.to_bytes(2 if version[0] == 1 else 4, "little")
    try:
        shape, fortran, dtype = read(io.BytesIO(prefix + text), max_header_size=HEADER_LIMIT_BYTES)
    except (*_ERRORS, *_MORE_ERRORS) as error:
        raise UserError(f"{where}: its npy header cannot be read ({error}); fetch the archive again") from None
    if dtype.hasobject or dtype.names or any(size < 0 for size in shape):
        raise UserError(f"{where}: holds {dtype} of shape {shape}; only plain numbers are read")
    return NpyHeader(tuple(int(size) for size in shape), bool(fortran), dtype)


def read_npy(member: Member, path: str, header: NpyHeader | None = None) -> npt.NDArray[Any]:
    """The array of a member in npy form.

    Raises
    ------
    UserError
        When it cannot be read whole.
    """
    header = header or read_npy_header(member, path)
    data = member.stream.read(header.num_bytes)
    if len(data) != header.num_bytes:
        raise UserError(f"{path}: {member.name} is cut short; fetch the archive again")
    member.stream.read()  # of a zip: to the end, where its checksum is compared
    return np.frombuffer(data, header.dtype).reshape(header.shape, order="F" if header.fortran else "C")


def read_headers(path: str) -> dict[str, NpyHeader]:
    """The header of each array of an archive, by its name without `.npy`, in the order of the archive."""
    with open_archive(path) as members:
        found: dict[str, NpyHeader] = {}
        for member in members:
            name = member.name.removesuffix(".npy")
            if name in found:
                raise UserError(f"{path}: holds {member.name} twice; pack each array once")
            found[name] = read_npy_header(member, path)
        return found


def read_arrays(path: str, names: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of these names of an archive; their checksums, where there are any, are compared."""
    with open_archive(path) as members:
        found = {
            m.name.removesuffix(".npy"): read_npy(m, path) for m in members if m.name.removesuffix(".npy") in names
        }
    if lacking := sorted(set(names) - set(found)):
        raise UserError(f"{path}: holds no {', '.join(lacking)}; fetch the archive again")
    return found
