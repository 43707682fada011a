"""The one error that a person can cause."""

import errno
import os
import sys
from collections.abc import Callable

MISTAKE = 2
"""Exit code after a person's mistake."""


class UserError(ValueError):
    """A mistake that a person can mend: wrong input, a wrong setting, a full disk.

    The message is one line that says where, what was found, the rule, and what to do. The command line prints
    it without a traceback and ends with exit code 2.
    """


class CampaignFailed(RuntimeError):
    """A step crashed more often than the site allows; what it printed is in its log."""


class Stopped(RuntimeError):
    """A person asked the campaign to stop; nothing is lost."""


def disk_error(error: OSError, path: str | os.PathLike[str], need_bytes: int | None = None) -> UserError | None:
    """The mistake behind an operating-system error, or None where it is not a person's.

    Parameters
    ----------
    error
        What was raised, while writing unless it names a file that may not be read.
    path
        The file or directory that was written.
    need_bytes
        How much room the write needs in all, said in the message where known.
    """
    need = f" ({need_bytes:,} bytes are needed)" if need_bytes else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"{path}: no space left on the disk{need}; free some room, then go on with `hyperslab resume`")
    if error.errno in (
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.ENAMETOOLONG,
        errno.ELOOP,
    ):
        name = error.filename
        if name is not None and os.access(name, os.F_OK) and not os.access(name, os.R_OK):
            return UserError(f"{name}: cannot be read: {error.strerror}; ask its owner for the right to read it")
        return UserError(f"{path}: cannot be written: {error.strerror}; choose a directory you may write to")
    return None


def exit_code(body: Callable[[], int]) -> int:
    """Exit code of a program's body; after a person's mistake its lines are printed and the code is 2."""
    try:
        return body()
    except UserError as error:
        print(f"hyperslab: {error}", file=sys.stderr, flush=True)
        return MISTAKE
