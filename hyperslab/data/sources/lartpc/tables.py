"""Formats that keep all points of a file in one table, with the number of its event beside each point."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager

from hyperslab.data.config import DataSettings
from hyperslab.data.sources import Block
from hyperslab.data.sources.index import Index, RawFile
from hyperslab.data.sources.lartpc.events import find_events, rows_of
from hyperslab.data.sources.lartpc.header import Header, points_of
from hyperslab.data.sources.lartpc.layout import Layout
from hyperslab.data.sources.lartpc.points import odd_values, read_points
from hyperslab.data.sources.lartpc.table import Table, blocks
from hyperslab.errors import UserError


class TableFormat(ABC):
    """A table of points with a column of event numbers."""

    name: str
    kind: str
    """The format in words."""
    event_columns: tuple[str, ...]
    """Names that the column of event numbers has had."""

    @abstractmethod
    def open(self, path: str) -> AbstractContextManager[Table]:
        """The table of a file."""

    @abstractmethod
    def layout(self, table: Table, path: str) -> Layout:
        """What of the table is a position, a feature or a label."""

    def event_column(self, table: Table, path: str) -> str:
        """The column that says a point's event.

        Raises
        ------
        UserError
            When there is none.
        """
        found = [name for name in self.event_columns if name in table.dtypes]
        if not found:
            raise UserError(f"{path}: its points have none of {', '.join(self.event_columns)}; each needs its event")
        return found[0]

    def read_header(self, path: str, _settings: DataSettings) -> Header:
        """Events and columns of a file; of its rows, only the event numbers are read."""
        with self.open(path) as table:
            layout = self.layout(table, path)
            column = self.event_column(table, path)
            events = find_events((block[column] for block in blocks(table, [column])), path)
        return Header(
            path=path,
            format=self.name,
            kind=self.kind,
            num_frames=len(events.numbers),
            space=layout.space,
            channels=layout.channels,
            labels=layout.labels,
            points=events.points,
            frame_labels={"event_id": events.numbers},
            details={**layout.details, "pieces": events.pieces},
            oddities=(*layout.oddities, *events.oddities),
        )

    def read(self, file: RawFile, index: Index, first: int, last: int) -> Block:
        """Frames `[first, last)` of those in the file."""
        with self.open(file.path) as table:
            rows = rows_of(file, index, first, last)
            return read_points(table, rows, points_of(file, index, first, last), file, index)

    def odd_values(self, header: Header) -> Iterator[str]:
        """Counts of points without a position, and of negative charges."""
        with self.open(header.path) as table:
            layout = self.layout(table, header.path)
            yield from odd_values([table], layout.positions, layout.charges)
