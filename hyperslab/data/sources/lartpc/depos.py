"""Energy deposits of the Wire-Cell Toolkit: sets of them in a numpy archive, one set an event."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperslab.data.config import DataSettings
from hyperslab.data.sources import Block
from hyperslab.data.sources.index import Axis, Channel, Index, RawFile
from hyperslab.data.sources.lartpc.header import Header, points_of
from hyperslab.data.sources.lartpc.numpy_archive import NpyHeader, read_arrays, read_headers
from hyperslab.data.sources.lartpc.points import whole_numbers
from hyperslab.errors import UserError

DATA = re.compile(r"depo_data_(\d{1,18})")
DATA_ROWS, INFO_ROWS = 7, 4
MM_TO_CM, NS_TO_US = 0.1, 1e-3

# NumpyDepoTools.cxx of WireCell/wire-cell-toolkit: t, q, x, y, z, extents along and across the drift; its units are
# ns, mm and the charge of a positron.
ROWS = {
    "t": (0, NS_TO_US),
    "q": (1, 1.0),
    "x": (2, MM_TO_CM),
    "y": (3, MM_TO_CM),
    "z": (4, MM_TO_CM),
    "extent_long": (5, MM_TO_CM),
    "extent_tran": (6, MM_TO_CM),
}
CHANNELS = (
    Channel(name="q", units="1", long_name="number of electrons, negative as their charge", variable="q"),
    Channel(name="t", units="us", long_name="time", variable="t"),
    Channel(name="extent_long", units="cm", long_name="extent along the drift", variable="extent_long"),
    Channel(name="extent_tran", units="cm", long_name="extent across the drift", variable="extent_tran"),
)
LABELS = (
    Channel(name="id", units="1", long_name="track"),
    Channel(name="pdg", units="1", long_name="particle"),
    Channel(name="generation", units="1", long_name="0, or above 0 for a deposit before its drift"),
    Channel(name="child", units="1", long_name="deposit that a deposit before its drift became"),
)


class Depos:
    """`depo_data_N` and `depo_info_N`: (7, points) and (4, points), or their transposes."""

    name = "depos"
    kind = "Wire-Cell energy deposits"

    def read_header(self, path: str, _settings: DataSettings) -> Header:
        """Sets of deposits, from the shapes of their arrays."""
        headers = read_headers(path)
        numbers = [int(match[1]) for name in headers if (match := DATA.fullmatch(name))]
        points = [_num_points(headers, number, path) for number in numbers]
        oddities = [
            "Wire-Cell's units are converted: x, y, z and extents from mm to cm, t from ns to us; q counts electrons "
            "and is negative",
        ]
        if len(headers) > 2 * len(numbers):
            others = [name for name in headers if not re.fullmatch(r"depo_(data|info)_\d+", name)]
            oddities.append(f"other arrays are left out: {', '.join(others)}")
        if any(headers[f"depo_data_{number}"].shape[0] == DATA_ROWS for number in numbers):
            oddities.append("arrays are stored transposed, a row for each quantity")
        return Header(
            path=path,
            format=self.name,
            kind=self.kind,
            num_frames=len(numbers),
            space=tuple(Axis(name=axis, units="cm", long_name=axis) for axis in "xyz"),
            channels=CHANNELS,
            labels=LABELS,
            points=np.asarray(points, np.int64),
            frame_labels={"event_id": tuple(numbers)},
            details={"numbers": numbers},
            oddities=tuple(oddities),
        )

    def read(self, file: RawFile, index: Index, first: int, last: int) -> Block:
        """Frames `[first, last)` of those in the file."""
        numbers = file.details["numbers"][first:last]
        arrays = read_arrays(file.path, [f"depo_{part}_{number}" for number in numbers for part in ("data", "info")])
        sets = [_oriented(arrays, number) for number in numbers]
        for number, (data, _), count in zip(numbers, sets, points_of(file, index, first, last), strict=True):
            if data.shape[1] != count:
                raise UserError(
                    f"{file.path}: depo_data_{number} has {data.shape[1]} points, not {count}; scan it again"
                )
        data = np.concatenate([data for data, _ in sets], axis=1)
        info = np.concatenate([info for _, info in sets], axis=1)
        block: Block = {
            "position": _rows(data, list("xyz")),
            "feature": _rows(data, [channel.variable for channel in index.channels]),
        }
        if index.labels:
            chosen = info[[LABELS.index(label) for label in index.labels]]
            block["labels"] = whole_numbers(chosen.T, "depo_info", file.path)
        return block

    def odd_values(self, header: Header) -> Iterator[str]:
        """Counts of deposits without a position, and of those that would leave electrons out."""
        lost = positive = 0
        for number in header.details["numbers"]:
            data, _ = _oriented(read_arrays(header.path, [f"depo_data_{number}", f"depo_info_{number}"]), number)
            lost += int((~np.isfinite(data[2:5])).any(axis=0).sum())
            positive += int((data[1] > 0).sum())
        if lost:
            yield f"{lost:,} deposits have a position that is NaN or infinite: kept as it is"
        if positive:
            yield f"{positive:,} deposits have a positive q, as no electrons have: kept as it is"


def _num_points(headers: Mapping[str, NpyHeader], number: int, path: str) -> int:
    data, info = headers[f"depo_data_{number}"], headers.get(f"depo_info_{number}")
    if info is None:
        raise UserError(f"{path}: holds depo_data_{number}, but no depo_info_{number}; pack both")
    for rows in (0, 1):
        if (len(data.shape), len(info.shape)) != (2, 2):
            break
        if (data.shape[rows], info.shape[rows]) == (DATA_ROWS, INFO_ROWS) and data.shape[1 - rows] == info.shape[
            1 - rows
        ]:
            return data.shape[1 - rows]
    raise UserError(
        f"{path}: depo_data_{number} is {data.shape} and depo_info_{number} {info.shape}; they must be "
        f"({DATA_ROWS}, points) and ({INFO_ROWS}, points), or both transposed"
    )


def _oriented(arrays: Mapping[str, npt.NDArray[Any]], number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Data and info of a set, with points along the last axis."""
    data, info = arrays[f"depo_data_{number}"], arrays[f"depo_info_{number}"]
    # The shape of info decides: seven points have data of seven by seven.
    is_transposed = info.shape[0] == INFO_ROWS and data.shape[0] == DATA_ROWS
    return (data, info) if is_transposed else (data.T, info.T)


def _rows(data: npt.NDArray[Any], names: list[str]) -> npt.NDArray[np.float32]:
    columns = [data[ROWS[name][0]].astype(np.float64) * ROWS[name][1] for name in names]
    return np.stack(columns, axis=1).astype(np.float32)
