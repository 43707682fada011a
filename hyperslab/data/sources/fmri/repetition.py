"""The time between two frames: who states it, in which unit, and whether that can be so."""

import math
from pathlib import Path

import numpy as np

from hyperslab.data.sources.fmri.config import LONGEST_REPETITION_SECONDS
from hyperslab.data.sources.fmri.series import Repetition
from hyperslab.errors import UserError

SHORTEST_REPETITION_SECONDS = 0.01
UNITS_PER_SECOND = {"sec": 1, "msec": 1_000, "usec": 1_000_000}
WHAT_TO_DO = "give data.fmri.repetition_seconds, or a BIDS sidecar with RepetitionTime"


def stated(value: float | np.floating, unit: str) -> Repetition:
    """The repetition time that a header states, where its value and unit can be so.

    Parameters
    ----------
    unit
        `sec`, `msec` or `usec`; anything else is no unit of time.
    """
    # The shortest decimal of a float32: 1.35 is meant, not 1.350000023841858, which is 24 ns later each frame.
    number = float(str(value))
    if not math.isfinite(number) or number <= 0:
        return Repetition(seconds=None, reason=f"its header says {number:g}")
    if unit not in UNITS_PER_SECOND:
        return Repetition(seconds=None, reason=f"its header says {number:g} in the unit '{unit}', which is no time")
    seconds = number / UNITS_PER_SECOND[unit]
    if not SHORTEST_REPETITION_SECONDS <= seconds <= LONGEST_REPETITION_SECONDS:
        return Repetition(seconds=None, reason=f"its header says {number:g} {unit}, which cannot be so: a wrong unit?")
    oddity = ""
    if unit != "sec":
        oddity = f"the header states the repetition time as {number:g} {unit}: taken as {seconds:g} s"
    elif seconds == 1:
        oddity = "the repetition time of the header is 1 s, which writers also put where they were not told: check it"
    return Repetition(seconds=seconds, oddity=oddity)


def choose(
    path: Path, header: Repetition, sidecar: float | None, setting: float | None
) -> tuple[float | None, tuple[str, ...]]:
    """The repetition time in seconds and what is odd about it: the campaign's, the sidecar's, or the header's.

    Raises
    ------
    UserError
        When the sidecar's value cannot be so.
    """
    if sidecar is not None and not SHORTEST_REPETITION_SECONDS <= sidecar <= LONGEST_REPETITION_SECONDS:
        raise UserError(f"{path}: its sidecar says RepetitionTime {sidecar:g}, which must be in seconds; mend it")
    known = {"campaign": setting, "sidecar": sidecar, "header": header.seconds}
    stating = {name: value for name, value in known.items() if value is not None}
    if not stating:
        return None, ()
    source, seconds = next(iter(stating.items()))
    oddities = [
        f"repetition time {seconds:g} s is the {source}'s, where the {other} says {value:g} s"
        for other, value in stating.items()
        if abs(value - seconds) > 1e-3 * seconds
    ]
    if source == "header" and header.oddity:
        oddities.append(header.oddity)
    elif header.seconds is None and header.reason:
        oddities.append(f"repetition time {seconds:g} s is the {source}'s; {header.reason}")
    return seconds, tuple(oddities)
