"""Skill of forecasts, by the formulas of WeatherBench 2 (arXiv 2308.15560, section 3).

All functions work in float64 and leave out points where either field is NaN.
"""

import torch


def area_mean(fields: torch.Tensor, weights_S: torch.Tensor) -> torch.Tensor:
    """Weighted mean over space; NaN where no point has a value.

    Parameters
    ----------
    fields
        Shape (..., *S).
    weights_S
        Weight of each point, such as its row's area: anything of as many dimensions that broadcasts to (*S).
    """
    there = torch.isfinite(fields)
    weights = there * weights_S.double()
    space = tuple(range(-weights_S.ndim, 0))
    return (torch.where(there, fields, 0.0).double() * weights).sum(space) / weights.sum(space)


def square_error(forecast: torch.Tensor, truth: torch.Tensor, weights_S: torch.Tensor) -> torch.Tensor:
    """Square error averaged over area, shape (..., *S) to (...); RMSE is the root of its mean over time (eq. 2)."""
    return area_mean((forecast.double() - truth.double()).square(), weights_S)


def anomaly_correlation(
    forecast: torch.Tensor, truth: torch.Tensor, climatology: torch.Tensor, weights_S: torch.Tensor
) -> torch.Tensor:
    """Correlation over area of the departures from climatology, shape (..., *S) to (...); ACC is its mean (eq. 4).

    NaN where the climatology is, and where a forecast has no anomaly at all.
    """
    forecast_anomaly = forecast.double() - climatology.double()
    truth_anomaly = truth.double() - climatology.double()
    product = forecast_anomaly * truth_anomaly
    # A point without one of the two counts in none of the three means.
    gap = torch.where(torch.isfinite(product), 0.0, torch.nan)
    power = area_mean(forecast_anomaly.square() + gap, weights_S) * area_mean(truth_anomaly.square() + gap, weights_S)
    return area_mean(product, weights_S) / power.sqrt()
