"""What a campaign says about its model and its objective."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from hyperslab.model.presets import PRESETS
from hyperslab.settings import Settings, matching

Count = Annotated[int, Field(ge=1)]
BASE_WIDTH = 128
"""Width at which learning rates are meant as they are given; at others that of hidden layers follows from it."""


_KEYS = {
    "window": ("window",),
    "block_sparse": ("block", "density", "blocks", "pattern", "backend", "probe_from", "probe_steps", "probe_every"),
    "linear": ("features", "directions", "probe_from", "probe_steps", "probe_every"),
    "nystrom": ("landmarks",),
}
"""What each kind of attention needs to know."""


class AttentionSettings(Settings):
    """One kind of attention, and what that kind needs to know."""

    kind: Literal["dense", "window", "axial", "block_sparse", "linear", "nystrom"] = "dense"
    """`dense` is exact, all tokens to all; `window` exact inside boxes of space-time, shifted in every second layer of
    its kind; `axial` along time, then over space; `block_sparse` exact between chosen blocks of tokens; `linear` by
    positive features; `nystrom` through landmarks."""
    window: int | list[Count] = Field(default=64)
    """Of `window`: cells of a box along each axis, time first; or their number, for as compact a box as fits."""
    block: int = Field(default=64, ge=1, le=4096)
    """Of `block_sparse`: tokens in a block; they lie close together in space-time."""
    density: float = Field(default=0.125, gt=0, le=1)
    """Of `block_sparse`: share of all blocks that each block sees."""
    blocks: int | None = Field(default=None, ge=1)
    """Of `block_sparse`: blocks that each block sees, instead of a share."""
    pattern: Literal["static", "learned", "random"] = "static"
    """Of `block_sparse`: `static` sees near blocks, some that all see, and some at strides; `learned` those that the
    loss depended on while attention was dense; `random` is for comparison."""
    backend: Literal["auto", "gather", "flex"] = "auto"
    """Of `block_sparse`: `gather` gathers blocks and works everywhere, `flex` is FlexAttention, for GPUs; `auto` takes
    the one that suits the device."""
    features: int = Field(default=128, ge=1)
    """Of `linear`: features of a query or key; more are nearer to exact attention."""
    directions: Literal["random", "learned"] = "random"
    """Of `linear`: whether its features are drawn once, or trained to match exact attention while probing."""
    landmarks: int = Field(default=64, ge=1)
    """Of `nystrom`: landmarks; more are nearer to exact attention."""
    probe_from: int = Field(default=0, ge=0)
    """Of what is learned: training steps before the first ones in which exact attention is computed; until then
    patterns are static. Early on a loss says little about what matters."""
    probe_steps: int = Field(default=50, ge=1)
    """Of what is learned: training steps in a row in which exact attention is computed to learn from."""
    probe_every: int | None = Field(default=None, ge=1)
    """Of what is learned: steps after which it is probed again; never where absent."""

    @field_validator("window")
    @classmethod
    def _positive(cls, value: int | list[int]) -> int | list[int]:
        if not value or (isinstance(value, int) and value < 1):
            raise ValueError("must be at least 1, or a list of such numbers")
        return value

    @model_validator(mode="after")
    def _of_this_kind(self) -> Self:
        own = _KEYS.get(self.kind, ())
        for name, field in type(self).model_fields.items():
            if name not in ("kind", *own) and getattr(self, name) != field.default:
                raise ValueError(
                    f"model.attention.{name}: is not for {self.kind} attention; leave it out, or change `kind`"
                )
        return self

    @model_validator(mode="after")
    def _probes_end(self) -> Self:
        if self.probe_every is not None and self.probe_every <= self.probe_steps:
            raise ValueError(
                f"model.attention.probe_every: must be more than probe_steps ({self.probe_steps}), "
                f"got {self.probe_every}"
            )
        return self

    @property
    def is_learned(self) -> bool:
        """Whether it learns from exact attention."""
        return (self.kind == "block_sparse" and self.pattern == "learned") or (
            self.kind == "linear" and self.directions == "learned"
        )

    def probes(self, step: int) -> bool:
        """Whether the training step after `step` steps computes exact attention to learn from."""
        since = step - self.probe_from
        within = since if self.probe_every is None else since % self.probe_every
        return self.is_learned and since >= 0 and within < self.probe_steps


def _by_layer(value: Any) -> Any:
    """A kind by its name, and one kind for all layers, written without a list."""
    layers = value if isinstance(value, list) else [value]
    if any(isinstance(layer, dict) and "kind" not in layer for layer in layers):
        raise ValueError("give the `kind` that the settings are for, such as {kind: window, window: 64}")
    return [{"kind": layer} if isinstance(layer, str) else layer for layer in layers]


class TokenSettings(Settings):
    """How the frames of an archive become tokens."""

    history: int = Field(default=2, ge=1, le=100_000)
    """Past frames that the model sees."""
    patch: int | list[Count] | None = None
    """Grid points of a token along each axis of space, or one number for all of them, or a list that begins with its
    frames; where absent, as few as keep a frame within 400 tokens."""
    empty: Literal["dropped", "tokens"] = "dropped"
    """Whether grid points that hold no data in any of the frames looked at are left out, or become tokens too."""
    cell: list[Annotated[float, Field(gt=0)]] | None = Field(default=None, min_length=1)
    """Of archives of hits: size of the cell of space that becomes a token, in the unit of each axis; a 32nd of the
    detector where absent."""

    @field_validator("patch")
    @classmethod
    def _positive_patch(cls, value: int | list[int] | None) -> int | list[int] | None:
        if value == [] or (isinstance(value, int) and not 1 <= value <= 10_000):
            raise ValueError("must be between 1 and 10000, or a list of such numbers")
        return value


class ModelSettings(TokenSettings):
    """Size of the space-time Transformer, and what its layers are made of."""

    preset: Literal["tiny", "small", "base", "large", "xl", "10b"] | None = None
    """A known size, which gives `width`, `depth` and `heads` where they are not given."""
    width: int = Field(default=128, ge=8, le=2**20)
    """Features of a token."""
    depth: int = Field(default=4, ge=1, le=10_000)
    """Transformer blocks."""
    heads: int = Field(default=4, ge=1)
    """Attention heads; must divide `width`."""
    attention: Annotated[list[AttentionSettings], BeforeValidator(_by_layer)] = Field(
        default=[AttentionSettings()], min_length=1, validate_default=True
    )
    """The kind of attention, by name or with its settings; or a list of them for the first layers, which the layers
    after them repeat."""
    stochastic_depth: float = Field(default=0.0, ge=0, lt=1)
    """Share of samples for which the last layer is left out in training; less in layers before it, none in the
    first."""
    recompute: Literal["none", "selective", "full"] = "none"
    """What the backward pass computes again instead of keeping it: `selective` the feed-forward layers, `full` whole
    blocks."""
    compile: Literal["none", "blocks"] = "none"
    """Whether blocks are compiled with `torch.compile`, which takes minutes at the start of every segment."""
    module: Annotated[str, matching(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", "must be `package.module:function`")] | None = None
    """A model of your own instead, as `package.module:function`."""

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("preset") in list(PRESETS):
            return {**PRESETS[value["preset"]], **value}
        return value

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads or self.width // self.heads % 2:
            near = [heads for heads in range(1, self.heads + 1) if self.width % (2 * heads) == 0]
            advice = f"try {near[-1]}" if near else f"make model.width even, such as {self.width + 1}"
            raise ValueError(
                f"model.heads: must divide model.width ({self.width}) into heads of an even number of features, "
                f"got {self.heads}; {advice}"
            )
        return self

    @model_validator(mode="after")
    def _layer_for_each_kind(self) -> Self:
        if len(self.attention) > self.depth:
            raise ValueError(
                f"model.attention: found {len(self.attention)} kinds for a model.depth of {self.depth}; give at most "
                "as many as there are layers"
            )
        return self

    def attention_of(self, layer: int) -> AttentionSettings:
        """The kind of attention of a layer."""
        return self.attention[layer % len(self.attention)]

    @property
    def block(self) -> int:
        """Tokens that lie close together and follow one another: those of a block, where attention has blocks."""
        return next((chosen.block for chosen in self.attention if chosen.kind == "block_sparse"), 64)


class MaskSettings(Settings):
    """Which tokens are hidden, for the model to reconstruct."""

    kind: Literal["random", "block", "tube"] = "random"
    """`random`: each by itself; `block`: boxes of space-time; `tube`: places, all of their time."""
    ratio: float = Field(default=0.5, gt=0, lt=1)
    """Share of the tokens that is hidden."""


class ObjectiveSettings(Settings):
    """What the model learns to do."""

    kind: Literal["forecast", "masked", "both"] = "forecast"
    """`forecast`: from x(t) and its past to x(t + lead); `masked`: from what is visible of a window to what is hidden;
    `both` at once."""
    lead: int = Field(default=1, ge=1)
    """Frames from the last input to the target, and between inputs."""
    leads: int = Field(default=1, ge=1, le=1000)
    """Forecasts reach up to so many times `lead` at one stroke; each batch draws how many, and the model is told."""
    rollout: int = Field(default=1, ge=1, le=1000)
    """Forecasts that training makes one after another, each from those before it, and learns from together."""
    mask: MaskSettings = MaskSettings()
    """What `masked` and `both` hide."""
    channel_weights: dict[str, Annotated[float, Field(ge=0)]] = Field(default={})
    """Weight in the loss of some channels, by name; 1 for the others."""

    @model_validator(mode="after")
    def _only_forecasts_reach_on(self) -> Self:
        for name in ("leads", "rollout"):
            if not self.forecasts and getattr(self, name) > 1:
                raise ValueError(
                    f"objective.{name}: found {getattr(self, name)} with objective.kind masked, which forecasts "
                    "nothing; leave it out, or set kind to both"
                )
        return self

    @model_validator(mode="after")
    def _one_way_further(self) -> Self:
        if self.leads > 1 and self.rollout > 1:
            # A forecast further ahead would stand among inputs that lie `lead` apart.
            raise ValueError(
                f"objective.rollout: found {self.rollout} with objective.leads {self.leads}; only one of them may be "
                "above 1: roll-outs go on by one lead at a time"
            )
        return self

    @property
    def forecasts(self) -> bool:
        """Whether the model forecasts."""
        return self.kind != "masked"

    @property
    def masks(self) -> bool:
        """Whether tokens are hidden."""
        return self.kind != "forecast"

    @property
    def targets(self) -> int:
        """Frames after the last input that a sample holds, one every `lead` frames."""
        return max(self.leads, self.rollout) if self.forecasts else 0


def hidden_width(width: int) -> int:
    """Features inside the feed-forward layer: 8/3 of the width, in eights."""
    return -(-8 * width // 3 // 8) * 8
