"""AFNI: a `.HEAD` and its `.BRIK`."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from nibabel.brikhead import AFNIArrayProxy, AFNIHeader

from hyperslab.data.sources.fmri.content import check_length, decoding, open_bytes
from hyperslab.data.sources.fmri.image import Image, check_values, find_data
from hyperslab.data.sources.fmri.repetition import stated
from hyperslab.data.sources.fmri.series import Repetition

# AFNI's README.attributes, TAXIS_NUMS[2].
AFNI_TIME_UNITS = {77001: "msec", 77002: "sec", 77003: "hz"}


def open_afni(path: Path) -> Image:
    """The image that a `.HEAD` describes.

    Raises
    ------
    UserError
        When it cannot be read, or its length is not what its header says.
    """
    data_path = find_data(path, (".BRIK", ".BRIK.gz", ".BRIK.bz2", ".brik", ".brik.gz"))
    with decoding(path, "an AFNI header"):
        text = path.read_text("latin-1")
        header = AFNIHeader.from_fileobj(io.StringIO(text))
        shape, dtype = tuple(map(int, header.get_data_shape())), header.get_data_dtype()
        affine, zooms = np.asarray(header.get_affine(), float), header.get_zooms()
        repetition, no_series = _afni_repetition(header.info, shape)
    check_values(path, shape, dtype, affine)
    check_length(data_path, int(np.prod(shape, dtype=object)) * dtype.itemsize)
    file = open_bytes(data_path)
    with decoding(path, "an AFNI header"):
        data = AFNIArrayProxy(file, header, mmap=False)
    return Image(
        data=data,
        shape=shape,
        kind=f"AFNI, {dtype.name}",
        affine=affine,
        zooms=tuple(map(float, zooms[:3])),
        data_path=data_path,
        file=file,
        repetition=repetition,
        oddities=(),
        no_series=no_series,
    )


def _afni_repetition(info: dict[str, Any], shape: tuple[int, ...]) -> tuple[Repetition, str]:
    """The repetition time, and why the data are no series where they are none."""
    if "TAXIS_NUMS" not in info or "TAXIS_FLOATS" not in info:
        return Repetition(seconds=None), "has no time axis (a bucket of statistics); leave it out of data.files"
    frames, unit = int(info["TAXIS_NUMS"][0]), int(info["TAXIS_NUMS"][2])
    if frames != shape[-1]:
        return Repetition(seconds=None), f"its time axis has {frames} points, its data {shape[-1]}: one is damaged"
    return stated(float(info["TAXIS_FLOATS"][1]), AFNI_TIME_UNITS.get(unit, "unknown")), ""
