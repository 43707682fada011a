"""Processes that end with the one that started them, however that one ends (Linux)."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent's thread ends.

    Parameters
    ----------
    parent
        Process number of the parent, taken before this process started: it may be gone already.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    # The wish survives exec: python -m hyperslab.processes PARENT PROGRAM ARGUMENT...
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
