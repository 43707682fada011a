"""Electrons on their way to the anode, and the hits that pixels make of them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperslab.data.sources.synthetic.tracks import Box, Floats, Ints, energy_of

TICK_US = 0.1
"""Clock of the pixels' readout."""
HITS = np.dtype(
    [
        ("id", "u4"),
        ("x", "f8"),
        ("y", "f8"),
        ("z", "f8"),
        ("t_drift", "f8"),
        ("ts_pps", "u8"),
        ("io_group", "u8"),
        ("io_channel", "u8"),
        ("chip_id", "u8"),
        ("channel_id", "u8"),
        ("Q_raw", "f8"),
        ("Q", "f8"),
        ("E", "f8"),
        ("is_disabled", "?"),
        ("x_corr", "f8"),
        ("t_0", "i2"),
        ("t_confidence", "f4"),
        ("t_cluster_id", "i2"),
    ]
)
"""A row of `charge/calib_prompt_hits/data` as DUNE/ndlar_flow (proto_nd_flow/reco/charge/calib_prompt_hits.py) writes
it: cm, ticks of 0.1 microseconds, thousand electrons, MeV."""
MOST_SOURCES = 20
BACKTRACK = np.dtype([("fraction", "f4", (MOST_SOURCES,)), ("segment_ids", "i4", (MOST_SOURCES,))])
"""A row of `mc_truth/calib_prompt_hit_backtrack/data`: shares of a hit's charge and the segments they come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector:
    """What happens to the electrons, and what reads them out."""

    box: Box = field(default_factory=Box)
    velocity: float = 0.1588
    """cm a microsecond, at 0.5 kV/cm and 87 K."""
    lifetime_us: float = 2200.0
    """Time in which impurities catch all but 1/e of the electrons."""
    longitudinal: float = 4.0e-6
    """Diffusion along the drift, cm2 a microsecond."""
    transverse: float = 8.8e-6
    """Diffusion across the drift, cm2 a microsecond."""
    pitch_cm: float = 0.4434
    """Width of a pixel."""
    integration_ticks: int = 16
    """Ticks whose charge a pixel adds up to one hit."""
    noise_ke: float = 0.5
    """Readout noise of a hit, thousand electrons."""
    threshold_ke: float = 4.0
    """Charge below which a pixel says nothing."""
    clouds: int = 4
    """Parts of a segment that drift by themselves."""


@dataclass(frozen=True, slots=True)
class Clouds:
    """Small clouds of electrons that have arrived at an anode."""

    segment: Ints
    """Position of the segment that each comes from."""
    event: Ints
    side: Ints
    """0 for the anode at negative x, 1 for the other."""
    y: Floats
    z: Floats
    drift_us: Floats
    charge_ke: Floats


def drifted(detector: Detector, segments: npt.NDArray[Any], rng: np.random.Generator) -> Clouds:
    """The electrons of segments after their drift: fewer by attenuation, and spread by diffusion."""
    which = np.repeat(np.arange(len(segments)), detector.clouds)
    along = rng.random(len(which))
    places = [
        segments[f"{axis}_start"][which] + along * (segments[f"{axis}_end"] - segments[f"{axis}_start"])[which]
        for axis in "xyz"
    ]
    x, y, z = (place.astype(np.float64) for place in places)
    time = np.maximum(detector.box.x - np.abs(x), 0.0) / detector.velocity
    across = np.sqrt(2 * detector.transverse * time)
    late = np.sqrt(2 * detector.longitudinal * time) / detector.velocity
    charge = segments["n_electrons"][which] / detector.clouds / 1e3 * np.exp(-time / detector.lifetime_us)
    return Clouds(
        segment=which,
        event=segments["event_id"][which].astype(np.int64),
        side=(x > 0).astype(np.int64),
        y=y + across * rng.standard_normal(len(which)),
        z=z + across * rng.standard_normal(len(which)),
        drift_us=np.maximum(time + late * rng.standard_normal(len(which)), 0.0),
        charge_ke=charge,
    )


@dataclass(frozen=True, slots=True)
class Hits:
    """Hits of some events, in the order of event and time."""

    rows: npt.NDArray[Any]
    """As `HITS`."""
    event: Ints
    """Event of each."""
    sources: npt.NDArray[Any]
    """As `BACKTRACK`."""


def read_out(detector: Detector, clouds: Clouds, segment_ids: Ints, rng: np.random.Generator) -> Hits:
    """What the pixels make of the clouds: charge in bins of pixel and time, with noise, above the threshold.

    Parameters
    ----------
    segment_ids
        Identifier of each segment that a cloud may come from.
    """
    box, pitch = detector.box, detector.pitch_cm
    row, column = np.floor((clouds.y + box.y) / pitch), np.floor((clouds.z + box.z) / pitch)
    rows, columns = int(2 * box.y / pitch), int(2 * box.z / pitch)
    bin_ = np.floor(clouds.drift_us / TICK_US / detector.integration_ticks)
    keys = np.stack([clouds.event, bin_, clouds.side, row, column]).astype(np.int64)
    seen = (keys[3] >= 0) & (keys[3] < rows) & (keys[4] >= 0) & (keys[4] < columns) & (clouds.charge_ke > 0)
    keys, charge = keys[:, seen], clouds.charge_ke[seen]
    pixels, hit = np.unique(keys, axis=1, return_inverse=True)
    hit = hit.reshape(-1)
    total = np.bincount(hit, charge)
    time = np.bincount(hit, charge * clouds.drift_us[seen]) / total
    measured = total + detector.noise_ke * rng.standard_normal(len(total))
    kept = measured > detector.threshold_ke
    made = _hits(detector, pixels[:, kept], time[kept], measured[kept])
    sources = _sources(hit, segment_ids[clouds.segment[seen]], charge / total[hit], len(total))
    return Hits(made, pixels[0, kept], sources[kept])


def _hits(detector: Detector, pixels: Ints, time_us: Floats, charge_ke: Floats) -> npt.NDArray[Any]:
    event, _, side, row, column = pixels
    hits = np.zeros(len(event), HITS)
    hits["t_drift"] = np.rint(time_us / TICK_US)
    drift_cm = hits["t_drift"] * TICK_US * detector.velocity
    hits["x"] = np.where(side == 1, 1, -1) * (detector.box.x - drift_cm)
    hits["x_corr"] = hits["x"]
    hits["y"] = (row + 0.5) * detector.pitch_cm - detector.box.y
    hits["z"] = (column + 0.5) * detector.pitch_cm - detector.box.z
    hits["ts_pps"] = (event % 1000) * 10_000 + hits["t_drift"].astype(np.int64)
    hits["io_group"] = side + 1
    # A chip has 8 x 8 pixels, a tile 10 x 10 chips, and each tile a channel of its own.
    hits["channel_id"] = row % 8 * 8 + column % 8
    hits["chip_id"] = 11 + row // 8 % 10 * 10 + column // 8 % 10
    hits["io_channel"] = 1 + row // 80 * 4 + column // 80
    hits["Q_raw"] = hits["Q"] = charge_ke
    hits["E"] = energy_of(charge_ke)
    return hits


def _sources(hit: Ints, segment: Ints, share: Floats, num_hits: int) -> npt.NDArray[Any]:
    """The segments of each hit, those that gave most first."""
    pairs, which = np.unique(np.stack([hit, segment]), axis=1, return_inverse=True)
    shares = np.bincount(which.reshape(-1), share)
    order = np.lexsort((-shares, pairs[0]))
    owner = pairs[0, order]
    rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
    found = np.zeros(num_hits, BACKTRACK)
    found["segment_ids"] = -1
    few = rank < MOST_SOURCES
    found["fraction"][owner[few], rank[few]] = shares[order][few]
    found["segment_ids"][owner[few], rank[few]] = pairs[1, order][few]
    return found
