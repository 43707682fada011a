"""What training minimises, and how a trained model is rolled out."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F

from hyperslab.model.fields import FieldSample
from hyperslab.model.hits import HitSample
from hyperslab.model.transformer import Predictions

Total = Callable[[torch.Tensor], torch.Tensor]


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


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


def forecast_loss(
    forecast_BCS: torch.Tensor, target_BCS: torch.Tensor, weights_CS: torch.Tensor, points: int | None = None
) -> torch.Tensor:
    """Weighted mean square error over all points; a point without a target adds nothing.

    Parameters
    ----------
    weights_CS
        Weight of each channel and point: anything that broadcasts to (C, *S).
    points
        Values of a whole frame, in all channels, where a part of it is given: parts add up to the mean.
    """
    there = torch.isfinite(target_BCS)
    error = torch.where(there, forecast_BCS - torch.nan_to_num(target_BCS), 0.0)
    return (error.square() * weights_CS).sum() / (len(error) * (points or error[0].numel()))


def reconstruction_loss(
    reconstruction_BTCS: torch.Tensor,
    truth_BTCS: torch.Tensor,
    hidden_BTCS: torch.Tensor,
    weights_CS: torch.Tensor,
    total: Total = _as_it_is,
) -> torch.Tensor:
    """Weighted square error of what is hidden and has a truth: its mean over each sample, then over samples.

    Parameters
    ----------
    weights_CS
        As for `forecast_loss`.
    total
        Adds up numbers of each sample's parts, where samples are in parts.
    """
    counted = hidden_BTCS & torch.isfinite(truth_BTCS)
    error = torch.where(counted, reconstruction_BTCS - torch.nan_to_num(truth_BTCS), 0.0)
    return _sample_mean(error.square() * weights_CS, counted, total).mean()


def hit_loss(
    occupancy_BNP: torch.Tensor, feature_BNPC: torch.Tensor, sample: HitSample, total: Total = _as_it_is
) -> torch.Tensor:
    """Cross-entropy of which parts of hidden cells hold hits, plus the square error of their features where they do.

    Both are means over each sample, then over samples.

    Parameters
    ----------
    occupancy_BNP
        Logits.
    feature_BNPC
        Normalised features.
    total
        As for `reconstruction_loss`.
    """
    assert sample.hidden_BN is not None
    parts, features = split_values(sample, occupancy_BNP.shape[-1])
    hidden = (sample.hidden_BN & sample.valid_BN)[..., None].expand_as(parts)
    entropy = F.binary_cross_entropy_with_logits(occupancy_BNP, parts, reduction="none")
    error = (feature_BNPC - features).square().mean(-1)
    return (_sample_mean(entropy, hidden, total) + _sample_mean(error, hidden & (parts > 0), total)).mean()


def split_values(sample: HitSample, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which parts of cells hold hits, 1 or 0, (B, N, parts); and their features, (B, N, parts, channel)."""
    values = sample.values_BNP
    return values[..., :parts], values[..., parts:].reshape(*values.shape[:2], parts, -1)


def _sample_mean(values: torch.Tensor, counted: torch.Tensor, total: Total) -> torch.Tensor:
    summed = torch.where(counted, values, 0.0).flatten(1).sum(1)
    return summed / total(counted.flatten(1).sum(1).to(summed.dtype)).clamp_min(1)


def roll_out(
    model: Callable[..., Predictions], stream: str, sample: FieldSample, calendars_BLF: torch.Tensor, steps: int
) -> Iterator[Predictions]:
    """Predictions one after another, each from the forecast before it.

    Parameters
    ----------
    sample
        What the first one starts from.
    calendars_BLF
        Phases of the year and of the day at each frame after the last input; the sample's lead says which are used.
    """
    lead = int(sample.lead_B[0])
    window = sample
    for step in range(steps):
        window = replace(window, calendar_BF=calendars_BLF[:, (step + 1) * lead - 1])
        predictions = model(stream, window)
        yield predictions
        inputs = torch.cat([window.inputs_BTCS[:, 1:], predictions["forecast"][:, None]], dim=1)
        window = replace(window, inputs_BTCS=inputs, hidden_BN=None)
