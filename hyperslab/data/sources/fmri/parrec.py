"""Philips PAR/REC."""

from pathlib import Path

import numpy as np
from nibabel.parrec import PARRECArrayProxy, PARRECHeader

from hyperslab.data.sources.fmri.content import check_length, decoding, is_compressed
from hyperslab.data.sources.fmri.image import Image, check_values, find_data
from hyperslab.data.sources.fmri.repetition import stated
from hyperslab.data.sources.fmri.series import Repetition
from hyperslab.errors import UserError

SAME_TIME = 0.02
"""Share by which Philips' clock may differ from the repetition time."""


def open_parrec(path: Path) -> Image:
    """The image that a `.PAR` describes.

    Raises
    ------
    UserError
        When it cannot be read, or its length is not what its header says.
    """
    data_path = find_data(path, (".REC", ".rec"))
    with decoding(path, "PAR/REC"), path.open(encoding="latin-1") as text:
        header = PARRECHeader.from_fileobj(text, permit_truncated=False, strict_sort=False)
        labels = header.get_volume_labels()
        shape, dtype = tuple(map(int, header.get_data_shape())), header.get_data_dtype()
        affine, zooms = np.asarray(header.get_affine(), float), header.get_zooms()
        length = int(np.prod(header.get_rec_shape(), dtype=object)) * dtype.itemsize
        repetition = _philips_repetition(header)
    check_values(path, shape, dtype, affine)
    if is_compressed(data_path):
        raise UserError(f"{data_path}: is compressed; decompress it, such as with `gunzip`")
    check_length(data_path, length)
    dynamics = labels.pop("dynamic scan number", np.arange(2))
    if labels or (np.diff(dynamics) <= 0).any():
        what = ", ".join(labels) or "dynamics out of order"
        raise UserError(f"{path}: holds several images of a moment ({what}); export one kind, such as the magnitude")
    with decoding(path, "PAR/REC"):
        data = PARRECArrayProxy(str(data_path), header)
    return Image(
        data=data,
        shape=shape,
        kind=f"PAR/REC, {dtype.name}",
        affine=affine,
        zooms=tuple(map(float, zooms[:3])),
        data_path=data_path,
        file=None,
        repetition=repetition,
        oddities=("values are those displayed on the console (DV), scaled slice by slice",),
    )


def _philips_repetition(header: PARRECHeader) -> Repetition:
    """The repetition time of the header, where the volumes' own clock agrees."""
    times = np.unique(np.ravel(header.general_info["repetition_time"]))
    if len(times) != 1:
        return Repetition(seconds=None, reason=f"its header says several repetition times ({times} ms)")
    repetition = stated(float(times[0]), "msec")
    begins = header.image_defs["dyn_scan_begin_time"]
    begins = np.unique(begins) if "dyn_scan_begin_time" in header.image_defs.dtype.names else np.empty(0)
    if repetition.seconds is None or len(begins) < 2:
        return repetition
    step = float(np.median(np.diff(begins)))
    if abs(step - repetition.seconds) <= SAME_TIME * repetition.seconds:
        return repetition
    return Repetition(
        seconds=None,
        reason=f"its header says {repetition.seconds:g} s between excitations, its volumes begin every {step:g} s",
    )
