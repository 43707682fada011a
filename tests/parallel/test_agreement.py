import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from hyperslab.data.frames import Windows
from hyperslab.data.order import Order
from hyperslab.parallel import agreement
from hyperslab.parallel.agreement import OwnStep, SharedStep, busy_seconds, make_state, name_samples, share, skip_step
from tests.parallel.ranks import on_ranks


def own(**changes: float) -> OwnStep:
    numbers = {"loss": 1.0, "norm": 2.0, "stop": False, "waited": 0.0, "busy": 1.0}
    return OwnStep(**(numbers | changes))  # type: ignore[arg-type]


def shared_of(owns: list[OwnStep]) -> SharedStep:
    return share(owns[dist.get_rank()], len(owns), torch.device("cpu"))


def test_all_ranks_know_the_same_of_a_step():
    owns = [
        own(loss=1.0, waited=0.5, busy=2.0),
        own(loss=3.0, waited=0.25, busy=8.0),
        own(loss=8.0, stop=True, waited=0.0, busy=5.0),
    ]

    # Means of three: loss 12/3, time 15/3.
    expected = SharedStep(loss=4.0, norm=2.0, finite=True, suspects=(), stop=True, waited=0.5, slowest=8.0, mean=5.0)
    assert on_ranks(3, shared_of, owns) == [expected] * 3


def shared_in_pairs(owns: list[OwnStep]) -> float:
    return share(owns[dist.get_rank()], 2, torch.device("cpu")).loss


def test_the_losses_of_ranks_that_share_samples_add_up():
    # Two groups of two ranks: losses of 1 + 3 and 0.5 + 1.5, whose mean is 3.
    assert on_ranks(4, shared_in_pairs, [own(loss=loss) for loss in (1.0, 3.0, 0.5, 1.5)]) == [3.0] * 4


@pytest.mark.parametrize(
    ("changes", "suspects"),
    [({"loss": math.nan}, (1,)), ({"loss": math.inf}, (1,)), ({"loss": -math.inf}, (1,)), ({"norm": math.nan}, ())],
)
def test_what_is_not_finite_on_one_rank_is_not_finite_for_all(changes, suspects):
    for shared in on_ranks(2, shared_of, [own(), own(**changes)]):
        assert (shared.finite, shared.suspects, shared.stop) == (False, suspects, False)
        # The numbers beside it are not spoiled.
        assert (shared.slowest, shared.mean) == (1.0, 1.0)


@pytest.mark.parametrize("kept", [True, False])
def test_computing_counts_as_busy(monkeypatch, tmp_path, kept):
    if not kept:  # a kernel without the file
        monkeypatch.setattr(agreement, "Path", lambda path: Path(tmp_path / "absent"))
    began, until = busy_seconds(), time.thread_time() + 0.02

    while time.thread_time() < until:
        pass

    assert busy_seconds() - began >= 0.02


def test_waiting_for_a_core_counts_as_busy(monkeypatch, tmp_path):
    queue = tmp_path / "schedstat"
    monkeypatch.setattr(agreement, "Path", lambda path: queue)
    queue.write_text("5000000000 1000000000 7\n")
    began = busy_seconds()

    # A billion ns more in the second place, the run queue.
    queue.write_text("5000000000 2000000000 8\n")

    assert busy_seconds() - began >= 1.0


def make_order(sizes: list[int], batch: int) -> Order:
    windows = tuple(Windows(np.asarray([100]), np.asarray([0, size]), 3) for size in sizes)
    return Order(seed=4, batch=batch, windows=windows, weights=(1.0,) * len(sizes))


def test_samples_are_named_by_archive_window_and_frames():
    order = make_order([50], batch=4)
    drawn = order.draw(6, range(4))[1].tolist()

    # Windows begin at frame 100 + their number and hold three frames.
    first, last = drawn[0], drawn[3]
    assert name_samples(order, ["winds"], 6, [0, 3]) == (
        f"winds: window {first} (frames {100 + first}-{102 + first}), window {last} (frames {100 + last}-{102 + last})"
    )


def test_samples_are_named_of_the_archive_that_the_step_drew_from():
    order = make_order([50, 60], batch=2)
    steps = {order.turn(step)[0]: step for step in range(20)}

    for store, step in steps.items():
        assert name_samples(order, ["winds", "hits"], step, [0]).startswith(f"{['winds', 'hits'][store]}: window ")
    assert len(steps) == 2


def test_no_more_samples_are_named_than_a_line_takes():
    named = name_samples(make_order([500], batch=100), ["winds"], 0, range(100))

    assert named.count("window ") == 32
    assert named.endswith(", 68 more")


def steps_after_a_skip(skipped: bool) -> dict[str, torch.Tensor]:
    """Weights and state after a step of AdamW that may follow one that is skipped; decay would tell such a step."""
    torch.manual_seed(3)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    if skipped:
        (model(torch.ones(1, 3)).sum() * math.nan).backward()
        skip_step(optimizer)
        assert all(parameter.grad is None for parameter in model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    states = {
        f"{number}.{name}": value
        for number, state in enumerate(optimizer.state.values())
        for name, value in state.items()
    }
    return states | {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_state_that_is_made_beforehand_is_what_steps_find():
    after = []
    for made in (False, True):
        torch.manual_seed(3)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        if made:
            make_state(model, optimizer)
            assert len(optimizer.state) == 2, "a checkpoint finds what it holds"
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        states = [value for state in optimizer.state.values() for value in state.values()]
        after.append([*states, *(parameter.detach() for parameter in model.parameters())])

    assert all(torch.equal(one, other) for one, other in zip(*after, strict=True))


def test_a_step_that_is_skipped_leaves_no_trace_in_weights_or_the_state_of_adamw():
    after, plain = steps_after_a_skip(True), steps_after_a_skip(False)

    assert after.keys() == plain.keys()
    for name, tensor in after.items():
        assert torch.equal(tensor, plain[name]), name
