"""Which fields an archive's files hold, and which of them a campaign takes."""

from collections.abc import Sequence
from dataclasses import dataclass

from hyperslab.data.config import DataSettings
from hyperslab.data.sources.era5.header import Contents, Header
from hyperslab.data.sources.index import Channel
from hyperslab.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is taken."""

    channels: tuple[Channel, ...]
    statics: tuple[Channel, ...]
    single: tuple[str, ...]
    """Names of the statics that stand with a single time in their file."""

    def own(self, header: Header) -> tuple[Channel, ...]:
        """The channels that a header holds."""
        names = {channel.name for channel in header.channels} if header.frames is not None else set()
        return tuple(channel for channel in self.channels if channel.name in names)

    def own_statics(self, header: Header) -> tuple[Channel, ...]:
        """The static fields that a header holds."""
        names = {channel.name for channel in header.channels}
        return tuple(channel for channel in self.statics if channel.name in names)


def choose(contents: Sequence[Contents], settings: DataSettings) -> Choice:
    """What a campaign takes from these files.

    A field is static where it has no time, where it has a single frame while other fields have more, or where the
    campaign names it as such.

    Raises
    ------
    UserError
        When a name is unknown, a name has two units, or nothing is left.
    """
    headers = [header for held in contents for header in held.headers]
    left_out = {name: reason for held in contents for name, reason in held.left_out.items()}
    known = _known_channels(headers)
    single = _single_frames(headers, settings)
    timeless = {channel.name for header in headers if header.frames is None for channel in header.channels}
    statics = [channel for channel in known.values() if channel.name in timeless | single]
    fields = [channel for channel in known.values() if channel.name not in timeless | single]
    _check_variables(fields, statics, left_out, settings)
    if not fields:
        _refuse_nothing(contents[0].path, statics, left_out)
    return Choice(
        channels=tuple(_wanted(fields, settings)),
        statics=tuple(channel for channel in statics if _is_wanted_static(channel, settings)),
        single=tuple(sorted(single)),
    )


def _known_channels(headers: list[Header]) -> dict[str, Channel]:
    known: dict[str, tuple[Channel, Header]] = {}
    for header in headers:
        for channel in header.channels:
            first, owner = known.setdefault(channel.name, (channel, header))
            if first.units != channel.units:
                raise UserError(
                    f"{header.name}: {channel.name} is in {channel.units!r}, in {owner.name} in {first.units!r}; "
                    "one variable must have one unit, convert the file"
                )
            if (first.variable, first.details) != (channel.variable, channel.details):
                raise UserError(
                    f"{header.name}: {channel.name} is {channel.variable!r} on {channel.details}, in {owner.name} "
                    f"{first.variable!r} on {first.details}; rename one of the two"
                )
            if (header.frames is None) != (owner.frames is None):
                raise UserError(
                    f"{header.name} and {owner.name}: one holds {channel.name} with time, the other without; "
                    "leave one file out, or rename the variable"
                )
    return {name: channel for name, (channel, _) in known.items()}


def _single_frames(headers: list[Header], settings: DataSettings) -> set[str]:
    """Fields that have one frame in all while others have more, or that the campaign calls static."""
    frames: dict[str, int] = {}
    owners: dict[str, Header] = {}
    for header in headers:
        for channel in header.channels:
            frames[channel.name] = frames.get(channel.name, 0) + header.num_frames
            owners[channel.name] = header
    most = max(frames.values(), default=0)
    named = {
        channel.name: channel.variable
        for header in headers
        for channel in header.channels
        if channel.variable in (settings.era5.static or [])
    }
    for name, variable in named.items():
        if frames[name] > 1:
            raise UserError(
                f"data.era5.static: {variable} has {frames[name]} frames ({owners[name].name}); a static field "
                "has one, take it as a variable or name a file with a single time"
            )
    return {name for name, count in frames.items() if count == 1 and (most > 1 or name in named)}


def _check_variables(
    fields: list[Channel], statics: list[Channel], left_out: dict[str, str], settings: DataSettings
) -> None:
    names = sorted({channel.variable for channel in (*fields, *statics)})
    for key, wanted, known in (
        ("data.variables", settings.variables, names),
        ("data.era5.static", settings.era5.static, sorted({channel.variable for channel in statics})),
    ):
        for name in wanted or []:
            if name in known:
                continue
            if name in left_out:
                raise UserError(f"{key}: {name} cannot be taken: {left_out[name]}")
            raise UserError(f"{key}: unknown variable {name!r}; the files hold {', '.join(known) or 'none'}")
    levels = sorted({channel.level for channel in fields if channel.level is not None})
    for level in settings.levels or []:
        if level not in levels:
            held = ", ".join(f"{value:g}" for value in levels) or "none"
            raise UserError(f"data.levels: unknown level {level:g}; the files hold {held}")


def _refuse_nothing(path: str, statics: list[Channel], left_out: dict[str, str]) -> None:
    if statics:
        names = ", ".join(channel.name for channel in statics)
        raise UserError(f"{path}: no variable has a time axis (static: {names}); name files with frames in data.files")
    reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
    raise UserError(f"{path}: no variable can be taken ({reasons or 'the file holds none'})")


def _wanted(fields: list[Channel], settings: DataSettings) -> list[Channel]:
    names = sorted({channel.variable for channel in fields})
    wanted = [name for name in settings.variables or names if name in names]
    if not wanted:
        raise UserError(
            f"data.variables: {', '.join(settings.variables or [])} have no frames in time; the files hold "
            f"{', '.join(names)}"
        )
    return [
        channel
        for variable in wanted
        for channel in fields
        if channel.variable == variable
        and (channel.level is None or settings.levels is None or channel.level in settings.levels)
    ]


def _is_wanted_static(channel: Channel, settings: DataSettings) -> bool:
    if settings.era5.static is not None and channel.variable in settings.era5.static:
        return True
    if settings.variables is not None:
        return channel.variable in settings.variables
    return settings.era5.static is None
