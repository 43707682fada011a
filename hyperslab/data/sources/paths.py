"""Raw files as a campaign names them: paths, glob patterns and URLs."""

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from hyperslab.errors import UserError


def is_url(pattern: str) -> bool:
    """Whether a name is a URL, such as `s3://bucket/era5.zarr`."""
    return "://" in pattern


def absolute(pattern: str, folder: Path) -> str:
    """A path or pattern of raw files, taken from a folder; a URL stays as it is.

    Raises
    ------
    UserError
        When it begins with the home of a user that there is not.
    """
    if is_url(pattern):
        return pattern
    try:
        expanded = Path(pattern).expanduser()
    except RuntimeError:
        raise UserError(f"data.files: {pattern}: there is no such user; write the path out") from None
    if expanded.is_absolute() or (folder / expanded).exists():
        return str(folder / expanded)
    # The folder's own name may hold characters that a pattern would read as wildcards.
    return os.path.join(glob.escape(str(folder)), expanded)  # noqa: PTH118


def expand(patterns: Iterable[str]) -> list[str]:
    """The raw files of absolute paths, patterns and URLs, each once, in the order of their names.

    Raises
    ------
    UserError
        When a path or a pattern matches nothing.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        # A name that is there is itself, whatever characters it holds.
        plain = is_url(pattern) or Path(pattern).exists()
        matches = [pattern] if plain else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
        if not matches:
            what = "matches no file" if glob.has_magic(pattern) else "no such file"
            raise UserError(f"data.files: {pattern}: {what}; paths are taken from the campaign file's directory")
        found.update(dict.fromkeys(matches))
    return list(found)
