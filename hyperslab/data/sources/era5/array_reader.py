"""Fields of a netCDF file or a Zarr store."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from hyperslab.data.sources.era5.axes import EXPVER
from hyperslab.data.sources.era5.decode import Decoder, decoder_of
from hyperslab.data.sources.era5.deflated import DeflatedFile
from hyperslab.data.sources.era5.expver import is_stacked, reading_order
from hyperslab.data.sources.era5.layout import Field, find_layout
from hyperslab.data.sources.era5.slabs import SLAB_BYTES, Places, chunk_length, read_slab, slabs, whole_slab

Floats = npt.NDArray[np.float32]

# Places of a field below which several are decoded at once.
_TINY = 4096


class ArrayReader:
    """Reads the fields of one open dataset.

    Parameters
    ----------
    dataset
        As `open_raw` gives it.
    path
        Name of the file in messages to a person.
    slab_bytes
        Most that is read at once, as it is stored.
    deflated
        The same file, for the variables that can be inflated past the netCDF library.
    """

    def __init__(
        self, dataset: xr.Dataset, path: str, slab_bytes: int = SLAB_BYTES, deflated: DeflatedFile | None = None
    ) -> None:
        self._dataset = dataset
        self._deflated = deflated
        self._slab_bytes = slab_bytes
        self._layout = find_layout(dataset, path)
        self._decoders: dict[str, Decoder] = {}

    def close(self) -> None:
        """Close the file."""
        self._dataset.close()
        if self._deflated is not None:
            self._deflated.close()

    def read(self, channels: dict[str, int], position: int, count: int, block: Floats) -> None:
        """Read frames `[position, position + count)` of the file into a block.

        Parameters
        ----------
        channels
            Number in the block of each channel that is read, by its name.
        block
            Shape (frame, channel, latitude, longitude).
        """
        by_variable: dict[str, list[tuple[Field, int]]] = {}
        for name, number in channels.items():
            field = self._layout.fields[name]
            by_variable.setdefault(field.channel.variable, []).append((field, number))
        for variable, fields in by_variable.items():
            self._read_variable(variable, fields, position, count, block)

    def _read_variable(
        self, name: str, fields: list[tuple[Field, int]], position: int, count: int, block: Floats
    ) -> None:
        variable = self._dataset.variables[name]
        frame_dims, level_dim = fields[0][0].frame_dims, fields[0][0].level_dim
        plane_bytes = variable.dtype.itemsize * math.prod(self._layout.grid.shape)
        for first, length, places in slabs(variable, frame_dims, position, count, self._slab_bytes):
            for run in _level_runs(variable, fields, self._slab_bytes // plane_bytes):
                lowest = run[0][0].level
                if level_dim is not None:
                    places = {**places, level_dim: slice(lowest, run[-1][0].level + 1)}
                raw, write = self._read_slab(name, places, frame_dims, level_dim)
                for field, number in run:
                    for frames in _batches(length, raw):
                        out = block[first + frames.start : first + frames.stop, number]
                        self._layout.grid.turn(raw[frames, field.level - lowest], out, write)

    def _read_slab(
        self, name: str, places: Places, frame_dims: tuple[str, ...], level_dim: str | None
    ) -> tuple[npt.NDArray[Any], Decoder]:
        """Values of shape (frame, level, latitude, longitude) as they are stored, and what decodes them."""
        axes, variable = self._layout.axes, self._dataset.variables[name]
        dims = (*frame_dims[-1:], *((level_dim,) if level_dim else ()), axes.latitude, axes.longitude)
        decoder = self._decoder(name)
        if is_stacked(self._dataset, variable):
            raw = self._merge_versions(name, places, dims)
            decoder = decoder_of(raw.dtype, {})
        else:
            raw = self._stored(name, places, dims)
        raw = raw if frame_dims else raw[None]
        return raw if level_dim else raw[:, None], decoder

    def _stored(self, name: str, places: Places, dims: tuple[str, ...]) -> npt.NDArray[Any]:
        """A slab as it is stored, with these dimensions in this order."""
        variable = self._dataset.variables[name]
        raw = None
        if self._deflated is not None:
            raw = self._deflated.read(name, whole_slab(variable, places, dims))
        if raw is None:
            return read_slab(variable, places, dims)
        return read_slab(xr.Variable(variable.dims, raw), {}, dims)

    def _merge_versions(self, name: str, places: Places, dims: tuple[str, ...]) -> Floats:
        """Decoded values, each field from the first version that has data, the final one before the preliminary."""
        merged: Floats | None = None
        for place in reading_order(self._dataset):
            raw = self._stored(name, {**places, EXPVER: place}, dims)
            values = np.empty(raw.shape, np.float32)
            self._decoder(name)(raw, values)
            if merged is None:
                merged = values
            else:
                merged = np.where(np.isnan(merged).all(axis=(-2, -1), keepdims=True), values, merged)
        assert merged is not None, "versions are stacked"
        return merged

    def _decoder(self, name: str) -> Decoder:
        if name not in self._decoders:
            variable = self._dataset.variables[name]
            self._decoders[name] = decoder_of(variable.dtype, variable.attrs)
        return self._decoders[name]


def _batches(length: int, raw: npt.NDArray[Any]) -> Iterator[slice]:
    """Frames that are decoded at once: each alone, as its place in the block is unbroken, unless fields are tiny."""
    size = 1 if raw[0, 0].size >= _TINY else length
    return (slice(first, min(first + size, length)) for first in range(0, length, size))


def _level_runs(variable: xr.Variable, fields: list[tuple[Field, int]], most: int) -> list[list[tuple[Field, int]]]:
    """Levels that are read at once: a few neighbours, or all of them where a chunk of the file holds several."""
    level_dim = fields[0][0].level_dim
    ordered = sorted(fields, key=lambda item: item[0].level)
    if level_dim is None:
        return [ordered]
    if chunk_length(variable, level_dim) > 1:
        return [ordered]
    runs: list[list[tuple[Field, int]]] = []
    for item in ordered:
        if runs and runs[-1][-1][0].level == item[0].level - 1 and len(runs[-1]) < most:
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs
