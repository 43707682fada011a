import numpy as np
import pytest

from hyperslab.data.sources.synthetic.tracks import (
    MUON,
    PROTON,
    Box,
    draw_tracks,
    energy_of,
    recombination,
    segments_of,
)

BOX = Box()


@pytest.fixture(scope="module")
def tracks():
    return draw_tracks(BOX, 100, 200, np.random.default_rng(0))


@pytest.fixture(scope="module")
def segments(tracks):
    return segments_of(tracks, 5000, np.random.default_rng(1))


def test_muons_go_from_wall_to_wall_and_protons_stay_inside(tracks) -> None:
    for end in (tracks.start, tracks.end):
        assert (np.abs(end) <= BOX.half + 1e-9).all()
    muons = tracks.particle == MUON
    for end in (tracks.start[muons], tracks.end[muons]):
        np.testing.assert_allclose((np.abs(end) / BOX.half).max(axis=1), 1)
    protons = tracks.particle == PROTON
    assert (tracks.residual_cm[protons] == 0).mean() > 0.5


def test_muons_come_from_above_with_the_square_of_the_cosine() -> None:
    tracks = draw_tracks(Box(x=1e6, y=1e6, z=1e6), 0, 20_000, np.random.default_rng(3))
    way = (tracks.end - tracks.start)[tracks.particle == MUON]
    cosine = -way[:, 1] / np.linalg.norm(way, axis=1)
    assert cosine.min() > 0
    # The mean of c over the density 3 c^2 on [0, 1] is 3/4.
    assert cosine.mean() == pytest.approx(0.75, abs=0.01)


def test_segments_lie_on_their_track_and_add_up_to_it(tracks, segments) -> None:
    first = segments[(segments["event_id"] == 100) & (segments["traj_id"] == 0)]
    start, end = tracks.start[0], tracks.end[0]
    assert first["dx"].sum() == pytest.approx(np.linalg.norm(end - start), rel=1e-4)
    assert first["dx"].max() <= 0.5
    way = (end - start) / np.linalg.norm(end - start)
    for suffix in ("", "_start", "_end"):
        places = np.stack([first[f"{axis}{suffix}"] for axis in "xyz"], axis=1).astype(float)
        away = np.linalg.norm(np.cross(places - start, way), axis=1)
        assert away.max() < 1e-3
    np.testing.assert_allclose(first["x_start"][1:], first["x_end"][:-1], atol=1e-4)


def test_fast_muons_lose_what_is_known_of_them(segments) -> None:
    loss = segments["dEdx"][segments["pdg_id"] == MUON]
    # Argon: most probable about 1.7 MeV/cm, mean 2.1 (PDG); the spread has a long tail upward only.
    hist, edges = np.histogram(loss, np.arange(1.2, 4, 0.05))
    assert edges[np.argmax(hist)] == pytest.approx(1.7, abs=0.1)
    assert loss.min() > 1.2
    assert np.mean(loss) > np.median(loss) > 1.7


def test_a_stopping_proton_loses_most_at_its_end(tracks, segments) -> None:
    stopping = np.flatnonzero((tracks.particle == PROTON) & (tracks.residual_cm == 0))
    track = next(t for t in stopping if np.linalg.norm(tracks.end[t] - tracks.start[t]) > 8)
    number = track - np.searchsorted(tracks.event, tracks.event[track])
    own = segments[(segments["event_id"] == tracks.event[track]) & (segments["traj_id"] == number)]
    assert (np.diff(own["dEdx"]) > 0).all()
    length = np.linalg.norm(tracks.end[track] - tracks.start[track])
    # Bragg and Kleeman: E = (R / 0.0022)^(1 / 1.77).
    assert own["dE"].sum() == pytest.approx((length / 0.0022) ** (1 / 1.77), rel=1e-4)


def test_electrons_follow_birks_law() -> None:
    # 0.8 / (1 + 0.0486 x 2 / (0.5 x 1.38)) = 0.8 / 1.14087 = 0.70122.
    assert recombination(np.array(2.0)) == pytest.approx(0.70122, abs=1e-4)
    # One MeV frees 1e6 / 23.6 x 0.70122 = 29713 electrons.
    assert energy_of(np.array(29.713)) == pytest.approx(1.0, rel=1e-4)


def test_segments_are_numbered_on_and_sorted_by_event(segments) -> None:
    assert segments["segment_id"].tolist() == list(range(5000, 5000 + len(segments)))
    assert (np.diff(segments["event_id"].astype(int)) >= 0).all()
    assert set(segments["event_id"]) == set(range(100, 300))
