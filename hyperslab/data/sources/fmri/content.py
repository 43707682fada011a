"""What a file is, told from its first bytes, and its bytes whatever their compression."""

import bz2
import gzip
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, cast

from nibabel import imageglobals

from hyperslab.errors import UserError

Kind = Literal["nifti", "cifti", "afni", "parrec", "gifti", "npy", "npz", "mat", "text"]

FIRST_BYTES = 1024
BLOCK_BYTES = 1 << 20
# RFC 1951: a block of deflate holds at most 258 bytes in 2 bits, about 1032 to 1.
DEFLATE_RATIO = 1032

# Where a magic number stands, what it is, and what to do with a file that has it.
_REFUSED = (
    (0, b"version https://git-lfs", "is a pointer of Git LFS, not the data; run `git lfs pull`"),
    (0, b"\x89HDF", "is HDF5, which no fmri format here is; export it as NIfTI, CIFTI, csv or npy"),
    (0, b"CDF", "is netCDF (MINC), not NIfTI; convert it with `mnc2nii`"),
    (0, b"GRIB", "is GRIB, of weather; say data.source: era5"),
    (0, b"\x28\xb5\x2f\xfd", "is compressed with zstd; decompress it with `unzstd`"),
    (0, b"\xfd7zXZ", "is compressed with xz; decompress it with `unxz`"),
    (0, b"\x00\x00\x00\x01\x00\x00", "looks like an MGH volume; convert it to NIfTI with `mri_convert`"),
    (128, b"DICM", "is DICOM; convert it to NIfTI with `dcm2niix`"),
    (0, b"MATLAB 7.3", "is a MATLAB 7.3 file; save it again with `save -v7`"),
    (0, b"%PDF", "is a PDF document; name the runs alone in data.files"),
)
_MAGIC: tuple[tuple[int, bytes, Kind], ...] = (
    (344, b"n+1\0", "nifti"),
    (0, b"\x93NUMPY", "npy"),
    (0, b"PK\x03\x04", "npz"),
    (0, b"MATLAB 5.0 MAT-file", "mat"),
    (0, b"# === DATA DESCRIPTION FILE", "parrec"),
)


def find_file(path: str) -> Path:
    """The file at a path, which must be there and hold something.

    Raises
    ------
    UserError
        When it is a URL, absent, a directory, empty, or a pointer to data that was not fetched.
    """
    if "://" in path:
        raise UserError(f"{path}: is a URL; fmri files are read from disk, download it first")
    file = Path(path)
    try:
        state = file.stat()
    except FileNotFoundError:
        if file.is_symlink():
            raise UserError(
                f"{path}: is a link to data that is not here; fetch it with `datalad get` or `git annex get`"
            ) from None
        raise UserError(f"{path}: no such file; check its path") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path[:200]}: cannot be reached ({error}); check its path") from None
    if not stat.S_ISREG(state.st_mode):
        raise UserError(f"{path}: is no ordinary file; name a file")
    if state.st_size == 0:
        raise UserError(f"{path}: is empty (0 bytes); get the file again")
    return file


def is_folder(path: str) -> bool:
    """Whether there is a directory at a path."""
    try:
        return "://" not in path and Path(path).is_dir()
    except OSError:
        return False


@contextmanager
def decoding(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a library raises on damaged content into one line."""
    was_silent = imageglobals.logger.disabled
    try:
        # What the libraries would print of a header is told as an oddity of its file.
        imageglobals.logger.disabled = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UserError:
        raise
    except PermissionError:
        raise UserError(f"{path}: may not be read; change its permissions") from None
    except FileNotFoundError:
        raise UserError(f"{path}: was removed while it was read; put it back") from None
    except EOFError:
        raise UserError(f"{path}: is cut short; get the file again") from None
    # Flipped bytes end in errors of every kind deep inside nibabel, scipy, numpy, zlib and expat.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        raise UserError(f"{path}: starts as {kind} but cannot be read ({reason}); get the file again") from None
    finally:
        imageglobals.logger.disabled = was_silent


def open_bytes(path: Path) -> IO[bytes]:
    """The decompressed bytes of a file: its content says whether it is compressed, not its name."""
    with path.open("rb") as file:
        magic = file.read(3)
    if magic[:2] == b"\x1f\x8b":
        return cast(IO[bytes], gzip.open(path, "rb"))
    if magic == b"BZh":
        return cast(IO[bytes], bz2.open(path, "rb"))
    return path.open("rb")


def is_compressed(path: Path) -> bool:
    """Whether a file's content is of gzip or bzip2."""
    with path.open("rb") as file:
        magic = file.read(3)
    return magic[:2] == b"\x1f\x8b" or magic == b"BZh"


def first_bytes(path: Path) -> bytes:
    """The beginning of a file, decompressed."""
    with decoding(path, "a compressed file"), open_bytes(path) as file:
        return file.read(FIRST_BYTES)


def kind_of(path: Path) -> Kind:
    """The format of a file, from its content.

    Raises
    ------
    UserError
        When it is none that frames are taken from; the message says what it is and what to do.
    """
    head = first_bytes(path)
    for place, magic, reason in _REFUSED:
        if head[place : place + len(magic)] == magic:
            raise UserError(f"{path}: {reason}")
    if b"/annex/objects/" in head[:400]:
        raise UserError(f"{path}: is a pointer of git-annex, not the data; fetch it with `datalad get`")
    if head[4:8] == b"n+2\0":
        return "cifti" if _is_connectivity(head) else "nifti"
    for place, magic, kind in _MAGIC:
        if head[place : place + len(magic)] == magic:
            return kind
    if head[344:348] == b"ni1\0" or head[4:8] == b"ni2\0":
        raise UserError(f"{path}: is one half of a pair of NIfTI files; convert it to one file with `fslchfiletype`")
    if head[:4] in (b"\x5c\x01\0\0", b"\0\0\x01\x5c"):
        raise UserError(f"{path}: is an Analyze header without a NIfTI magic number; convert it to NIfTI")
    return _kind_of_text(path, head)


def _is_connectivity(head: bytes) -> bool:
    """Whether a NIfTI-2 header has one of the intent codes 3000 to 3099, which are CIFTI's."""
    order: Literal["little", "big"] = "little" if head[:4] == b"\x1c\x02\0\0" else "big"
    return 3000 <= int.from_bytes(head[504:508], order, signed=True) < 3100


def _kind_of_text(path: Path, head: bytes) -> Kind:
    if b"\0" in head or _undecodable(head):
        raise UserError(f"{path}: is no fmri format that is known (it starts with {head[:8]!r}); name the runs alone")
    text = head.decode("utf-8-sig", "ignore")
    if "<GIFTI" in text:
        return "gifti"
    if text.lstrip().startswith("<"):
        raise UserError(f"{path}: is XML or HTML, not GIFTI; name the runs alone in data.files")
    if text.lstrip().startswith(("{", "[")):
        raise UserError(f"{path}: is JSON; sidecars are found beside the runs, name the runs alone in data.files")
    if text.lstrip().startswith("type") and "-attribute" in text:
        return "afni"
    if path.name.lower().removesuffix(".gz").removesuffix(".bz2").endswith((".nii", ".img", ".hdr", ".brik", ".mat")):
        raise UserError(f"{path}: is text ({text[:24]!r}), not an image as its name says; get the file again")
    return "text"


def _undecodable(head: bytes) -> bool:
    try:
        # The last character may be cut in two.
        head[:-4].decode("utf-8-sig") if len(head) == FIRST_BYTES else head.decode("utf-8-sig")
    except UnicodeDecodeError:
        return True
    return False


def check_length(path: Path, expected: int) -> None:
    """Refuse a file whose decompressed content is not as long as its header says.

    Parameters
    ----------
    expected
        Bytes of header and data together.

    Raises
    ------
    UserError
        When the file is cut short, or goes on after its data.
    """
    found = _content_length(path, expected)
    if found < expected:
        raise UserError(
            f"{path}: is cut short: its header tells of {expected:,} bytes, {found:,} are there; get the file again"
        )
    if found > expected:
        raise UserError(
            f"{path}: holds {found - expected:,} bytes more than the {expected:,} that its header tells of: its shape "
            "or the place of its data is wrong, values may be shifted; get the file again, or mend its header"
        )


def _content_length(path: Path, expected: int) -> int:
    """Bytes of the content; counted little further than `expected`."""
    size = path.stat().st_size
    if not is_compressed(path):
        return size
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(-4, os.SEEK_END)
        trailer = int.from_bytes(file.read(4), "little")
    # RFC 1952: the last four bytes are the length modulo 2^32. Files of several members, or cut short, are counted.
    if is_gzip and trailer == expected % (1 << 32) and expected <= DEFLATE_RATIO * size:
        return expected
    return _count(path, expected + BLOCK_BYTES)


def _count(path: Path, most: int) -> int:
    total = 0
    with decoding(path, "a compressed file"), open_bytes(path) as file:
        while total < most and (block := file.read(min(BLOCK_BYTES, most - total))):
            total += len(block)
    return total


def check_end(path: Path, file: IO[bytes]) -> None:
    """Read past the last byte of the data, which is where a compressed file's checksum is compared."""
    with decoding(path, "a compressed file"):
        if file.read(1):
            raise UserError(f"{path}: goes on after its data; get the file again")
