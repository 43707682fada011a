"""Scan and read as staging does it: through an index that was JSON, and in pieces."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from hyperslab.data.config import DataSettings
from hyperslab.data.sources import Block
from hyperslab.data.sources.index import Index
from hyperslab.data.sources.lartpc.source import SOURCE


def scan(*paths: Path, **settings: Any) -> Index:
    """The index of some files, after a way through JSON."""
    index = SOURCE.scan([str(path) for path in paths], DataSettings(files=["raw"], source="lartpc", **settings))
    return Index.from_json(json.loads(json.dumps(index.to_json())))


def read(index: Index) -> Block:
    """All frames, which must be the same read at once and one by one."""
    whole = SOURCE.read(index, 0, len(index.time))
    single = [SOURCE.read(index, frame, frame + 1) for frame in range(len(index.time))]
    for name, values in whole.items():
        assert np.array_equal(np.concatenate([block[name] for block in single]), values, equal_nan=True)
    if index.is_ragged:
        assert [len(block["position"]) for block in single] == list(index.points or ())
        assert whole["position"].shape == (index.total_points, len(index.space))
        assert whole["feature"].shape == (index.total_points, len(index.channels))
        assert whole["position"].dtype == whole["feature"].dtype == np.float32
        assert ("labels" in whole) == bool(index.labels)
        if index.labels:
            assert whole["labels"].shape == (index.total_points, len(index.labels))
            assert whole["labels"].dtype == np.int64
    else:
        assert whole["values"].shape == index.shape
        assert whole["values"].dtype == np.float32
    return whole


def feature(index: Index, block: Block, name: str) -> np.ndarray:
    """One channel of all points."""
    return block["feature"][:, [channel.name for channel in index.channels].index(name)]


def label(index: Index, block: Block, name: str) -> np.ndarray:
    """One label of all points."""
    return block["labels"][:, [channel.name for channel in index.labels].index(name)]
