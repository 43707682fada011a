"""Append-only records of a campaign: the journal, and the spools that ranks write metrics to."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TAIL_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class Journal:
    """A file of JSON lines; each is on disk before `append` returns.

    A line that was cut short by a crash is passed over, and the next one begins on a line of its own.
    """

    path: Path

    def append(self, event: str, **facts: Any) -> None:
        """Add an event, with the time of day."""
        line = json.dumps({"time": time.time(), "event": event, **facts}, separators=(",", ":"))
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            data = (("\n" if torn else "") + line + "\n").encode()
            written = os.write(handle, data)
            if written != len(data):
                raise OSError(28, "No space left on device", str(self.path))
            os.fsync(handle)
        finally:
            os.close(handle)

    def read(self, offset: int = 0) -> Iterator[dict[str, Any]]:
        """All events from a byte offset on, oldest first."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(offset)
            for line in file:
                if (event := _parse(line)) is not None:
                    yield event

    def last(self, event: str) -> dict[str, Any] | None:
        """The latest event of that name, or None."""
        found = None
        for entry in self.read():
            if entry["event"] == event:
                found = entry
        return found

    def tail(self) -> list[dict[str, Any]]:
        """The latest events, oldest first, however long the file has grown."""
        if not self.path.exists():
            return []
        start = max(0, self.path.stat().st_size - TAIL_BYTES)
        return list(self.read(start))


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "event" in entry else None


@dataclass(frozen=True, slots=True)
class Spool:
    """Metrics of one segment of training, appended by rank 0 and read by anyone."""

    journal: Journal

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the numbers of a step."""
        self.journal.append("metrics", step=step, values=dict(values))


def spools(folder: Path) -> list[Journal]:
    """The spools in a directory, in the order of their segments."""
    return [Journal(path) for path in sorted(folder.glob("*.jsonl"))]


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All metrics entries of a campaign in the order of steps.

    Steps that were done again after a crash count once: a later segment stands for what an earlier one wrote.
    """
    entries: dict[tuple[int, tuple[str, ...]], dict[str, Any]] = {}
    for spool in spools(folder):
        for entry in spool.read():
            if entry["event"] == "metrics":
                entries[entry["step"], tuple(entry["values"])] = entry
    return sorted(entries.values(), key=lambda entry: entry["step"])
