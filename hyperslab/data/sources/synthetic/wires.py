"""Images of wire planes as wire-cell writes them: an archive of npy files with the charge on each wire and tick."""

import gzip
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from hyperslab.data.sources.synthetic.drift import Clouds, Detector
from hyperslab.data.sources.synthetic.tracks import Box

TICK_NS = 500.0
WIRES = Detector(box=Box(x=72.0, y=60.0, z=60.0), noise_ke=0.2, clouds=8)
"""A larger box, read out by wires on the side of negative x."""
_PITCH_CM = 0.3
_PLANES_DEGREES = (60.0, -60.0, 0.0)
"""Angle of the wires of planes U, V and W to the vertical."""
_PULSE = np.exp(-0.5 * (np.arange(-6, 7) / 2.0) ** 2)
"""What is left of a pulse once the wires' response is taken out: a Gaussian of two ticks, six ticks to either side."""


@dataclass(frozen=True, slots=True)
class Plane:
    """Parallel wires."""

    angle: float
    """Radians from the vertical."""
    half_cm: float
    """Half of the way across all wires."""

    @property
    def num_wires(self) -> int:
        """How many there are."""
        return int(np.ceil(2 * self.half_cm / _PITCH_CM))

    def wire(self, y: npt.NDArray[np.float64], z: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Number of the nearest wire."""
        across = y * np.sin(self.angle) + z * np.cos(self.angle)
        nearest = ((across + self.half_cm) / _PITCH_CM).astype(np.int64)
        return np.asarray(np.clip(nearest, 0, self.num_wires - 1), np.int64)


def planes(box: Box) -> tuple[Plane, ...]:
    """The three planes of an anode."""
    angles = np.deg2rad(_PLANES_DEGREES)
    return tuple(Plane(a, box.y * abs(np.sin(a)) + box.z * abs(np.cos(a))) for a in angles)


def num_ticks(detector: Detector) -> int:
    """Ticks of a frame: the longest drift and a margin."""
    return int(detector.box.x / detector.velocity * 1000 / TICK_NS) + 32


def image(detector: Detector, clouds: Clouds, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Electrons on each channel and tick, zero where nothing arrived; planes one after another; (channel, tick)."""
    ticks = num_ticks(detector)
    here = clouds.side == 0
    tick = np.minimum(clouds.drift_us[here] * 1000 / TICK_NS, ticks - 1).astype(np.int64)
    return np.concatenate(
        [
            _plane_image(detector, plane.wire(clouds.y[here], clouds.z[here]), tick, clouds.charge_ke[here], shape, rng)
            for plane in planes(detector.box)
            for shape in [(plane.num_wires, ticks)]
        ]
    )


class FrameArchive:
    """An archive of frames, appended event by event."""

    def __init__(self, raw: BinaryIO, packed: gzip.GzipFile, tar: tarfile.TarFile, anode: int) -> None:
        self._raw, self._gzip, self._tar = raw, packed, tar
        self._tag = f"gauss{anode}"

    @classmethod
    @contextmanager
    def create(cls, path: Path, anode: int = 0) -> Iterator["FrameArchive"]:
        """An archive without events so far."""
        with (
            path.open("wb") as raw,
            # Without a name or a time, so that equal frames make equal bytes.
            gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0) as packed,
            tarfile.open(mode="w|", fileobj=packed) as tar,
        ):
            yield cls(raw, packed, tar, anode)

    @property
    def size_bytes(self) -> int:
        """Bytes of the file so far."""
        return self._raw.tell()

    def append(self, event: int, frame: npt.NDArray[np.float32]) -> None:
        """Write one event: its frame, the number of each channel, and the ticks' start, period and first number."""
        self._add(f"frame_{self._tag}_{event}.npy", frame)
        self._add(f"channels_{self._tag}_{event}.npy", np.arange(len(frame), dtype=np.int32))
        self._add(f"tickinfo_{self._tag}_{event}.npy", np.array([0.0, TICK_NS, 0.0]))
        self._gzip.flush()

    def _add(self, name: str, values: npt.NDArray[Any]) -> None:
        content = io.BytesIO()
        np.lib.format.write_array(content, values, allow_pickle=False)
        member = tarfile.TarInfo(name)
        member.size = content.tell()
        content.seek(0)
        self._tar.addfile(member, content)


def _plane_image(
    detector: Detector,
    wire: npt.NDArray[np.int64],
    tick: npt.NDArray[np.int64],
    charge_ke: npt.NDArray[np.float64],
    shape: tuple[int, int],
    rng: np.random.Generator,
) -> npt.NDArray[np.float32]:
    charge = np.bincount(wire * shape[1] + tick, charge_ke * 1e3, shape[0] * shape[1]).reshape(shape)
    result = np.zeros(shape, np.float32)
    hit = np.flatnonzero(charge.any(axis=1))
    if not len(hit):
        return result
    spread = np.stack([np.convolve(row, _PULSE / _PULSE.sum(), mode="same") for row in charge[hit]])
    # As after deconvolution, there is noise only around signals, and nothing elsewhere.
    around = spread > 0
    noisy = spread[around] + detector.noise_ke * 1e3 * rng.standard_normal(around.sum())
    spread[around] = np.maximum(noisy, 0.0)
    result[hit] = spread
    return result
