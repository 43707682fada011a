"""Starting the ranks of a node, and the process group that joins them."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from hyperslab.errors import MISTAKE, exit_code
from hyperslab.processes import die_with_parent

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
GROUP_TIMEOUT = timedelta(minutes=10)


def under_torchrun() -> bool:
    """Whether a launcher such as torchrun has started this process as one rank of many."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def start_ranks(body: Callable[[], int], num_ranks: int) -> int:
    """Run `body` in `num_ranks` processes forked from this one, joined in a process group; return the exit code.

    The first rank that fails ends the others at once: they could only wait for it. Signals that ask to stop are
    passed on. When this process dies, the ranks die with it.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="hyperslab-") as directory:
        rendezvous = Path(directory) / "rendezvous"
        ranks = [
            context.Process(target=_forked, args=(body, rank, num_ranks, rendezvous, os.getpid()), name=f"rank {rank}")
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
    while running:
        for ready in multiprocessing.connection.wait([process.sentinel for process in running.values()]):
            process = running.pop(ready)
            process.join()
            code = process.exitcode or 0
            if code < 0:
                print(f"{process.name} was killed by signal {-code}", file=sys.stderr)
            codes.append(code if code >= 0 else 128 - code)
            if code:
                for other in running.values():
                    other.kill()
    # Where several were found ended at a time, a person's mistake explains the others' crash.
    return MISTAKE if MISTAKE in codes else next((code for code in codes if code), 0)


def _forked(body: Callable[[], int], rank: int, num_ranks: int, rendezvous: Path, parent: int) -> None:
    die_with_parent(parent)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(num_ranks), LOCAL_RANK=str(rank))
    sys.exit(run_rank(body, f"file://{rendezvous}"))


def run_rank(body: Callable[[], int], init_method: str) -> int:
    """Run `body` as one rank of the process group; the exit code."""

    def in_group() -> int:
        with process_group(init_method):
            return _leave(body())

    return _leave(exit_code(in_group))


def _leave(code: int) -> int:
    """Give back 0; with anything else, end at once: the others may wait for this rank in a collective."""
    if code:
        sys.stdout.flush()
        os._exit(code)
    return code


@contextlib.contextmanager
def process_group(init_method: str) -> Iterator[None]:
    """Join the ranks named by RANK and WORLD_SIZE; gloo on the CPU, NCCL beside it where there is a GPU."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():  # never run on a GPU so far
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=world, timeout=GROUP_TIMEOUT)
    yield
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
