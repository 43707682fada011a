"""Small raw files in each format, for the tests beside."""

import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.cifti2 import cifti2_axes

from hyperslab.data.config import DataSettings
from hyperslab.data.sources.fmri.source import Fmri
from hyperslab.data.sources.index import Index

SHAPE = (5, 4, 3)
FRAMES = 8


def settings(*files: Path, variables: list[str] | None = None, **fmri: Any) -> DataSettings:
    return DataSettings.model_validate(
        {"source": "fmri", "files": [str(file) for file in files] or ["x"], "variables": variables, "fmri": fmri}
    )


def scan(*files: Path, variables: list[str] | None = None, **fmri: Any) -> Index:
    """The index as another process meets it: through JSON."""
    index = Fmri().scan([str(file) for file in files], settings(*files, variables=variables, **fmri))
    return Index.from_json(json.loads(json.dumps(index.to_json())))


def read(index: Index, start: int = 0, stop: int | None = None) -> np.ndarray:
    return Fmri().read(index, start, len(index.time) if stop is None else stop)["values"]


def series(shape: tuple[int, ...] = (*SHAPE, FRAMES), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(1000, 50, shape).astype(np.float32)


def write_nifti(
    path: Path,
    values: np.ndarray | None = None,
    *,
    tr: float = 2.0,
    units: tuple[str, str] = ("mm", "sec"),
    affine: np.ndarray | None = None,
    codes: tuple[int, int] = (1, 1),
    image_class: type = nib.Nifti1Image,
    **header: Any,
) -> Path:
    """A NIfTI of 5 x 4 x 3 voxels of 2 mm and 8 frames, unless told otherwise."""
    values = series() if values is None else values
    # nibabel states an orientation wherever it is given an affine.
    affine = None if codes == (0, 0) else np.diag([2.0, 2, 2, 1]) if affine is None else affine
    image = image_class(values, affine)
    image.header.set_xyzt_units(*units)
    if values.ndim > 3:
        image.header["pixdim"][4] = tr
        image.header["pixdim"][1:4] = 2 if affine is None else image.header["pixdim"][1:4]
    image.header["qform_code"], image.header["sform_code"] = codes
    for key, value in header.items():
        image.header[key] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(image, path)
    return path


def write_cifti(path: Path, values: np.ndarray | None = None, *, step: float = 0.72, parcels: bool = False) -> Path:
    """A dtseries of 30 grayordinates in two structures, or a ptseries of 2 parcels."""
    left = cifti2_axes.BrainModelAxis.from_surface(np.arange(10), 40, "CIFTI_STRUCTURE_CORTEX_LEFT")
    right = cifti2_axes.BrainModelAxis.from_surface(np.arange(20), 40, "CIFTI_STRUCTURE_CORTEX_RIGHT")
    where: Any = left + right
    if parcels:
        where = cifti2_axes.ParcelsAxis.from_brain_models([("V1", left), ("M1", right)])
    values = series((FRAMES, len(where))) if values is None else values
    time = cifti2_axes.SeriesAxis(0, step, len(values))
    image = nib.Cifti2Image(values, (time, where))
    image.nifti_header.set_intent("ConnParcelSries" if parcels else "ConnDenseSeries")
    nib.save(image, path)
    return path


def write_gifti(path: Path, values: np.ndarray | None = None, intent: str = "NIFTI_INTENT_TIME_SERIES") -> Path:
    values = series((FRAMES, 12)) if values is None else values
    arrays = [nib.gifti.GiftiDataArray(row, intent=intent, datatype="NIFTI_TYPE_FLOAT32") for row in values]
    nib.save(nib.gifti.GiftiImage(darrays=arrays), path)
    return path


def write_table(path: Path, values: np.ndarray, names: list[str] | None = None, delimiter: str = ",") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [delimiter.join(names)] if names else []
    lines += [delimiter.join(f"{value:.6g}" for value in row) for row in values]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_json(path: Path, **content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


AFNI_HEAD = """
type = integer-attribute
name = DATASET_RANK
count = 8
3 {frames} 0 0 0 0 0 0

type = integer-attribute
name = DATASET_DIMENSIONS
count = 5
{x} {y} {z} 0 0

type = string-attribute
name = BYTEORDER_STRING
count = 10
'LSB_FIRST~

type = integer-attribute
name = BRICK_TYPES
count = {frames}
{types}

type = float-attribute
name = BRICK_FLOAT_FACS
count = {frames}
{factors}

type = float-attribute
name = DELTA
count = 3
3 3 3

type = float-attribute
name = IJK_TO_DICOM_REAL
count = 12
3 0 0 0 0 3 0 0 0 0 3 0
{axis}"""

AFNI_TIME = """
type = integer-attribute
name = TAXIS_NUMS
count = 8
{frames} 0 {unit} -999 -999 -999 -999 -999

type = float-attribute
name = TAXIS_FLOATS
count = 8
0 {step} 0 0 0 -999999 -999999 -999999
"""


def write_afni(stem: Path, values: np.ndarray, *, step: float = 2.0, unit: int = 77002, factor: float = 0.0) -> Path:
    """`stem`.HEAD and `stem`.BRIK of int16; without a time axis where the unit is 0."""
    x, y, z, frames = values.shape
    axis = AFNI_TIME.format(frames=frames, unit=unit, step=step) if unit else ""
    head = AFNI_HEAD.format(
        x=x, y=y, z=z, frames=frames, types=" ".join("1" * frames), factors=f"{factor} " * frames, axis=axis
    )
    header = stem.with_name(stem.name + ".HEAD")
    header.write_text(head)
    stem.with_name(stem.name + ".BRIK").write_bytes(values.astype("<i2").tobytes(order="F"))
    return header
