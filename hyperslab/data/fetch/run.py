"""Planning and running a fetch: several downloads at a time, each recorded when it is whole."""

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hyperslab.data.fetch import manifest
from hyperslab.data.fetch.archives import Archive
from hyperslab.data.fetch.download import Downloads, target_of
from hyperslab.data.fetch.manifest import Manifest
from hyperslab.data.fetch.plan import Item
from hyperslab.data.fetch.rate import Rate
from hyperslab.data.files import sha256_of
from hyperslab.errors import Stopped, UserError

_CLIENTS = (
    "urllib3",
    "requests",
    "botocore",
    "aiobotocore",
    "s3fs",
    "fsspec",
    "cdsapi",
    "ecmwf",
    "multiurl",
    "aiohttp",
)
_MOST_MISTAKES = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """The files of a request, and which of them are there."""

    items: list[Item]
    missing: list[Item]

    @property
    def missing_bytes(self) -> int:
        """Bytes that are still to come, as far as known."""
        return sum(item.size_bytes or item.estimate_bytes or 0 for item in self.missing)


def plan(archive: Archive, out: Path) -> Plan:
    """What a fetch would do; nothing is written."""
    with _silent_clients():
        held = Manifest(out / manifest.NAME)
        items = archive.plan(Downloads(out, held, Rate(None)))
        return Plan(items, [item for item in items if not _is_there(item, out, held)])


def fetch(
    archive: Archive,
    out: Path,
    *,
    jobs: int,
    rate: Rate,
    progress: Callable[[Item], None],
    patience_seconds: float = 0.5,
) -> Plan:
    """Fetch what a request asks for and is not there yet.

    Parameters
    ----------
    jobs
        Files to fetch at a time.
    progress
        Called with each file once it is whole and recorded.
    patience_seconds
        Unit of the waits between tries.

    Raises
    ------
    UserError
        One line for each file that could not be fetched; the others are, and are kept.
    """
    with _silent_clients(), manifest.opened(out) as held:
        downloads = Downloads(out, held, rate, patience_seconds=patience_seconds)
        items = archive.plan(downloads)
        found = Plan(items, [item for item in items if not _is_there(item, out, held)])
        _check_room(found, out)
        mistakes = []
        with ThreadPoolExecutor(jobs) as pool:
            running = {pool.submit(archive.get, item, downloads): item for item in found.missing}
            try:
                for future in as_completed(running):
                    try:
                        future.result()
                        progress(running[future])
                    except UserError as error:
                        mistakes.append(str(error))
                        if "no space left" in str(error):
                            downloads.stop.set()
                    except Stopped:
                        continue
            finally:
                # After an interruption, too: what runs stops at its next block, and the rest does not begin.
                downloads.stop.set()
                for future in running:
                    future.cancel()
        if mistakes:
            raise UserError(_together(mistakes, len(found.missing)))
        return found


def verify(out: Path) -> tuple[int, list[str]]:
    """Reread every file that was fetched: how many there are, and a line for each that is not what it was.

    Raises
    ------
    UserError
        When nothing was fetched there.
    """
    finished = manifest.read(out).all_finished()
    problems = []
    for name, entry in sorted(finished.items()):
        path = out / name
        if not path.is_file():
            problems.append(f"{path}: is missing; fetch again")
        elif path.stat().st_size != entry["size_bytes"]:
            problems.append(
                f"{path}: has {path.stat().st_size:,} bytes instead of {entry['size_bytes']:,}; fetch again"
            )
        elif sha256_of(path) != entry["sha256"]:
            problems.append(f"{path}: is not what was fetched (SHA-256 differs); delete it, then fetch again")
    return len(finished), problems


def _is_there(item: Item, out: Path, held: Manifest) -> bool:
    entry = held.finished(item.name)
    if entry is None or entry["origin"] != item.origin:
        return False
    target = target_of(out, item)
    if not target.is_file() or target.stat().st_size != entry["size_bytes"]:
        return False
    same_size = item.size_bytes is None or item.size_bytes == entry["size_bytes"]
    return same_size and (not item.validator or item.validator == entry["validator"])


def _check_room(found: Plan, out: Path) -> None:
    there = sum(part.stat().st_size for part in out.rglob("*.part"))
    need = found.missing_bytes - there
    free = shutil.disk_usage(out).free
    if need > free:
        raise UserError(
            f"{out}: no space left on the disk ({need:,} bytes are needed, {free:,} are free); free some room, or ask "
            "for less"
        )


def _together(mistakes: list[str], num_files: int) -> str:
    shown = mistakes[:_MOST_MISTAKES]
    if len(mistakes) > len(shown):
        shown.append(f"{len(mistakes)} of {num_files} files could not be fetched; these were the first")
    return "\nhyperslab: ".join(shown)


@contextmanager
def _silent_clients() -> Iterator[None]:
    """Keep the clients' own log lines and warnings back: they may hold signed URLs and keys."""
    loggers = [logging.getLogger(name) for name in _CLIENTS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
