"""Images and tables as the Brain Imaging Data Structure (BIDS 1.9) has them; equal content gives equal bytes."""

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import numpy.typing as npt

from hyperslab.data.sources.synthetic.archive import draft

DEFLATE = 1


def write_image(
    path: Path,
    volumes: Iterable[npt.NDArray[np.int16]],
    shape: tuple[int, ...],
    voxel_mm: float,
    repetition_seconds: float | None = None,
) -> None:
    """Write a `.nii.gz` of int16, volume after volume.

    Parameters
    ----------
    shape
        Voxels along x, y and z, and the number of volumes where there is a time axis.
    """
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.int16)
    header.set_data_shape(shape)
    header.set_zooms((voxel_mm,) * 3 + ((repetition_seconds,) if repetition_seconds else ()))
    header.set_xyzt_units("mm", "sec")
    header.set_slope_inter(1.0, 0.0)
    for place in (header.set_qform, header.set_sform):
        place(_affine(shape, voxel_mm), code=1)
    with draft(path) as target, target.open("wb") as raw, _gzip(raw) as file:
        header.write_to(file)
        for volume in volumes:
            file.write(volume.tobytes(order="F"))


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a sidecar or a description."""
    with draft(path) as target:
        target.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_table(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a tab-separated table with a header."""
    lines = ["\t".join(names), *("\t".join(map(str, row)) for row in rows)]
    with draft(path) as target:
        target.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _gzip(raw: Any) -> gzip.GzipFile:
    # Without a name or a time, which would differ from one run to the next.
    return gzip.GzipFile(filename="", mode="wb", compresslevel=DEFLATE, fileobj=raw, mtime=0)


def _affine(shape: tuple[int, ...], voxel_mm: float) -> npt.NDArray[np.float64]:
    """Millimetres of a voxel, with zero in the middle of the image."""
    affine = np.diag([voxel_mm, voxel_mm, voxel_mm, 1.0])
    affine[:3, 3] = [-voxel_mm * (n - 1) / 2 for n in shape[:3]]
    return affine
