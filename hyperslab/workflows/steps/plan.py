"""What a campaign will do, worked out before anything is written."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hyperslab.data.frames import find_windows, mask_of, measure_segments
from hyperslab.data.grid import is_global
from hyperslab.data.recipe import Recipe, make_recipe
from hyperslab.data.sources import Index, source_of
from hyperslab.data.sources.paths import expand
from hyperslab.errors import UserError
from hyperslab.parallel.layout import Layout, make_layout
from hyperslab.site_configs.schema import Site
from hyperslab.workflows.campaign import Campaign
from hyperslab.workflows.steps import STEPS

if TYPE_CHECKING:
    from hyperslab.model.tokens import PatchGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The store, the windows and the layout of a campaign."""

    recipe: Recipe
    num_windows: dict[str, int]
    """Windows of each split, before frames that turn out to be missing."""
    layout: Layout


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
    recipe = recipe or plan_store(campaign, site)
    if [axis.name for axis in recipe.index.space] != ["latitude", "longitude"]:
        raise UserError(
            f"data.source: {campaign.data.source}: the model takes fields on a latitude-longitude grid so far; "
            "stage this archive with `hyperslab stage`"
        )
    return Plan(recipe=recipe, num_windows=_count_windows(campaign, recipe), layout=layout)


def _count_windows(campaign: Campaign, recipe: Recipe) -> dict[str, int]:
    segments = recipe.index.segments
    valid = np.ones(len(segments), bool)
    counts = {}
    for split, ranges in recipe.splits.items():
        steps = campaign.evaluate.rollout if split == "test" else 1
        span = (campaign.model.history + steps - 1) * campaign.objective.lead + 1
        counts[split] = len(find_windows(segments, valid, ranges, span))
        if counts[split] == 0:
            own = mask_of(ranges, len(segments))
            raise UserError(
                f"data: the {split} split has {own.sum()} frames, {max(np.bincount(segments[own]), default=0)} without "
                f"a gap; "
                f"a window needs {span} (model.history, objective.lead"
                f"{', evaluate.rollout' if split == 'test' else ''}): make the split larger or the window shorter"
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
    grid, parameters = _model_size(campaign, index)
    yield (
        "model",
        f"{parameters:,} parameters, {campaign.model.history} x {grid.shape[0]} x {grid.shape[1]} tokens of "
        f"{grid.patch} x {grid.patch} grid points",
    )
    layout = plan.layout
    yield (
        "layout",
        f"{layout.num_ranks} ranks: replicate {layout.replicate} x shard {layout.shard}, "
        f"{campaign.train.batch // layout.num_ranks} samples a rank and step, {site.precision} on {site.device}",
    )
    if not is_global(np.asarray(index.space[1].values)):
        yield "region", "a regional box: its edges are edges, longitude does not wrap"


def _model_size(campaign: Campaign, index: Index) -> "tuple[PatchGrid, int]":
    """How the model cuts a frame into patches, and its number of parameters."""
    # Counting takes torch, a second of import that only a dry run pays.
    from hyperslab.model.transformer import Frame, count_parameters, patch_grid

    frame = Frame(
        channels=len(index.channels),
        latitude=index.space[0].values,
        longitude=index.space[1].values,
        periodic=is_global(np.asarray(index.space[1].values)),
    )
    return patch_grid(campaign.model, frame), count_parameters(campaign.model, frame)
