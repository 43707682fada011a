"""Fields of a GRIB file, by the places of its messages."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hyperslab.data.frames import Ints
from hyperslab.data.sources.era5.grib_grid import field_of, grid_digest, grid_of, open_message
from hyperslab.data.sources.era5.grid import Grid
from hyperslab.data.sources.era5.packed import unpack


class GribReader:
    """Reads messages of one open file.

    Parameters
    ----------
    file
        Where the file lies.
    messages
        Offsets and lengths of each channel's messages, packed.
    where
        Name of the file in messages to a person.
    """

    def __init__(self, file: str, messages: dict[str, str], where: str) -> None:
        self._file = Path(file).open("rb")  # noqa: SIM115
        self._messages = messages
        self._places: dict[str, Ints] = {}
        self._where = where
        self._grids: dict[str, Grid] = {}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, channels: dict[str, int], position: int, count: int, block: npt.NDArray[np.float32]) -> None:
        """Read frames `[position, position + count)` of the file into a block.

        Parameters
        ----------
        channels
            Number in the block of each channel that is read, by its name.
        block
            Shape (frame, channel, latitude, longitude).
        """
        for name, number in channels.items():
            if name not in self._places:
                self._places[name] = unpack(self._messages[name], rows=2)
            offsets, lengths = self._places[name]
            for frame in range(count):
                place = position + frame
                self._read_message(int(offsets[place]), int(lengths[place]), block[frame, number])

    def _read_message(self, offset: int, length: int, out: npt.NDArray[np.float32]) -> None:
        content = os.pread(self._file.fileno(), length, offset)
        with open_message(content) as handle:
            description = grid_digest(handle)
            if description not in self._grids:
                self._grids[description] = grid_of(handle, self._where)
            self._grids[description].turn(field_of(handle), out)
