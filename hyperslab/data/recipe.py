"""The recipe of a store: everything that decides what it will hold."""

from dataclasses import asdict, dataclass
from typing import Any

from hyperslab.data.config import DataSettings
from hyperslab.data.frames import split_bounds
from hyperslab.data.sources import Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides what a store holds: equal recipes over equal raw files give equal stores."""

    index: Index
    shard_frames: int
    """Frames in a shard; also the frames of a part."""
    splits: dict[str, tuple[int, int]]
    """Frame range `[start, stop)` of each split."""

    @property
    def num_parts(self) -> int:
        """Parts to stage; each is one whole shard."""
        return -(-len(self.index.time) // self.shard_frames)

    @property
    def total_bytes(self) -> int:
        """Bytes of all values before compression."""
        return self.index.frame_bytes * len(self.index.time)

    def part_frames(self, part: int) -> tuple[int, int]:
        """Frame range `[start, stop)` of a part."""
        start = part * self.shard_frames
        return start, min(start + self.shard_frames, len(self.index.time))

    def to_json(self) -> dict[str, Any]:
        """A form that JSON holds."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Recipe":
        """The inverse of `to_json`."""
        return cls(
            index=Index.from_json(content["index"]),
            shard_frames=content["shard_frames"],
            splits={name: (bounds[0], bounds[1]) for name, bounds in content["splits"].items()},
        )


def make_recipe(index: Index, settings: DataSettings) -> Recipe:
    """The store that an index and a campaign's data settings ask for.

    Raises
    ------
    UserError
        When the splits cannot be cut as asked.
    """
    shard_bytes = settings.shard_mebibytes * 2**20
    return Recipe(
        index=index,
        shard_frames=max(1, min(len(index.time), int(shard_bytes // index.frame_bytes))),
        splits=split_bounds(index.times, settings.validation, settings.test),
    )
