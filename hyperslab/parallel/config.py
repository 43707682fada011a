"""What a campaign says about training, its layout and its checkpoints."""

from typing import Literal

from pydantic import Field

from hyperslab.settings import Settings


class TrainSettings(Settings):
    """How long and how fast to train."""

    steps: int = Field(default=1000, ge=1)
    """Optimizer steps in all, over all segments."""
    batch: int = Field(default=8, ge=1)
    """Samples in a global batch, shared out evenly over the ranks."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate of AdamW."""
    warmup_steps: int = Field(default=20, ge=0)
    """Steps over which the learning rate rises to its peak; then it falls along a cosine to a hundredth of it."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled weight decay of the weight matrices."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient; a larger one is scaled down."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Decides the initial weights and the order of samples."""
    validate_every: int = Field(default=50, ge=1)
    """Steps between two passes over validation windows."""
    validation_windows: int = Field(default=64, ge=1)
    """Windows in such a pass, at most, spread evenly over the validation split."""
    max_nonfinite: int = Field(default=10, ge=1)
    """Steps in a row whose loss or gradient is not finite, after which training stops; each is skipped and named."""
    operations: Literal["fastest", "deterministic"] = "fastest"
    """`deterministic` allows only what gives the same bits each time, slower on GPUs; on CPUs both are the same."""
    init_from: str | None = Field(default=None, min_length=1)
    """A file of `hyperslab export` whose weights training begins with, relative to the campaign file; drawn by
    chance where absent."""


Schedule = Literal["gpipe", "1f1b"]


class ParallelSettings(Settings):
    """Layout of the model over the ranks; what is absent follows from the site."""

    ranks: int | None = Field(default=None, ge=1)
    """Processes that train together; as many as the site's nodes hold where absent."""
    pipeline: int = Field(default=1, ge=1)
    """Stages that the layers are shared out over."""
    replicate: int = Field(default=1, ge=1)
    """Whole copies of the model; the ranks of one copy share its parameters out among them."""
    domain: int = Field(default=1, ge=1)
    """Ranks that share the space-time of each sample out."""
    tensor: int = Field(default=1, ge=1)
    """Ranks that share the features and heads of each layer out; best inside a node."""
    offload: Literal["none", "cpu"] = "none"
    """Whether parameters, gradients and optimizer state wait in the memory of the host while they are not used."""
    pieces: int | None = Field(default=None, ge=1)
    """Pieces that the samples of each group of ranks are computed in, one after another; as many as stages where
    absent. More of them take less memory, and keep the stages of a pipeline busy."""
    schedule: Schedule = "1f1b"
    """Of a pipeline: `gpipe` passes all pieces forward, then all backward; `1f1b` each backward as soon as it can, so
    that no more pieces are held than there are stages."""


class CheckpointSettings(Settings):
    """When to write checkpoints and how many to keep."""

    every: int = Field(default=100, ge=1)
    """Steps between two checkpoints; the last step always has one."""
    keep: int = Field(default=3, ge=1)
    """Latest checkpoints that stay on disk."""
