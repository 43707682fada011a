"""What all ranks know of a training step, so that they do the same; and steps that all of them skip."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from hyperslab.data.order import Order

MOST_NAMED = 32
"""Samples that are named in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStep:
    """What one rank knows of a step."""

    loss: float
    """Of the rank's samples, or its part in it."""
    norm: float
    """Norm of the gradient, the same on all ranks as long as it is finite."""
    stop: bool
    """Whether this rank was asked to stop."""
    waited: float
    """Seconds that it waited for its samples."""
    busy: float
    """Seconds that it computed, as `busy_seconds` counts them; 0 where an accelerator did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStep:
    """What all ranks know of a step."""

    loss: float
    """Of the batch."""
    norm: float
    finite: bool
    """Whether the loss and the norm are, on every rank."""
    suspects: tuple[int, ...]
    """Ranks whose own loss is not finite."""
    stop: bool
    """Whether any rank was asked to stop."""
    waited: float
    """Longest wait for samples of any rank."""
    slowest: float
    """Seconds that the rank computed which computed longest."""
    mean: float
    """Seconds that a rank computed, in the mean."""


def share(own: OwnStep, groups: int, device: torch.device) -> SharedStep:
    """What all ranks are to know of a step.

    One reduction carries all of it. Every rank waits in it for the one that waits for input, so that the longest wait
    is what input costs the step.

    Parameters
    ----------
    groups
        Groups of ranks that compute samples of their own; the losses of a group's ranks add up to its loss.
    """
    numbers = torch.tensor([own.loss, own.norm, float(own.stop), own.waited, own.busy], dtype=torch.float64)
    table = torch.zeros(dist.get_world_size(), len(numbers), dtype=torch.float64)
    table[dist.get_rank()] = numbers
    table = table.to(device)
    dist.all_reduce(table)
    losses, norms, stops, waits, busy = table.T.tolist()
    return SharedStep(
        loss=sum(losses) / groups,
        norm=own.norm,
        finite=all(math.isfinite(number) for number in losses + norms),
        suspects=tuple(rank for rank, loss in enumerate(losses) if not math.isfinite(loss)),
        stop=any(stops),
        waited=max(waits),
        slowest=max(busy),
        mean=sum(busy) / len(busy),
    )


def busy_seconds() -> float:
    """Time so far that this thread computed, or waited for a core; while it waits for other ranks it sleeps."""
    try:
        # The second number is the time in the run queue, in ns (Linux, Documentation/scheduler/sched-stats.rst).
        queued = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    except OSError:  # not every kernel keeps it
        queued = 0
    return time.thread_time() + queued / 1e9


def name_samples(order: Order, archives: Sequence[str], step: int, slots: Sequence[int]) -> str:
    """The samples in some places of a step's batch: their archive, and of each the window and its frames in the store.

    Parameters
    ----------
    archives
        Name of each store that the order draws from.
    step
        Steps before it.
    """
    store, drawn = order.draw(step, range(order.batch))
    windows = drawn[list(slots)]
    named = windows[:MOST_NAMED]
    span = order.windows[store].span
    words = [
        f"window {window} (frames {first}-{first + span - 1})"
        for window, first in zip(named, order.windows[store].first_frames(named), strict=True)
    ]
    rest = [f"{len(windows) - len(named)} more"] if len(windows) > len(named) else []
    return f"{archives[store]}: " + ", ".join(words + rest)


def make_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Have the optimizer hold state for every parameter from the start, though some may have no gradient for long.

    A checkpoint holds the state of all of them.
    """
    # Torch makes it by a step without gradients, which is not to count.
    get_optimizer_state_dict(model, optimizer)
    for state in optimizer.state.values():
        state["step"].zero_()


def skip_step(optimizer: torch.optim.Optimizer) -> None:
    """Forget the gradients; weights and the optimizer's state stay as they are."""
    optimizer.zero_grad(set_to_none=True)
