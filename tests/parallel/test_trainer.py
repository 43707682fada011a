import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hyperslab.data.order import sample_at
from hyperslab.data.store import Store
from hyperslab.errors import UserError
from hyperslab.model.transformer import SpaceTimeTransformer
from hyperslab.parallel import catalog, trainer
from hyperslab.parallel.config import TrainSettings
from hyperslab.parallel.layout import Layout
from hyperslab.parallel.tasks import FieldTask
from hyperslab.parallel.trainer import learning_rate, make_optimizer, validate
from tests.parallel.ranks import on_ranks
from tests.parallel.training import (
    TRAIN,
    Outcome,
    Task,
    assert_same_weights,
    forecast_of,
    make_model,
    make_run,
    spoiled,
    train_task,
    whole,
)

ONE, SHARDED = Layout(replicate=1, shard=1), Layout(replicate=1, shard=2)
COPIES, SHARDED_COPIES = Layout(replicate=2, shard=1), Layout(replicate=2, shard=2)

# Rows at 75, 45, 15 N and S end at 90, 60, 30 and 0 degrees, whose sines are 1, sqrt(3)/2, 1/2, 0; three
# cells of a hemisphere have a mean of 1/3.
ROOT = math.sqrt(3) / 2
AREA = np.array([1 - ROOT, ROOT - 0.5, 0.5, 0.5, ROOT - 0.5, 1 - ROOT]) * 3
WEIGHTS = torch.from_numpy(AREA).float()


def assert_same_numbers(outcome: Outcome, reference: Outcome, tolerance: float = 1e-5) -> None:
    for name in ("train/loss", "validation/loss", "train/gradient_norm", "train/learning_rate"):
        assert outcome.numbers(name) == pytest.approx(reference.numbers(name), abs=tolerance, rel=0)
    assert_same_weights(outcome.weights, reference.weights, tolerance)


def assert_identical(outcome: Outcome, reference: Outcome) -> None:
    """The same numbers to the last bit, at the steps of `outcome`."""
    for name in ("train/loss", "validation/loss", "train/gradient_norm", "train/learning_rate"):
        expected = reference.numbers(name)
        assert outcome.numbers(name) == {step: expected[step] for step in outcome.numbers(name)}
    for name, weight in outcome.weights.items():
        assert torch.equal(weight, reference.weights[name]), name


# Training


def plain_loss(model: SpaceTimeTransformer, store: Store, numbers: list[int]) -> torch.Tensor:
    forecast, batch = forecast_of(model, store, "train", numbers)
    target = batch.target[:, 0]
    there = torch.isfinite(target)
    error = forecast[there] - target[there]
    weights = WEIGHTS[:, None].expand_as(target)
    loss: torch.Tensor = (error.square() * weights[there]).sum() / target.numel()
    return loss


def test_training_on_one_rank_equals_a_plain_loop(store, one_rank):
    # Peak 3e-3, warm-up of 2 steps: half, whole. Then 3 steps along the cosine, from 1 to 1/100: 1,
    # 0.01 + 0.99 x (1 + cos 60)/2 = 0.7525, 0.01 + 0.99 x (1 + cos 120)/2 = 0.2575.
    rates = [1.5e-3, 3e-3, 3e-3, 3e-3 * 0.7525, 3e-3 * 0.2575]
    model = make_model(store)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    # Width 16 is an eighth of the base of 128: what takes features learns eight times as fast.
    wide = {p for name, p in model.named_parameters() if p.ndim >= 2 and (name.startswith("blocks.") or "head" in name)}
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in decayed if p in wide], "weight_decay": 0.1, "scale": 8},
            {"params": [p for p in decayed if p not in wide], "weight_decay": 0.1, "scale": 1},
            {"params": others, "weight_decay": 0.0, "scale": 1},
        ],
        betas=(0.9, 0.95),
    )
    losses, norms = {}, {}
    for step, rate in enumerate(rates):
        # 14 windows of 3 frames lie in 16 training frames; samples 4 x step + slot of seed 1.
        loss = plain_loss(model, store, [sample_at(1, 4 * step + slot, 14) for slot in range(4)])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None))
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad *= 0.3 / norm
        for group in optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        optimizer.step()
        losses[step + 1], norms[step + 1] = float(loss.detach()), norm

    assert min(norms.values()) > 0.3, "every gradient is clipped, or the clipping would go untested"
    assert one_rank.losses == pytest.approx(losses, abs=1e-5, rel=0)
    assert one_rank.numbers("train/gradient_norm") == pytest.approx(norms, abs=1e-5, rel=0)
    assert one_rank.numbers("train/learning_rate") == pytest.approx(dict(enumerate(rates, 1)), rel=1e-12)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(one_rank.weights[name], parameter.detach(), rtol=0, atol=1e-5)


def test_training_on_two_ranks_that_share_one_copy_equals_one_rank(one_rank, two_ranks):
    for outcome in two_ranks:
        assert_same_numbers(outcome, one_rank)


@pytest.mark.parametrize("layout", [COPIES, SHARDED_COPIES])
def test_training_on_copies_of_the_model_equals_one_rank(store, tmp_path, one_rank, layout):
    for outcome in on_ranks(layout.num_ranks, train_task, Task(store=store, checkpoint_dir=tmp_path, layout=layout)):
        assert_same_numbers(outcome, one_rank)


def test_two_identical_runs_are_identical_to_the_last_bit(store, tmp_path, two_ranks):
    again = on_ranks(2, train_task, Task(store=store, checkpoint_dir=tmp_path, layout=SHARDED))

    for outcome, reference in zip(again, two_ranks, strict=True):
        assert outcome.losses.keys() == reference.losses.keys()
        assert_identical(outcome, reference)


def test_training_changes_every_weight_and_lowers_the_validation_loss(store, one_rank):
    untrained = make_model(store).state_dict()

    assert all(not torch.equal(weight, untrained[name]) for name, weight in one_rank.weights.items())
    validation = one_rank.numbers("validation/loss")
    assert validation[5] < validation[2]


# Interrupting and resuming


@pytest.fixture(scope="module")
def interrupted_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("interrupted")


@pytest.fixture(scope="module")
def interrupted(store, interrupted_dir):
    """A run on two ranks, the second of which is asked to stop after two steps."""
    return on_ranks(
        2,
        train_task,
        Task(store=store, checkpoint_dir=interrupted_dir, layout=SHARDED, stop_at=2, stop_rank=1),
    )


@pytest.fixture
def resumable_dir(interrupted, interrupted_dir, tmp_path):
    """A copy of the interrupted run's checkpoints."""
    return Path(shutil.copytree(interrupted_dir, tmp_path / "checkpoints"))


def test_a_request_on_one_rank_stops_all_of_them_at_a_checkpoint(interrupted, interrupted_dir, two_ranks):
    for outcome, reference in zip(interrupted, two_ranks, strict=True):
        assert outcome.step == 2
        assert outcome.losses == {step: reference.losses[step] for step in (1, 2)}
    assert [path.name for path in interrupted_dir.iterdir()] == ["step-00000002"]


def test_a_resumed_run_is_identical_to_an_uninterrupted_one(store, resumable_dir, two_ranks):
    resumed = on_ranks(2, train_task, Task(store=store, checkpoint_dir=resumable_dir, layout=SHARDED))

    for outcome, reference in zip(resumed, two_ranks, strict=True):
        assert list(outcome.losses) == [3, 4, 5]
        assert_identical(outcome, reference)


def test_a_run_resumed_under_another_layout_goes_on_the_same(store, resumable_dir, one_rank):
    (resumed,) = on_ranks(1, train_task, Task(store=store, checkpoint_dir=resumable_dir, layout=ONE))

    assert list(resumed.losses) == [3, 4, 5]
    assert resumed.losses == pytest.approx({step: one_rank.losses[step] for step in (3, 4, 5)}, abs=1e-5, rel=0)
    assert_same_weights(resumed.weights, one_rank.weights, 1e-5)


def test_a_finished_run_trains_no_further(store, two_ranks, two_ranks_dir):
    again = on_ranks(2, train_task, Task(store=store, checkpoint_dir=two_ranks_dir, layout=SHARDED))

    for outcome, reference in zip(again, two_ranks, strict=True):
        assert (outcome.step, outcome.log) == (5, [])
        assert_identical(outcome, reference)
    assert [path.name for path in two_ranks_dir.iterdir()] == ["step-00000005"]


def test_a_run_whose_latest_checkpoint_is_damaged_goes_on_from_the_one_before(store, tmp_path, two_ranks, capfd):
    task = Task(store=store, checkpoint_dir=tmp_path, layout=SHARDED, every=2)
    on_ranks(2, train_task, task)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000004", "step-00000005"]
    (tmp_path / "step-00000005" / "__1_0.distcp").write_bytes(b"damaged")

    resumed = on_ranks(2, train_task, task)

    for outcome, reference in zip(resumed, two_ranks, strict=True):
        assert list(outcome.losses) == [5]
        assert_identical(outcome, reference)
    assert "step-00000005 is passed over, and step-00000004 is taken" in capfd.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000004", "step-00000005"]
    assert catalog.damage_of(tmp_path / "step-00000005") is None


def refusal(task: Task) -> str:
    """What the person is told."""
    with pytest.raises(UserError) as error:
        train_task(task)
    return str(error.value)


def test_a_run_on_other_data_is_refused_with_both_digests(store, resumable_dir):
    changed = replace(store, digest="b" * 64)

    (message,) = on_ranks(1, refusal, Task(store=changed, checkpoint_dir=resumable_dir, layout=ONE))

    assert message == (
        f"{resumable_dir}/step-00000002: was trained on the store aaaaaaaaaaaa, found bbbbbbbbbbbb; "
        "a run goes on only on its own data: restore them, or start a new campaign"
    )


@pytest.mark.parametrize("changes", [{"seed": 2}, {"batch": 2}])
def test_a_run_in_another_order_is_refused(store, resumable_dir, changes):
    (message,) = on_ranks(1, refusal, Task(store=store, checkpoint_dir=resumable_dir, layout=ONE, train=changes))

    assert message == (
        f"{resumable_dir}/step-00000002: drew its samples in another order; go on with the same version and settings"
    )


def test_a_run_over_other_windows_is_refused(store, resumable_dir):
    # One frame less that is valid, under the same digest.
    valid = store.valid.copy()
    valid[9] = False

    (message,) = on_ranks(1, refusal, Task(store=replace(store, valid=valid), checkpoint_dir=resumable_dir, layout=ONE))

    assert "drew its samples in another order" in message


# Steps that are not finite

LAST_FRAME = 15
"""Of the 14 windows, number 13 alone holds it: drawn once in 5 steps of 4 samples, as the third sample of step 3."""
SECOND_FRAME = 1
"""Window 0 forecasts from it: drawn as the second sample of step 1 and the fourth of step 5. Window 1, of step 3 only,
holds it as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What a rank saw, kept and said of its run."""

    outcome: Outcome
    state: dict[str, torch.Tensor]
    """The optimizer's, whole."""
    notes: list[str]


def train_and_listen(task: Task, loss_plus: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Heard:
    """Train, with something added to the loss of the second rank in step 3; the process ends with it."""
    made: list[torch.optim.Optimizer] = []
    notes: list[str] = []
    trainer.logger.handle = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    original, original_sample, turn = FieldTask.loss_of, FieldTask.sample, 0

    def sample(self: FieldTask, batch: Any, draws: Any) -> Any:
        nonlocal turn
        turn = draws.turn
        return original_sample(self, batch, draws)

    def loss(self: FieldTask, model: Any, batch: Any, sample: Any) -> torch.Tensor:
        value = original(self, model, batch, sample)
        wrong = loss_plus and torch.is_grad_enabled() and turn == 2 and dist.get_rank() == 1
        return loss_plus(value) if loss_plus and wrong else value

    def kept(*arguments: Any) -> torch.optim.Optimizer:
        made.append(make_optimizer(*arguments))
        return made[0]

    pytest.MonkeyPatch().setattr(FieldTask, "sample", sample)
    pytest.MonkeyPatch().setattr(FieldTask, "loss_of", loss)
    pytest.MonkeyPatch().setattr(trainer, "make_optimizer", kept)
    outcome = train_task(task)
    states = [made[0].state[parameter] for group in made[0].param_groups for parameter in group["params"]]
    return Heard(
        outcome=outcome,
        state={f"{number}.{name}": whole(state[name]) for number, state in enumerate(states) for name in state},
        notes=notes,
    )


def skips(outcome: Outcome) -> dict[int, float]:
    return outcome.numbers("train/skipped_in_a_row")


def test_a_step_that_is_not_finite_on_one_rank_is_skipped_by_all_and_its_samples_are_named(store, tmp_path):
    bad = spoiled(store, LAST_FRAME)
    before, after, whole_run = (
        on_ranks(
            2, train_and_listen, Task(store=bad, checkpoint_dir=tmp_path / f"{step}", layout=SHARDED, stop_at=step)
        )
        for step in (2, 3, None)
    )

    for rank in range(2):
        assert skips(before[rank].outcome) == {}
        assert skips(after[rank].outcome) == {3: 1}
        assert_identical_tensors(after[rank].outcome.weights, before[rank].outcome.weights)
        assert_identical_tensors(after[rank].state, before[rank].state)
        # A skipped step has no loss among the metrics; training goes on after it.
        outcome = whole_run[rank].outcome
        assert list(outcome.losses) == list(outcome.numbers("train/gradient_norm")) == [1, 2, 4, 5]
        assert list(outcome.numbers("train/learning_rate")) == [1, 2, 3, 4, 5]
        assert skips(outcome) == {3: 1}
        assert all(
            not torch.equal(weight, before[rank].outcome.weights[name]) for name, weight in outcome.weights.items()
        )
    (note,) = whole_run[0].notes
    assert note.startswith("the loss is inf and the norm of the gradient ")
    # Slots 2 and 3 of step 3 are the second rank's: windows 13 and 2, each of three frames.
    assert note.endswith(
        " at step 3, which is skipped, 1 in a row; "
        "the samples of rank 1 were main: window 13 (frames 13-15), window 2 (frames 2-4)"
    )
    assert whole_run[1].notes == []


def assert_identical_tensors(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.fixture(scope="module")
def skipping(store, tmp_path_factory):
    """A run on one rank that skips steps 1, 3 and 5, uninterrupted."""
    bad = spoiled(store, SECOND_FRAME, LAST_FRAME)
    task = Task(store=bad, checkpoint_dir=tmp_path_factory.mktemp("skipping"), layout=ONE, train={"max_nonfinite": 2})
    (heard,) = on_ranks(1, train_and_listen, task)
    return heard


def test_steps_that_are_skipped_now_and_then_do_not_end_a_run(skipping):
    # Two in a row would.
    assert skips(skipping.outcome) == {1: 1, 3: 1, 5: 1}
    assert skipping.outcome.step == 5
    # Of one rank alone all samples of a step are named; these are samples 16 to 19 of seed 1.
    assert skipping.notes[2].endswith(
        "main: window 3 (frames 3-5), window 10 (frames 10-12), window 8 (frames 8-10), window 0 (frames 0-2)"
    )


@pytest.mark.parametrize("layout", [SHARDED, COPIES, SHARDED_COPIES, Layout(domain=2), Layout(tensor=2)], ids=str)
def test_any_layout_skips_the_same_steps(store, tmp_path, skipping, layout):
    bad = spoiled(store, SECOND_FRAME, LAST_FRAME)

    for outcome in on_ranks(layout.num_ranks, train_task, Task(store=bad, checkpoint_dir=tmp_path, layout=layout)):
        assert skips(outcome) == {1: 1, 3: 1, 5: 1}
        # AdamW's first steps make much of rounding; a step that was not skipped would be 3e-3 away.
        assert_same_numbers(outcome, skipping.outcome, tolerance=1e-4)


def test_a_run_resumed_after_a_skipped_first_step_is_identical_to_an_uninterrupted_one(store, tmp_path, skipping):
    # The optimizer has done nothing when the checkpoint is written.
    task = Task(store=spoiled(store, SECOND_FRAME, LAST_FRAME), checkpoint_dir=tmp_path, layout=ONE)
    on_ranks(1, train_task, replace(task, stop_at=1))

    (resumed,) = on_ranks(1, train_and_listen, task)

    assert_identical(resumed.outcome, skipping.outcome)
    assert_identical_tensors(resumed.state, skipping.state)


@pytest.mark.parametrize(
    ("loss_plus", "found", "suspects"),
    [
        # A constant has no gradient: nothing but the loss itself, on that rank alone, tells.
        (lambda loss: loss + math.nan, "the loss is nan", "rank 1 were main: window 13 (frames 13-15), window 2"),
        # The root of nought has no finite gradient, and no loss tells.
        (lambda loss: loss + (loss - loss.detach()).abs().sqrt(), "the loss is 0.", "all ranks were main: window 1 "),
    ],
    ids=["loss", "gradient"],
)
def test_either_the_loss_or_the_gradient_makes_all_ranks_skip(store, tmp_path, loss_plus, found, suspects):
    task = Task(store=store, checkpoint_dir=tmp_path, layout=SHARDED)

    heard = on_ranks(2, train_and_listen, task, loss_plus)

    assert [skips(one.outcome) for one in heard] == [{3: 1}, {3: 1}]
    assert_identical_tensors(heard[1].outcome.weights, heard[0].outcome.weights)
    assert all(bool(weight.isfinite().all()) for weight in heard[0].outcome.weights.values())
    (note,) = heard[0].notes
    assert note.startswith(found)
    assert f"the samples of {suspects}" in note


# The first step moves weights by about the learning rate; their products and squares overflow in all others.
DIVERGING = {"learning_rate": 1e30, "warmup_steps": 0, "max_nonfinite": 3}


def test_many_steps_in_a_row_that_are_not_finite_end_the_run_before_a_checkpoint(store, tmp_path):
    task = Task(store=store, checkpoint_dir=tmp_path / "none", layout=SHARDED, train=DIVERGING, every=4)

    messages = on_ranks(2, refusal, task)

    assert len(set(messages)) == 1
    assert messages[0].startswith(f"{tmp_path}/none: the loss is ")
    assert messages[0].endswith(
        " at step 4, after 2 such steps in a row (train.max_nonfinite is 3); training cannot go on: lower "
        "train.learning_rate (1e+30) in a new campaign, or look at the samples that the log names"
    )
    assert not (tmp_path / "none").exists()


def test_a_resumed_run_counts_on_from_its_checkpoint(store, tmp_path):
    task = Task(store=store, checkpoint_dir=tmp_path, layout=ONE, train=DIVERGING)
    on_ranks(1, train_task, replace(task, stop_at=3))

    (message,) = on_ranks(1, refusal, task)

    assert " at step 4, after 2 such steps in a row" in message


# Metrics and checkpoints


def test_numbers_and_checkpoints_come_when_asked_for_and_at_both_ends(store, tmp_path):
    task = Task(
        store=store,
        checkpoint_dir=tmp_path,
        layout=ONE,
        train={"steps": 7, "validate_every": 4},
        log_every=3,
        every=5,
    )

    (outcome,) = on_ranks(1, train_task, task)

    assert outcome.step == 7
    assert list(outcome.losses) == [1, 3, 6, 7]
    assert list(outcome.numbers("validation/loss")) == [4, 7]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005", "step-00000007"]
    assert all(speed > 0 for speed in outcome.numbers("speed/samples_per_second").values())


def late_on_the_second_rank(task: Task) -> Outcome:
    """Train where every batch of the second rank comes 0.2 s late; the process ends with it."""
    original = vars(trainer)["mixed"]

    def late(*arguments: Any) -> Iterator[tuple[int, Any]]:
        for batch in original(*arguments):
            time.sleep(0.2 * dist.get_rank())
            yield batch

    vars(trainer)["mixed"] = late
    return train_task(task)


def test_the_wait_for_input_is_that_of_the_rank_that_waits_longest(store, tmp_path):
    task = Task(store=store, checkpoint_dir=tmp_path, layout=SHARDED, log_every=2)

    outcomes = on_ranks(2, late_on_the_second_rank, task)

    waits = [outcome.numbers("speed/input_wait_seconds") for outcome in outcomes]
    assert list(waits[0]) == [1, 2, 4, 5]
    assert waits[0] == waits[1]
    assert all(wait >= 0.2 for wait in waits[0].values())
    # Seconds waited a step, times steps a second (4 samples each), are seconds waited a second.
    speeds = outcomes[0].numbers("speed/samples_per_second")
    for step, share in outcomes[0].numbers("speed/input_wait_share").items():
        assert share == pytest.approx(waits[0][step] * speeds[step] / 4, rel=1e-6)


def slow_on_the_second_rank(task: Task) -> Outcome:
    """Train where each step takes 3 s of the second rank's computing and 1 s of the first one's, by its own clock."""
    seconds = 0

    def clock() -> float:
        nonlocal seconds
        seconds += 1 + 2 * dist.get_rank()
        return seconds

    pytest.MonkeyPatch().setattr(trainer, "busy_seconds", clock)
    return train_task(task)


def test_the_share_of_stragglers_is_how_far_the_slowest_rank_is_behind_the_mean(store, tmp_path):
    task = Task(store=store, checkpoint_dir=tmp_path, layout=SHARDED, log_every=2)

    outcomes = on_ranks(2, slow_on_the_second_rank, task)

    # The mean is 2 s, the slowest takes half as long again.
    assert [outcome.numbers("speed/straggler_share") for outcome in outcomes] == [{1: 0.5, 2: 0.5, 4: 0.5, 5: 0.5}] * 2


def untrained_validation_loss(task: Task) -> float:
    return validate(make_run(task), 0)["validation/loss"]


@pytest.mark.parametrize(("ranks", "windows"), [(1, 3), (2, 3), (2, 64)])
def test_the_validation_loss_is_the_mean_over_spread_windows_on_any_number_of_ranks(store, tmp_path, ranks, windows):
    # The split's frames 16-21 hold windows of 3 frames that begin at 16 to 19. Three, spread evenly over the
    # numbers 0 to 3, are 0, 1.5 (rounded to the even 2) and 3; 64 are all four. The target is the window's
    # last frame, and an untrained model forecasts the frame before it, a missing point as the mean.
    firsts = [16, 18, 19] if windows == 3 else [16, 17, 18, 19]
    normalised = (store.read(0, 26).astype(np.float64) - store.mean[:, None, None]) / store.std[:, None, None]
    errors = [
        np.nan_to_num((np.nan_to_num(normalised[first + 1]) - normalised[first + 2]) ** 2) * AREA[:, None]
        for first in firsts
    ]
    task = Task(
        store=store,
        checkpoint_dir=tmp_path,
        layout=Layout(replicate=1, shard=ranks),
        train={"validation_windows": windows},
    )

    losses = on_ranks(ranks, untrained_validation_loss, task)

    assert losses == pytest.approx([np.mean(errors)] * ranks, rel=1e-5)


# Operations that give the same bits each time


def mode_after(task: Task) -> tuple[Outcome, bool, str | None]:
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    outcome = train_task(task)
    return outcome, torch.are_deterministic_algorithms_enabled(), os.environ.get("CUBLAS_WORKSPACE_CONFIG")


@pytest.mark.parametrize(("operations", "expected"), [("fastest", (False, None)), ("deterministic", (True, ":4096:8"))])
def test_deterministic_operations_are_asked_of_torch_and_cublas_and_are_the_same_on_a_cpu(
    store, tmp_path, two_ranks, operations, expected
):
    task = Task(store=store, checkpoint_dir=tmp_path, layout=SHARDED, train={"operations": operations})

    for (outcome, *mode), reference in zip(on_ranks(2, mode_after, task), two_ranks, strict=True):
        assert tuple(mode) == expected
        assert_identical(outcome, reference)


# Learning rate and optimizer


def settings(**changes: Any) -> TrainSettings:
    return TrainSettings(**(TRAIN | {"steps": 12, "warmup_steps": 4, "learning_rate": 1e-3} | changes))


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        # A quarter of the peak at each step of the warm-up.
        (0, 0.25e-3),
        (1, 0.5e-3),
        (3, 1e-3),
        # The cosine begins at the peak, passes 0.01 + 0.99/2 half-way (step 4 + 8/2), and would end at 1/100.
        (4, 1e-3),
        (8, 0.505e-3),
        (12, 1e-5),
    ],
)
def test_the_learning_rate_rises_to_its_peak_and_falls_along_a_cosine(step, rate):
    assert learning_rate(settings(), step) == pytest.approx(rate, rel=1e-12)


def test_the_learning_rate_begins_at_its_peak_without_a_warm_up():
    assert learning_rate(settings(warmup_steps=0), 0) == pytest.approx(1e-3, rel=1e-12)


def test_the_learning_rate_only_rises_where_the_warm_up_outlasts_the_run():
    # Steps 1 to 12 of 16: 1/16 to 12/16 of the peak.
    rates = [learning_rate(settings(warmup_steps=16), step) for step in range(12)]

    assert rates == pytest.approx([1e-3 * n / 16 for n in range(1, 13)], rel=1e-12)


def test_only_matrices_decay(store):
    model = make_model(store)
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    optimizer = make_optimizer(model, settings(weight_decay=0.3))

    matrices, others = (
        [names[id(p)] for group in optimizer.param_groups if group["weight_decay"] == decay for p in group["params"]]
        for decay in (0.3, 0.0)
    )
    # Matrices: 3 embeddings, the ages, the head, and 5 in each of 2 blocks. Others: 4 biases, the vector of what is
    # missing, the last norm, and 4 norms in each block.
    assert len(matrices) == 3 + 1 + 1 + 2 * 5
    assert len(others) == 4 + 1 + 1 + 2 * 4
    assert set(matrices) | set(others) == set(names.values())
    assert all("norm" in name or name.endswith(("bias", "embed_missing")) for name in others)
    assert {group["betas"] for group in optimizer.param_groups} == {(0.9, 0.95)}


def test_the_learning_rate_of_what_takes_features_falls_as_the_width_grows(store):
    # Width 16 beside the base of 128: eight times the rate for blocks and heads.
    model = make_model(store)
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    optimizer = make_optimizer(model, settings())

    rates = {names[id(p)]: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates["blocks.1.attention.output.weight"] == rates["streams.main.head_forecast.weight"] == 8e-3
    assert rates["streams.main.embed.weight"] == rates["norm.weight"] == 1e-3
