"""NIfTI-1 and NIfTI-2 in one file."""

from pathlib import Path
from typing import IO

import numpy as np
from nibabel.arrayproxy import ArrayProxy
from nibabel.nifti1 import Nifti1Header
from nibabel.nifti2 import Nifti2Header
from nibabel.spatialimages import HeaderDataError

from hyperslab.data.sources.fmri.content import check_length, decoding, first_bytes, is_compressed, open_bytes
from hyperslab.data.sources.fmri.image import Image, check_values
from hyperslab.data.sources.fmri.repetition import stated
from hyperslab.data.sources.fmri.series import Repetition

TIME_SERIES_INTENTS = ("none", "time series")
INTENT_ADVICE = "no time series; set the intent code to 0 where they are"
ORIENTATION_TOLERANCE = 0.1
"""Difference of an entry of two affines, in the file's unit, that rounding explains."""
# NIfTI-1 specification, xyzt_units: the low three bits are of space, the next three of time.
MILLIMETRES = {1: ("m", 1000.0), 2: ("mm", 1.0), 3: ("um", 0.001)}
TIME_UNITS = {0: "unknown", 8: "sec", 16: "msec", 24: "usec", 32: "hz", 40: "ppm", 48: "rads"}


def open_nifti(path: Path) -> Image:
    """The image in a NIfTI file.

    Raises
    ------
    UserError
        When it cannot be read, or its length is not what its header says.
    """
    file = open_bytes(path)
    try:
        return _nifti_image(path, file)
    except BaseException:
        file.close()
        raise


def _nifti_image(path: Path, file: IO[bytes]) -> Image:
    with decoding(path, "NIfTI"):
        head = first_bytes(path)
        header_class = Nifti2Header if head[4:8] == b"n+2\0" else Nifti1Header
        header = header_class.from_fileobj(file)
        complaints = header_class.diagnose_binaryblock(head[: header_class.template_dtype.itemsize])
        shape, dtype = tuple(map(int, header.get_data_shape())), header.get_data_dtype()
        offset, intent = int(header.get_data_offset()), str(header.get_intent()[0])
        affine, zooms = np.asarray(header.get_best_affine(), float), header.get_zooms()
        data = ArrayProxy(file, header)
    check_values(path, shape, dtype, affine)
    check_length(path, offset + int(np.prod(shape, dtype=object)) * dtype.itemsize)
    unit, scale = MILLIMETRES.get(int(header["xyzt_units"]) & 7, ("unknown", 1.0))
    affine[:3] *= scale
    kept = _without_ones(shape)
    oddities = [f"header: {line}" for line in complaints.splitlines()]
    oddities += _oddities(path, header, unit)
    if kept != shape:
        oddities.append(f"has {len(shape)} dimensions, those after time of size 1: left out")
    return Image(
        data=data.reshape(kept),
        shape=kept,
        kind=f"NIfTI-{2 if header_class is Nifti2Header else 1}, {dtype.name}",
        affine=affine,
        zooms=tuple(_decimal(zoom) * scale for zoom in zooms[:3]),
        data_path=path,
        file=file,
        repetition=_nifti_repetition(header, zooms),
        oddities=tuple(oddities),
        has_orientation=bool(header["qform_code"] > 0 or header["sform_code"] > 0),
        no_series="" if intent in TIME_SERIES_INTENTS else f"its values are {intent!r} (NIfTI intent), {INTENT_ADVICE}",
    )


def _nifti_repetition(header: Nifti1Header, zooms: tuple[np.floating, ...]) -> Repetition:
    if len(zooms) < 4:
        return Repetition(seconds=None)
    unit = TIME_UNITS.get(int(header["xyzt_units"]) & 0x38, "unknown")
    return stated(zooms[3], unit)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without dimensions of 1 after time."""
    return shape[:4] if len(shape) > 4 and max(shape[4:]) == 1 else shape


def _oddities(path: Path, header: Nifti1Header, unit: str) -> list[str]:
    lines = []
    if unit == "unknown":
        lines.append("the unit of its voxels' sizes is not stated: taken as mm")
    elif unit != "mm":
        lines.append(f"its voxels' sizes are in {unit}: zooms and affine converted to mm")
    if header["qform_code"] <= 0 and header["sform_code"] <= 0:
        lines.append("its orientation is not stated (qform and sform codes are 0): left and right are not known")
    elif header["qform_code"] > 0 and header["sform_code"] > 0 and not _same_orientation(header):
        lines.append("its qform and sform disagree: the sform is taken, as nibabel does")
    if is_compressed(path) != (path.suffix.lower() in (".gz", ".bz2")):
        lines.append(f"is {'' if is_compressed(path) else 'not '}compressed, against its name")
    return lines


def _same_orientation(header: Nifti1Header) -> bool:
    try:
        with np.errstate(invalid="ignore"):
            return bool(np.allclose(header.get_qform(), header.get_sform(), rtol=0, atol=ORIENTATION_TOLERANCE))
    except (HeaderDataError, ValueError):  # a quaternion that is none
        return False


def _decimal(value: np.floating) -> float:
    """The shortest decimal of a float32, such as 2.2 for 2.200000047."""
    return float(str(value))
