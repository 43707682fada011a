"""What a campaign will do, worked out before anything is written."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hyperslab.data.frames import find_segments, find_windows, moment
from hyperslab.data.grid import is_global
from hyperslab.data.recipe import Recipe, make_recipe
from hyperslab.data.sources import Index, source_of
from hyperslab.errors import UserError
from hyperslab.parallel.layout import Layout, make_layout
from hyperslab.site_configs.schema import Site
from hyperslab.workflows.campaign import Campaign, raw_files
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


def make_plan(campaign: Campaign, site: Site, recipe: Recipe | None = None) -> Plan:
    """Scan the raw files, unless a recipe is at hand, and work out what follows from them.

    Raises
    ------
    UserError
        When the files, the settings and the site do not fit together.
    """
    layout = make_layout(campaign.parallel, site.ranks_per_node, campaign.train.batch)
    if recipe is None:
        index = source_of(campaign.data.source).scan(raw_files(campaign), campaign.data)
        recipe = make_recipe(index, campaign.data)
    return Plan(recipe=recipe, num_windows=_count_windows(campaign, recipe), layout=layout)


def _count_windows(campaign: Campaign, recipe: Recipe) -> dict[str, int]:
    time = recipe.index.times
    segments, valid = find_segments(time).ids, np.ones(len(time), bool)
    counts = {}
    for split, bounds in recipe.splits.items():
        steps = campaign.evaluate.rollout if split == "test" else 1
        span = (campaign.model.history + steps - 1) * campaign.objective.lead + 1
        counts[split] = len(find_windows(segments, valid, bounds, span))
        if counts[split] == 0:
            longest = int(np.bincount(segments[slice(*bounds)]).max())
            raise UserError(
                f"data: the {split} split has {bounds[1] - bounds[0]} frames, {longest} without a gap; a window needs "
                f"{span} (model.history, objective.lead"
                f"{', evaluate.rollout' if split == 'test' else ''}): make the split larger or the window shorter"
            )
    return counts


def describe(campaign: Campaign, plan: Plan, site: Site) -> Iterator[tuple[str, str]]:
    """The plan as (title, text) pairs, for `--dry-run`."""
    recipe, index = plan.recipe, plan.recipe.index
    frames, channels, rows, columns = index.shape
    yield (
        "graph",
        " > ".join(STEPS).replace("stage", "stage (create > write parts > merge statistics > verify > finalise)"),
    )
    yield (
        "raw files",
        f"{len(index.files)} files, {sum(f.size_bytes for f in index.files):,} bytes, {moment(index.time[0])} to "
        f"{moment(index.time[-1])} every {find_segments(index.times).cadence}",
    )
    for oddity in index.oddities:
        yield "odd", oddity
    yield "channels", ", ".join(f"{c.name} [{c.units}]" for c in index.channels)
    yield (
        "store",
        f"shape (frame, channel, latitude, longitude) = {frames} x {channels} x {rows} x {columns}, "
        f"chunks 1 x {channels} x {rows} x {columns}, shards {recipe.shard_frames} x {channels} x {rows} x {columns}",
    )
    yield "store size", f"{recipe.total_bytes:,} bytes before compression in {recipe.num_parts} shards"
    for split, (start, stop) in recipe.splits.items():
        yield (
            f"{split} split",
            f"{stop - start} frames, {moment(index.time[start])} to {moment(index.time[stop - 1])}, "
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
    if not is_global(np.asarray(index.longitude)):
        yield "region", "a regional box: its edges are edges, longitude does not wrap"


def _model_size(campaign: Campaign, index: Index) -> "tuple[PatchGrid, int]":
    """How the model cuts a frame into patches, and its number of parameters."""
    # Counting takes torch, a second of import that only a dry run pays.
    from hyperslab.model.transformer import Frame, count_parameters, patch_grid

    frame = Frame(
        channels=len(index.channels),
        latitude=index.latitude,
        longitude=index.longitude,
        periodic=is_global(np.asarray(index.longitude)),
    )
    return patch_grid(campaign.model, frame), count_parameters(campaign.model, frame)
