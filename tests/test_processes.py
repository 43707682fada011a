"""A pool of processes ends whole once any of it is lost."""

import os
import subprocess
import sys
import time

import psutil
import pytest

POOL = """
import subprocess, sys, time
children = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
print(*[child.pid for child in children], flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


def start(driver: int, seconds: float = 60) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    together = [sys.executable, "-m", "hyperslab.processes", "together", str(driver)]
    group = subprocess.Popen(
        [*together, sys.executable, "-c", POOL, str(seconds)], stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert group.stdout is not None
    children = [psutil.Process(int(word)) for word in group.stdout.readline().split()]
    time.sleep(1.5)  # until they have been seen
    return group, children


@pytest.mark.parametrize("victim", range(3))
def test_a_lost_child_ends_all(victim: int) -> None:
    group, children = start(os.getpid())
    children[victim].kill()
    assert group.wait(20) == -9
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def test_a_lost_pool_ends_its_children() -> None:
    group, children = start(os.getpid())
    psutil.Process(children[0].ppid()).kill()
    assert group.wait(20) == -9
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def test_a_lost_driver_ends_all() -> None:
    driver = subprocess.Popen(["sleep", "60"])
    group, children = start(driver.pid)
    driver.kill()  # and nobody asks how it ended
    assert group.wait(20) == -9
    driver.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def test_a_pool_that_ends_by_itself_gives_its_exit_code() -> None:
    group, children = start(os.getpid(), 0.5)
    assert group.wait(20) == 3
    for child in children:
        child.kill()
