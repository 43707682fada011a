"""One raw file in words."""

from collections.abc import Iterator

from hyperslab.data.config import DataSettings
from hyperslab.data.frames import measure_segments
from hyperslab.data.sources.era5.formats import is_url, state_of
from hyperslab.data.sources.era5.header import Contents, Header
from hyperslab.data.sources.era5.record import Record, make_record
from hyperslab.data.sources.index import Description
from hyperslab.errors import UserError


def describe_contents(contents: Contents) -> Description:
    """What a file is, what would be taken from it, and what is odd in it.

    Raises
    ------
    UserError
        When nothing can be taken from it.
    """
    if not contents.headers:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in contents.left_out.items())
        raise UserError(f"{contents.path}: no variable can be taken ({reasons or 'the file holds none'})")
    taken: list[str] = []
    oddities: dict[str, None] = {}
    for header in contents.headers:
        record = _record_of(header)
        taken += _lines(header, record)
        oddities.update(dict.fromkeys((*header.oddities, *(record.oddities if record else ()))))
    oddities.update({f"{name} is left out: {reason}": None for name, reason in contents.left_out.items()})
    size, _ = state_of(contents.path)
    kind, _, rest = contents.words.partition(" ")
    what = "of metadata " if contents.words.startswith("Zarr") or is_url(contents.path) else ""
    return Description(
        path=contents.path,
        kind=f"{kind}, {size:,} bytes {what}{rest}",
        taken=tuple(dict.fromkeys(taken)),
        oddities=tuple(oddities),
    )


def _record_of(header: Header) -> Record | None:
    if header.frames is None:
        return None
    names = tuple(channel.name for channel in header.channels)
    return make_record([(header, names)], DataSettings(files=[header.path]))


def _lines(header: Header, record: Record | None) -> Iterator[str]:
    if record is not None:
        yield _frames_line(record)
    yield f"grid: {header.grid.words()}"
    word = "channel" if record is not None else "static field"
    for channel in header.channels:
        yield f"{word} {channel.name}: {channel.long_name} [{channel.units}]"


def _frames_line(record: Record) -> str:
    time, segments = record.time, int(record.segment[-1]) + 1
    first, last = record.clock.moment(time.min()), record.clock.moment(time.max())
    words = f"frames: {len(time)}, {first} to {last}"
    if len(time) > 1:
        cadence = measure_segments(time, record.segment, record.clock).cadence
        words += f", every {cadence}, in {segments} segment(s)" if cadence != "none" else f", in {segments} segment(s)"
    trajectories = record.trajectories
    if trajectories.has_members:
        words += f", {len(trajectories.members)} members"
    if trajectories.has_starts:
        starts = {trajectories.start(rank) for rank in range(len(trajectories.codes))}
        words += f", {len(starts)} initial time(s)"
    return words
