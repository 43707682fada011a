"""What training minimises, and how a trained model is rolled out."""

import torch
from torch import nn


def area_weights(latitude: torch.Tensor) -> torch.Tensor:
    """Area of each row of grid cells relative to the mean row, shape (H,).

    The cells meet half-way between rows; the outermost reach as far outwards, though not over a pole:
    w(i) = sin(upper) - sin(lower), over its mean (WeatherBench 2, arXiv 2308.15560, equation 1).

    Parameters
    ----------
    latitude
        Degrees north of the rows, descending; shape (H,).
    """
    radians = torch.deg2rad(latitude.double())
    if len(radians) == 1:
        return torch.ones(1, dtype=torch.float64)
    between = (radians[1:] + radians[:-1]) / 2
    first = radians[0] + (radians[0] - radians[1]) / 2
    last = radians[-1] - (radians[-2] - radians[-1]) / 2
    bounds = torch.cat([first[None], between, last[None]]).clamp(-torch.pi / 2, torch.pi / 2)
    weights = bounds[:-1].sin() - bounds[1:].sin()
    return weights / weights.mean()


def weighted_square_error(
    forecast_BCHW: torch.Tensor, target_BCHW: torch.Tensor, weights_H: torch.Tensor
) -> torch.Tensor:
    """Area-weighted mean square error over all points; a point without a target adds nothing."""
    there = torch.isfinite(target_BCHW)
    error = torch.where(there, forecast_BCHW - torch.nan_to_num(target_BCHW), 0.0)
    return (error.square() * weights_H[:, None]).mean()


def roll_out(model: nn.Module, inputs_BTCHW: torch.Tensor, calendar_BLF: torch.Tensor) -> torch.Tensor:
    """Forecast step by step, each step seeing the steps before it; shape (B, L, C, H, W)."""
    window, forecasts = inputs_BTCHW, []
    for step in range(calendar_BLF.shape[1]):
        forecast = model(window, calendar_BLF[:, step])
        forecasts.append(forecast)
        window = torch.cat([window[:, 1:], forecast[:, None]], dim=1)
    return torch.stack(forecasts, dim=1)
