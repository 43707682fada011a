"""What of a table is a position, a feature or a label of its points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hyperslab.data.sources.index import Axis, Channel
from hyperslab.data.sources.lartpc.header import UNKNOWN
from hyperslab.data.sources.lartpc.points import Column, recipe
from hyperslab.data.sources.lartpc.table import Table
from hyperslab.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What is known of a column from the program that writes it; files of this field state no units."""

    units: str
    """Unit of the channel."""
    long_name: str
    scale: float = 1.0
    """Factor from the file's unit to the channel's."""
    from_first: bool = False
    """Whether the channel counts from the event's least value."""
    is_charge: bool = False
    """Whether negative values are odd enough to be counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What of a table is a position, a feature or a label."""

    space: tuple[Axis, ...]
    positions: tuple[Column, ...]
    channels: tuple[Channel, ...]
    features: Mapping[str, Column]
    labels: tuple[Channel, ...]
    charges: Mapping[str, Column]
    oddities: tuple[str, ...]

    @property
    def details(self) -> dict[str, Any]:
        """What reading needs, for `RawFile.details`."""
        return recipe(
            self.positions, self.features, {label.name: label.variable or label.name for label in self.labels}
        )


def make_layout(
    table: Table,
    path: str,
    axes: Mapping[str, Column],
    quantities: Mapping[str, Quantity],
    *,
    axis_units: Mapping[str, str] | str = "cm",
    left_out: Sequence[str] = (),
    oddities: Sequence[str] = (),
) -> Layout:
    """Columns of fractions are features and those of whole numbers labels, unless the format knows better.

    Parameters
    ----------
    axes
        How each axis of position is made of columns.
    quantities
        What the format knows of columns; a column of whole numbers that it knows is a feature, too.
    left_out
        Columns that are none of the three.
    oddities
        What else a person should know.

    Raises
    ------
    UserError
        When a column of a position is missing, or nothing is left for a feature.
    """
    used = {name for column in axes.values() for name in column.names}
    if lacking := sorted(used - set(table.dtypes)):
        held = ", ".join(table.dtypes)
        raise UserError(f"{path}: its points lack {', '.join(lacking)} (it holds {held}); points need positions")
    rest = [name for name in table.dtypes if name not in used and name not in left_out]
    wanted = [name for name in rest if name in quantities or table.dtypes[name].kind == "f"]
    if not wanted:
        raise UserError(f"{path}: its points have positions, but no quantity measured there; name other files")
    known = {name: quantities.get(name, Quantity(units=UNKNOWN, long_name=name)) for name in wanted}
    features = {
        name: Column(names=(name,), scale=quantity.scale, from_first=quantity.from_first)
        for name, quantity in known.items()
    }
    return Layout(
        space=tuple(
            Axis(name=name, units=axis_units if isinstance(axis_units, str) else axis_units[name], long_name=name)
            for name in axes
        ),
        positions=tuple(axes.values()),
        channels=tuple(
            Channel(name=name, units=quantity.units, long_name=quantity.long_name, variable=name)
            for name, quantity in known.items()
        ),
        features=features,
        labels=tuple(
            Channel(name=name, units="1", long_name=name, variable=name) for name in rest if name not in known
        ),
        charges={name: features[name] for name, quantity in known.items() if quantity.is_charge},
        oddities=(*_oddities(table, axes, known), *oddities),
    )


def _oddities(table: Table, axes: Mapping[str, Column], known: Mapping[str, Quantity]) -> list[str]:
    scaled = [f"{name} times {column.scale:g}" for name, column in axes.items() if column.scale != 1]
    scaled += [f"{name} times {q.scale:g} to {q.units}" for name, q in known.items() if q.scale != 1]
    relative = [name for name, quantity in known.items() if quantity.from_first]
    unknown = [name for name, quantity in known.items() if quantity.units == UNKNOWN]
    lines = []
    if scaled:
        lines.append(f"converted: {', '.join(scaled)}")
    if relative:
        lines.append(f"{', '.join(relative)}: counted from the least value of each event, exactly")
    if unknown:
        lines.append(f"the unit of {', '.join(unknown)} is not known: taken as it stands")
    if table.left_out:
        lines.append(f"columns that hold no single number are left out: {', '.join(table.left_out)}")
    return lines
