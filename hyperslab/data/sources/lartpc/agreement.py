"""What the files of one archive must have in common, and what is said of them together."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hyperslab.data.config import DataSettings
from hyperslab.data.sources.index import Channel
from hyperslab.data.sources.lartpc.header import Header
from hyperslab.errors import UserError


def choose_channels(headers: list[Header], settings: DataSettings) -> list[Channel]:
    """The channels that are asked for, or those of the files.

    Raises
    ------
    UserError
        When a name is unknown.
    """
    first = headers[0]
    if settings.variables is None:
        return list(first.channels)
    known = {channel.name: channel for channel in first.channels}
    truth = {label.name for label in first.labels}
    for name in settings.variables:
        if name in truth:
            raise UserError(f"data.variables: {name} is truth or a label, kept beside and never an input; remove it")
        if name not in known:
            raise UserError(f"data.variables: unknown variable {name!r}; {first.path} holds {', '.join(known)}")
    return [known[name] for name in settings.variables]


def check_alike(headers: list[Header], channels: list[Channel]) -> None:
    """Refuse files that differ in format, space or channels from the first one.

    Raises
    ------
    UserError
        With both files and where they differ.
    """
    first = headers[0]
    for header in headers[1:]:
        both = f"{header.path}: differs from {first.path}:"
        if header.format != first.format:
            raise UserError(f"{both} {header.kind} beside {first.kind}; one archive has one format, name them apart")
        if header.space != first.space:
            raise UserError(f"{both} {_space_words(header)} beside {_space_words(first)}; name them apart")
        if header.attributes != first.attributes:
            raise UserError(
                f"{both} {header.attributes} beside {first.attributes}; name them apart, or choose in data.lartpc"
            )
        _check_channels(header, first, channels, both)


def _check_channels(header: Header, first: Header, channels: list[Channel], both: str) -> None:
    own = {channel.name: channel for channel in header.channels}
    for channel in channels:
        if channel.name not in own:
            raise UserError(f"{both} it lacks the channel {channel.name}; name the channels of both in data.variables")
        if own[channel.name].units != channel.units:
            units = f"[{own[channel.name].units}] beside [{channel.units}]"
            raise UserError(f"{both} {channel.name} is in {units}; a channel has one unit, convert the file")
    if len(channels) == len(first.channels) and set(own) - {channel.name for channel in channels}:
        more = ", ".join(sorted(set(own) - {channel.name for channel in channels}))
        raise UserError(f"{both} it has more channels ({more}); name the channels of both in data.variables")


def _space_words(header: Header) -> str:
    return " x ".join(
        f"{axis.name} {f'{len(axis.values)} ({axis.values[0]:g} to {axis.values[-1]:g})' if axis.values else ''}"
        f"[{axis.units}]"
        for axis in header.space
    )


def common_labels(headers: list[Header]) -> tuple[tuple[Channel, ...], list[str]]:
    """Labels that all files have, and a line on those that only some have."""
    first = headers[0].labels
    names = [{label.name for label in header.labels} for header in headers]
    shared = set.intersection(*names)
    lost = sorted(set.union(*names) - shared)
    lines = [f"labels that not all files have are left out: {', '.join(lost)}"] if lost else []
    return tuple(label for label in first if label.name in shared), lines


def printable(text: str) -> str:
    """The text on one line: a name in a damaged file may hold anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


@contextmanager
def in_one_line() -> Iterator[None]:
    """What is said of a mistake stays on one line."""
    try:
        yield
    except UserError as error:
        raise UserError(printable(str(error))) from None


def join_lines(lines: Iterable[tuple[str, str]]) -> list[str]:
    """One line for what is said alike of several files.

    Parameters
    ----------
    lines
        Path of a file, and what is said of it.
    """
    files: dict[str, list[str]] = {}
    for path, line in lines:
        files.setdefault(printable(line), []).append(path)
    return [
        f"{Path(paths[0]).name}{f' and {len(paths) - 1:,} more' if len(paths) > 1 else ''}: {line}"
        for line, paths in files.items()
    ]
