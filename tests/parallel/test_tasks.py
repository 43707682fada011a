from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hyperslab.data.ahead import Reading
from hyperslab.data.loader import Batch
from hyperslab.data.points import PointBatch
from hyperslab.data.store import Store
from hyperslab.model.config import MaskSettings, ModelSettings, ObjectiveSettings, TokenSettings
from hyperslab.model.hits import Cloud
from hyperslab.parallel.layout import Layout
from hyperslab.parallel.tasks import Draws, FieldTask, HitTask
from tests.parallel.ranks import on_ranks
from tests.parallel.training import MODEL, Task, make_model, make_tasks, train_task

CPU = torch.device("cpu")


def draws(*numbers: int, turn: int = 0, **changes: Any) -> Draws:
    return Draws(seed=3, numbers=numbers, turn=turn, **changes)


def batch_of(task: FieldTask, numbers: list[int], split: str = "train") -> Batch:
    return task.loader(task.windows(split), Reading()).read(numbers)


def one_task(store: Store, **objective: Any) -> FieldTask:
    (task,) = make_tasks(store, MODEL, (ObjectiveSettings(**objective),))
    return task


def trained_model(store: Store, *tasks: FieldTask) -> Any:
    """A model whose heads are not zero."""
    model = make_model(store, tasks=tasks)
    for name, parameter in model.named_parameters():
        if ".head_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


# Draws


def test_a_sample_hides_the_same_tokens_in_whatever_batch_it_stands(store):
    lattice = one_task(store).lattice
    together = draws(4, 5, 6).hidden(MaskSettings(), [lattice] * 3)
    alone = [draws(number, turn=9).hidden(MaskSettings(), [lattice])[0] for number in (4, 5, 6)]

    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))
    assert not torch.equal(together[0], together[1])


def test_layers_are_left_out_by_sample_and_never_where_no_rate_is_given():
    shares = draws(1, 2, 3, depth=5, rate=0.6).kept()

    assert shares is not None
    assert shares.shape == (5, 3)
    alone = draws(2, depth=5, rate=0.6).kept()
    assert alone is not None
    assert torch.equal(shares[:, 1:2], alone)
    assert draws(1, 2, 3, depth=5).kept() is None


def test_batches_take_turns_in_how_far_ahead_they_forecast():
    assert [draws(0, turn=turn).lead(3) for turn in range(7)] == [1, 2, 3, 1, 2, 3, 1]


# Fields


def test_a_sample_of_a_forecast_hides_nothing_and_carries_the_calendar_of_its_target(store):
    task = one_task(store, leads=3)
    batch = batch_of(task, [0, 1])

    sample = task.sample(batch, draws(0, 1, turn=1))

    # The second batch forecasts two leads ahead: inputs are frames 0 and 1, the target is the second of three.
    assert sample.lead_B.tolist() == [2, 2]
    assert torch.equal(sample.calendar_BF, batch.calendar[:, 3])
    assert sample.hidden_BN is None
    assert not sample.complete


def test_a_masked_sample_needs_no_frame_after_its_inputs(store):
    task = one_task(store, kind="masked")
    batch = batch_of(task, [0])

    sample = task.sample(batch, draws(0))

    assert batch.target.shape[1] == 0
    assert torch.equal(sample.calendar_BF, batch.calendar[:, 1])
    # 3 x 4 patches of two frames, of which half are hidden.
    assert sample.hidden_BN is not None
    assert int(sample.hidden_BN.sum()) == 12


def test_the_loss_of_a_roll_out_is_the_mean_over_its_steps(store):
    task = one_task(store, rollout=2)
    model, batch = trained_model(store, task), batch_of(task, [0, 3])
    single = one_task(store)

    loss = task.loss(model, batch, draws(0, 3), CPU)

    # The first step by itself, and the second from the first one's forecast.
    first = single.sample(batch, draws(0, 3))
    forecast = model("main", first)["forecast"]
    second = replace(
        first, inputs_BTCS=torch.stack([batch.inputs[:, 1], forecast], dim=1), calendar_BF=batch.calendar[:, 3]
    )
    errors = [
        torch.nan_to_num((found - batch.target[:, step]).square() * task.weights()).mean()
        for step, found in enumerate((forecast, model("main", second)["forecast"]))
    ]
    torch.testing.assert_close(loss, (errors[0] + errors[1]) / 2, rtol=1e-5, atol=0)


def test_both_objectives_at_once_add_up(store):
    both = one_task(store, kind="both")
    model, batch = trained_model(store, both), batch_of(both, [2, 5])
    sample = both.sample(batch, draws(2, 5))
    assert sample.hidden_BN is not None

    predictions = model("main", sample)
    forecast = torch.nan_to_num((predictions["forecast"] - batch.target[:, 0]).square() * both.weights()).mean()
    hidden = both.field.spread(sample.hidden_BN) & torch.isfinite(batch.inputs)
    error = torch.where(hidden, predictions["reconstruction"] - torch.nan_to_num(batch.inputs), 0.0)
    by_sample = (error.square() * both.weights()).flatten(1).sum(1) / hidden.flatten(1).sum(1)

    torch.testing.assert_close(both.loss(model, batch, draws(2, 5), CPU), forecast + by_sample.mean())


@pytest.mark.parametrize("kind", ["forecast", "masked", "both"])
def test_the_loss_of_a_batch_is_the_mean_of_its_samples(store, kind):
    task = one_task(store, kind=kind)
    model = trained_model(store, task)

    together = task.loss(model, batch_of(task, [1, 4, 7]), draws(1, 4, 7), CPU)
    alone = [task.loss(model, batch_of(task, [number]), draws(number), CPU) for number in (1, 4, 7)]

    torch.testing.assert_close(together, torch.stack(alone).mean(), rtol=1e-5, atol=0)


def test_channels_weigh_as_they_are_set_and_rows_by_their_area(store):
    task = one_task(store, channel_weights={"u10": 0.5})

    weights = task.weights()

    # Rows at 75 and 15 N reach over sin 90 - sin 60 and sin 30 - sin 0, the mean row over a third.
    assert weights.shape == (2, 6, 1)
    assert weights[0, 2, 0] == pytest.approx(1.5, rel=1e-6)
    assert weights[1, 2, 0] == pytest.approx(0.75, rel=1e-6)
    assert weights[0, 0, 0] == pytest.approx(3 * (1 - 3**0.5 / 2), rel=1e-5)


def test_data_at_a_point_that_was_taken_to_be_empty_are_not_seen_and_it_is_said(store):
    task = one_task(store)
    present = torch.ones(6, 8, dtype=torch.bool)
    present[2, 3] = False
    task = replace(task, field=replace(task.field, present=present))

    with pytest.warns(UserWarning, match=r"holds values at grid points that were empty .* the model does not see"):
        task.sample(batch_of(task, [0]), draws(0))


def test_a_sample_is_complete_where_all_points_that_ever_hold_data_do(store):
    full = replace(store, values=np.nan_to_num(store.values))
    assert one_task(full).sample(batch_of(one_task(full), [0]), draws(0)).complete


# Hits


CLOUD = Cloud(
    channels=1,
    low=(0.0, 0.0),
    cell=(1.0, 1.0),
    shape=(4, 4),
    tokens=TokenSettings(history=1),
    objective=ObjectiveSettings(kind="masked", mask=MaskSettings(ratio=0.5)),
)


def point_batch() -> PointBatch:
    """Three hits in three cells, then five in four."""
    position = torch.tensor(
        [[0.2, 0.2], [1.2, 0.2], [2.2, 0.2], [0.1, 0.1], [0.6, 0.1], [1.5, 1.5], [2.5, 2.5], [3.5, 3.5]]
    )
    return PointBatch(
        position=position,
        feature=torch.arange(8.0)[:, None],
        labels=None,
        frame=torch.zeros(8, dtype=torch.int64),
        start=torch.tensor([0, 3, 8]),
    )


def test_only_cells_that_hold_hits_are_hidden(store):
    sample = HitTask(name="main", store=store, cloud=CLOUD).sample(point_batch(), draws(0, 1))

    assert sample.valid_BN.sum(1).tolist() == [3, 4]
    assert sample.hidden_BN is not None
    # Half of three is 1.5, rounded to the even 2; half of four is 2.
    assert sample.hidden_BN.sum(1).tolist() == [2, 2]
    assert not bool((sample.hidden_BN & ~sample.valid_BN).any())


# On ranks


OBJECTIVES = (
    ObjectiveSettings(kind="both", leads=2),
    ObjectiveSettings(kind="masked", mask=MaskSettings(kind="tube")),
    ObjectiveSettings(rollout=2),
)


@pytest.mark.parametrize(
    "attention",
    [
        "dense",
        {"kind": "block_sparse", "block": 4, "density": 0.5, "pattern": "learned", "probe_steps": 3},
        {"kind": "linear", "features": 8, "directions": "learned", "probe_steps": 3},
    ],
)
def test_several_archives_and_objectives_train_the_same_on_two_ranks_as_on_one(store, tmp_path, attention):
    model = ModelSettings(
        width=16, depth=2, heads=2, patch=2, history=2, attention=attention, stochastic_depth=0.3, recompute="full"
    )
    task = Task(
        store=store,
        checkpoint_dir=tmp_path / "one",
        layout=Layout(replicate=1, shard=1),
        model=model,
        objectives=OBJECTIVES,
        train={"steps": 6},
    )

    (one,) = on_ranks(1, train_task, task)
    two = on_ranks(2, train_task, replace(task, checkpoint_dir=tmp_path / "two", layout=Layout(replicate=1, shard=2)))

    for outcome in two:
        for name in ("train/loss", "validation/loss", "train/gradient_norm"):
            assert outcome.numbers(name) == pytest.approx(one.numbers(name), abs=1e-4, rel=0)
        for name, weight in outcome.weights.items():
            torch.testing.assert_close(weight, one.weights[name], rtol=0, atol=1e-4)
    assert {name for _, values in one.log for name in values if name.startswith("validation/loss/")} == {
        "validation/loss/main", "validation/loss/other1", "validation/loss/other2",
    }  # fmt: skip


def test_a_run_that_is_cut_while_it_probes_chooses_the_same_pattern(store, tmp_path):
    attention = {"kind": "block_sparse", "block": 4, "density": 0.5, "pattern": "learned", "probe_steps": 3}
    task = Task(
        store=store,
        checkpoint_dir=tmp_path / "whole",
        layout=Layout(replicate=1, shard=2),
        model=MODEL.model_copy(update={"attention": ModelSettings(attention=attention).attention}),
        train={"steps": 6},
    )
    whole = on_ranks(2, train_task, task)
    cut = replace(task, checkpoint_dir=tmp_path / "cut", stop_at=2)

    on_ranks(2, train_task, cut)
    again = on_ranks(2, train_task, replace(cut, stop_at=None))

    for outcome, reference in zip(again, whole, strict=True):
        losses = reference.losses
        assert outcome.losses == pytest.approx({step: losses[step] for step in (3, 4, 5, 6)}, abs=1e-6, rel=0)
    errors = {name for _, values in whole[0].log for name in values if name.startswith("attention/")}
    assert errors == {
        f"attention/layer_0{layer}/{what}" for layer in (0, 1) for what in ("output_error", "covered_mass")
    }


def test_a_window_holds_the_targets_of_all_leads_and_steps(store):
    assert one_task(store, kind="masked").sampling.rollout == 0
    assert one_task(store, leads=2).sampling.rollout == 2
    assert one_task(store, rollout=3).sampling.rollout == 3
