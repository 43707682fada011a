"""Series on a surface, on grayordinates, or of the parcels of a CIFTI file."""

import hashlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from nibabel.cifti2 import Cifti2Image
from nibabel.cifti2.cifti2_axes import BrainModelAxis, ParcelsAxis, SeriesAxis
from nibabel.fileholders import FileHolder
from nibabel.gifti import GiftiImage
from nibabel.nifti1 import intent_codes

from hyperslab.data.sources.fmri.content import check_end, check_length, decoding, is_compressed, open_bytes
from hyperslab.data.sources.fmri.repetition import stated
from hyperslab.data.sources.fmri.series import Floats, Repetition, Series, check_frames, places, to_float32
from hyperslab.data.sources.index import Axis
from hyperslab.errors import UserError

SLAB_BYTES = 64 << 20
WHOLE_BYTES = 512 << 20
"""A series of up to this is kept whole: each reading passes over all of the file."""
CIFTI_TIME_UNITS = {"SECOND": "sec"}
STRUCTURE = "AnatomicalStructurePrimary"
"""Key of a GIFTI's metadata whose value is such as CortexLeft."""
SERIES_INTENTS = ("none", "time series")


class Cifti:
    """An open dense or parcellated series of CIFTI-2."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._compressed = is_compressed(path)
        self._file: IO[bytes] = open_bytes(path)
        self._whole: Floats | None = None
        try:
            self.series = self._open()
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> Series:
        with decoding(self._path, "CIFTI-2"):
            image = Cifti2Image.from_file_map({"image": FileHolder(fileobj=self._file)})
            axes = [image.header.get_axis(number) for number in range(image.ndim)]
            intent = str(image.nifti_header.get_intent()[0])
            dtype, offset = image.get_data_dtype(), int(image.dataobj.offset)
            shape = tuple(map(int, image.shape))
        self._check(axes, shape, dtype, intent)
        check_length(self._path, offset + int(np.prod(shape, dtype=object)) * dtype.itemsize)
        check_frames(self._path, shape[0])
        self._data = image.dataobj
        time, where = axes
        return Series(
            path=self._path,
            kind=f"CIFTI-2 {intent}, {dtype.name}, {shape[0]} x {shape[1]}",
            frames=shape[0],
            space=(_axis(where),),
            repetition=stated(float(time.step), CIFTI_TIME_UNITS.get(time.unit, str(time.unit).lower())),
            layout=_layout(where),
            details={"structures": _structures(where)} if isinstance(where, BrainModelAxis) else {},
        )

    def _check(self, axes: list[Any], shape: tuple[int, ...], dtype: np.dtype[Any], intent: str) -> None:
        path = self._path
        kinds = " x ".join(type(axis).__name__.removesuffix("Axis") for axis in axes)
        if len(axes) != 2 or not isinstance(axes[0], SeriesAxis):
            raise UserError(f"{path}: is CIFTI of {kinds} ({intent}), not a series; name dtseries or ptseries files")
        if not isinstance(axes[1], BrainModelAxis | ParcelsAxis):
            raise UserError(f"{path}: is a series of {kinds}, not of grayordinates or parcels; name other files")
        if shape != tuple(map(len, axes)):
            raise UserError(f"{path}: its data are {shape}, its axes {tuple(map(len, axes))}: one is damaged")
        if dtype.kind not in "iuf":
            raise UserError(f"{path}: its values are of type {dtype}, not real numbers")

    def frames(self, start: int, stop: int) -> Floats:
        """Frames `[start, stop)`, shape (frame, place)."""
        frames, size = self._data.shape
        if 4 * frames * size > WHOLE_BYTES:
            return self._read(start, stop)
        if self._whole is None:
            self._whole = self._read(0, frames)
        return self._whole[start:stop]

    def _read(self, start: int, stop: int) -> Floats:
        frames, size = self._data.shape
        block = np.empty((stop - start, size), np.float32)
        # On disk the series of one place lies in one piece: all of it passes by, a slab of places at a time.
        step = max(1, SLAB_BYTES // (8 * frames))
        with decoding(self._path, "CIFTI-2"):
            for place in range(0, size, step):
                slab = np.asarray(self._data[:, place : place + step])
                block[:, place : place + step] = to_float32(slab[start:stop])
        if self._compressed:
            check_end(self._path, self._file)
        return block

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _axis(where: Any) -> Axis:
    if isinstance(where, ParcelsAxis):
        return places("parcel", len(where), tuple(map(str, where.name)))
    return places("grayordinate", len(where), long_name="vertices and voxels in the order of the CIFTI header")


def _layout(where: Any) -> str:
    digest = hashlib.sha256("\n".join(map(str, where.name)).encode())
    if isinstance(where, BrainModelAxis):
        digest.update(np.asarray(where.vertex).tobytes())
        digest.update(np.asarray(where.voxel).tobytes())
    return digest.hexdigest()


def _structures(where: BrainModelAxis) -> list[list[Any]]:
    """Name, first place and number of places of each structure."""
    return [[str(name), piece.start or 0, len(model)] for name, piece, model in where.iter_structures()]


class Gifti:
    """The series of a GIFTI file, which is read whole: its arrays are compressed text."""

    def __init__(self, path: Path) -> None:
        with decoding(path, "GIFTI"):
            with open_bytes(path) as file:
                content = file.read()
            # From memory: a GIFTI may name another file as its data, which is then refused.
            image = GiftiImage.from_bytes(content)
            arrays = [np.asarray(array.data) for array in image.darrays]
            intents = {intent_codes.label[array.intent] for array in image.darrays}
            step = image.darrays[0].meta.get("TimeStep") if image.darrays else None
            hemisphere = _hemisphere(path, image)
        self._values = _time_first(path, arrays, intents)
        frames, vertices = self._values.shape
        reason = "GIFTI does not say in which unit its time step is" + (f" (found {step})" if step else "")
        self.series = Series(
            path=path,
            kind=f"GIFTI, {arrays[0].dtype.name}, {frames} x {vertices}",
            frames=frames,
            space=(places("vertex", vertices, long_name="vertex of the surface"),),
            repetition=Repetition(seconds=None, reason=reason),
            layout=hemisphere,
        )

    def frames(self, start: int, stop: int) -> Floats:
        """Frames `[start, stop)`, shape (frame, vertex)."""
        return self._values[start:stop]

    def close(self) -> None:
        """Nothing is open."""


def _hemisphere(path: Path, image: GiftiImage) -> str:
    """The side that the file's name, or its header, says."""
    found = [path.name.split("hemi-", 1)[1][0]] if "hemi-" in path.name else []
    metas = [image.meta, *(array.meta for array in image.darrays[:1])]
    return next(iter([*found, *(meta[STRUCTURE][6:7] for meta in metas if STRUCTURE in meta)]), "")


def _time_first(path: Path, arrays: list[np.ndarray], intents: set[str]) -> Floats:
    """The arrays of a file as one, shape (frame, vertex)."""
    shapes = sorted({array.shape for array in arrays})
    found = f"{len(arrays)} array(s) of {', '.join(map(str, shapes)) or 'nothing'}, {', '.join(sorted(intents))}"
    if not intents <= set(SERIES_INTENTS) or len(shapes) != 1:
        raise UserError(f"{path}: is no GIFTI series ({found}); name .func.gii files of time series")
    if any(array.dtype.kind not in "iuf" for array in arrays):
        raise UserError(f"{path}: its values are of type {arrays[0].dtype}, not real numbers")
    flat = [array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array for array in arrays]
    if len(arrays) == 1 and flat[0].ndim == 2:
        # GIFTI 1.0, section on Dim: the first dimension of an array is the vertices.
        flat = list(flat[0].T)
    if flat[0].ndim != 1 or len(flat) < 2:
        raise UserError(f"{path}: is no GIFTI series ({found}); a series holds an array for each frame")
    return np.stack([to_float32(array) for array in flat])
