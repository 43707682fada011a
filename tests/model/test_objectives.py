import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hyperslab.model.objectives import area_weights, roll_out, weighted_square_error


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


def test_the_loss_is_the_mean_of_weighted_squares_and_a_missing_target_adds_nothing():
    # Two rows weighing 1/2 and 3/2, two columns. Errors: row 1: 1 and -2; row 2: 3, and no target.
    # (1 x 1/2 + 4 x 1/2 + 9 x 3/2 + 0) / 4 points = 16 / 4.
    forecast = torch.tensor([[[[1.0, 0.0], [4.0, 5.0]]]])
    target = torch.tensor([[[[0.0, 2.0], [1.0, torch.nan]]]])

    loss = weighted_square_error(forecast, target, torch.tensor([0.5, 1.5]))

    assert float(loss) == 4.0


def test_a_missing_target_sends_no_gradient_and_a_present_one_twice_its_error():
    # d/df of w (f - t)^2 / 4 is w (f - t) / 2, the error being 1, -2, 3.
    forecast = torch.tensor([[[[1.0, 0.0], [4.0, 5.0]]]], requires_grad=True)
    target = torch.tensor([[[[0.0, 2.0], [1.0, torch.nan]]]])

    (gradient,) = torch.autograd.grad(weighted_square_error(forecast, target, torch.tensor([0.5, 1.5])), forecast)

    assert gradient.flatten().tolist() == [0.25, -0.5, 2.25, 0.0]


def test_a_target_that_is_missing_everywhere_has_no_loss():
    loss = weighted_square_error(torch.ones(1, 1, 2, 2), torch.full((1, 1, 2, 2), torch.nan), torch.ones(2))

    assert float(loss) == 0.0


class Fibonacci(nn.Module):
    """Forecasts the sum of the last two frames, plus the first calendar feature."""

    def forward(self, inputs_BTCHW: torch.Tensor, calendar_BF: torch.Tensor) -> torch.Tensor:
        assert inputs_BTCHW.shape[1] == 2
        return inputs_BTCHW[:, 0] + inputs_BTCHW[:, 1] + calendar_BF[:, 0, None, None, None]


def test_a_roll_out_feeds_forecasts_back_and_keeps_the_length_of_the_past():
    # From 1, 1: 2, 3, 5, 8. From 2, 5: 7, 12, 19, 31.
    inputs = torch.tensor([[1.0, 1.0], [2.0, 5.0]])[:, :, None, None, None]

    forecasts = roll_out(Fibonacci(), inputs, torch.zeros(2, 4, 4))

    assert forecasts.shape == (2, 4, 1, 1, 1)
    assert forecasts.flatten(1).tolist() == [[2, 3, 5, 8], [7, 12, 19, 31]]


def test_each_step_of_a_roll_out_sees_its_own_calendar():
    # From 1, 1 with 10 added at the second step: 2, 1 + 2 + 10 = 13, 2 + 13 = 15.
    calendar = torch.zeros(1, 3, 4)
    calendar[0, 1, 0] = 10

    forecasts = roll_out(Fibonacci(), torch.ones(1, 2, 1, 1, 1), calendar)

    assert forecasts.flatten().tolist() == [2, 13, 15]
