"""ECMWF's experiment versions: 0001 is ERA5, 0005 the preliminary ERA5T."""

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from hyperslab.data.sources.era5.axes import EXPVER
from hyperslab.data.sources.era5.decode import decode
from hyperslab.data.sources.era5.slabs import frame_count, frame_sizes, read_slab, slabs

Strings = npt.NDArray[np.str_]


def version_text(value: Any) -> str:
    """A version as ECMWF writes it: four characters, `0001` for the number 1."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    text = text.strip().removesuffix(".0")
    return text.zfill(4) if text.isdigit() else text


def versions_of(dataset: xr.Dataset) -> list[str]:
    """All versions that a dataset names, in its own order; none where it has no `expver`."""
    if EXPVER not in dataset.variables:
        return []
    return [version_text(value) for value in np.ravel(dataset.variables[EXPVER].values)]


def is_stacked(dataset: xr.Dataset, variable: xr.Variable) -> bool:
    """Whether versions are a dimension of a variable: each frame has data in one of them, and is missing in others."""
    return EXPVER in variable.dims and dataset.sizes[EXPVER] > 1


def reading_order(dataset: xr.Dataset) -> list[int]:
    """Places along the dimension of versions, the final one before the preliminary one."""
    versions = versions_of(dataset) or [str(place) for place in range(dataset.sizes[EXPVER])]
    return sorted(range(len(versions)), key=lambda place: versions[place])


def frame_versions(
    dataset: xr.Dataset, names: list[str], frame_dims: tuple[str, ...], space: tuple[str, str]
) -> Strings:
    """The version of each frame; empty where the dataset tells none.

    Where versions are stacked in a dimension, frames say by their data which one they are of: each variable is read
    once, on its first level. Files of that kind reach over the last months only.

    Parameters
    ----------
    names
        The variables whose frames these are.
    space
        Dimensions of latitude and longitude.
    """
    stacked = [name for name in names if is_stacked(dataset, dataset.variables[name])]
    if stacked:
        found = [_versions_by_data(dataset, dataset.variables[name], frame_dims, space) for name in stacked]
        return np.asarray([",".join(sorted({*held} - {""})) for held in zip(*found, strict=True)])
    versions = np.asarray(versions_of(dataset), np.str_)
    dims = dataset.variables[EXPVER].dims if len(versions) else ()
    if len(dims) == 1 and dims[0] in frame_dims:
        shape = [-1 if dim == dims[0] else 1 for dim in frame_dims]
        return np.broadcast_to(versions.reshape(shape), frame_sizes(dataset, frame_dims)).ravel()
    return np.full(frame_count(dataset, frame_dims), ",".join(sorted(set(versions.tolist()))))


def _versions_by_data(
    dataset: xr.Dataset, variable: xr.Variable, frame_dims: tuple[str, ...], space: tuple[str, str]
) -> list[str]:
    versions = versions_of(dataset)
    order = reading_order(dataset)
    dims = (*frame_dims[-1:], *space)
    texts: list[str] = []
    for _, count, places in slabs(variable, frame_dims, 0, frame_count(dataset, frame_dims)):
        held: list[Any] = []
        for place in order:
            values = decode(read_slab(variable, {**places, EXPVER: place}, dims), variable.attrs)
            held.append(np.isfinite(values).reshape(count, -1).any(axis=1).tolist())
        for frame in range(count):
            texts.append(next((versions[place] for place, has in zip(order, held, strict=True) if has[frame]), ""))
    return texts
