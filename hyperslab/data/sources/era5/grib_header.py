"""What the headers of the messages of a GRIB file say together."""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np

from hyperslab.data.clock import Clock
from hyperslab.data.sources.era5.accumulation import accumulation_line
from hyperslab.data.sources.era5.formats import damage
from hyperslab.data.sources.era5.grib_grid import REGULAR, grid_of, open_message, why_no_grid
from hyperslab.data.sources.era5.grid import Grid, is_same
from hyperslab.data.sources.era5.header import PRESSURE, Contents, Frames, Header, channel_name, check_names
from hyperslab.data.sources.era5.messages import Message, Parameter, read_messages
from hyperslab.data.sources.era5.packed import pack
from hyperslab.data.sources.index import Channel
from hyperslab.errors import UserError

_KINDS = {
    "isobaricInhPa": PRESSURE,
    "isobaricInPa": PRESSURE,
    "hybrid": "hybrid",
    "depthBelowLand": "depth",
    "depthBelowLandLayer": "depth",
    "heightAboveGround": "height",
    "heightAboveSea": "altitude",
    "theta": "theta",
    "potentialVorticity": "pv",
}

FrameKey = tuple[int, int, int]
"""Member, initial time, time."""


def read_grib_contents(file: str, path: str, part: str) -> Contents:
    """What the headers of a GRIB file say.

    Parameters
    ----------
    file
        Where the file lies.
    path, part
        The raw file, and the member of it where it is a zip archive.

    Raises
    ------
    UserError
        When it is damaged, holds a field twice, or nothing on a regular grid.
    """
    where = f"{path} ({part})" if part else path
    fields: dict[Parameter, list[Message]] = {}
    for message in read_messages(file, where):
        fields.setdefault(message.parameter, []).append(message)
    left_out = {parameter.variable: reason for parameter in fields if (reason := _why_no_field(parameter))}
    taken = {parameter: held for parameter, held in fields.items() if not _why_no_field(parameter)}
    if not taken:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise UserError(f"{where}: no variable can be taken ({reasons or 'it holds no message'})")
    grids = _read_grids(file, taken, where)
    taken = _join_alike(taken, grids)
    names = _names(list(taken), where)
    groups: dict[tuple[int, tuple[FrameKey, ...]], list[Parameter]] = {}
    for parameter, messages in taken.items():
        messages.sort(key=_frame_key)
        _check_once(messages, names[parameter], where)
        groups.setdefault((id(grids[parameter.grid]), tuple(map(_frame_key, messages))), []).append(parameter)
    headers = [
        _header(path, part, grids[parameters[0].grid], {names[p]: (p, taken[p]) for p in parameters}, number)
        for number, parameters in enumerate(groups.values())
    ]
    total = sum(map(len, fields.values()))
    return Contents(path=path, words=f"GRIB ({total} messages)", headers=tuple(headers), left_out=left_out)


def _why_no_field(parameter: Parameter) -> str:
    if parameter.grid_type not in REGULAR:
        return why_no_grid(parameter.grid_type)
    if parameter.is_spectrum:
        return "it is a wave spectrum of directions and frequencies, select one place along them beforehand"
    return ""


def _read_grids(file: str, fields: dict[Parameter, list[Message]], where: str) -> dict[str, Grid]:
    """The grid of each description; one object for all descriptions of a grid."""
    grids: dict[str, Grid] = {}
    with damage(where, "its grid cannot be read"), Path(file).open("rb") as stream:
        for parameter, messages in fields.items():
            if parameter.grid in grids:
                continue
            stream.seek(messages[0].offset)
            with open_message(stream.read(messages[0].length)) as handle:
                grid = grid_of(handle, where)
            grids[parameter.grid] = next((known for known in grids.values() if is_same(known, grid)), grid)
    return grids


def _join_alike(fields: dict[Parameter, list[Message]], grids: dict[str, Grid]) -> dict[Parameter, list[Message]]:
    """Join what is one field under two names of its level: edition 1 has `t2m` on the surface, edition 2 at 2 m."""
    alike: dict[tuple[str, str, str, int], list[Parameter]] = {}
    for parameter in fields:
        same = (_plain_name(parameter), parameter.step_type, parameter.units, id(grids[parameter.grid]))
        alike.setdefault(same, []).append(parameter)
    joined: dict[Parameter, list[Message]] = {}
    for parameters in alike.values():
        messages = [message for parameter in parameters for message in fields[parameter]]
        if len({_frame_key(message) for message in messages}) == len(messages):
            joined[parameters[0]] = messages
        else:
            joined.update({parameter: fields[parameter] for parameter in parameters})
    return joined


def _frame_key(message: Message) -> FrameKey:
    return message.member, message.initial, message.time


def _check_once(messages: list[Message], name: str, where: str) -> None:
    for first, second in pairwise(messages):
        if _frame_key(first) == _frame_key(second):
            raise UserError(
                f"{where}: holds {name} at {Clock().moment(first.time)} twice; keep each field once, "
                "`grib_copy -w` copies those that you name"
            )


def _names(parameters: list[Parameter], where: str) -> dict[Parameter, str]:
    """A channel's name for each parameter, with its type of level, or the way it was taken over time, where needed."""
    names = {parameter: _plain_name(parameter) for parameter in parameters}
    for suffix in ("level_type", "step_type"):
        count = Counter(names.values())
        for parameter, name in names.items():
            word = getattr(parameter, suffix)
            if count[name] > 1 and word not in ("surface", "instant"):
                names[parameter] = f"{name}_{word}"
    check_names([_channel(name, parameter) for parameter, name in names.items()], where)
    return names


def _plain_name(parameter: Parameter) -> str:
    kind = _kind(parameter)
    return channel_name(parameter.variable, kind, _level(parameter) if kind else None)


def _kind(parameter: Parameter) -> str | None:
    """Kind of level that the name tells; none where there is one level, or where the variable's name tells it."""
    kind = _KINDS.get(parameter.level_type)
    if kind is None:
        return parameter.level_type if parameter.level else None
    if kind in ("depth", "height") and any(letter.isdigit() for letter in parameter.variable):
        return None
    return kind


def _level(parameter: Parameter) -> float:
    return parameter.level / 100 if parameter.level_type == "isobaricInPa" else parameter.level


def _channel(name: str, parameter: Parameter) -> Channel:
    kind = _kind(parameter)
    return Channel(
        name=name,
        variable=parameter.variable,
        level=_level(parameter) if kind else None,
        units=parameter.units,
        long_name=parameter.long_name,
        details={"level_kind": kind} if kind else {},
    )


def _header(path: str, part: str, grid: Grid, fields: dict[str, tuple[Parameter, list[Message]]], group: int) -> Header:
    messages = next(iter(fields.values()))[1]
    return Header(
        path=path,
        part=part,
        grid=grid,
        clock=Clock(),
        frames=Frames(
            time=np.asarray([message.time for message in messages], np.int64),
            initial=np.asarray([message.initial for message in messages], np.int64),
            member=np.asarray([message.member for message in messages], np.int64),
            expver=np.asarray(_versions([held for _, held in fields.values()])),
        ),
        channels=tuple(_channel(name, parameter) for name, (parameter, _) in fields.items()),
        oddities=tuple(_oddities(grid, [parameter for parameter, _ in fields.values()])),
        messages={
            name: pack([[message.offset for message in held], [message.length for message in held]])
            for name, (_, held) in fields.items()
        },
        group=group,
    )


def _versions(fields: list[list[Message]]) -> list[str]:
    """Experiment version of each frame; several where fields differ."""
    return [",".join(sorted({message.expver for message in held} - {""})) for held in zip(*fields, strict=True)]


def _oddities(grid: Grid, parameters: list[Parameter]) -> Iterable[str]:
    yield from grid.oddities()
    if any(parameter.level_type == "isobaricInPa" for parameter in parameters):
        yield "levels in Pa are named and chosen in hPa"
    sums = list(dict.fromkeys(p.variable for p in parameters if p.step_type == "accum"))
    if sums:
        yield accumulation_line(sums)
