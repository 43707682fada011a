"""The archives that a campaign trains on, as the model sees them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hyperslab.data.frames import Ints, mask_of
from hyperslab.data.grid import is_global
from hyperslab.data.store import Store, open_store, place_of
from hyperslab.errors import UserError
from hyperslab.model.config import ObjectiveSettings, TokenSettings
from hyperslab.workflows.campaign import MAIN, Campaign, CampaignDir

if TYPE_CHECKING:
    from hyperslab.data.sources import Index
    from hyperslab.model.fields import Field
    from hyperslab.model.hits import Cloud
    from hyperslab.parallel.tasks import Task

NOMINAL_AXES = ("parcel", "vertex", "grayordinate")
"""Axes whose places are names: their order says nothing."""
LOOKED_AT = 64
"""Training frames that are looked at for how far hits reach."""
LOOKED_AT_BYTES = 1 << 30
"""Values that are looked at for where an archive holds data: all frames of a small one, else some, evenly spread."""
MOST_CELLS = 1024
"""Cells along an axis of a detector: as many as a place on the curve tells apart."""
CELLS_ACROSS = 32
"""Cells that a detector is cut into along each axis where a campaign does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """One archive of a campaign, and what is to be learned from it."""

    name: str
    tokens: TokenSettings
    objective: ObjectiveSettings
    weight: float = 1.0

    @property
    def prefix(self) -> str:
        """What stands before its keys in a campaign; nothing for the archive that the campaign stages itself."""
        return "" if self.name == MAIN else f"joint.{self.name}."

    @property
    def tokens_prefix(self) -> str:
        """The same before the keys of its tokens."""
        return self.prefix or "model."

    def refuse_unsuited(self, *, is_ragged: bool, channels: Sequence[str]) -> None:
        """Refuse settings that such an archive cannot have.

        Raises
        ------
        UserError
            When there are any.
        """
        where = self.prefix
        if is_ragged:
            self._refuse_unused_by_hits()
        unknown = set(self.objective.channel_weights) - set(channels)
        if unknown:
            raise UserError(
                f"{where}objective.channel_weights: found {min(unknown)!r}; the archive has {', '.join(channels)}"
            )
        if is_ragged and self.objective.kind != "masked":
            raise UserError(
                f"{where}objective.kind: found {self.objective.kind} for an archive of hits, which are reconstructed "
                "so far: set it to masked"
            )
        if is_ragged and self.tokens.patch is not None:
            raise UserError(f"{self.tokens_prefix}patch: is for fields on a grid; hits have `cell`")
        if not is_ragged and self.tokens.cell is not None:
            raise UserError(f"{self.tokens_prefix}cell: is for archives of hits; fields on a grid have `patch`")

    def _refuse_unused_by_hits(self) -> None:
        where = f"{self.prefix}objective"
        if self.objective.channel_weights:
            raise UserError(f"{where}.channel_weights: is for fields on a grid; all features of a hit count the same")
        if self.objective.mask.kind == "tube":
            raise UserError(f"{where}.mask.kind: found tube for an archive of hits, which have no place for all times")


def archives_of(campaign: Campaign) -> tuple[Archive, ...]:
    """The archives of a campaign: the one that it stages itself, then those that were staged before."""
    main = Archive(name=MAIN, tokens=campaign.model, objective=campaign.objective)
    others = (
        Archive(name=name, tokens=other, objective=other.objective, weight=other.weight)
        for name, other in campaign.joint.items()
    )
    return (main, *others)


def open_stores(campaign: Campaign, directory: CampaignDir) -> dict[str, Store]:
    """The finished stores of all archives.

    Raises
    ------
    UserError
        When one cannot be used.
    """
    return {MAIN: open_store(directory.store)} | open_joint(campaign)


def open_joint(campaign: Campaign) -> dict[str, Store]:
    """The finished stores of the archives that were staged before.

    Raises
    ------
    UserError
        When one cannot be used.
    """
    return {name: open_store(_store_path(other.store)) for name, other in campaign.joint.items()}


def _store_path(text: str) -> Path:
    path = place_of(text)
    staged = CampaignDir(path)
    return staged.store if staged.journal.exists() else path


def make_tasks(campaign: Campaign, stores: Mapping[str, Store]) -> "tuple[Task, ...]":
    """What is to be learned from each archive.

    Raises
    ------
    UserError
        When an archive and the settings do not fit together.
    """
    from hyperslab.parallel.tasks import FieldTask, HitTask

    tasks: list[Task] = []
    for archive in archives_of(campaign):
        store = stores[archive.name]
        archive.refuse_unsuited(is_ragged=store.is_ragged, channels=store.channels)
        if store.is_ragged:
            cloud = make_cloud(archive, store)
            tasks.append(HitTask(name=archive.name, store=store, weight=archive.weight, cloud=cloud))
        else:
            space = {name: values.tolist() for name, values in store.space.items()}
            present = None if archive.tokens.empty == "tokens" else find_present(store)
            field = make_field(campaign, archive, space, len(store.channels), present)
            tasks.append(FieldTask(name=archive.name, store=store, weight=archive.weight, field=field))
    return tuple(tasks)


def make_field(
    campaign: Campaign,
    archive: Archive,
    space: Mapping[str, Sequence[float]],
    channels: int,
    present: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None = None,
) -> "Field":
    """A dense archive as the model sees it.

    Parameters
    ----------
    space
        Coordinates along each axis of space.
    present
        Grid points that ever hold data, shape (*space); None where all do, or it is not known yet.
    """
    import torch

    from hyperslab.model.fields import Field
    from hyperslab.model.positions import Axis

    axes = tuple(
        Axis(
            name=name,
            values=tuple(values),
            periodic=name == "longitude" and is_global(np.asarray(values)),
            nominal=name in NOMINAL_AXES,
        )
        for name, values in space.items()
    )
    return Field(
        channels=channels,
        axes=axes,
        tokens=archive.tokens,
        objective=archive.objective,
        present=None if present is None else torch.from_numpy(present),
        block=campaign.model.block,
        where=archive.tokens_prefix,
    )


def known_streams(campaign: Campaign, index: "Index", joint: Mapping[str, Store]) -> "dict[str, Field | Cloud]":
    """The archives of a campaign before its own is staged, fields as if all grid points held data.

    The campaign's own is left out if it holds hits: how far they reach is not known yet.

    Parameters
    ----------
    index
        What a scan of the campaign's own files found.
    joint
        From `open_joint`.

    Raises
    ------
    UserError
        When cells do not fit an archive of hits.
    """
    streams: dict[str, Field | Cloud] = {}
    for archive in archives_of(campaign):
        store = joint.get(archive.name)
        if store is not None and store.is_ragged:
            streams[archive.name] = make_cloud(archive, store)
        elif store is not None:
            space = {name: values.tolist() for name, values in store.space.items()}
            streams[archive.name] = make_field(campaign, archive, space, len(store.channels))
        elif not index.is_ragged:
            own = {axis.name: axis.values for axis in index.space}
            streams[archive.name] = make_field(campaign, archive, own, len(index.channels))
    return streams


def find_present(store: Store) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None:
    """Grid points that hold data in some of the frames that are looked at, shape (*space); None for all.

    One frame without a gap is enough to know that all do. Frames of all splits are looked at: a subject of the test
    split has a brain mask of its own.
    """
    present = np.zeros(store.frame_shape[1:], bool)
    most = max(LOOKED_AT, LOOKED_AT_BYTES // (4 * int(np.prod(store.frame_shape))))
    for frame in _some_frames(np.flatnonzero(store.valid), most):
        present |= np.isfinite(store.read(frame, frame + 1)[0]).any(axis=0)
        if present.all():
            return None
    return present


def make_cloud(archive: Archive, store: Store) -> "Cloud":
    """An archive of hits as the model sees it: as far as hits reach in the training frames that are looked at.

    Raises
    ------
    UserError
        When the cell does not fit the axes, or there are no hits.
    """
    from hyperslab.model.hits import Cloud, num_cells

    training = np.flatnonzero(mask_of(store.splits["train"], len(store.time)) & store.valid)
    positions = [store.read_points(frame, frame + 1)["position"] for frame in _some_frames(training, LOOKED_AT)]
    hits = np.concatenate(positions) if positions else np.empty((0, 0))
    if not len(hits):
        raise UserError(f"{store.path}: the training split holds no hit in the frames that were looked at; add data")
    low, high = hits.min(axis=0).astype(float), hits.max(axis=0).astype(float)
    cell = archive.tokens.cell or [max(extent, 1e-6) / CELLS_ACROSS for extent in (high - low).tolist()]
    if len(cell) != len(low):
        raise UserError(
            f"{archive.tokens_prefix}cell: found {len(cell)} sizes for hits along {len(low)} axes; give one for each"
        )
    shape = tuple(num_cells(*edges) for edges in zip(low.tolist(), high.tolist(), cell, strict=True))
    if max(shape) > MOST_CELLS or max(shape) == 1:
        raise UserError(
            f"{archive.tokens_prefix}cell: found {list(cell)}, which cuts the "
            f"detector into {' x '.join(map(str, shape))} cells; give sizes that make 2 to {MOST_CELLS} along its axes"
        )
    return Cloud(
        channels=len(store.channels),
        low=tuple(low.tolist()),
        cell=tuple(cell),
        shape=shape,
        tokens=archive.tokens,
        objective=archive.objective,
    )


def _some_frames(frames: Ints, most: int) -> list[int]:
    """Some of the frames, at most so many, spread evenly over all of them."""
    chosen = np.linspace(0, len(frames) - 1, min(len(frames), most)).round().astype(int)
    return [int(frame) for frame in frames[np.unique(chosen)]]
