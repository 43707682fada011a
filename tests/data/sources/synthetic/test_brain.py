import math

import numpy as np
import pytest

from hyperslab.data.sources.synthetic.brain import (
    NEURAL_STEP_SECONDS,
    activity,
    bold,
    haemodynamic_response,
    make_brain,
)


@pytest.fixture(scope="module")
def brain():
    return make_brain((16, 18, 14), 8.0, 30, np.random.default_rng(0))


def test_the_blood_s_answer_peaks_after_five_seconds_and_undershoots_after_it() -> None:
    seconds = np.arange(0, 40, 0.01)
    answer = haemodynamic_response(seconds)
    # t^5 e^-t / 120 is greatest at t = 5; the undershoot of shape 16 at t = 15.
    assert seconds[answer.argmax()] == pytest.approx(5.0, abs=0.05)
    assert 12 < seconds[answer.argmin()] < 18
    assert answer[0] == 0
    assert haemodynamic_response(np.array([-3.0]))[0] == 0
    # Both gamma densities integrate to 1: 1 - 1/6.
    assert answer.sum() * 0.01 == pytest.approx(5 / 6, abs=1e-3)


def test_a_burst_of_activity_is_seen_five_seconds_later() -> None:
    neural = np.zeros((1000, 1))
    burst_seconds = 40.0
    neural[round(burst_seconds / NEURAL_STEP_SECONDS)] = 1
    signal = bold(neural, repetition_seconds=0.5, num_volumes=100, warm_up_seconds=30.0)
    # Volume n is taken at 30 s + n x 0.5 s; the peak comes at 45 s.
    assert 30 + 0.5 * int(signal[:, 0].argmax()) == pytest.approx(45, abs=0.5)
    assert np.abs(signal[: round(10 / 0.5), 0]).max() < 1e-9


def test_activity_neither_dies_out_nor_explodes(brain) -> None:
    states = activity(brain, 600.0, np.random.default_rng(1))
    assert states.shape == (6000, brain.num_regions)
    early, late = states[1000:3000].std(), states[4000:].std()
    assert 0.5 < late / early < 2
    assert np.abs(states).max() < 50


def test_coupled_regions_go_together_more_than_others(brain) -> None:
    states = activity(brain, 2000.0, np.random.default_rng(2))
    together = np.asarray(np.corrcoef(states.T))
    pairs = np.triu_indices(brain.num_regions, 1)
    strength = (brain.coupling + brain.coupling.T)[pairs]
    assert np.corrcoef(strength, together[pairs])[0, 1] > 0.5


def test_the_coupling_is_just_short_of_growth(brain) -> None:
    assert np.abs(np.linalg.eigvals(brain.coupling)).max() == pytest.approx(0.9)
    assert (np.diag(brain.coupling) == 0).all()


def test_every_region_has_voxels_and_lies_in_one_ellipsoid(brain) -> None:
    assert set(np.unique(brain.labels)) == set(range(31))
    share = (brain.labels > 0).mean()
    # An ellipsoid of half axes 0.46: 4/3 pi 0.46^3 = 0.408 of the box.
    assert share == pytest.approx(4 / 3 * math.pi * 0.46**3, rel=0.1)
