"""The common space of all runs, and what masks, atlases and sizes make of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hyperslab.data.files import sha256_of
from hyperslab.data.sources.fmri.config import FmriSettings
from hyperslab.data.sources.fmri.grid import (
    Field,
    Parcels,
    Placement,
    atlas_labels,
    check_on_grid,
    lay_atlas,
    mask_of,
    read_field,
    same_affine,
)
from hyperslab.data.sources.fmri.image import name_oddities
from hyperslab.data.sources.fmri.run import stamp
from hyperslab.data.sources.fmri.series import Series, places
from hyperslab.data.sources.index import Axis, Channel
from hyperslab.errors import UserError

MASK = Channel(name="mask", units="1", long_name="1 where every run has a value, 0 elsewhere")
NAMED_AT_MOST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Where the values of a store stand."""

    axes: tuple[Axis, ...]
    details: dict[Path, dict[str, Any]]
    """What each run needs to be laid on the axes."""
    attributes: dict[str, Any]
    statics: tuple[Channel, ...] = ()
    oddities: tuple[str, ...] = ()


def lay_out(runs: Sequence[Series], settings: FmriSettings, own_masks: Mapping[Path, Path]) -> Space:
    """The space of a store of these runs.

    Parameters
    ----------
    own_masks
        Mask of each run, where each has its own.

    Raises
    ------
    UserError
        When runs differ in their places, or a setting does not suit them.
    """
    first = runs[0]
    for other in runs[1:]:
        _check_alike(first, other)
    if not first.is_volume:
        return _given_places(runs, settings)
    details = {
        run.path: {"shape": list(run.shape), "affine": run.affine, "has_orientation": run.has_orientation}
        for run in runs
    }
    if settings.atlas is not None:
        return _parcels(runs, settings, own_masks, details)
    return _voxels(runs, settings, own_masks, details)


def _check_alike(first: Series, other: Series) -> None:
    """Refuse runs whose places are of another kind, or have other names."""
    kinds = [" x ".join(axis.name for axis in run.space) for run in (first, other)]
    if kinds[0] != kinds[1]:
        raise UserError(f"{other.path}: its places are {kinds[1]}, those of {first.path} {kinds[0]}; stage them apart")
    if first.is_volume:
        return
    if first.shape != other.shape:
        raise UserError(
            f"{other.path}: has {other.shape[0]} places ({kinds[1]}), {first.path} has {first.shape[0]}; "
            "all runs need the same places"
        )
    if first.layout != other.layout:
        raise UserError(f"{other.path}: its places are others than those of {first.path}; all runs need the same")
    names, others = first.space[0].names, other.space[0].names
    if names != others:
        place = next((n for n, pair in enumerate(zip(names, others, strict=False)) if pair[0] != pair[1]), 0)
        found, wanted = (names[place] if names else "no name" for names in (others, names))
        raise UserError(
            f"{other.path}: calls parcel {place} {found!r}, {first.path} {wanted!r}; all runs need the same parcels"
        )


def _given_places(runs: Sequence[Series], settings: FmriSettings) -> Space:
    for name in ("mask", "shape", "atlas"):
        if getattr(settings, name) is not None:
            raise UserError(f"data.fmri.{name}: is for volumes; {runs[0].path} holds {runs[0].space[0].name}s")
    structures = runs[0].details.get("structures")
    return Space(
        axes=runs[0].space,
        details={run.path: {} for run in runs},
        attributes={"structures": structures} if structures else {},
    )


def _voxels(
    runs: Sequence[Series], settings: FmriSettings, own_masks: Mapping[Path, Path], details: dict[Path, dict[str, Any]]
) -> Space:
    first = runs[0]
    alike = [_same_grid(first, run) for run in runs]
    if settings.shape is None and not all(alike):
        _refuse_grid(first, runs[alike.index(False)])
    attributes, oddities = _mask(runs, settings, own_masks)
    axes, affine = first.space, np.asarray(first.affine)
    if settings.shape is not None:
        axes = tuple(
            replace(places(axis.name, size), long_name=axis.long_name)
            for axis, size in zip(first.space, settings.shape, strict=True)
        )
        affine = Placement(first.shape, settings.shape).affine(affine)
        attributes["shape"] = list(settings.shape)
        sizes = sorted({run.shape for run in runs})
        oddities.append(
            f"volumes of {', '.join(map(_by, sizes))} are cropped and padded about their middle to "
            f"{_by(settings.shape)}: padding is missing, told by the static field `mask`"
        )
    if all(alike):
        attributes |= {"affine": affine.tolist(), "zooms_mm": list(first.zooms)}
    else:
        oddities.append("runs differ in shape or affine: one voxel is another place in each of them")
    has_mask = settings.mask is not None or settings.shape is not None
    return Space(
        axes=axes,
        details=details,
        attributes=attributes,
        statics=(MASK,) if has_mask else (),
        oddities=tuple(oddities),
    )


def _same_grid(one: Series, other: Series) -> bool:
    return one.shape == other.shape and same_affine(np.asarray(one.affine), np.asarray(other.affine))


def _refuse_grid(first: Series, other: Series) -> None:
    what = "shape" if first.shape != other.shape else "affine"
    raise UserError(
        f"{other.path}: its {what} ({_by(other.shape)} voxels of {_by(other.zooms)} mm) differs from that of "
        f"{first.path} ({_by(first.shape)} of {_by(first.zooms)} mm); resample the runs to one space, "
        "or give data.fmri.shape to crop and pad them"
    )


def _mask(
    runs: Sequence[Series], settings: FmriSettings, own_masks: Mapping[Path, Path]
) -> tuple[dict[str, Any], list[str]]:
    """The attributes of the mask, and what is odd about it."""
    if settings.mask is None:
        return {}, []
    if own_masks:
        lines = [
            line for run in runs for line in check_on_grid(read_field(str(own_masks[run.path]), "mask"), run, "mask")
        ]
        return {"mask": "brain"}, sorted(set(lines))
    field = read_field(str(Path(settings.mask).absolute()), "mask")
    mask_of(field)
    lines = [line for run in runs for line in check_on_grid(field, run, "mask")]
    return {"mask": _recorded(field)}, sorted(set(lines))


def _recorded(field: Field) -> dict[str, Any]:
    return {**stamp(field.path), "sha256": sha256_of(field.path)}


def _parcels(
    runs: Sequence[Series], settings: FmriSettings, own_masks: Mapping[Path, Path], details: dict[Path, dict[str, Any]]
) -> Space:
    if settings.shape is not None:
        raise UserError("data.fmri.shape: has no use where data.fmri.atlas turns volumes into parcels; leave it out")
    assert settings.atlas is not None
    field = read_field(str(Path(settings.atlas).absolute()), "atlas")
    labels = [int(label) for label in np.unique(atlas_labels(field)) if label > 0]
    attributes, oddities = _mask(runs, settings, own_masks)
    attributes["atlas"] = {**_recorded(field), "labels": labels}
    oddities += [f"atlas {field.path.name}: {line}" for line in name_oddities(field.path, field.zooms)]
    oddities += _empty_parcels(runs, field, labels, attributes)
    axis = places("parcel", len(labels), tuple(map(str, labels)), "mean of the voxels of a label of the atlas")
    return Space(axes=(axis,), details=details, attributes=attributes, oddities=tuple(oddities))


def _empty_parcels(runs: Sequence[Series], field: Field, labels: list[int], attributes: dict[str, Any]) -> list[str]:
    """Parcels without a voxel, looked for once on each grid."""
    mask = attributes.get("mask")
    inside = mask_of(read_field(mask["path"], "mask")) if isinstance(mask, dict) else None
    lines: list[str] = []
    seen: list[Series] = []
    for run in runs:
        if any(_same_grid(run, other) for other in seen):
            continue
        seen.append(run)
        affine = np.asarray(run.affine)
        laid = lay_atlas(field, run.shape, affine, run.has_orientation)
        empty = [label for label, n in zip(labels, Parcels(laid, labels, inside).voxels, strict=True) if n == 0]
        if len(empty) == len(labels):
            raise UserError(f"data.fmri.atlas: {field.path}: none of its parcels lies on {run.path}; check its space")
        if empty:
            listed = ", ".join(map(str, empty[:NAMED_AT_MOST])) + (", ..." if len(empty) > NAMED_AT_MOST else "")
            lines.append(f"{run.path.name}: {len(empty)} parcels have no voxel and are missing: {listed}")
        if not same_affine(field.affine, affine) or field.shape != run.shape:
            lines.append(f"the atlas is laid on the voxels of {run.path.name} by the nearest neighbour")
    return lines


def _by(sizes: Sequence[float]) -> str:
    return " x ".join(f"{size:g}" for size in sizes)
