"""What the tests of synthetic archives ask for."""

import hashlib
from pathlib import Path

from hyperslab.data.sources.synthetic.archive import Order


def order(out: Path, size_bytes: int, form: str, seed: int = 0, runs: int | None = None) -> Order:
    return Order(out=out, size_bytes=size_bytes, seed=seed, form=form, workers=2, runs=runs)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file, by its path in the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
