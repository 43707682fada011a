from pathlib import Path

import numpy as np
import pytest

from hyperslab.data.sources.fmri.repetition import choose, stated
from hyperslab.data.sources.fmri.series import Repetition
from hyperslab.errors import UserError

RUN = Path("/data/run.nii")
UNKNOWN = Repetition(seconds=None, reason="its header says 0")


@pytest.mark.parametrize(
    ("value", "unit", "seconds"), [(2.0, "sec", 2.0), (720.0, "msec", 0.72), (1_500_000, "usec", 1.5)]
)
def test_the_unit_of_the_header_counts(value, unit, seconds):
    assert stated(value, unit).seconds == pytest.approx(seconds, rel=1e-12)


def test_a_float32_is_taken_as_the_decimal_that_was_meant():
    # float(np.float32(1.35)) is 1.350000023841858.
    assert stated(np.float32(1.35), "sec").seconds == 1.35


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.0, "sec", "says 0"),
        (-2.0, "sec", "says -2"),
        (float("nan"), "sec", "says nan"),
        (2000.0, "sec", "cannot be so"),
        (2.0, "msec", "cannot be so"),
        (2.0, "unknown", "no time"),
        (2.0, "hz", "no time"),
    ],
)
def test_what_cannot_be_a_repetition_time_is_not_taken(value, unit, words):
    repetition = stated(value, unit)
    assert repetition.seconds is None
    assert words in repetition.reason


def test_another_unit_than_seconds_is_told():
    assert "720 msec: taken as 0.72 s" in stated(720.0, "msec").oddity


def test_the_campaign_comes_before_the_sidecar_and_the_sidecar_before_the_header():
    header = stated(1.0, "sec")
    assert choose(RUN, header, 2.0, 3.0)[0] == 3.0
    assert choose(RUN, header, 2.0, None)[0] == 2.0
    assert choose(RUN, header, None, None)[0] == 1.0
    assert choose(RUN, UNKNOWN, None, None) == (None, ())


def test_a_disagreement_is_told():
    _, oddities = choose(RUN, stated(1.0, "sec"), 2.0, None)
    assert oddities == ("repetition time 2 s is the sidecar's, where the header says 1 s",)
    _, oddities = choose(RUN, UNKNOWN, 2.0, None)
    assert oddities == ("repetition time 2 s is the sidecar's; its header says 0",)


def test_agreement_is_not_odd():
    assert choose(RUN, stated(2.0, "sec"), 2.0, 2.0) == (2.0, ())


def test_a_sidecar_in_milliseconds_is_refused():
    with pytest.raises(UserError, match="RepetitionTime 2000, which must be in seconds"):
        choose(RUN, UNKNOWN, 2000.0, None)
