import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hyperslab.model.fields import FieldSample
from hyperslab.model.hits import HitSample
from hyperslab.model.objectives import (
    area_weights,
    forecast_loss,
    hit_loss,
    reconstruction_loss,
    roll_out,
    split_values,
)
from hyperslab.model.transformer import Predictions

NAN = torch.nan


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_gaps(seed: int, *shape: int) -> torch.Tensor:
    values = normal(seed, *shape)
    values[torch.rand(*shape, generator=torch.Generator().manual_seed(seed + 1)) < 0.3] = NAN
    return values


def test_two_rows_of_the_globe_weigh_the_same():
    # Rows at 45 N and 45 S meet at the equator and end at the poles: 1 - 0 and 0 - (-1).
    torch.testing.assert_close(area_weights(torch.tensor([45.0, -45.0])), torch.tensor([1.0, 1.0]).double())


def test_three_rows_of_the_globe_weigh_a_half_one_and_a_half():
    # Rows at 60 N, 0 and 60 S meet at 30 N and 30 S: 1 - 1/2, 1/2 + 1/2, 1 - 1/2, over their mean of 2/3.
    weights = area_weights(torch.tensor([60.0, 0.0, -60.0]))

    torch.testing.assert_close(weights, torch.tensor([0.75, 1.5, 0.75]).double())


def test_rows_on_the_poles_get_half_cells_that_end_there():
    # Rows at 90 N, 0 and 90 S meet at 45 N and 45 S, s = sin 45: 1 - s, 2 s, 1 - s, whose mean is 2/3.
    s = math.sqrt(0.5)
    weights = area_weights(torch.tensor([90.0, 0.0, -90.0]))

    torch.testing.assert_close(weights, torch.tensor([1 - s, 2 * s, 1 - s]).double() * 1.5)


def test_the_outer_rows_of_a_region_reach_as_far_out_as_in():
    # Rows at 40, 20 and 0 N: bounds 50, 30, 10 and -10. A cell that ended at the pole would outweigh the
    # others.
    sines = [math.sin(math.radians(degrees)) for degrees in (50, 30, 10, -10)]
    cells = [sines[0] - sines[1], sines[1] - sines[2], sines[2] - sines[3]]
    expected = torch.tensor(cells).double() * 3 / (sines[0] - sines[3])

    torch.testing.assert_close(area_weights(torch.tensor([40.0, 20.0, 0.0])), expected, rtol=1e-6, atol=0)


def test_a_single_row_weighs_one():
    assert area_weights(torch.tensor([12.0])).tolist() == [1.0]


@given(rows=st.integers(2, 400), north=st.floats(-80, 90), span=st.floats(1, 180))
def test_weights_are_positive_and_sum_to_the_number_of_rows(rows, north, span):
    south = max(-90.0, north - span)
    latitude = torch.linspace(north, south, rows, dtype=torch.float64)

    weights = area_weights(latitude)

    assert (weights > 0).all()
    assert float(weights.sum()) == pytest.approx(rows, rel=1e-9)


def test_the_forecast_loss_is_the_mean_of_weighted_squares_and_a_missing_target_adds_nothing():
    # Two rows weighing 1/2 and 3/2, two columns. Errors: row 1: 1 and -2; row 2: 3, and no target.
    # (1 x 1/2 + 4 x 1/2 + 9 x 3/2 + 0) / 4 points = 16 / 4.
    forecast = torch.tensor([[[[1.0, 0.0], [4.0, 5.0]]]])
    target = torch.tensor([[[[0.0, 2.0], [1.0, NAN]]]])

    loss = forecast_loss(forecast, target, torch.tensor([0.5, 1.5])[:, None])

    assert float(loss) == 4.0


def test_a_missing_target_sends_no_gradient_and_a_present_one_twice_its_error():
    # d/df of w (f - t)^2 / 4 is w (f - t) / 2, the error being 1, -2, 3.
    forecast = torch.tensor([[[[1.0, 0.0], [4.0, 5.0]]]], requires_grad=True)
    target = torch.tensor([[[[0.0, 2.0], [1.0, NAN]]]])

    (gradient,) = torch.autograd.grad(forecast_loss(forecast, target, torch.tensor([0.5, 1.5])[:, None]), forecast)

    assert gradient.flatten().tolist() == [0.25, -0.5, 2.25, 0.0]


def test_a_target_that_is_missing_everywhere_has_no_loss():
    loss = forecast_loss(torch.ones(1, 1, 2, 2), torch.full((1, 1, 2, 2), NAN), torch.ones(1))

    assert float(loss) == 0.0


def test_channels_have_weights_of_their_own():
    # Errors of 1 in the first channel, weight 3, and of 2 in the second, weight 1/2: (3 + 4 / 2) / 2.
    forecast = torch.stack([torch.full((4,), 1.0), torch.full((4,), 2.0)])[None]

    assert float(forecast_loss(forecast, torch.zeros(1, 2, 4), torch.tensor([[3.0], [0.5]]))) == 2.5


def test_the_reconstruction_loss_is_the_mean_over_what_is_hidden_and_has_a_truth():
    # One channel, two frames of two points. Sample 1: three points hidden, one of them without a truth: errors
    # 1 and 3 of weights 2 and 1: (2 + 9) / 2 = 5.5. Sample 2: one hidden, error 2 of weight 1: 4. Mean 4.75.
    truth = torch.tensor([[[[0.0, 0.0]], [[NAN, 0.0]]], [[[5.0, 5.0]], [[5.0, 7.0]]]])
    found = torch.tensor([[[[1.0, 9.0]], [[9.0, 3.0]]], [[[0.0, 0.0]], [[0.0, 5.0]]]])
    hidden = torch.tensor([[[[True, False]], [[True, True]]], [[[False, False]], [[False, True]]]])

    assert float(reconstruction_loss(found, truth, hidden, torch.tensor([[2.0, 1.0]]))) == 4.75


def test_what_is_visible_or_has_no_truth_sends_no_gradient():
    truth, found = with_gaps(1, 2, 3, 2, 4), normal(3, 2, 3, 2, 4).requires_grad_()
    hidden = normal(4, 2, 3, 2, 4) > 0

    (gradient,) = torch.autograd.grad(reconstruction_loss(found, truth, hidden, torch.ones(1)), found)

    assert gradient.isfinite().all()
    assert torch.equal(gradient != 0, hidden & truth.isfinite())


def test_a_sample_of_which_nothing_hidden_has_a_truth_has_no_loss():
    truth = torch.stack([torch.full((2, 1, 3), NAN), torch.zeros(2, 1, 3)])

    loss = reconstruction_loss(torch.full((2, 2, 1, 3), 2.0), truth, torch.ones(2, 2, 1, 3).bool(), torch.ones(1))

    # 0 and 4, of which the mean.
    assert float(loss) == 2.0


def hit_sample(seed: int, samples: int, tokens: int, channels: int = 1) -> HitSample:
    """Tokens of two parts, some of them padding, some hidden."""
    generator = torch.Generator().manual_seed(seed)
    parts = torch.rand(samples, tokens, 2, generator=generator) < 0.6
    features = torch.randn(samples, tokens, 2, channels, generator=generator) * parts[..., None]
    return HitSample(
        values_BNP=torch.cat([parts.float(), features.flatten(2)], dim=-1),
        position_BNS=torch.zeros(samples, tokens, 2),
        valid_BN=torch.rand(samples, tokens, generator=generator) < 0.8,
        count=tokens,
        hidden_BN=torch.rand(samples, tokens, generator=generator) < 0.5,
    )


def test_the_loss_of_hits_is_that_of_occupied_parts_plus_that_of_their_features():
    # One sample, four tokens of two parts. Token 0 is hidden, its first part holds a hit of feature 3; token 1 is
    # hidden, both parts hold hits of features 1 and 2; token 2 is visible; token 3 is hidden, but padding.
    sample = HitSample(
        values_BNP=torch.tensor([[[1.0, 0, 3, 0], [1, 1, 1, 2], [1, 1, 9, 9], [0, 0, 0, 0]]]),
        position_BNS=torch.zeros(1, 4, 2),
        valid_BN=torch.tensor([[True, True, True, False]]),
        count=4,
        hidden_BN=torch.tensor([[True, True, False, True]]),
    )
    # A logit of log 3 says 3/4. Entropies: -log 3/4, -log(1 - 1/2) = log 2; -log 1/2, -log 3/4; mean of four.
    occupancy = torch.tensor([[[math.log(3), 0.0], [0, math.log(3)], [5, 5], [7, 7]]])
    # Errors of the three parts that hold hits: 3 - 1, 1 - 1, 2 - 0: mean of squares 8/3. The empty part of token 0
    # has no features to miss.
    feature = torch.tensor([[[[1.0], [50]], [[1], [0]], [[0], [0]], [[60], [60]]]])

    by_hand = (2 * math.log(4 / 3) + 2 * math.log(2)) / 4 + 8 / 3
    assert float(hit_loss(occupancy, feature, sample)) == pytest.approx(by_hand, rel=1e-6)


def test_features_of_a_hit_count_together_as_one():
    # Errors 1 and 3 of two channels: their mean square is 5.
    sample = HitSample(
        values_BNP=torch.tensor([[[1.0, 1, 0, 0, 0, 0]]]),
        position_BNS=torch.zeros(1, 1, 2),
        valid_BN=torch.ones(1, 1).bool(),
        count=1,
        hidden_BN=torch.ones(1, 1).bool(),
    )
    feature = torch.tensor([1.0, 3.0]).expand(1, 1, 2, 2)

    # Logits of 0 say 1/2: log 2.
    assert float(hit_loss(torch.zeros(1, 1, 2), feature, sample)) == pytest.approx(math.log(2) + 5, rel=1e-6)


def test_parts_and_features_stand_in_the_order_in_which_they_are_predicted():
    # Three parts, two channels: 3 marks, then channels of the first part, of the second, of the third.
    values = torch.arange(9.0).view(1, 1, 9)
    sample = HitSample(values_BNP=values, position_BNS=torch.zeros(1, 1, 2), valid_BN=torch.ones(1, 1).bool(), count=1)

    parts, features = split_values(sample, 3)

    assert parts.tolist() == [[[0, 1, 2]]]
    assert features.tolist() == [[[[3, 4], [5, 6], [7, 8]]]]


def test_what_is_visible_or_padding_sends_no_gradient_to_hits():
    sample = hit_sample(5, 2, 40)
    occupancy, feature = normal(6, 2, 40, 2).requires_grad_(), normal(7, 2, 40, 2, 1).requires_grad_()

    by_occupancy, by_feature = torch.autograd.grad(hit_loss(occupancy, feature, sample), (occupancy, feature))

    assert sample.hidden_BN is not None
    counted = (sample.hidden_BN & sample.valid_BN)[..., None].expand(2, 40, 2)
    assert torch.equal(by_occupancy != 0, counted)
    assert torch.equal(by_feature[..., 0] != 0, counted & (sample.values_BNP[..., :2] > 0))


def test_a_sample_without_hidden_hits_has_a_loss_of_zero():
    sample = HitSample(
        values_BNP=torch.zeros(2, 3, 4),
        position_BNS=torch.zeros(2, 3, 2),
        valid_BN=torch.zeros(2, 3).bool(),
        count=3,
        hidden_BN=torch.zeros(2, 3).bool(),
    )

    assert float(hit_loss(normal(8, 2, 3, 2), normal(9, 2, 3, 2, 1), sample)) == 0.0


def one(sample: HitSample, row: int) -> HitSample:
    assert sample.hidden_BN is not None
    return HitSample(
        values_BNP=sample.values_BNP[row : row + 1],
        position_BNS=sample.position_BNS[row : row + 1],
        valid_BN=sample.valid_BN[row : row + 1],
        count=sample.count,
        hidden_BN=sample.hidden_BN[row : row + 1],
    )


def test_the_loss_of_a_batch_is_the_mean_of_the_losses_of_its_samples():
    # Whatever each sample misses: sharing samples out over ranks then changes nothing.
    forecast, target, weights = normal(10, 4, 2, 6), with_gaps(11, 4, 2, 6), normal(13, 2, 6).abs()
    frames, truth, hidden = normal(14, 4, 3, 2, 6), with_gaps(15, 4, 3, 2, 6), normal(17, 4, 3, 2, 6) > 0.5
    hits, occupancy, feature = hit_sample(18, 4, 9), normal(19, 4, 9, 2), normal(20, 4, 9, 2, 1)
    rows = [slice(row, row + 1) for row in range(4)]

    alone = [forecast_loss(forecast[row], target[row], weights) for row in rows]
    torch.testing.assert_close(forecast_loss(forecast, target, weights), torch.stack(alone).mean())
    alone = [reconstruction_loss(frames[row], truth[row], hidden[row], weights) for row in rows]
    torch.testing.assert_close(reconstruction_loss(frames, truth, hidden, weights), torch.stack(alone).mean())
    alone = [hit_loss(occupancy[row], feature[row], one(hits, row.start)) for row in rows]
    torch.testing.assert_close(hit_loss(occupancy, feature, hits), torch.stack(alone).mean())


def test_the_loss_of_hits_is_that_of_pytorch_where_everything_is_hidden():
    sample = hit_sample(21, 1, 30)
    sample = HitSample(
        values_BNP=sample.values_BNP,
        position_BNS=sample.position_BNS,
        valid_BN=torch.ones(1, 30).bool(),
        count=30,
        hidden_BN=torch.ones(1, 30).bool(),
    )
    occupancy, feature = normal(22, 1, 30, 2), normal(23, 1, 30, 2, 1)

    parts, features = split_values(sample, 2)
    expected = F.binary_cross_entropy_with_logits(occupancy, parts) + F.mse_loss(
        feature[parts > 0], features[parts > 0]
    )
    torch.testing.assert_close(hit_loss(occupancy, feature, sample), expected)


class Fibonacci(nn.Module):
    """Forecasts the sum of the last two frames, plus the first calendar feature, plus a hundred for each lead."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[FieldSample] = []

    def forward(self, stream: str, sample: FieldSample) -> Predictions:
        assert stream == "numbers"
        assert sample.inputs_BTCS.shape[1] == 2
        self.seen.append(sample)
        calendar_B = sample.calendar_BF[:, 0] + 100 * (sample.lead_B - 1)
        return {"forecast": sample.inputs_BTCS.sum(1) + calendar_B[:, None, None]}


def rolled(
    inputs_BT: list[list[float]], calendars_BL: list[list[float]], *, steps: int, lead: int = 1
) -> tuple[Fibonacci, Iterator[Predictions]]:
    inputs, calendars = torch.tensor(inputs_BT), torch.tensor(calendars_BL)
    sample = FieldSample(
        inputs_BTCS=inputs[:, :, None, None],
        calendar_BF=torch.full((len(inputs), 4), NAN),
        lead_B=torch.full((len(inputs),), lead),
        complete=True,
        hidden_BN=torch.zeros(len(inputs), 2, dtype=torch.bool),
        kept_LB=torch.ones(1, len(inputs)),
    )
    model = Fibonacci()
    return model, roll_out(model, "numbers", sample, calendars[..., None].expand(-1, -1, 4), steps)


def test_a_roll_out_feeds_forecasts_back_and_keeps_the_length_of_the_past():
    # From 1, 1: 2, 3, 5, 8. From 2, 5: 7, 12, 19, 31.
    _, predictions = rolled([[1, 1], [2, 5]], [[0] * 4] * 2, steps=4)

    forecasts = torch.stack([own["forecast"] for own in predictions], dim=1)
    assert forecasts.shape == (2, 4, 1, 1)
    assert forecasts.flatten(1).tolist() == [[2, 3, 5, 8], [7, 12, 19, 31]]


def test_each_step_of_a_roll_out_sees_the_calendar_of_the_time_it_forecasts():
    # From 1, 1 with 10 added at the second step: 2, 1 + 2 + 10 = 13, 2 + 13 = 15.
    _, predictions = rolled([[1, 1]], [[0, 10, 0]], steps=3)

    assert [float(own["forecast"]) for own in predictions] == [2, 13, 15]


def test_a_roll_out_by_longer_leads_sees_the_calendar_of_every_lead():
    # Three at a stroke: calendars of the frames 3 and 6 after the last input, 5 and 7. 1 + 1 + 200 + 5 = 207;
    # 1 + 207 + 200 + 7 = 415.
    model, predictions = rolled([[1, 1]], [[0, 0, 5, 0, 0, 7]], steps=2, lead=3)

    assert [float(own["forecast"]) for own in predictions] == [207, 415]
    assert [sample.lead_B.tolist() for sample in model.seen] == [[3], [3]]


def test_only_the_first_step_of_a_roll_out_has_hidden_tokens_and_all_leave_out_the_same_layers():
    model, predictions = rolled([[1, 1]], [[0, 0]], steps=2)
    list(predictions)

    assert [sample.hidden_BN is None for sample in model.seen] == [False, True]
    assert all(sample.kept_LB is not None for sample in model.seen)


def test_a_roll_out_carries_gradients_through_all_its_steps():
    # The fourth Fibonacci number from a, b is 3 a + 5 b: by a and b 3 and 5.
    inputs = torch.tensor([[1.0, 1.0]], requires_grad=True)
    sample = FieldSample(
        inputs_BTCS=inputs[:, :, None, None],
        calendar_BF=torch.zeros(1, 4),
        lead_B=torch.ones(1, dtype=torch.int64),
        complete=True,
    )

    *_, last = roll_out(Fibonacci(), "numbers", sample, torch.zeros(1, 4, 4), 4)

    assert torch.autograd.grad(last["forecast"].sum(), inputs)[0].tolist() == [[3.0, 5.0]]


def test_a_roll_out_goes_only_as_far_as_it_is_asked_to():
    model, predictions = rolled([[1, 1]], [[0] * 4], steps=4)
    next(predictions)

    assert len(model.seen) == 1
