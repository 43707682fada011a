"""The record of a fetch: what has begun, and what is finished with its size and digest."""

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hyperslab.errors import UserError, disk_error

NAME = ".fetch.jsonl"


class Manifest:
    """Lines of JSON in the output directory, only ever appended; the last line about a file counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._entries = _read(path)

    def begun(self, name: str) -> dict[str, Any] | None:
        """What was recorded when the download of a file began, unless it is finished."""
        entry = self._entries.get(name)
        return entry if entry and entry["state"] == "begun" else None

    def finished(self, name: str) -> dict[str, Any] | None:
        """What was recorded when a file was finished."""
        entry = self._entries.get(name)
        return entry if entry and entry["state"] == "finished" else None

    def all_finished(self) -> dict[str, dict[str, Any]]:
        """Every file that was finished."""
        return {name: entry for name, entry in self._entries.items() if entry["state"] == "finished"}

    def record(self, name: str, state: str, **facts: Any) -> None:
        """Append a line and make it last."""
        entry = {"name": name, "state": state, **facts}
        with self._lock, self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
            self._entries[name] = entry


@contextmanager
def opened(out: Path) -> Iterator[Manifest]:
    """The record of a directory, made where absent, and held against a second fetch.

    Raises
    ------
    UserError
        When the directory cannot be written, or another fetch is at work in it.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / NAME).open("a+b")
    except FileExistsError:
        raise UserError(f"{out}: is a file; give a directory") from None
    except OSError as error:
        raise disk_error(error, out) or error from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{out}: another fetch is at work here; wait for it, or give another directory") from None
        _end_line(file)
        yield Manifest(out / NAME)


def read(out: Path) -> Manifest:
    """The record of a directory, to look at.

    Raises
    ------
    UserError
        When there is none.
    """
    if not (out / NAME).is_file():
        raise UserError(f"{out}: nothing was fetched here; give the directory of a fetch")
    return Manifest(out / NAME)


def _end_line(file: Any) -> None:
    """Close a line that a crash left half-written, so that the next one stands alone."""
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
            file.flush()


def _read(path: Path) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            entry = json.loads(line)
            known = entry["state"] in ("begun", "finished") and isinstance(entry["name"], str)
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if known:
            entries[entry["name"]] = entry
    return entries
