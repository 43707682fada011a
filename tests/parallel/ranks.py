"""Functions on several ranks: forked processes joined by gloo, whose exceptions and hangs fail the test."""

import multiprocessing
import multiprocessing.connection
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch._dynamo  # FSDP imports it on its first use: once here rather than once on every forked rank
import torch.distributed as dist

from hyperslab.processes import die_with_parent

T = TypeVar("T")


class RanksFailed(AssertionError):
    """A rank raised, died or hung; the message holds what each failed rank said."""


def on_ranks(num_ranks: int, body: Callable[..., T], *arguments: Any, timeout_seconds: float = 60) -> list[T]:
    """What `body(*arguments)` returned on each of `num_ranks` forked ranks, in the order of ranks.

    Raises
    ------
    RanksFailed
        When a rank raises, dies, or has not returned in time. The others are ended.
    """
    context = multiprocessing.get_context("fork")
    ranks, pipes = [], []
    with tempfile.TemporaryDirectory(prefix="ranks-") as directory:
        for rank in range(num_ranks):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank,
                args=(
                    body,
                    arguments,
                    rank,
                    num_ranks,
                    Path(directory) / "rendezvous",
                    timeout_seconds,
                    sender,
                    os.getpid(),
                ),
            )
            process.start()
            sender.close()
            ranks.append(process)
            pipes.append(receiver)
        try:
            return _collect(pipes, time.monotonic() + timeout_seconds)
        finally:
            for process in ranks:
                process.kill()  # nothing is left to do for one that has reported; the others hang or failed
                process.join()


def _collect(pipes: list[Connection], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    waiting = dict(enumerate(pipes))
    while waiting:
        ready = multiprocessing.connection.wait(waiting.values(), max(0.0, deadline - time.monotonic()))
        if not ready:
            raise RanksFailed(f"ranks {sorted(waiting)} of {len(pipes)} have not returned in time")
        failures = []
        for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
            try:
                done, content = pickle.loads(waiting.pop(rank).recv_bytes())
            except EOFError:
                done, content = False, "died without a word"
            if done:
                results[rank] = content
            else:
                failures.append(f"rank {rank}: {content}")
        if failures:
            raise RanksFailed("\n".join(failures))
    return [results[rank] for rank in range(len(pipes))]


def _rank(
    body: Callable[..., Any],
    arguments: tuple[Any, ...],
    rank: int,
    num_ranks: int,
    rendezvous: Path,
    timeout_seconds: float,
    sender: Connection,
    parent: int,
) -> None:
    die_with_parent(parent)
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{rendezvous}",
            rank=rank,
            world_size=num_ranks,
            timeout=timedelta(seconds=timeout_seconds),
        )
        result = body(*arguments)
        dist.barrier()
        dist.destroy_process_group()
        # Plain pickle copies tensors; a pipe's own would share memory that ends with this process.
        message = pickle.dumps((True, result))
    except BaseException:
        message = pickle.dumps((False, traceback.format_exc()))
    sender.send_bytes(message)
    sender.close()
