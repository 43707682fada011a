"""Masks, atlases and sizes that a campaign lays over volumes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperslab.data.sources.fmri.content import check_end, decoding, find_file, kind_of
from hyperslab.data.sources.fmri.image import Image, header_path
from hyperslab.data.sources.fmri.series import Floats, Series
from hyperslab.data.sources.fmri.volume import open_image
from hyperslab.errors import UserError

AFFINE_TOLERANCE_MM = 1e-3

Shape = tuple[int, ...]
Affine = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A 3-D image that a person gives beside the runs."""

    path: Path
    values: npt.NDArray[Any]
    affine: Affine
    zooms: tuple[float, ...]
    has_orientation: bool

    @property
    def shape(self) -> Shape:
        """Voxels along x, y and z."""
        return tuple(self.values.shape)


def read_field(path: str, setting: str) -> Field:
    """The 3-D image at a path.

    Parameters
    ----------
    setting
        The setting that names it, said in messages.

    Raises
    ------
    UserError
        When it cannot be read, or is no 3-D image without missing values.
    """
    file = find_file(str(header_path(find_file(path))))
    image = open_image(file, kind_of(file))
    try:
        values = _values(file, image, setting)
    finally:
        image.close()
    return Field(
        path=file,
        values=values,
        affine=image.affine,
        zooms=image.zooms,
        has_orientation=image.has_orientation,
    )


def _values(path: Path, image: Image, setting: str) -> npt.NDArray[Any]:
    shape = image.shape[:3] if len(image.shape) == 4 and image.shape[3] == 1 else image.shape
    if len(shape) != 3:
        raise UserError(f"data.fmri.{setting}: {path}: is {_by(shape)}; give an image of three dimensions")
    with decoding(path, image.kind):
        values = np.asarray(image.data).reshape(shape)
    if image.file is not None:
        check_end(image.data_path, image.file)
    if not np.isfinite(values).all():
        raise UserError(f"data.fmri.{setting}: {path}: holds missing values; give an image without any")
    return values


def mask_of(field: Field) -> npt.NDArray[np.bool_]:
    """Where a mask is not 0.

    Raises
    ------
    UserError
        When it is 0 everywhere.
    """
    inside: npt.NDArray[np.bool_] = field.values != 0
    if not inside.any():
        raise UserError(f"{field.path}: is 0 everywhere; give a mask that leaves some voxels")
    return inside


def check_on_grid(field: Field, series: Series, setting: str) -> list[str]:
    """What is odd about how an image lies on a run's voxels.

    Raises
    ------
    UserError
        When it does not lie on them.
    """
    if field.shape != series.shape:
        raise UserError(
            f"data.fmri.{setting}: {field.path}: is {_by(field.shape)}, {series.path} is {_by(series.shape)}; "
            "resample it to the voxels of the runs"
        )
    if not (field.has_orientation and series.has_orientation):
        return [f"{setting} {field.path.name} or the run states no orientation: taken voxel by voxel"]
    if not same_affine(field.affine, np.asarray(series.affine)):
        raise UserError(
            f"data.fmri.{setting}: {field.path}: has the shape of {series.path} but another affine; "
            "resample it to the voxels of the runs"
        )
    return []


def same_affine(one: Affine, other: Affine) -> bool:
    """Whether two affines place all voxels alike."""
    return bool(np.allclose(one, other, rtol=0, atol=AFFINE_TOLERANCE_MM))


def atlas_labels(field: Field) -> Labels:
    """The labels of an atlas, 0 outside all parcels.

    Raises
    ------
    UserError
        When its values are no labels.
    """
    with np.errstate(invalid="ignore"):  # values beyond all integers are no labels, as is found below
        labels: Labels = np.rint(field.values).astype(np.int64)
    if (labels != field.values).any() or labels.min() < 0 or labels.max() < 1:
        raise UserError(
            f"data.fmri.atlas: {field.path}: its values are no labels (0 outside, 1 and up for parcels); "
            "give a label image"
        )
    return labels


def lay_atlas(field: Field, shape: Shape, affine: Affine, has_orientation: bool) -> Labels:
    """The labels of an atlas on other voxels, by the nearest neighbour.

    Raises
    ------
    UserError
        When one of the two does not state its orientation and their shapes differ.
    """
    labels = atlas_labels(field)
    known = field.has_orientation and has_orientation
    if field.shape == shape and (not known or same_affine(field.affine, affine)):
        return labels
    if not known:
        raise UserError(
            f"data.fmri.atlas: {field.path}: is {_by(field.shape)}, the runs are {_by(shape)}, and one of them states "
            "no orientation (qform and sform codes are 0); resample it to the voxels of the runs"
        )
    # A second of import, and needed for this alone.
    from nibabel import Nifti1Image
    from nilearn.image import resample_img

    with decoding(field.path, "an atlas"):
        image = Nifti1Image(labels.astype(np.int32), field.affine)
        laid = resample_img(
            image, affine, shape, interpolation="nearest", force_resample=True, copy_header=True
        ).get_fdata()
    nearest: Labels = np.rint(laid).astype(np.int64)
    return nearest


class Parcels:
    """Means over the parcels of an atlas that lies on the voxels of a run."""

    def __init__(self, laid: Labels, labels: Sequence[int], inside: npt.NDArray[np.bool_] | None) -> None:
        """Parcels of the ascending `labels`; of voxels inside the mask alone, where there is one."""
        known = np.asarray(labels)
        place = np.minimum(np.searchsorted(known, laid), len(known) - 1)
        where = np.where(known[place] == laid, place + 1, 0)
        self._where = (where if inside is None else np.where(inside, where, 0)).ravel()
        self.voxels = np.bincount(self._where, minlength=len(labels) + 1)[1:]
        """Voxels of each parcel."""

    def means(self, volumes: Floats) -> Floats:
        """Mean of each parcel in each volume, shape (frame, parcel); NaN where it has no voxel, or a missing one."""
        size = len(self.voxels)
        sums = [np.bincount(self._where, frame.ravel(), size + 1)[1:] for frame in volumes]
        with np.errstate(invalid="ignore", divide="ignore"):
            return (np.asarray(sums) / self.voxels).astype(np.float32)


class Placement:
    """Where the voxels of a volume go when it is cropped and padded about its middle."""

    def __init__(self, shape: Shape, target: Shape) -> None:
        self.target = target
        # Along each axis: voxels left away before the first, and added before the first.
        dropped = tuple(max(0, (size - wanted) // 2) for size, wanted in zip(shape, target, strict=True))
        added = tuple(max(0, (wanted - size) // 2) for size, wanted in zip(shape, target, strict=True))
        kept = tuple(min(size, wanted) for size, wanted in zip(shape, target, strict=True))
        self._from = tuple(slice(start, start + size) for start, size in zip(dropped, kept, strict=True))
        self._to = tuple(slice(start, start + size) for start, size in zip(added, kept, strict=True))
        self.shift = tuple(start - more for start, more in zip(dropped, added, strict=True))
        """Index in the volume of the first voxel of the result."""

    def volumes(self, values: Floats) -> Floats:
        """Volumes of shape (frame, *shape) as (frame, *target), NaN where padded."""
        result = np.full((len(values), *self.target), np.nan, np.float32)
        result[:, *self._to] = values[:, *self._from]
        return result

    def mask(self, inside: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """A mask of the volume as one of the result, False where padded."""
        result = np.zeros(self.target, bool)
        result[self._to] = inside[self._from]
        return result

    def affine(self, affine: Affine) -> Affine:
        """The affine of the result."""
        moved = affine.copy()
        moved[:3, 3] = affine[:3, :3] @ np.asarray(self.shift, float) + affine[:3, 3]
        return moved


def _by(shape: Shape) -> str:
    return " x ".join(map(str, shape))
