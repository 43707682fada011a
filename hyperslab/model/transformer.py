"""The space-time Transformer: one trunk for all archives, with an embedder and heads for each of them."""

import importlib
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from hyperslab.errors import UserError
from hyperslab.model.attention import make_mixer
from hyperslab.model.block import Block, Place
from hyperslab.model.config import BASE_WIDTH, ModelSettings
from hyperslab.model.fields import Field, FieldSample, FieldStream
from hyperslab.model.hits import Cloud, HitSample, HitStream

Stream = Field | Cloud
"""What a model must know of an archive."""
Sample = FieldSample | HitSample
"""A batch of one archive's samples, as the model takes them."""
Predictions = dict[str, torch.Tensor]


class SpaceTimeModel(Protocol):
    """What a model of one's own must offer, beside being an `nn.Module`."""

    blocks: Iterable[nn.Module]
    """Layers whose parameters are shared out over ranks one by one, and gathered just before they compute."""
    width: int
    """Features of a token: where absent, learning rates are as they are given, and there can be no pipeline."""

    def keep(self, layers: range) -> None:
        """Forget all other layers, and what comes before the first or after the last: be a stage of a pipeline.

        Only needed where `parallel.pipeline` is above 1. `blocks` keeps its length; names of parameters stay.
        """
        ...

    def __call__(self, stream: str, sample: Sample, tokens_BND: torch.Tensor | None = None) -> Predictions:
        """Predictions for a batch of one archive.

        Parameters
        ----------
        stream
            Name of the archive.
        tokens_BND
            What the stage before gave; None in the first stage.

        Returns
        -------
        dict of torch.Tensor
            `forecast` and `reconstruction` as from `FieldStream.predict`, or `occupancy` and `feature` as from
            `HitStream.predict`: what the archive's objective asks for. Of a stage before the last, `tokens` alone.
        """
        ...


class SpaceTimeTransformer(nn.Module):
    """Transformer over the tokens of all frames of a sample together."""

    def __init__(self, settings: ModelSettings, streams: Mapping[str, Stream]) -> None:
        super().__init__()
        self.width = settings.width
        (self.part,) = {stream.part for stream in streams.values()}
        self.streams = nn.ModuleDict(
            {
                name: FieldStream(stream, settings) if isinstance(stream, Field) else HitStream(stream, settings)
                for name, stream in streams.items()
            }
        )
        lattices = {name: stream.lattice for name, stream in self.streams.items() if isinstance(stream, FieldStream)}
        self.blocks = nn.ModuleList(
            Block(settings.width, settings.heads, make_mixer(settings, layer, lattices), settings.recompute)
            for layer in range(settings.depth)
        )
        self.norm: nn.Module = nn.RMSNorm(settings.width, eps=1e-6)
        self.is_last = True
        """Whether the last layer is held, and predictions come out."""
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: normal weights by fan-in, residual branches scaled by depth, heads zero."""
        for name, parameter in self.named_parameters():
            owner, leaf = name.split(".")[-2:] if "." in name else ("", name)
            if owner.startswith("head_") or leaf == "bias":
                nn.init.zeros_(parameter)
            elif leaf.startswith("embed_") or (parameter.ndim == 2 and not name.endswith("directions")):
                is_table = not name.endswith("weight")  # a vector for each of some things, whatever the width
                scale = (2 * len(self.blocks)) ** -0.5 if name.endswith("output.weight") else 1.0
                nn.init.normal_(parameter, std=scale * (BASE_WIDTH if is_table else parameter.shape[-1]) ** -0.5)

    def keep(self, layers: range) -> None:
        """As `SpaceTimeModel.keep`."""
        self.is_last = len(self.blocks) - 1 in layers
        for layer in set(range(len(self.blocks))) - set(layers):
            self.blocks[layer] = nn.Identity()
        if not self.is_last:
            self.norm = nn.Identity()
        others = (*([] if 0 in layers else ["embed"]), *([] if self.is_last else ["head_"]))
        for stream in self.streams.values():
            for name in {name.split(".")[0] for name, _ in stream.named_parameters()}:
                if name.startswith(others):
                    delattr(stream, name)

    def forward(self, stream: str, sample: Sample, tokens_BND: torch.Tensor | None = None) -> Predictions:
        """As `SpaceTimeModel.__call__`."""
        own: Any = self.streams[stream]  # a stream of either kind, and samples of its own
        view = own.see(sample)
        held = view.place.cosine.shape[-2]
        length = self.part.length(view.place.count)
        place = _filled_up(view.place, length - held)
        if tokens_BND is None:
            tokens_BND = F.pad(own.tokens(sample, view), (0, 0, 0, length - held))
        lattice = own.lattice_of(sample)
        for layer, block in enumerate(self.blocks):
            if isinstance(block, Block):
                plan = block.attention.mixer.plan(lattice, tokens_BND.device)
                kept_B = None if sample.kept_LB is None else sample.kept_LB[layer]
                tokens_BND = block(tokens_BND, place, plan, kept_B)
        if not self.is_last:
            return {"tokens": tokens_BND}
        predictions: Predictions = own.predict(self.norm(tokens_BND[:, :held]), view)
        return predictions


def _filled_up(place: Place, missing: int) -> Place:
    """Where tokens lie, with some more at the end that nobody sees."""
    if not missing:
        return place
    valid = None if place.valid is None else F.pad(place.valid, (0, missing))
    cosine, sine = (F.pad(angles, (0, 0, 0, missing)) for angles in (place.cosine, place.sine))
    return replace(place, cosine=cosine, sine=sine, valid=valid)


def make_model(settings: ModelSettings, streams: Mapping[str, Stream]) -> nn.Module:
    """The model that a campaign describes, untrained: ours, or one of the user's own.

    Raises
    ------
    UserError
        When the user's own cannot be imported or made, is no model, or later predicts what nobody asked for.
    """
    if settings.module is None:
        return SpaceTimeTransformer(settings, streams)
    where, _, name = settings.module.partition(":")
    try:
        factory = getattr(importlib.import_module(where), name)
    except Exception as error:  # a module of somebody else's may raise anything
        raise UserError(f"model.module: {settings.module} cannot be imported ({error}); check the path") from None
    if not callable(factory):
        raise UserError(f"model.module: {settings.module} is a {type(factory).__name__}; give a function or a class")
    try:
        model = factory(settings, streams)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"model.module: {settings.module} raised {type(error).__name__} ({error}) in {at.filename}, line "
            f"{at.lineno}; mend it there"
        ) from error
    blocks = getattr(model, "blocks", None)
    if (
        not isinstance(model, nn.Module)
        or not isinstance(blocks, Iterable)
        or not all(isinstance(block, nn.Module) for block in blocks)
    ):
        raise UserError(
            f"model.module: {settings.module} gave {type(model).__name__}, which is no nn.Module with `blocks`, the "
            "layers that are shared out over ranks; see docs/model.md"
        )
    model.register_forward_hook(partial(_check_predictions, settings.module, streams))
    return model


def _check_predictions(
    module: str, streams: Mapping[str, Stream], _model: nn.Module, given: tuple[Any, ...], predictions: Predictions
) -> None:
    """Refuse predictions of a user's own model that are not those that the objective needs."""
    name, sample = given[:2]
    if isinstance(predictions, dict) and "tokens" in predictions:
        return
    expected = _shapes(streams[name], sample)
    found = {key: tuple(values.shape) for key, values in predictions.items()} if isinstance(predictions, dict) else {}
    for key, shape in expected.items():
        if found.get(key) != shape:
            raise UserError(
                f"model.module: {module} gave {found or type(predictions).__name__} for {name}; it must give a dict "
                f"with {key!r} of shape {shape}; see docs/model.md"
            )


def _shapes(stream: Stream, sample: Sample) -> dict[str, tuple[int, ...]]:
    """Shapes of the predictions that the objective of an archive needs."""
    if isinstance(stream, Field):
        assert isinstance(sample, FieldSample)
        b, t, *frame = sample.inputs_BTCS.shape
        shapes = {"forecast": (b, *frame)} if stream.objective.forecasts else {}
        return shapes | ({"reconstruction": (b, t, *frame)} if stream.objective.masks else {})
    assert isinstance(sample, HitSample)
    parts = (*sample.valid_BN.shape, stream.parts)
    return {"occupancy": parts, "feature": (*parts, stream.channels)}
