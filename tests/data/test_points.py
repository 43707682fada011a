"""Batches of points hold every point of their windows, once, and nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hyperslab.data.ahead import Reading
from hyperslab.data.config import DataSettings
from hyperslab.data.loader import Loader, Sampling, WindowLoader, mixed, windows_of
from hyperslab.data.order import Order
from hyperslab.data.points import PointLoader
from hyperslab.data.recipe import make_recipe
from hyperslab.data.sources import source_of
from hyperslab.data.store import Store, open_store
from tests.conftest import stage
from tests.data.sources.lartpc.raw_files import write_pilarnet

# Points of each event; the last two are held out.
EVENTS = [40, 3, 0, 17, 1, 25, 60, 8, 12, 30]
SINGLE = Sampling(history=1, lead=1, rollout=0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("points")
    write_pilarnet(folder / "events.h5", [[count] if count else [] for count in EVENTS])
    settings = DataSettings(source="lartpc", files=[str(folder / "events.h5")], validation=0.1, test=0.1)
    index = source_of("lartpc").scan(settings.files, settings)
    return open_store(stage(folder / "store", make_recipe(index, settings, 0.002)))


def loader_of(store: Store, workers: int = 1) -> PointLoader:
    return PointLoader(store, windows_of(store, "train", SINGLE), SINGLE, reading=Reading(workers=workers))


def test_the_store_is_one_of_several_shards(store: Store) -> None:
    assert store.is_ragged
    assert store.frame_start is not None
    assert np.diff(store.frame_start).tolist() == EVENTS
    assert len(list((store.path / "feature" / "c").iterdir())) > 1


def test_a_batch_holds_the_points_of_its_windows(store: Store) -> None:
    # Event 2 has no point, so it is no window: window 2 is event 3.
    batch = loader_of(store).read([3, 0, 2])
    events = [4, 0, 3]
    assert batch.start.tolist() == [0, 1, 41, 58]
    blocks = [store.read_points(event, event + 1) for event in events]
    np.testing.assert_array_equal(batch.position, np.concatenate([block["position"] for block in blocks]))
    feature = np.concatenate([block["feature"] for block in blocks]).astype(np.float64)
    std = np.where(store.std > 0, store.std, 1)
    np.testing.assert_allclose(batch.feature, (feature - store.mean) / std, rtol=1e-4, atol=1e-5)
    assert batch.labels is not None
    assert (batch.position.dtype, batch.feature.dtype) == (torch.float32, torch.float32)
    # Labels are classes and numbers of particles.
    assert batch.labels.dtype == torch.int64
    np.testing.assert_array_equal(batch.labels, np.concatenate([block["labels"] for block in blocks]))
    assert batch.frame.tolist() == [0] * 58


def test_a_padded_batch_says_what_is_padding(store: Store) -> None:
    batch = loader_of(store).read([3, 0, 2])
    rows, mask = batch.padded(batch.position)
    assert rows.shape == (3, 40, batch.position.shape[1])
    assert mask.sum(1).tolist() == [1, 40, 17]
    assert torch.equal(rows[mask], batch.position)
    assert not rows[~mask].any()
    # The points of a window come first in its row.
    assert mask[0].tolist() == [True] + [False] * 39


def test_an_empty_batch_is_padded_to_nothing(store: Store) -> None:
    batch = loader_of(store).read([])
    rows, mask = batch.padded(batch.feature)
    assert rows.shape == (0, 0, batch.feature.shape[1])
    assert mask.shape == (0, 0)


def test_a_mask_is_made_where_its_values_are(store: Store) -> None:
    batch = loader_of(store).read([3, 0])
    rows, mask = batch.padded(torch.empty(batch.feature.shape, device="meta"))
    assert rows.device == mask.device == torch.device("meta")


def test_events_without_points_are_read_as_such(store: Store) -> None:
    # Event 2 has none.
    for start, stop in ((2, 3), (2, 2), (0, 0), (10, 10)):
        assert {len(rows) for rows in store.read_points(start, stop).values()} == {0}


def test_a_store_of_the_other_kind_is_refused(store: Store, finished_store: Path) -> None:
    dense, pair = open_store(finished_store), Sampling(history=1, lead=1)
    with pytest.raises(ValueError, match="store: holds sets of points, no frames on a grid; read it with PointL"):
        Loader(store, windows_of(store, "train", SINGLE), SINGLE)
    with pytest.raises(ValueError, match="store: holds frames on a grid, no sets of points; read it with Loader"):
        PointLoader(dense, windows_of(dense, "train", pair), pair)
    with pytest.raises(ValueError, match="store: holds frames on a grid, no sets of points"):
        dense.read_points(0, 1)


def test_a_batch_says_the_memory_it_takes(store: Store) -> None:
    loader = loader_of(store)
    batch = loader.read([3, 0, 2])
    assert batch.labels is not None
    points = (batch.position, batch.feature, batch.labels, batch.frame)
    assert loader.job(np.asarray([3, 0, 2])).size_bytes == sum(tensor.nbytes for tensor in points)


def test_points_lie_in_page_locked_memory_where_asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned, empty, copied = set(), torch.empty, []

    def noted(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        tensor = empty(*shape, **options)
        if pin_memory:
            pinned.add(tensor.data_ptr())
        return tensor

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in pinned:
            copied.append(tensor)
            pinned.add(tensor.data_ptr())
        return tensor

    monkeypatch.setattr(torch, "empty", noted)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    batch = PointLoader(store, windows_of(store, "train", SINGLE), SINGLE, reading=Reading(pin=True)).read([3, 0])
    assert batch.labels is not None
    # Values are read into such memory; what is counted from the store's index is copied there.
    assert {tensor.data_ptr() for tensor in copied} == {batch.frame.data_ptr(), batch.start.data_ptr()}
    assert {tensor.data_ptr() for tensor in (batch.position, batch.feature, batch.labels)} <= pinned


def test_frames_of_a_longer_window_are_numbered(store: Store) -> None:
    # Events are segments of their own, so that no window spans two; make them one.
    one = Store(**{name: getattr(store, name) for name in Store.__slots__} | {"segment": np.zeros(10, np.int64)})
    sampling = Sampling(history=2, lead=2, rollout=0)
    # Events 3 to 7 all have points: windows of 3 events begin at 3, 4 and 5.
    loader = PointLoader(one, windows_of(one, "train", sampling), sampling)
    assert loader.windows.first_frames(np.arange(3)).tolist() == [3, 4, 5]
    batch = loader.read([1, 2])
    # Events 4 and 6, then 5 and 7.
    assert batch.frame.tolist() == [0] * 1 + [1] * 60 + [0] * 25 + [1] * 8
    assert batch.start.tolist() == [0, 61, 94]


@pytest.mark.parametrize("workers", [1, 3])
def test_training_draws_the_samples_of_the_order(store: Store, workers: int) -> None:
    loader = loader_of(store, workers=workers)
    order = Order(seed=3, batch=4, windows=(loader.windows,))
    for step, batch in enumerate(loader.training(order, 0, 6, range(1, 3))):
        expected = loader.read(order.draw(step, range(1, 3))[1].tolist())
        assert torch.equal(batch.feature, expected.feature)
        assert torch.equal(batch.start, expected.start)


def test_a_mixture_reads_each_step_from_the_store_of_its_turn(store: Store, finished_store: Path) -> None:
    dense = open_store(finished_store)
    pair = Sampling(history=1, lead=1)
    loaders: list[WindowLoader[Any]] = [loader_of(store), Loader(dense, windows_of(dense, "train", pair), pair)]
    order = Order(seed=0, batch=2, windows=tuple(loader.windows for loader in loaders), weights=(1.0, 2.0))
    found = list(mixed(loaders, order, 5, 25, [range(2)]))
    assert [number for number, _ in found] == [order.turn(step)[0] for step in range(5, 25)]
    assert {number for number, _ in found} == {0, 1}
    for step, (number, batch) in zip(range(5, 25), found, strict=True):
        expected = loaders[number].read(order.draw(step, range(2))[1].tolist())
        held = "position" if number == 0 else "inputs"
        assert torch.equal(getattr(batch, held), getattr(expected, held))
