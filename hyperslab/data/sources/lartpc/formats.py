"""Which format a file is of, found out from its content."""

import re
from pathlib import Path

import h5py

from hyperslab.data.sources.lartpc.clouds import COLUMNS, Clouds
from hyperslab.data.sources.lartpc.depos import DATA, Depos
from hyperslab.data.sources.lartpc.event_display import EventDisplay
from hyperslab.data.sources.lartpc.flow import EVENTS, HITS, Flow
from hyperslab.data.sources.lartpc.frame_archives import MEMBER, FrameArchives
from hyperslab.data.sources.lartpc.hdf5 import holds, names_in, open_hdf5
from hyperslab.data.sources.lartpc.header import Format
from hyperslab.data.sources.lartpc.numpy_archive import is_compressed_tar, read_headers
from hyperslab.data.sources.lartpc.packets import Packets
from hyperslab.data.sources.lartpc.pilarnet import PilarNet
from hyperslab.data.sources.lartpc.pixelmaps import PixelMaps
from hyperslab.data.sources.lartpc.readout import BATCH, Readout
from hyperslab.data.sources.lartpc.segments import SegmentColumns, Segments
from hyperslab.errors import UserError

ALL: tuple[Format, ...] = (
    Flow(),
    EventDisplay(),
    Segments(),
    SegmentColumns(),
    Packets(),
    PilarNet(),
    Readout(),
    Clouds(),
    Depos(),
    FrameArchives(),
    PixelMaps(),
)
FORMATS = {known.name: known for known in ALL}

SUFFIXES = re.compile(r"\.(h5|hdf5|hdf|npz|zip|tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz)|gz)$", re.IGNORECASE)
"""Names of files that are taken from a directory."""

READ = "ndlar_flow, larnd-sim, LArPix and PILArNet-M HDF5, npz point clouds, Wire-Cell archives and CVN pixel maps"
MAGIC_BYTES = 512
TAR_MAGIC = slice(257, 262)
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
ZLIB_STARTS = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def recognise(path: str) -> Format:
    """The format of a file.

    Raises
    ------
    UserError
        When it cannot be read, or is of none of the formats: with what it is, where that is known.
    """
    magic = _first_bytes(path)
    if magic.startswith(HDF5_MAGIC):
        return FORMATS[_hdf5_format(path)]
    if magic.startswith(b"PK"):
        return FORMATS[_numpy_format(path)]
    if is_compressed_tar(magic) or magic[TAR_MAGIC] == b"ustar":
        return FORMATS[FrameArchives.name]
    if magic.startswith(ZLIB_STARTS):
        return FORMATS[PixelMaps.name]
    raise UserError(f"{path}: {_what_else(magic)}")


def files_in(path: str) -> list[str]:
    """The file itself, or the files of a directory whose names fit a format, by name.

    Raises
    ------
    UserError
        When there is no such file, or none in the directory.
    """
    if "://" in path:
        raise UserError(f"{path}: is a URL; lartpc files are read from a disk, fetch it first")
    if not Path(path).is_dir():
        # The truth of a pixel map is read with it: a pattern such as dir/* names both.
        return [] if _is_truth_beside(Path(path)) else [path]
    found = sorted(str(file) for file in Path(path).iterdir() if SUFFIXES.search(file.name) and file.is_file())
    if not found:
        raise UserError(f"{path}: is a directory without HDF5, npz, tar or gz files; name the files, such as dir/*.h5")
    return found


def _is_truth_beside(path: Path) -> bool:
    return path.suffix == ".info" and path.with_suffix(".gz").exists()


def _first_bytes(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            magic = file.read(MAGIC_BYTES)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check data.files") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); check the path and its permissions") from None
    if not magic:
        raise UserError(f"{path}: is empty (0 bytes); fetch it again")
    return magic


def _what_else(magic: bytes) -> str:
    if magic.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"
    if magic.startswith(b"\x93NUMPY"):
        return "is a single numpy array without events; hits need their positions and events, name other files"
    if magic.startswith(b"root"):
        return "is a ROOT file; convert it to HDF5 with larnd-sim's dumpTree.py, or the like"
    if magic.lstrip().startswith((b"[", b"{")):
        return (
            "is JSON: lists of hits without names of their columns, units or events; take the HDF5 file that it was "
            "made of, with events built"
        )
    return f"is of no known format (it begins with {magic[:8]!r}); read are {READ}"


def _hdf5_format(path: str) -> str:
    with open_hdf5(path) as file:
        names = names_in(file)
        held = set(names)
        if holds(file, f"{EVENTS}/data") and any(holds(file, f"{hits}/data") for hits in HITS.values()):
            return Flow.name
        if {"events", "hits"} <= held and _has_field(file, "events", "hit_ref"):
            return EventDisplay.name
        if _has_field(file, "segments", "x") or _has_field(file, "tracks", "dEdx"):
            return Segments.name
        if "packets" in held:
            return Packets.name
        if {"point", "cluster"} <= held:
            return PilarNet.name
        if set(SegmentColumns.required) <= held:
            return SegmentColumns.name
        if any(BATCH.fullmatch(name) for name in names):
            return Readout.name
        raise UserError(f"{path}: {_what_hdf5(held)}")


def _has_field(file: h5py.File, name: str, field: str) -> bool:
    """Whether there is such a table with such a field; what a link leads to is not looked at."""
    if not file.id.links.exists(name.encode()) or not isinstance(file.get(name, getlink=True), h5py.HardLink):
        return False
    return isinstance(file[name], h5py.Dataset) and field in (file[name].dtype.names or ())


def _what_hdf5(held: set[str]) -> str:
    if {"msgs", "msg_headers"} <= held:
        return (
            "holds raw PACMAN messages; convert it with larpix-control: "
            "`convert_rawhdf5_to_hdf5.py --input_filename RAW.h5 --output_filename PACKETS.h5`, then build events"
        )
    if "raw_packet" in held:
        return "holds packets of LArPix+HDF5 version 0; version 2 is read, convert it with larpix-control"
    if "charge" in held:
        return f"is an h5flow file without {EVENTS} and calibrated hits; run ndlar_flow up to the calibrated hits"
    if {"adc", "pixels", "ticks"} <= held:
        return (
            "is larnd-sim-jax readout without events and positions (adc, pixels, ticks); write it with a present "
            "version, which has both"
        )
    listed = ", ".join(sorted(held)[:6]) or "nothing"
    return f"is HDF5 of no known format (it holds {listed}); read are {READ}"


def _numpy_format(path: str) -> str:
    names = set(read_headers(path))
    if any(DATA.fullmatch(name) for name in names):
        return Depos.name
    if any(MEMBER.fullmatch(f"{name}.npy") for name in names):
        return FrameArchives.name
    if set(COLUMNS) <= names:
        return Clouds.name
    listed = ", ".join(sorted(names)[:6]) or "nothing"
    raise UserError(
        f"{path}: its arrays ({listed}) are no events: points need {', '.join(COLUMNS)}, frames frame_TAG_IDENT; "
        "name other files"
    )
