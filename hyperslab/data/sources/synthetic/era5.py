"""A synthetic archive in the manner of ERA5: monthly files of pressure levels, and one of static fields."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np

from hyperslab.data.sources.synthetic.archive import Order, check_room, draft, in_order
from hyperslab.data.sources.synthetic.netcdf import NewFile, OldFile, Times, deflated, write_statics
from hyperslab.data.sources.synthetic.shallow_water import Planet, ShallowWater, State
from hyperslab.data.sources.synthetic.weather import LEVELS_HPA, QUANTA, Grid, Values, Weather
from hyperslab.errors import UserError

VARIABLES = tuple(QUANTA)
FIRST = np.datetime64("2000-01-01T00", "h")
STEP_HOURS = 6
_GRIDS_DEGREES = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0)
_MONTH_FRAMES = 120
"""The finest grid is taken of which so many frames fit the size."""
_USUAL_SHARE = 0.45
"""Bytes of a file over those of its values in float32, about."""


def write(order: Order) -> list[Path]:
    """Write the archive; its files, the static fields first.

    Raises
    ------
    UserError
        When the step of the grid is none that divides the globe.
    """
    model = ShallowWater(Planet(), order.seed)
    weather = Weather(model, _grid(order))
    statics = order.out / "era5_static.nc"
    with draft(statics) as path:
        write_statics(path, weather.grid, np.array([FIRST]), weather.statics(), old=order.form != "cds")
    states = model.states(STEP_HOURS * 3600.0)
    first = next(states)
    room = order.size_bytes - statics.stat().st_size
    num_frames = max(2, round(room / _frame_bytes(weather, first, order.form)))
    states = chain([first], states)
    written = [statics]
    for month in _months(num_frames):
        target = order.out / f"era5_pl_{str(month.time[0])[:7].replace('-', '')}.nc"
        with draft(target) as path:
            write_month = _write_new if order.form == "cds" else _write_old
            write_month(path, weather, month, islice(states, len(month.time)), order)
        written.append(target)
    return written


@dataclass(frozen=True, slots=True)
class _Month:
    first: int
    """Number of its first frame."""
    time: Times

    def numbered(self, states: Iterable[State]) -> Iterator[tuple[int, State]]:
        """Each state with the number of its frame in the archive."""
        return enumerate(states, start=self.first)


def _grid(order: Order) -> Grid:
    step = order.grid_degrees
    if step is None:
        values = order.size_bytes / _MONTH_FRAMES / _USUAL_SHARE / 4 / len(VARIABLES) / len(LEVELS_HPA)
        fitting = (step for step in _GRIDS_DEGREES if np.prod(Grid(step).shape) <= values)
        return Grid(next(fitting, _GRIDS_DEGREES[-1]))
    if not 0.05 <= step <= 10 or abs(180 / step - round(180 / step)) > 1e-9:
        raise UserError(f"--grid: found {step:g}; must divide 180 and lie between 0.05 and 10 degrees, such as 0.25")
    return Grid(step)


def _months(num_frames: int) -> Iterator[_Month]:
    time = FIRST + np.arange(num_frames) * np.timedelta64(STEP_HOURS, "h")
    starts = np.flatnonzero(np.diff(time.astype("datetime64[M]").astype(int), prepend=-1))
    for first, stop in zip(starts, [*starts[1:], num_frames], strict=True):
        yield _Month(int(first), time[first:stop])


def _frame_bytes(weather: Weather, state: State, form: str) -> float:
    """Bytes of one frame in a file, found out on the first one."""
    fields = _fields(weather, state, frame=0)
    if form == "classic":
        return sum(values.nbytes for values in fields.values()) / 2
    if form == "cds":
        return sum(len(deflated(values)) for values in fields.values())
    # Near enough to the packing of a month, whose range is somewhat wider.
    packed = [(values - values.mean()) * (40_000 / np.ptp(values)) for values in fields.values()]
    return sum(len(deflated(values.astype("<i2"))) for values in packed)


def _fields(weather: Weather, state: State, frame: int) -> dict[str, Values]:
    """All variables of a frame; shape (level, latitude, longitude)."""
    return {name: np.stack([weather.field(state, name, level, frame) for level in LEVELS_HPA]) for name in VARIABLES}


def _write_new(path: Path, weather: Weather, month: _Month, states: Iterable[State], order: Order) -> None:
    def chunks(numbered: tuple[int, State]) -> dict[str, bytes]:
        frame, state = numbered
        return {name: deflated(values) for name, values in _fields(weather, state, frame).items()}

    with NewFile.create(path, weather.grid, month.time, VARIABLES) as file:
        for position, fields in enumerate(in_order(chunks, month.numbered(states), order.workers)):
            check_room(path, sum(map(len, fields.values())))
            file.write(position, fields)


def _write_old(path: Path, weather: Weather, month: _Month, states: Iterable[State], order: Order) -> None:
    def fields(numbered: tuple[int, State]) -> dict[str, Values]:
        frame, state = numbered
        return _fields(weather, state, frame)

    # The scale of a file stands in its header: its states (small beside its fields) are all made first.
    held: Sequence[State] = list(states)
    bounds = {name: weather.bounds(held, name) for name in VARIABLES}
    classic = order.form == "classic"
    # A file of netCDF-3 takes its whole room at once.
    check_room(path, _frame_bytes(weather, held[0], order.form) * (len(held) if classic else 1))
    with OldFile.create(path, weather.grid, month.time, bounds, classic=classic) as file:
        for position, found in enumerate(in_order(fields, month.numbered(held), order.workers)):
            if not classic:
                check_room(path, sum(values.nbytes for values in found.values()))
            file.write(position, found)
