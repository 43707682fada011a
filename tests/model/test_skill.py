import math

import pytest
import torch

from hyperslab.model.skill import anomaly_correlation, area_mean, square_error

NAN = torch.nan
WEIGHTS = torch.tensor([[0.5], [1.5]])
"""Of two rows."""


def random_fields(seed: int) -> torch.Tensor:
    return torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(seed))


def test_a_mean_over_area_weighs_rows():
    # (1/2 x (1 + 3) + 3/2 x (5 + 7)) / (2 x 1/2 + 2 x 3/2) = 20 / 4.
    assert float(area_mean(torch.tensor([[1.0, 3.0], [5.0, 7.0]]), WEIGHTS)) == 5.0


def test_a_mean_over_area_leaves_out_missing_points_and_their_weight():
    # (1/2 x 1 + 3/2 x (5 + 7)) / (1/2 + 3) = 18.5 / 3.5.
    mean = area_mean(torch.tensor([[1.0, NAN], [5.0, 7.0]]), WEIGHTS)

    assert float(mean) == pytest.approx(18.5 / 3.5, rel=1e-15)


def test_a_mean_over_no_point_is_missing():
    assert math.isnan(float(area_mean(torch.full((2, 2), NAN), WEIGHTS)))


def test_a_square_error_is_the_weighted_mean_of_squares():
    # Errors 1, -2 in the first row, 3, 0 in the second: (1/2 x 5 + 3/2 x 9) / 4 = 4.
    forecast, truth = torch.tensor([[1.0, 0.0], [4.0, 5.0]]), torch.tensor([[0.0, 2.0], [1.0, 5.0]])

    assert float(square_error(forecast, truth, WEIGHTS)) == 4.0


def test_a_square_error_leaves_out_points_where_either_field_is_missing():
    # Left are the errors 1 in the first row and 3 in the second: (1/2 + 3/2 x 9) / 2 = 7.
    forecast, truth = torch.tensor([[1.0, NAN], [4.0, 5.0]]), torch.tensor([[0.0, 2.0], [1.0, NAN]])

    assert float(square_error(forecast, truth, WEIGHTS)) == 7.0


def test_a_square_error_is_taken_in_float64():
    # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24, whose last term float32 would lose.
    truth = torch.zeros(2, 2)

    assert float(square_error(truth + 1 + 2.0**-12, truth, WEIGHTS)) == 1 + 2.0**-11 + 2.0**-24


def test_scores_keep_the_leading_dimensions():
    fields = torch.zeros(4, 3, 2, 5)

    assert square_error(fields + 2, fields, WEIGHTS).tolist() == [[4.0] * 3] * 4
    assert anomaly_correlation(fields + 1, fields + 2, fields, WEIGHTS).tolist() == [[1.0] * 3] * 4


def test_a_perfect_forecast_has_an_anomaly_correlation_of_one():
    truth, climatology = random_fields(1), random_fields(2)

    acc = anomaly_correlation(truth, truth, climatology, WEIGHTS)

    torch.testing.assert_close(acc, torch.ones(3).double(), rtol=0, atol=1e-12)


def test_the_opposite_anomaly_has_an_anomaly_correlation_of_minus_one():
    # Anomalies are powers of two and the climatology is whole, so that nothing is rounded before float64.
    climatology = torch.tensor([[10.0, 20.0], [30.0, 40.0]])
    anomaly = torch.tensor([[1.0, -2.0], [4.0, 0.5]])

    acc = anomaly_correlation(climatology - anomaly, climatology + anomaly, climatology, WEIGHTS)

    assert float(acc) == pytest.approx(-1, abs=1e-12)


def test_an_anomaly_correlation_by_hand():
    # Forecast anomalies 1, 2 / 0, 1; true ones 2, 0 / 1, 3. Sums weighted with 1/2 and 3/2:
    # product 1/2 x 2 + 3/2 x 3 = 5.5; forecast power 1/2 x 5 + 3/2 x 1 = 4; true 1/2 x 4 + 3/2 x 10 = 17.
    climatology = torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    forecast = climatology + torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    truth = climatology + torch.tensor([[2.0, 0.0], [1.0, 3.0]])

    acc = anomaly_correlation(forecast, truth, climatology, WEIGHTS)

    assert float(acc) == pytest.approx(5.5 / math.sqrt(4 * 17), rel=1e-12)


@pytest.mark.parametrize("gap", ["forecast", "truth", "climatology"])
def test_a_point_that_one_field_lacks_counts_in_none_of_the_three_means(gap):
    # As above without the second point of the second row: product 1, forecast power 1/2 x 5 + 0 = 2.5,
    # true power 1/2 x 4 + 3/2 x 1 = 3.5. The weights' sum cancels.
    climatology = torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    fields = {
        "forecast": climatology + torch.tensor([[1.0, 2.0], [0.0, 1.0]]),
        "truth": climatology + torch.tensor([[2.0, 0.0], [1.0, 3.0]]),
        "climatology": climatology,
    }
    fields[gap] = fields[gap].clone()
    fields[gap][1, 1] = NAN

    acc = anomaly_correlation(**fields, weights_S=WEIGHTS)

    assert float(acc) == pytest.approx(1 / math.sqrt(2.5 * 3.5), rel=1e-12)


def test_a_forecast_without_any_anomaly_has_no_anomaly_correlation():
    climatology = random_fields(3)

    assert anomaly_correlation(climatology, random_fields(4), climatology, WEIGHTS).isnan().all()
