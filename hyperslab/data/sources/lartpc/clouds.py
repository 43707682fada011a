"""Point clouds in numpy archives: one column an array, the event of each point in one of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hyperslab.data.sources.lartpc.header import UNKNOWN
from hyperslab.data.sources.lartpc.layout import Layout, Quantity, make_layout
from hyperslab.data.sources.lartpc.numpy_archive import read_arrays, read_headers
from hyperslab.data.sources.lartpc.points import Column
from hyperslab.data.sources.lartpc.table import Arrays, Table
from hyperslab.data.sources.lartpc.tables import TableFormat
from hyperslab.errors import UserError

COLUMNS = ("event_id", "x", "y", "z")

# Hits of larnd-sim-jax; its code (NuLads/larnd-sim-jax) keeps lengths in cm.
QUANTITIES = {
    "adcs": Quantity(units="ADC", long_name="pulse height"),
    "adc": Quantity(units="ADC", long_name="pulse height"),
    "adc_clean": Quantity(units="ADC", long_name="pulse height above pedestal"),
    "Q": Quantity(units=UNKNOWN, long_name="charge", is_charge=True),
    "ticks": Quantity(units="1", long_name="clock ticks"),
}
NO_UNITS = "the file states no units: positions are taken as cm, as larnd-sim writes them"


class Clouds(TableFormat):
    """`event_id`, `x`, `y`, `z` and more, in one npz file."""

    name = "clouds"
    kind = "point clouds (npz)"
    event_columns = ("event_id",)

    @contextmanager
    def open(self, path: str) -> Iterator[Table]:
        """The arrays of the archive as one table."""
        yield _ArchiveTable(path)

    def layout(self, table: Table, path: str) -> Layout:
        """Points stand at x, y, z."""
        axes = {axis: Column(names=(axis,)) for axis in "xyz"}
        return make_layout(table, path, axes, QUANTITIES, left_out=("event_id",), oddities=(NO_UNITS,))


class _ArchiveTable:
    """Arrays of one length; those that are asked for are kept, since an array is packed as a whole."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._arrays: Arrays = {}
        headers = read_headers(path)
        shapes = {name: header.shape for name, header in headers.items()}
        if len(set(shapes.values())) != 1 or len(next(iter(shapes.values()))) != 1:
            found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise UserError(f"{path}: its arrays are no columns of one length ({found}); each needs a value a point")
        self.rows = next(iter(shapes.values()))[0]
        self.dtypes = {name: header.dtype for name, header in headers.items() if header.dtype.kind in "iufb"}
        self.left_out = tuple(name for name in headers if name not in self.dtypes)

    def read(self, names: Sequence[str], start: int, stop: int) -> Arrays:
        """Rows `[start, stop)` of some columns."""
        if new := [name for name in names if name not in self._arrays]:
            self._arrays |= read_arrays(self._path, new)
        return {name: self._arrays[name][start:stop] for name in names}
