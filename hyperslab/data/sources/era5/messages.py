"""The messages of a GRIB file: where each one lies, and what its header says."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import eccodes

from hyperslab.data.clock import DAY_SECONDS
from hyperslab.data.sources.era5.formats import damage
from hyperslab.data.sources.era5.grib_grid import grid_digest
from hyperslab.data.sources.era5.grib_sections import find_message
from hyperslab.data.sources.era5.header import NO_MEMBER
from hyperslab.errors import UserError

_EPOCH = datetime(1970, 1, 1)

# Code table 4 of edition 1, and 4.4 of edition 2: the units of a step that have a fixed length of whole minutes.
_UNITS = {1: (0, 1, 2, 10, 11, 12, 13, 14), 2: (0, 1, 2, 10, 11, 12, 14, 15)}
_UNIT_KEYS = {
    1: ("indicatorOfUnitOfTimeRange",),
    2: ("indicatorOfUnitOfTimeRange", "indicatorOfUnitForTimeRange"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """What a message is of, beside its time and its member."""

    variable: str
    """Name that cfgrib and the Climate Data Store give it in netCDF, such as `t2m`."""
    units: str
    long_name: str
    level_type: str
    level: float
    step_type: str
    """`instant`, `accum`, `avg`, `max` or `min`."""
    grid_type: str
    grid: str
    """Digest of the description of its grid."""
    is_spectrum: bool
    """Whether it is one direction and frequency of a wave spectrum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One field of a GRIB file."""

    offset: int
    length: int
    parameter: Parameter
    time: int
    """Time for which it is valid, in seconds since 1970-01-01."""
    initial: int
    member: int
    expver: str


def read_messages(path: str, where: str) -> Iterator[Message]:
    """The messages of a file, by their headers alone.

    Raises
    ------
    UserError
        When a message is damaged or cut short, or holds several fields.
    """
    position = 0
    with damage(where, "its GRIB messages cannot be read"), Path(path).open("rb") as file:
        while (extent := find_message(file.fileno(), position)) is not None:
            if extent.num_fields > 1:
                raise UserError(
                    f"{where}: has messages of several fields, of which only one would be seen; "
                    "split them with `grib_copy in.grib out.grib`"
                )
            file.seek(extent.offset)
            handle = eccodes.codes_grib_new_from_file(file, headers_only=True)
            try:
                message = _read_message(handle, extent.offset, where)
            finally:
                eccodes.codes_release(handle)
            yield message
            position = message.offset + message.length


def _read_message(handle: int, offset: int, where: str) -> Message:
    _check_unit(handle, where)
    initial = _seconds(_number(handle, "dataDate"), _number(handle, "dataTime"))
    time = _seconds(_number(handle, "validityDate"), _number(handle, "validityTime"))
    return Message(
        offset=offset,
        length=_number(handle, "totalLength"),
        parameter=_parameter(handle),
        time=time,
        initial=initial,
        member=_member(handle),
        expver=str(_optional(handle, "expver", "")),
    )


def _check_unit(handle: int, where: str) -> None:
    """Refuse a step in months or years, which eccodes takes for 30 days or 365, and in no unit, at which it crashes."""
    edition = _number(handle, "edition")
    for key in _UNIT_KEYS.get(edition, ()):
        unit = int(_optional(handle, key, 1))
        if unit not in _UNITS[edition]:
            raise UserError(
                f"{where}: a message has its step in the unit {unit} of GRIB's code table 4, which is no fixed number "
                "of minutes; give it in hours, with `grib_set -s stepUnits=h,endStep=... in.grib out.grib`"
            )


def _member(handle: int) -> int:
    """Number of the member; edition 1 gives what is of no ensemble the number 0, of 0 members in all."""
    number = int(_optional(handle, "number", NO_MEMBER))
    is_alone = _number(handle, "edition") == 1 and number == 0 and _optional(handle, "totalNumber", 0) == 0
    return NO_MEMBER if is_alone else number


def _parameter(handle: int) -> Parameter:
    text = eccodes.codes_get_string
    name = text(handle, "cfVarName")
    if name == "unknown":
        name = f"param{_number(handle, 'paramId')}"
    return _shared(
        variable=name,
        units=text(handle, "units"),
        long_name=text(handle, "name"),
        level_type=text(handle, "typeOfLevel"),
        level=float(_optional(handle, "level", 0)),
        step_type=str(_optional(handle, "stepType", "instant")),
        grid_type=text(handle, "gridType"),
        grid=grid_digest(handle),
        is_spectrum=bool(eccodes.codes_is_defined(handle, "directionNumber")),
    )


@lru_cache(maxsize=4096)
def _shared(**fields: Any) -> Parameter:
    """One object for all messages of a parameter."""
    return Parameter(**fields)


def _number(handle: int, key: str) -> int:
    return int(eccodes.codes_get_long(handle, key))


def _optional(handle: int, key: str, absent: Any) -> Any:
    try:
        return eccodes.codes_get(handle, key)
    except eccodes.KeyValueNotFoundError:
        return absent


@lru_cache(maxsize=65_536)
def _seconds(date: int, time: int) -> int:
    """Seconds since 1970-01-01 of a date as YYYYMMDD and a time as HHMM."""
    day = datetime(date // 10_000, date // 100 % 100, date % 100)
    moment = day + timedelta(hours=time // 100, minutes=time % 100) - _EPOCH
    return moment.days * DAY_SECONDS + moment.seconds
