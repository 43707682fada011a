"""Processes that end together, however one of them ends (Linux).

As a program: `die_with PARENT PROGRAM ARGUMENT...`, or `together DRIVER PROGRAM ARGUMENT...`.
"""

import ctypes
import os
import signal
import sys
import time

import psutil

WATCH_SECONDS = 0.5
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


def run_together(driver: int, command: list[str]) -> int:
    """Run a pool of worker processes, and end its whole process group once anything of it is lost.

    A pool whose worker is killed while it holds the lock of the pool's queue waits for ever, as does one that loses
    its manager process, or its interchange while it connects (Parsl 2026.10.26, `process_worker_pool.py`). Without
    its process group it is a lost block: its parts are staged again by the next one.

    Parameters
    ----------
    driver
        Process number of the driver on this machine: the group ends when that does.
    command
        Program and arguments of the pool. It and its workers are in the process group of the caller.

    Returns
    -------
    int
        The pool's exit code, when it ended by itself.
    """
    try:
        leader = psutil.Process(driver)
    except psutil.NoSuchProcess:
        os.killpg(0, signal.SIGKILL)
    pool = psutil.Popen(command)
    known: set[int] = set()
    while pool.poll() is None:
        try:
            alive = {child.pid for child in pool.children() if child.status() != psutil.STATUS_ZOMBIE}
        except psutil.NoSuchProcess:
            continue
        if not _lives(leader) or known - alive:
            os.killpg(0, signal.SIGKILL)
        known = alive
        time.sleep(WATCH_SECONDS)
    if pool.returncode < 0:
        os.killpg(0, signal.SIGKILL)
    return int(pool.returncode)


def _lives(process: psutil.Process) -> bool:
    """Whether a process runs; its number alone does not say so."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    verb, number, *words = sys.argv[1:]
    if verb == "together":
        sys.exit(run_together(int(number), words))
    # The wish survives exec.
    die_with_parent(int(number))
    os.execv(words[0], words)
