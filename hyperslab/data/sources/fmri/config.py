"""What a campaign says about fmri files."""

from typing import Annotated, Literal

from pydantic import Field

from hyperslab.settings import Settings

LONGEST_REPETITION_SECONDS = 60.0
"""A repetition time above this is one in another unit."""

Voxels = Annotated[int, Field(ge=1)]


class FmriSettings(Settings):
    """Choices that only fmri files need."""

    repetition_seconds: float | None = Field(default=None, gt=0, le=LONGEST_REPETITION_SECONDS)
    """Time between two frames, where neither a sidecar nor the header of a file states it; taken before either."""
    parcels: int | None = Field(default=None, ge=1)
    """Number of parcels of tables that do not name them, which says what of their two axes is time."""
    mask: str | None = Field(default=None, min_length=1)
    """Path of a 3-D image: voxels where it is 0 are missing. `brain` takes each run's own fMRIPrep brain mask."""
    shape: tuple[Voxels, Voxels, Voxels] | None = None
    """Voxels along x, y and z: volumes are cropped and padded about their middle to this size; as they are where
    absent."""
    atlas: str | None = Field(default=None, min_length=1)
    """Path of a 3-D image of labels: volumes become the mean of each of its parcels."""
    confounds: Annotated[list[str], Field(min_length=1)] | None = None
    """Columns of each run's fMRIPrep confounds to regress out, by name or pattern, such as `[trans_?, rot_?, csf]`;
    nothing is regressed out where absent."""
    detrend: Literal["none", "linear"] = "none"
    """Whether the mean and the linear trend of each run are removed."""
