"""Starting the ranks of a node, and the process group that joins them."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from hyperslab.errors import MISTAKE, exit_code
from hyperslab.parallel.lost import Place, RankLost, naming
from hyperslab.processes import die_with_parent

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
LAST_WORDS_SECONDS = 2.0
"""Time for a rank to say in what it waited for one that was killed; gloo notices at once."""


def under_torchrun() -> bool:
    """Whether a launcher such as torchrun has started this process as one rank of many."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def start_ranks(body: Callable[[], int], num_ranks: int, timeout_seconds: float) -> int:
    """Run `body` in `num_ranks` processes forked from this one, joined in a process group; return the exit code.

    The first rank that fails ends the others at once: they could only wait for it. Where it was killed, one of them
    may say first in what it waited. Signals that ask to stop are passed on. When this process dies, the ranks die with
    it.

    Parameters
    ----------
    timeout_seconds
        How long a rank waits for the others before it fails.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="hyperslab-") as directory:
        rendezvous = Path(directory) / "rendezvous"
        ranks = [
            context.Process(
                target=_forked,
                args=(body, rank, num_ranks, rendezvous, timeout_seconds, os.getpid()),
                name=f"rank {rank}",
            )
            for rank in range(num_ranks)
        ]
        sys.stdout.flush()
        for process in ranks:
            process.start()
        for number in STOP_SIGNALS:
            signal.signal(number, lambda received, _: _pass_on(ranks, received))
        return _watch(ranks)


def _pass_on(ranks: Sequence[BaseProcess], received: int) -> None:
    for process in ranks:
        if process.pid and process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, received)


def _watch(ranks: Sequence[BaseProcess]) -> int:
    """Exit code of the ranks: that of the first to fail, or the common one."""
    running: dict[object, BaseProcess] = {process.sentinel: process for process in ranks}
    codes: list[int] = []
    ending = False
    while running:
        # A rank that dies is seen here before, or together with, one that ends because of it.
        for process in [running.pop(ready) for ready in _wait(running.values())]:
            process.join()
            code = process.exitcode or 0
            if ending and code == -signal.SIGKILL:
                continue
            if code < 0:
                print(f"{process.name} was killed by signal {-code}", file=sys.stderr, flush=True)
            codes.append(code if code >= 0 else 128 - code)
        if any(codes) and not ending:
            ending = True
            if max(codes) > 128 and running:
                _wait(running.values(), LAST_WORDS_SECONDS)
            for other in running.values():
                other.kill()
    # Where several were found ended at a time, a person's mistake explains the others' crash, and any code explains 1,
    # with which a rank ends that has lost another.
    return MISTAKE if MISTAKE in codes else next((code for code in codes if code > 1), max(codes))


def _wait(ranks: Iterable[BaseProcess], timeout_seconds: float | None = None) -> list[object]:
    """Sentinels of the ranks that have ended, once any has."""
    return list(multiprocessing.connection.wait([process.sentinel for process in ranks], timeout_seconds))


def _forked(
    body: Callable[[], int], rank: int, num_ranks: int, rendezvous: Path, timeout_seconds: float, parent: int
) -> None:
    die_with_parent(parent)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(num_ranks), LOCAL_RANK=str(rank))
    sys.exit(run_rank(body, f"file://{rendezvous}", timeout_seconds))


def run_rank(body: Callable[[], int], init_method: str, timeout_seconds: float) -> int:
    """Run `body` as one rank of the process group; the exit code.

    One line says where the rank stood when another one was lost.
    """

    def in_group() -> int:
        with process_group(init_method, timedelta(seconds=timeout_seconds)):
            return _leave(body())

    try:
        return _leave(exit_code(in_group))
    except RankLost as error:
        # Not marked as a mistake's line: a mistake may be what the other rank ended by.
        print(error, file=sys.stderr, flush=True)
        return _leave(1)


def _leave(code: int) -> int:
    """Give back 0; with anything else, end at once: the others may wait for this rank in a collective."""
    if code:
        sys.stdout.flush()
        os._exit(code)
    return code


@contextlib.contextmanager
def process_group(init_method: str, timeout: timedelta) -> Iterator[None]:
    """Join the ranks named by RANK and WORLD_SIZE; gloo on the CPU, NCCL beside it where there is a GPU.

    Raises
    ------
    RankLost
        When another rank does not join, or does not come to the end.
    """
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():  # never run on a GPU so far
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # A device mesh makes its groups without the time-out of the first one (torch 2.13: 30 minutes instead).
    vars(distributed_c10d).update(default_pg_timeout=timeout, default_pg_nccl_timeout=timeout)
    with naming(Place(rank=rank, doing="joining the others")):
        dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=world, timeout=timeout)
    yield
    with naming(Place(rank=rank, doing="waiting for the others to end")):
        dist.barrier()  # else a rank that ends early takes the rendezvous with it
    dist.destroy_process_group()


class StopRequest:
    """Whether this rank was asked to stop: by a signal, or by a file that a person or the driver left."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.signalled = False
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.signalled = True

    def __call__(self) -> bool:
        """Whether a stop was asked for."""
        return self.signalled or self.file.exists()
