"""What a store says beside its values: time, space, labels, statistics and the attributes that reproduce it."""

import shutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from hyperslab.data.frames import Bools, Ints, measure_segments
from hyperslab.data.recipe import Recipe
from hyperslab.data.shard import COMPRESSORS, fill_value
from hyperslab.data.sources import source_of
from hyperslab.data.sources.index import Axis, Index
from hyperslab.data.statistics import Floats, Histogram, Moments
from hyperslab.data.store import FORMAT

DIRECTIONS = {"latitude": "degrees_north", "longitude": "degrees_east"}
"""Axes that have a CF standard name, and its units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What all parts together measured."""

    moments: Moments
    differences: dict[int, Moments]
    histograms: tuple[Histogram, ...]
    """One for each channel, where the archive asks for quantiles."""
    missing: Ints
    """Missing values of each channel."""
    valid: Bools
    largest_loss: Floats
    squared_loss: Floats


def merge_records(recipe: Recipe, records: Sequence[dict[str, Any]]) -> Merged:
    """What the parts measured, taken together in their order."""
    channels = len(recipe.index.channels)
    moments = Moments.none(channels)
    differences = {lead: Moments.none(channels) for lead in recipe.difference_leads}
    histograms: list[Histogram] = []
    for record in records:
        moments = moments.merge(Moments.from_json(record["training_moments"]))
        for lead, held in differences.items():
            differences[lead] = held.merge(Moments.from_json(record["difference_moments"][str(lead)]))
        own = [Histogram.from_json(content) for content in record["histograms"]]
        histograms = [a.merge(b) for a, b in zip(histograms, own, strict=True)] if histograms else own
    valid = np.asarray([flag for record in records for flag in record["valid"]], bool)
    return Merged(
        moments=moments,
        differences=differences,
        histograms=tuple(histograms),
        missing=np.sum([record["missing"] for record in records], axis=0).astype(np.int64),
        # Of points there is no missing frame, but an event without a point.
        valid=np.asarray(recipe.index.points) > 0 if recipe.index.is_ragged else valid,
        largest_loss=np.max([record["largest_loss"] for record in records], axis=0),
        squared_loss=np.sum([record["squared_loss"] for record in records], axis=0),
    )


@dataclass(frozen=True, slots=True)
class _Small:
    """A small array."""

    name: str
    dims: tuple[str, ...]
    values: npt.NDArray[Any]
    attributes: dict[str, Any]


def write_metadata(path: Path, recipe: Recipe, merged: Merged) -> None:
    """Write the Zarr group of a store, without the shards of its large arrays, in a directory of its own."""
    shutil.rmtree(path, ignore_errors=True)
    group = zarr.create_group(path, zarr_format=3)
    for plan in recipe.arrays:
        group.create_array(
            plan.name,
            shape=plan.shape,
            chunks=plan.chunk,
            shards=plan.shard,
            dtype=plan.dtype,
            fill_value=fill_value(plan),
            compressors=COMPRESSORS,
            dimension_names=plan.dimensions,
        )
    for small in _small_arrays(recipe, merged):
        texts = small.values.dtype.kind == "U"
        array = group.create_array(
            small.name,
            shape=small.values.shape,
            dtype=str if texts else small.values.dtype,
            dimension_names=small.dims,
            attributes=small.attributes,
        )
        if small.values.size:
            array[...] = small.values.astype(object) if texts else small.values
    group.attrs.update(_attributes(recipe, merged))
    with warnings.catch_warnings():
        # Consolidated metadata makes opening one read; zarr warns that version 3 does not specify it yet.
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(path, zarr_format=3)


def _small_arrays(recipe: Recipe, merged: Merged) -> Iterator[_Small]:
    index = recipe.index
    yield _Small("time", ("frame",), index.times, _time_attributes(index))
    yield _Small("segment", ("frame",), index.segments, {"long_name": "number of the unbroken stretch, scan or event"})
    yield _Small("valid", ("frame",), merged.valid, {"long_name": "no channel of the frame is missing altogether"})
    yield _Small("channel", ("channel",), _texts(channel.name for channel in index.channels), {})
    if index.is_ragged:
        yield _Small("frame_start", ("boundary",), recipe.frame_start, {"long_name": "first point of each frame"})
        yield _Small("axis", ("axis",), _texts(axis.name for axis in index.space), {})
    else:
        for axis in index.space:
            yield from _axis(axis)
    if index.labels:
        yield _Small("label", ("label",), _texts(label.name for label in index.labels), {})
    if index.statics:
        space = tuple(axis.name for axis in index.space)
        yield _Small("static", ("static_name", *space), source_of(index.source).read_statics(index), {})
        yield _Small("static_name", ("static_name",), _texts(field.name for field in index.statics), {})
    for prefix, dim, labels in (
        ("frame", "frame", index.frame_labels),
        ("segment", "segment_number", index.segment_labels),
    ):
        for name, values in labels.items():
            yield _Small(f"{prefix}_{name}", (dim,), _label_values(values), {})
    yield from _statistics(recipe, merged)


def _axis(axis: Axis) -> Iterator[_Small]:
    attributes = {"units": axis.units, "long_name": axis.long_name or axis.name}
    if axis.name in DIRECTIONS:
        attributes = {"standard_name": axis.name, "units": DIRECTIONS[axis.name]}
    yield _Small(axis.name, (axis.name,), np.asarray(axis.values, np.float64), attributes)
    if axis.names:
        yield _Small(f"{axis.name}_name", (axis.name,), _texts(axis.names), {})


def _statistics(recipe: Recipe, merged: Merged) -> Iterator[_Small]:
    moments, over = merged.moments, "over the training split"
    for name, values, words in (
        ("mean", moments.mean, "mean"),
        ("std", moments.std, "standard deviation"),
        ("minimum", moments.minimum, "minimum"),
        ("maximum", moments.maximum, "maximum"),
    ):
        yield _Small(name, ("channel",), values, {"long_name": f"{words} {over}"})
    if not recipe.index.is_ragged:
        leads = np.asarray(recipe.difference_leads, np.int64)
        changes = np.stack([merged.differences[lead].std for lead in recipe.difference_leads])
        words = f"standard deviation of the change over a lead {over}"
        yield _Small("lead", ("lead",), leads, {"long_name": "distance of two frames of a segment"})
        yield _Small("difference_std", ("lead", "channel"), changes, {"long_name": words})
    if merged.histograms:
        for name, low, high in (("median", 0.5, 0.5), ("interquartile_range", 0.25, 0.75)):
            found = [h.quantile(high) - (h.quantile(low) if low < high else 0.0) for h in merged.histograms]
            yield _Small(name, ("channel",), np.asarray(found), {"long_name": f"{name.replace('_', ' ')} {over}"})


def _time_attributes(index: Index) -> dict[str, str]:
    clock = index.clock
    if clock.kind == "calendar":
        return {"standard_name": "time", "units": clock.units, "calendar": clock.calendar}
    if clock.kind == "elapsed":
        # In words of UDUNITS that xarray does not turn into a time delta on its own.
        return {"long_name": "time since the segment began", "units": "1e-6 s"}
    return {"long_name": "number of the event", "units": "1"}


def _attributes(recipe: Recipe, merged: Merged) -> dict[str, Any]:
    index = recipe.index
    segments = measure_segments(index.times, index.segments, index.clock)
    attributes = {
        "Conventions": "CF-1.11",
        "hyperslab_format": FORMAT,
        "source": index.source,
        "clock": index.clock.kind,
        "cadence": segments.cadence,
        "units": {channel.name: channel.units for channel in index.channels},
        "long_names": {channel.name: channel.long_name for channel in index.channels},
        "axis_units": {axis.name: axis.units for axis in index.space},
        "label_units": {label.name: label.units for label in index.labels},
        "splits": {name: [list(bounds) for bounds in ranges] for name, ranges in recipe.splits.items()},
        "split_by": index.split_by,
        "missing": dict(zip((channel.name for channel in index.channels), merged.missing.tolist(), strict=True)),
        "oddities": list(index.oddities),
        "raw_files": len(index.files),
        "staging": index.attributes,
    }
    if recipe.dtype != "float32":
        attributes["packing"] = _packing(recipe, merged)
    return attributes


def _packing(recipe: Recipe, merged: Merged) -> dict[str, Any]:
    """How values are packed, and what that costs: errors of each channel, in its units."""
    values = len(recipe.index.time) * int(np.prod(recipe.index.space_shape))
    errors = np.sqrt(merged.squared_loss / np.maximum(values - merged.missing, 1))
    names = [channel.name for channel in recipe.index.channels]
    return {
        "dtype": recipe.dtype,
        "rule": "values x scale + offset; -32768 is missing" if recipe.dtype == "int16" else "half precision",
        "largest_error": dict(zip(names, merged.largest_loss.tolist(), strict=True)),
        "root_mean_square_error": dict(zip(names, errors.tolist(), strict=True)),
    }


def _texts(names: Any) -> npt.NDArray[Any]:
    return np.asarray(list(names), dtype=str)


def _label_values(values: tuple[str | int | float, ...]) -> npt.NDArray[Any]:
    if any(isinstance(value, str) for value in values):
        return _texts(str(value) for value in values)
    return np.asarray(values)
