"""What a campaign will do, worked out before anything is written."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hyperslab.data.frames import Bools, Ints, find_windows, mask_of, measure_segments
from hyperslab.data.grid import is_global
from hyperslab.data.order import check_weights
from hyperslab.data.recipe import Recipe, make_recipe
from hyperslab.data.sources import Index, source_of
from hyperslab.data.sources.paths import expand
from hyperslab.data.splits import Splits
from hyperslab.data.store import Store
from hyperslab.errors import UserError
from hyperslab.model.part import Part
from hyperslab.parallel.layout import Layout, check_model, make_layout
from hyperslab.site_configs.schema import Site
from hyperslab.workflows.campaign import MAIN, Campaign
from hyperslab.workflows.steps import STEPS
from hyperslab.workflows.streams import Archive, archives_of, known_streams, open_joint

if TYPE_CHECKING:
    from hyperslab.model.fields import Field
    from hyperslab.model.hits import Cloud


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The store, the windows and the layout of a campaign."""

    recipe: Recipe
    num_windows: dict[str, int]
    """Windows of each split, before frames that turn out to be missing."""
    layout: Layout
    streams: "dict[str, Field | Cloud]"
    """The archives as the model sees them, as far as they are known before they are staged."""


def plan_store(campaign: Campaign, site: Site) -> Recipe:
    """Scan the raw files and work out the store that they make.

    Raises
    ------
    UserError
        When the files and the settings do not fit together.
    """
    index = source_of(campaign.data.source).scan(expand(campaign.data.files), campaign.data)
    return make_recipe(index, campaign.data, site.shard_mebibytes)


def make_plan(campaign: Campaign, site: Site, recipe: Recipe | None = None) -> Plan:
    """Scan the raw files, unless a recipe is at hand, and work out what follows from them.

    Raises
    ------
    UserError
        When the files, the settings and the site do not fit together.
    """
    layout = make_layout(campaign.parallel, site.ranks_per_node, campaign.train.batch)
    if campaign.model.module is None:
        rollout = max(archive.objective.rollout for archive in archives_of(campaign))
        check_model(layout, campaign.model, rollout)
    if recipe is None and campaign.train.init_from is not None:
        # Before the campaign begins: later it may need the file no more. Whether it fits, the model says once made.
        from hyperslab.parallel.weights import read_kinds

        read_kinds(Path(campaign.train.init_from))
    recipe = recipe or plan_store(campaign, site)
    index = recipe.index
    main, *others = archives_of(campaign)
    main.refuse_unsuited(is_ragged=index.is_ragged, channels=[channel.name for channel in index.channels])
    stores = open_joint(campaign)
    for archive in others:
        store = stores[archive.name]
        _refuse_name(archive.name)
        archive.refuse_unsuited(is_ragged=store.is_ragged, channels=store.channels)
        _count_windows(campaign, archive, store.segment, store.valid, store.splits)
    check_weights([archive.weight for archive in (main, *others)])
    if site.device == "cpu" and any(kind.backend == "flex" for kind in campaign.model.attention):
        raise UserError(
            f"model.attention.backend: found flex, which does not train on the {site.device} of this site; leave it out"
        )
    valid = np.ones(len(index.segments), bool)
    windows = _count_windows(campaign, main, index.segments, valid, recipe.splits)
    return Plan(
        recipe=recipe, num_windows=windows, layout=layout, streams=_fitting_streams(campaign, layout, index, stores)
    )


def _fitting_streams(
    campaign: Campaign, layout: Layout, index: Index, stores: Mapping[str, Store]
) -> "dict[str, Field | Cloud]":
    """The archives as the model sees them.

    Raises
    ------
    UserError
        When patches, cells or windows of attention do not fit one.
    """
    # Arithmetic on lattices takes torch, a second of import: less than to find out once the store is staged.
    from hyperslab.model.fields import Field
    from hyperslab.model.flops import forward_flops

    streams = known_streams(campaign, index, stores)
    for stream in streams.values():
        if campaign.model.module is None:
            forward_flops(campaign.model, stream, None if isinstance(stream, Field) else 1)
        if isinstance(stream, Field):
            part = Part(count=layout.domain * layout.tensor)
            replace(stream, part=part).held_patches  # noqa: B018 (which refuses what does not fit)
    return streams


def _refuse_name(name: str) -> None:
    # Two seconds of import that only joint campaigns pay.
    from torch import nn

    if hasattr(nn.ModuleDict(), name):
        raise UserError(f"joint.{name}: is a name that PyTorch keeps for itself; choose another")


def _count_windows(
    campaign: Campaign, archive: Archive, segments: Ints, valid: Bools, splits: Splits
) -> dict[str, int]:
    """Windows of each split of an archive, for training and for judging it.

    Raises
    ------
    UserError
        When a split has none.
    """
    counts, objective = {}, archive.objective
    for split, ranges in splits.items():
        judged = campaign.evaluate.rollout if objective.forecasts else 0
        steps = max(judged, objective.targets) if split == "test" else objective.targets
        span = (archive.tokens.history + steps - 1) * objective.lead + 1
        counts[split] = len(find_windows(segments, valid, ranges, span))
        if counts[split] == 0:
            own = mask_of(ranges, len(segments)) & valid
            longest = max(np.bincount(segments[own]), default=0)
            further = "evaluate.rollout" if split == "test" else "leads and rollout"
            raise UserError(
                f"{archive.prefix.rstrip('.') or 'data'}: the {split} split has {own.sum()} frames, {longest} without "
                f"a gap; a window needs {span} ({archive.prefix or 'model.'}history, {archive.prefix}objective.lead, "
                f"{further}): make the split larger or the window shorter"
            )
    return counts


def describe_store(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The store as (title, text) pairs, for `--dry-run`."""
    index = recipe.index
    cadence = measure_segments(index.times, index.segments, index.clock).cadence
    yield (
        "raw files",
        f"{len(index.files)} files, {sum(f.size_bytes for f in index.files):,} bytes, "
        f"{index.clock.moment(index.time[0])} to {index.clock.moment(index.time[-1])}, {len(index.time)} frames in "
        f"{index.segment[-1] + 1} segment(s)" + (f", every {cadence}" if cadence != "none" else ""),
    )
    for oddity in index.oddities:
        yield "odd", oddity
    yield "channels", ", ".join(f"{c.name} [{c.units}]" for c in index.channels)
    for plan in recipe.arrays:
        yield (
            "array",
            f"{plan.name} ({', '.join(plan.dimensions)}) = {_times(plan.shape)} {plan.dtype}, "
            f"chunks {_times(plan.chunk)}, shards {_times(plan.shard)}",
        )
    yield "store size", f"{recipe.total_bytes:,} bytes before compression in {recipe.num_parts} parts"


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def describe(campaign: Campaign, plan: Plan, site: Site) -> Iterator[tuple[str, str]]:
    """The plan as (title, text) pairs, for `--dry-run`."""
    recipe, index = plan.recipe, plan.recipe.index
    yield (
        "graph",
        " > ".join(STEPS).replace("stage", "stage (create > write parts > read them back > merge statistics > commit)"),
    )
    yield from describe_store(recipe)
    for split, ranges in recipe.splits.items():
        own = index.times[mask_of(ranges, len(index.time))]
        yield (
            f"{split} split",
            f"{len(own)} frames, {index.clock.moment(own.min())} to {index.clock.moment(own.max())}, "
            f"{plan.num_windows[split]} windows",
        )
    yield "model", _model_words(campaign, plan)
    layout = plan.layout
    yield (
        "layout",
        f"{layout.num_ranks} ranks: {layout}, {campaign.train.batch // layout.data} samples of each group and step, "
        f"{site.precision} on {site.device}",
    )
    longitude = index.axis("longitude")
    if longitude is not None and not is_global(np.asarray(longitude.values)):
        yield "region", "a regional box: its edges are edges, longitude does not wrap"


def _model_words(campaign: Campaign, plan: Plan) -> str:
    """What the model is made of, and what a sample costs."""
    if campaign.model.module is not None:
        return f"your own, {campaign.model.module}"
    from hyperslab.model.fields import Field
    from hyperslab.model.flops import count_parameters, training_flops

    field = plan.streams.get(MAIN)
    if not isinstance(field, Field):
        return "cells that hold hits become tokens; how many is known once the store is staged"
    patches = field.patches
    kinds = dict.fromkeys(campaign.model.attention_of(layer).kind for layer in range(campaign.model.depth))
    return (
        f"{count_parameters(campaign.model, plan.streams):,} parameters, {_times(patches.shape)} tokens of "
        f"{_times(patches.patch)} (time, {', '.join(axis.name for axis in field.axes)}), {', '.join(kinds)} attention, "
        f"{campaign.objective.rollout * training_flops(campaign.model, field).total / 1e9:,.3g} GFLOP a sample"
    )
