"""What a campaign says about its model and its objective."""

from typing import Literal, Self

from pydantic import Field, model_validator

from hyperslab.settings import Settings


class ModelSettings(Settings):
    """Size of the space-time Transformer."""

    width: int = Field(default=128, ge=8, le=2**20)
    """Features of a token."""
    depth: int = Field(default=4, ge=1, le=10_000)
    """Transformer blocks."""
    heads: int = Field(default=4, ge=1)
    """Attention heads; must divide `width`."""
    patch: int | None = Field(default=None, ge=1, le=10_000)
    """Rows and columns of grid points in a token; where absent, as few as keep a frame within 400 tokens."""
    history: int = Field(default=2, ge=1, le=100_000)
    """Past frames that the model sees."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            near = max(h for h in range(1, self.heads + 1) if self.width % h == 0)
            raise ValueError(f"model.heads: must divide model.width ({self.width}), got {self.heads}; try {near}")
        return self


class ObjectiveSettings(Settings):
    """What the model learns to do."""

    kind: Literal["forecast"] = "forecast"
    """`forecast`: from x(t) and its past to x(t + lead)."""
    lead: int = Field(default=1, ge=1)
    """Frames from the last input to the target, and between inputs."""
