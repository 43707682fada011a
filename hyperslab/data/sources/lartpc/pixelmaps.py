"""Pixel maps of DUNE's CVN: one zlib-compressed image of three views a file, truth in a text file beside it."""

import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hyperslab.data.config import DataSettings
from hyperslab.data.sources import Block
from hyperslab.data.sources.index import Axis, Channel, Index, RawFile
from hyperslab.data.sources.lartpc.header import FrameLabels, Header
from hyperslab.errors import UserError

SHAPE = (3, 500, 500)
NUM_BYTES = 750_000
INFO_LIMIT_BYTES = 1 << 16

_SPACE = tuple(
    Axis(name=name, units="1", values=tuple(map(float, range(size))), long_name=f"{name} in the pixel map")
    for name, size in zip(("wire", "tick"), SHAPE[1:], strict=True)
)
_VIEWS = tuple(Channel(name=f"view{view}", units="1", long_name=f"view {view}") for view in range(SHAPE[0]))

# CVNZlibMaker_module.cc and TrainingData.cxx of DUNE/dunereco and larrecodnn write one value a line in this order;
# early versions end before the last two.
INFO = (
    ("interaction", int),
    ("nu_energy_gev", float),
    ("lepton_energy_gev", float),
    ("reco_nue_energy_gev", float),
    ("reco_numu_energy_gev", float),
    ("reco_nutau_energy_gev", float),
    ("event_weight", float),
    ("nu_pdg", int),
    ("num_protons", int),
    ("num_pions", int),
    ("num_pizeros", int),
    ("num_neutrons", int),
    ("topology", int),
    ("topology_alt", int),
    ("lepton_angle", float),
    ("num_hits", int),
)
INFO_LENGTHS = (14, 16)


class PixelMaps:
    """`NAME.gz` (uint8, view x wire x tick) and `NAME.info`."""

    name = "cvn-pixel-maps"
    kind = "CVN pixel map"

    def read_header(self, path: str, _settings: DataSettings) -> Header:
        """One frame, and its truth; the size of the image is checked when it is read."""
        info = _read_info(path)
        oddities = ["pixels are 8-bit numbers without a unit; wires and ticks are numbered from 0 as in the file"]
        if not info:
            oddities.append(f"no {Path(path).with_suffix('.info').name} beside it: there is no truth")
        return Header(
            path=path,
            format=self.name,
            kind=self.kind,
            num_frames=1,
            space=_SPACE,
            channels=_VIEWS,
            frame_labels={"event_id": (Path(path).stem,), **info},
            oddities=tuple(oddities),
        )

    def read(self, file: RawFile, index: Index, _first: int, _last: int) -> Block:
        """The frame of the file."""
        views = [int(channel.name.removeprefix("view")) for channel in index.channels]
        return {"values": _read_image(file.path)[None, views].astype(np.float32)}

    def odd_values(self, header: Header) -> Iterator[str]:
        """A line for an image that holds nothing."""
        if not _read_image(header.path).any():
            yield "all pixels are 0"


def _read_image(path: str) -> np.ndarray:
    unpacker = zlib.decompressobj()
    try:
        with Path(path).open("rb") as file:
            # One byte more than there should be tells a larger image, without unpacking all of it.
            data = unpacker.decompress(file.read(4 * NUM_BYTES), NUM_BYTES + 1)
    except (OSError, zlib.error) as error:
        raise UserError(f"{path}: cannot be unpacked ({error}); fetch it again") from None
    if len(data) != NUM_BYTES or not unpacker.eof:
        found = "more" if len(data) > NUM_BYTES else f"{len(data):,}"
        raise UserError(
            f"{path}: holds {found} bytes, not the {NUM_BYTES:,} of a pixel map, or is cut short; fetch it again"
        )
    return np.frombuffer(data, np.uint8).reshape(SHAPE)


def _read_info(path: str) -> FrameLabels:
    place = Path(path).with_suffix(".info")
    if not place.exists():
        return {}
    try:
        with place.open(encoding="ascii") as file:
            lines = file.read(INFO_LIMIT_BYTES).split()
        if len(lines) not in INFO_LENGTHS:
            known = " or ".join(map(str, INFO_LENGTHS))
            raise UserError(f"{place}: has {len(lines)} values, CVN's have {known}; write it again")
        return {name: (kind(text),) for (name, kind), text in zip(INFO, lines, strict=False)}
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"{place}: cannot be read as CVN's truth ({error}); write it again") from None
