"""Opening a dataset of anemoi-datasets (a Zarr of its gridded layout) as a store, without copying it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from hyperslab.data.chunks import Piece
from hyperslab.data.clock import Clock
from hyperslab.data.files import digest_of
from hyperslab.data.frames import Bools, Ranges, find_segments, ranges_of
from hyperslab.data.sources.era5.grid import Grid, make_grid
from hyperslab.data.store import Store, open_group
from hyperslab.data.tiles import Space
from hyperslab.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class AnemoiStore(Store):
    """A dataset of anemoi-datasets. Each member of an ensemble is a segment (or several) of its own."""

    grid: Grid
    data: "zarr.Array[Any]"
    """Shape (date, channel, member, point)."""

    def pieces(self, start: int, stop: int, space: Space = (), _: npt.NDArray[Any] | None = None) -> Iterator[Piece]:
        """As those of any store; a chunk of such a dataset holds whole dates, so each is read whole."""
        dates, done = self.data.shape[0], 0
        while start < stop:
            member, first = divmod(start, dates)
            last = min(dates, first + stop - start)
            raw = np.asarray(self.data[first:last, :, member]).reshape(last - first, *self.frame_shape)
            block = np.empty(raw.shape, np.float32)
            self.grid.turn(raw, block)
            piece = block[(slice(None), slice(None), *space)]
            into = (slice(done, done + len(block)), *(slice(0, size) for size in piece.shape[1:]))
            yield into, piece
            start, done = start + len(block), done + len(block)


def is_anemoi(path: Path) -> bool:
    """Whether a directory holds a dataset of anemoi-datasets."""
    try:
        group = open_group(path)
    except (OSError, ValueError, KeyError):
        return False
    return {"variables", "field_shape", "frequency"} <= set(group.attrs)


def open_anemoi(path: Path) -> AnemoiStore:
    """Open a dataset of anemoi-datasets.

    Its statistics are taken as they are; the period that they were measured over is the training split, what comes
    later is halved into validation and test.

    Raises
    ------
    UserError
        When its grid is not a regular latitude-longitude one.
    """
    group = open_group(path)
    attributes = dict(group.attrs)
    grid = _grid(group, tuple(attributes["field_shape"]), path)
    dates = np.asarray(group["dates"][:]).astype("datetime64[s]")
    time, members = dates.astype(np.int64), int(group["data"].shape[2])
    segment = find_segments(time)
    valid = ~np.isin(dates, np.asarray(attributes.get("missing_dates") or [], "datetime64[s]"))
    names = tuple(str(name) for name in attributes["variables"])
    details = attributes.get("variables_metadata") or {}
    return AnemoiStore(
        path=path,
        digest=digest_of([attributes.get(key) for key in ("uuid", "latest_write_timestamp", "shape", "variables")]),
        arrays={},
        source="anemoi",
        clock=Clock(),
        time=np.tile(time, members),
        segment=np.concatenate([segment.ids + member * (segment.ids[-1] + 1) for member in range(members)]),
        valid=np.tile(valid, members),
        space={"latitude": grid.latitude, "longitude": grid.longitude},
        channels=names,
        units={name: str((details.get(name) or {}).get("units", "1")) for name in names},
        cadence=segment.cadence,
        mean=np.asarray(group["mean"][:], np.float64),
        std=np.asarray(group["stdev"][:], np.float64),
        splits=_splits(dates, attributes, members),
        frame_start=None,
        grid=grid,
        data=group["data"],
    )


def _grid(group: zarr.Group, shape: tuple[int, ...], path: Path) -> Grid:
    latitudes, longitudes = (np.asarray(group[name][:], np.float64) for name in ("latitudes", "longitudes"))
    if len(shape) == 2 and shape[0] * shape[1] == len(latitudes):
        latitudes, longitudes = latitudes.reshape(shape), longitudes.reshape(shape)
        if (latitudes == latitudes[:, :1]).all() and (longitudes == longitudes[:1]).all():
            return make_grid(latitudes[:, 0], longitudes[0], str(path))
    raise UserError(
        f"{path}: its grid ({' x '.join(map(str, shape))} points) is not a regular latitude-longitude one; "
        "create the dataset on one, such as `grid: 0.25/0.25` in its recipe"
    )


def _splits(dates: npt.NDArray[np.datetime64], attributes: dict[str, Any], members: int) -> dict[str, Ranges]:
    end = np.datetime64(attributes.get("statistics_end_date") or attributes["end_date"], "s")
    train: Bools = dates <= end
    later = np.flatnonzero(~train)
    middle = later[len(later) // 2] if len(later) else len(dates)
    test = ~train & (np.arange(len(dates)) >= middle)
    marks = {"train": train, "validation": ~train & ~test, "test": test}
    return {name: ranges_of(np.tile(mark, members)) for name, mark in marks.items()}
