"""The checkpoints of a run on disk: which are complete, whether they are whole, where each stands. Needs no torch."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyperslab.data.files import digest_of, file_digest, read_json
from hyperslab.errors import UserError

PREFIX = "step-"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands, kept in the checkpoint's manifest."""

    step: int
    """Optimizer steps done."""
    store_digest: str
    """Digest of the store trained on; a resume on another one is refused."""
    order_digest: str
    """Fingerprint of the samples drawn so far and to come."""
    skipped_in_a_row: int = 0
    """Latest steps that were skipped because they were not finite."""


def place_of(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step lies once it is complete."""
    return directory / f"{PREFIX}{step:08d}"


def aside(path: Path, what: str) -> Path:
    """A place beside a checkpoint's own that does not count: of its `draft`, or of it once it is `damaged`."""
    return path.with_name(f".{path.name}.{what}")


def latest(directory: Path) -> Path | None:
    """The latest complete checkpoint of a run, or None; its files are not looked at."""
    found = list(finished(directory))
    return found[-1] if found else None


def read_progress(path: Path) -> Progress:
    """Where the run stood when a checkpoint was written."""
    manifest = read_manifest(path)
    return Progress(
        step=manifest["step"],
        store_digest=manifest["store_digest"],
        order_digest=manifest["order_digest"],
        skipped_in_a_row=manifest.get("skipped_in_a_row", 0),
    )


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint.

    Raises
    ------
    UserError
        When it is missing, or does not fit its own digest.
    """
    try:
        manifest = dict(read_json(path / MANIFEST))
        sound = digest_of(manifest["files"]) == manifest["digest"]
    except (OSError, ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        raise UserError(f"{path / MANIFEST}: is missing or damaged")
    return manifest


def entries(directory: Path) -> list[Path]:
    """All that has the place of a checkpoint, whole or not, oldest first."""
    found = [path for path in directory.glob(f"{PREFIX}*") if re.fullmatch(PREFIX + r"\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix(PREFIX)))


def finished(directory: Path) -> Iterator[Path]:
    """Complete checkpoints, those with a sound manifest, oldest first."""
    for path in entries(directory):
        try:
            read_manifest(path)
        except UserError:
            continue
        yield path


def damage_of(path: Path, share: int = 0, num_shares: int = 1) -> str | None:
    """What is wrong with a checkpoint, or None where all that is looked at is as it was written.

    Parameters
    ----------
    share, num_shares
        Number of the share of the files that is looked at, out of how many: ranks check a checkpoint together.
    """
    try:
        files = read_manifest(path)["files"]
    except UserError as error:
        return str(error)
    for name, digest in list(files.items())[share::num_shares]:
        try:
            if file_digest(path / name) != digest:
                return f"{path / name}: was changed since it was written"
        except FileNotFoundError:
            return f"{path / name}: is missing"
        except OSError as error:
            return f"{path / name}: cannot be read: {error.strerror}"
    return None
