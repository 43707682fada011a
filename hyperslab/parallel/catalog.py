"""The checkpoints of a run on disk: which are complete, and where each stands. Needs no torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyperslab.data.files import digest_of, read_json
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


def latest(directory: Path) -> Path | None:
    """The latest complete checkpoint of a run, or None."""
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
        When it does not fit its own digest.
    """
    try:
        manifest = dict(read_json(path / MANIFEST))
        sound = digest_of(manifest["files"]) == manifest["digest"]
    except (ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        raise UserError(f"{path / MANIFEST}: is damaged; remove {path} to go on from the checkpoint before")
    return manifest


def finished(directory: Path) -> Iterator[Path]:
    """Complete checkpoints, oldest first."""
    yield from sorted(path for path in directory.glob(f"{PREFIX}*") if (path / MANIFEST).exists())
