"""What a campaign says about era5 files."""

from typing import Literal

from pydantic import Field

from hyperslab.settings import Settings


class Regrid(Settings):
    """A coarser latitude-longitude grid to store the fields on."""

    resolution_degrees: float = Field(gt=0, le=45)
    """Size of a cell of the new grid, in degrees; it must divide 180."""
    method: Literal["conservative", "bilinear"] = "conservative"
    """`conservative` keeps means over areas nearly, `bilinear` interpolates between the four nearest points."""


class Era5Settings(Settings):
    """Choices that only era5 files need."""

    members: list[int] | None = Field(default=None, min_length=1)
    """Numbers of the ensemble members to take; all of them where absent."""
    static: list[str] | None = None
    """Names of the fields without time to keep, as they stand in the files; all of them where absent."""
    regrid: Regrid | None = None
    """A coarser grid to store the fields on; the grid of the files where absent."""
