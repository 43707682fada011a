import numpy as np
import pytest

from hyperslab.data.sources.synthetic.drift import Detector, drifted, read_out
from hyperslab.data.sources.synthetic.tracks import SEGMENTS, Tracks, draw_tracks, segments_of

QUIET = Detector(noise_ke=0.0, threshold_ke=0.0)


def deposits(x: np.ndarray, y: float = 10.0, z: float = 5.0, electrons: int = 10_000) -> np.ndarray:
    """Points of charge, each an event of its own."""
    rows = np.zeros(len(x), SEGMENTS)
    rows["event_id"] = np.arange(len(x))
    rows["segment_id"] = 70 + np.arange(len(x))
    rows["n_electrons"] = electrons
    for suffix in ("", "_start", "_end"):
        rows[f"x{suffix}"], rows[f"y{suffix}"], rows[f"z{suffix}"] = x, y, z
    return rows


def test_charge_falls_with_the_drift_as_the_lifetime_says() -> None:
    detector = Detector(lifetime_us=300.0)
    rows = deposits(np.linspace(-30, 30, 61))
    clouds = drifted(detector, rows, np.random.default_rng(0))
    charge = np.bincount(clouds.segment, clouds.charge_ke)
    # 10 thousand electrons less those caught on (30.27 - |x|) cm at 0.1588 cm/us.
    drift_us = (30.27 - np.abs(rows["x"])) / 0.1588
    np.testing.assert_allclose(charge, 10 * np.exp(-drift_us / 300), rtol=1e-5)


def test_attenuation_can_be_found_in_the_hits() -> None:
    detector = Detector(lifetime_us=400.0)
    rng = np.random.default_rng(0)
    segments = segments_of(draw_tracks(detector.box, 0, 300, rng), 0, rng)
    segments = segments[segments["pdg_id"] == 13]
    hits = read_out(detector, drifted(detector, segments, rng), segments["segment_id"].astype(int), rng).rows
    edges = np.linspace(0, 190, 11)
    drift_us = hits["t_drift"] * 0.1
    total = np.histogram(drift_us, edges, weights=hits["Q"])[0]
    length_us = (30.27 - np.abs(segments["x"])) / 0.1588
    made = np.histogram(length_us, edges, weights=segments["n_electrons"] / 1e3)[0]
    middle = (edges[1:] + edges[:-1]) / 2
    lifetime = -1 / np.polyfit(middle, np.log(total / made), 1)[0]
    # The threshold takes a little of the charge, more where there is less.
    assert lifetime == pytest.approx(400, rel=0.2)


def test_diffusion_widens_as_the_root_of_the_drift() -> None:
    detector = Detector(clouds=20_000)
    for x, drift_cm in ((0.0, 30.27), (22.7025, 7.5675)):
        clouds = drifted(detector, deposits(np.array([x])), np.random.default_rng(0))
        time = drift_cm / 0.1588
        assert clouds.y.std() == pytest.approx(np.sqrt(2 * 8.8e-6 * time), rel=0.03)
        assert clouds.z.std() == pytest.approx(np.sqrt(2 * 8.8e-6 * time), rel=0.03)
        assert clouds.drift_us.std() == pytest.approx(np.sqrt(2 * 4.0e-6 * time) / 0.1588, rel=0.03)
        assert clouds.drift_us.mean() == pytest.approx(time, rel=0.01)


def test_hits_lie_on_the_line_of_their_track_within_pixel_and_diffusion() -> None:
    start, end = np.array([[-25.0, -50.0, -20.0]]), np.array([[-3.0, 55.0, 25.0]])
    track = Tracks(np.array([0]), start, end, np.array([13]), np.array([np.inf]))
    rng = np.random.default_rng(0)
    segments = segments_of(track, 0, rng)
    detector = Detector()
    hits = read_out(detector, drifted(detector, segments, rng), segments["segment_id"].astype(int), rng).rows
    places = np.stack([hits["x"], hits["y"], hits["z"]], axis=1)
    way = (end - start)[0] / np.linalg.norm(end - start)
    away = np.linalg.norm(np.cross(places - start[0], way), axis=1)
    # Half of a pixel's diagonal, 0.314 cm; 1.6 us of integration, 0.25 cm; five widths of diffusion, 5 x 0.058 cm.
    assert away.max() < 0.314 + 0.25 + 0.29
    assert len(hits) > 200
    assert set(hits["io_group"]) == {1}


def test_no_charge_is_lost_or_made_by_a_quiet_readout() -> None:
    rows = deposits(np.linspace(-25, 25, 21))
    rng = np.random.default_rng(0)
    clouds = drifted(QUIET, rows, rng)
    hits = read_out(QUIET, clouds, rows["segment_id"].astype(int), rng)
    np.testing.assert_allclose(np.bincount(hits.event, hits.rows["Q"]), np.bincount(clouds.event, clouds.charge_ke))


def test_noise_and_threshold_are_those_of_the_detector() -> None:
    rows = deposits(np.full(4000, 30.0), y=0.2217 + 0.4434 * 0.5, z=0.2)
    rng = np.random.default_rng(0)
    loud = Detector(noise_ke=0.7, threshold_ke=0.0, transverse=0.0, longitudinal=0.0)
    hits = read_out(loud, drifted(loud, rows, rng), rows["segment_id"].astype(int), rng)
    assert hits.rows["Q"].std() == pytest.approx(0.7, rel=0.05)
    strict = Detector(threshold_ke=10.5)
    kept = read_out(strict, drifted(strict, rows, rng), rows["segment_id"].astype(int), rng)
    assert 0 < len(kept.rows) < 4000
    assert kept.rows["Q"].min() > 10.5


def test_the_truth_of_a_hit_names_its_segments_most_of_it_first() -> None:
    rows = np.concatenate([deposits(np.array([10.0]), electrons=30_000), deposits(np.array([10.0]))])
    rows["segment_id"] = [7, 3]
    rng = np.random.default_rng(0)
    still = Detector(transverse=0.0, longitudinal=0.0)
    hits = read_out(still, drifted(still, rows, rng), rows["segment_id"].astype(int), rng)
    assert len(hits.rows) == 1
    # 30 000 electrons of 40 000, and 10 000.
    np.testing.assert_allclose(hits.sources["fraction"][0, :3], [0.75, 0.25, 0], atol=1e-6)
    assert hits.sources["segment_ids"][0, :3].tolist() == [7, 3, -1]


def test_an_event_without_charge_makes_no_hit() -> None:
    rows = deposits(np.array([0.0]), electrons=0)
    rng = np.random.default_rng(0)
    assert len(read_out(Detector(), drifted(Detector(), rows, rng), np.array([1]), rng).rows) == 0
