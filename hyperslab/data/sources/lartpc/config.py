"""What a campaign says about lartpc files."""

from typing import Literal

from pydantic import Field, field_validator

from hyperslab.settings import Settings


class LartpcSettings(Settings):
    """Choices that only lartpc files need."""

    hits: Literal["prompt", "final"] | None = None
    """Which calibrated hits of an ndlar_flow file to take: `prompt` or `final` (merged); the final ones where absent,
    or the prompt ones of a file that holds no final ones."""
    tick_ns: float | None = Field(default=None, gt=0)
    """Sampling period (ns) that wire-cell frames must state, such as 500 (resampled) or 512 (raw ProtoDUNE-HD); other
    files are refused. Any is taken where absent."""
    wires: tuple[int, int] | None = None
    """First and last number of the readout channels to take from wire-cell frames, such as those of one plane; all of
    them where absent."""

    @field_validator("wires")
    @classmethod
    def _in_order(cls, value: tuple[int, int] | None) -> tuple[int, int] | None:
        if value is not None and value[0] > value[1]:
            raise ValueError("must be the first and the last number, in this order")
        return value
