"""Volumes: 4-D NIfTI, AFNI and PAR/REC."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from hyperslab.data.sources.fmri.afni import open_afni
from hyperslab.data.sources.fmri.content import check_end, decoding, is_compressed
from hyperslab.data.sources.fmri.image import Image, name_oddities
from hyperslab.data.sources.fmri.nifti import open_nifti
from hyperslab.data.sources.fmri.parrec import open_parrec
from hyperslab.data.sources.fmri.series import Floats, Series, check_frames, places, to_float32
from hyperslab.errors import UserError

# Zeros shrink 200 to 1 or more at every level of gzip, images of a head about 2 to 1.
ZERO_RATIO = 150
HEADER_BYTES = 512


class Volume:
    """An open series of volumes."""

    def __init__(self, path: Path, image: Image) -> None:
        self._path = path
        self._image = image
        self._compressed = is_compressed(image.data_path)
        if len(image.shape) != 4:
            raise UserError(f"{path}: {_what_else(path, image)}")
        if image.no_series:
            raise UserError(f"{path}: {image.no_series}")
        check_frames(path, image.shape[3])
        self.series = self._describe()

    def _describe(self) -> Series:
        image = self._image
        zero = ("all values are zero",) if self._is_zero() else ()
        sizes = " x ".join(map(str, image.shape))
        return Series(
            path=self._path,
            kind=f"{image.kind}, {sizes}",
            frames=image.shape[3],
            space=tuple(
                places(name, size, long_name=f"voxel index along {name}")
                for name, size in zip("xyz", image.shape[:3], strict=True)
            ),
            repetition=image.repetition,
            companions=() if image.data_path == self._path else (image.data_path,),
            affine=tuple(tuple(map(float, row)) for row in image.affine),
            has_orientation=image.has_orientation,
            zooms=image.zooms,
            oddities=(*image.oddities, *zero),
        )

    def _is_zero(self) -> bool:
        """Whether all values are zero; looked for only where the file is small enough to hold nothing else."""
        size = self._image.data_path.stat().st_size
        if not self._compressed or size > HEADER_BYTES + np.prod(self._image.shape, dtype=float) / ZERO_RATIO:
            return False
        return not any(self.frames(frame, frame + 1).any() for frame in range(self._image.shape[3]))

    def frames(self, start: int, stop: int) -> Floats:
        """Frames `[start, stop)`, shape (frame, x, y, z)."""
        block = np.empty((stop - start, *self._image.shape[:3]), np.float32)
        path = self._image.data_path
        with decoding(path, self._image.kind):
            for frame in range(start, stop):
                block[frame - start] = to_float32(np.asarray(self._image.data[..., frame]))
        if stop == self._image.shape[3] and self._compressed and self._image.file is not None:
            check_end(path, self._image.file)
        return block

    def close(self) -> None:
        """Let go of the file."""
        self._image.close()


def open_volume(path: Path, kind: str) -> Volume:
    """The series of volumes in a file of that kind: `nifti`, `afni` or `parrec`.

    Raises
    ------
    UserError
        When it cannot be read, or is no series of volumes.
    """
    image = open_image(path, kind)
    try:
        return Volume(path, image)
    except UserError:
        image.close()
        raise


def open_image(path: Path, kind: str) -> Image:
    """The image in a file, of three dimensions or four.

    Raises
    ------
    UserError
        When it cannot be read, or its length is not what its header says.
    """
    openers: dict[str, Callable[[Path], Image]] = {"nifti": open_nifti, "afni": open_afni, "parrec": open_parrec}
    if kind not in openers:
        raise UserError(f"{path}: is no image of voxels; give a NIfTI file")
    return openers[kind](path)


def _what_else(path: Path, image: Image) -> str:
    sizes = " x ".join(map(str, image.shape))
    if len(image.shape) == 3:
        note = "".join(f" ({line})" for line in name_oddities(path, image.zooms))
        return f"is one 3-D image ({sizes}), not a series{note}; it may serve as data.fmri.mask or data.fmri.atlas"
    return f"has {len(image.shape)} dimensions ({sizes}), a series of volumes has 4; split it with `fslsplit`"
