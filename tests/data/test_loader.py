import logging
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest
import s3fs
import torch
from moto.server import ThreadedMotoServer

from hyperslab.data import chunks
from hyperslab.data.ahead import Reading
from hyperslab.data.buffers import shared_buffers
from hyperslab.data.chunks import Shard
from hyperslab.data.clock import Clock
from hyperslab.data.frames import find_windows
from hyperslab.data.loader import Batch, Loader, Sampling, calendar_phases, mixed, windows_of
from hyperslab.data.order import Order, sample_at
from hyperslab.data.store import Store, open_store, place_of
from hyperslab.data.tiles import make_tile
from hyperslab.errors import UserError
from tests.conftest import make_dataset, make_store_recipe, shard_of, stage

DAY = 86_400


@pytest.fixture
def opened(finished_store: Path) -> Store:
    """Training holds frames 0 to 23 of 40, without a gap."""
    return open_store(finished_store)


def normalised(store: Store) -> npt.NDArray[np.float64]:
    """All frames minus the mean, over the spread, of each channel."""
    values = store.read(0, len(store.time)).astype(np.float64)
    return (values - store.mean[:, None, None]) / store.std[:, None, None]


def training(
    loader: Loader, seed: int, start_step: int, stop_step: int, batch: int, slots: range
) -> Generator[Batch, None, None]:
    order = Order(seed=seed, batch=batch, windows=(loader.windows,))
    return loader.training(order, start_step, stop_step, slots)


def assert_same(first: Batch, second: Batch) -> None:
    for name in ("inputs", "target", "calendar"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    np.testing.assert_array_equal(first.target_time, second.target_time)


@pytest.mark.parametrize(
    ("sampling", "span", "offsets"),
    [
        (Sampling(history=1, lead=1), 2, (0, 1)),
        (Sampling(history=2, lead=1), 3, (0, 1, 2)),
        (Sampling(history=1, lead=4), 5, (0, 4)),
        # Inputs at 0 and 4, targets at 8, 12 and 16.
        (Sampling(history=2, lead=4, rollout=3), 17, (0, 4, 8, 12, 16)),
    ],
)
def test_inputs_and_targets_stand_one_lead_apart(sampling: Sampling, span: int, offsets: tuple[int, ...]) -> None:
    assert sampling.span == span
    assert sampling.offsets == offsets


def test_a_batch_holds_the_frames_of_its_windows_normalised(opened: Store) -> None:
    sampling = Sampling(history=2, lead=3, rollout=2)
    loader = Loader(opened, windows_of(opened, "train", sampling), sampling)
    batch = loader.read([5, 0, 5])
    frames = normalised(opened)
    # In one unbroken split window w begins at frame w: inputs at w and w + 3, targets at w + 6 and w + 9.
    inputs = np.stack([frames[[5, 8]], frames[[0, 3]], frames[[5, 8]]])
    target = np.stack([frames[[11, 14]], frames[[6, 9]], frames[[11, 14]]])
    assert batch.inputs.dtype == batch.target.dtype == torch.float32
    # Values of about 280 with a spread of 10 lose 3e-5 to float32, which the spread divides.
    np.testing.assert_allclose(batch.inputs.numpy(), inputs, atol=1e-5)
    np.testing.assert_allclose(batch.target.numpy(), target, atol=1e-5)
    np.testing.assert_array_equal(batch.target_time, opened.time[[[11, 14], [6, 9], [11, 14]]])
    times = opened.time[[[5, 8, 11, 14], [0, 3, 6, 9], [5, 8, 11, 14]]]
    assert batch.calendar.shape == (3, 4, 4)
    np.testing.assert_array_equal(batch.calendar.numpy(), calendar_phases(times, Clock()))


def test_a_batch_without_targets_holds_what_goes_in(opened: Store) -> None:
    sampling = Sampling(history=3, lead=2, rollout=0)
    batch = Loader(opened, windows_of(opened, "train", sampling), sampling).read([4])
    # All frames go in: 4, 6 and 8.
    np.testing.assert_allclose(batch.inputs.numpy(), normalised(opened)[[[4, 6, 8]]], atol=1e-5)
    assert batch.target.shape == (1, 0, 2, 3, 4)
    assert batch.target_time.shape == (1, 0)
    np.testing.assert_array_equal(batch.calendar.numpy(), calendar_phases(opened.time[[[4, 6, 8]]], Clock()))


def test_windows_of_a_later_split_begin_with_its_first_frame(opened: Store) -> None:
    # Validation holds frames 24 to 31: 7 windows of 2 frames.
    sampling = Sampling(history=1, lead=1)
    windows = windows_of(opened, "validation", sampling)
    assert len(windows) == 7
    batch = Loader(opened, windows, sampling).read([0, 6])
    np.testing.assert_array_equal(batch.target_time[:, 0], opened.time[[25, 31]])


def test_missing_values_stay_missing(tmp_path: Path) -> None:
    dataset = make_dataset()
    dataset["t2m"][1, 2, 3] = np.nan
    dataset.to_netcdf(tmp_path / "raw.nc")
    recipe = make_store_recipe([tmp_path / "raw.nc"], {"train": (0, 20), "validation": (20, 30), "test": (30, 40)})
    store = open_store(stage(tmp_path / "store", recipe))
    sampling = Sampling(history=1, lead=1)
    batch = Loader(store, windows_of(store, "train", sampling), sampling).read([0, 1])
    # Frame 1, channel 1 (t2m): the target of window 0 and the input of window 1.
    assert torch.isnan(batch.target).nonzero().tolist() == [[0, 0, 1, 2, 3]]
    assert torch.isnan(batch.inputs).nonzero().tolist() == [[1, 0, 1, 2, 3]]


def test_training_draws_the_samples_of_the_order(opened: Store) -> None:
    sampling = Sampling(history=1, lead=1)
    windows = windows_of(opened, "train", sampling)
    loader = Loader(opened, windows, sampling)
    batches = list(training(loader, seed=7, start_step=2, stop_step=5, batch=4, slots=range(4)))
    assert len(batches) == 3
    for step, batch in zip(range(2, 5), batches, strict=True):
        drawn = [sample_at(7, step * 4 + slot, len(windows)) for slot in range(4)]
        np.testing.assert_array_equal(batch.target_time[:, 0], opened.time[[window + 1 for window in drawn]])


def test_ranks_share_the_global_batch_among_them(opened: Store) -> None:
    sampling = Sampling(history=2, lead=1)
    loader = Loader(opened, windows_of(opened, "train", sampling), sampling)
    [whole] = training(loader, seed=1, start_step=3, stop_step=4, batch=6, slots=range(6))
    parts = [next(training(loader, 1, 3, 4, batch=6, slots=slots)) for slots in (range(0, 2), range(2, 3), range(3, 6))]
    assert [len(part.inputs) for part in parts] == [2, 1, 3]
    assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
    assert torch.equal(torch.cat([part.target for part in parts]), whole.target)
    np.testing.assert_array_equal(np.concatenate([part.target_time for part in parts]), whole.target_time)


@pytest.mark.parametrize("start", [1, 4, 11])
def test_batches_are_the_same_from_any_step_on(opened: Store, start: int) -> None:
    # 12 steps of 5 samples go two and a half times through 23 windows.
    sampling = Sampling(history=1, lead=1)
    loader = Loader(opened, windows_of(opened, "train", sampling), sampling)
    whole = list(training(loader, seed=3, start_step=0, stop_step=12, batch=5, slots=range(1, 4)))
    rest = list(training(loader, seed=3, start_step=start, stop_step=12, batch=5, slots=range(1, 4)))
    assert len(rest) == 12 - start
    for first, second in zip(whole[start:], rest, strict=True):
        assert_same(first, second)


def test_an_epoch_of_batches_shows_every_window_once(opened: Store) -> None:
    # 20 frames from the first input to the target leave 24 - 20 + 1 = 5 windows, one a step.
    sampling = Sampling(history=1, lead=19)
    windows = windows_of(opened, "train", sampling)
    batches = training(Loader(opened, windows, sampling), 0, 0, 5, batch=1, slots=range(1))
    assert sorted(int(batch.target_time[0, 0]) for batch in batches) == opened.time[19:24].tolist()


def test_windows_are_read_in_order_where_asked(opened: Store) -> None:
    sampling = Sampling(history=1, lead=1)
    loader = Loader(opened, windows_of(opened, "test", sampling), sampling)
    batches = list(loader.in_order(range(7), batch=3))
    assert [len(batch.inputs) for batch in batches] == [3, 3, 1]
    times = np.concatenate([batch.target_time[:, 0] for batch in batches])
    np.testing.assert_array_equal(times, opened.time[33:40])


def test_a_reader_that_stops_early_is_let_go(opened: Store) -> None:
    sampling = Sampling(history=1, lead=1)
    loader = Loader(opened, windows_of(opened, "train", sampling), sampling)
    batches = training(loader, 0, 0, 10**9, batch=2, slots=range(2))
    assert len(list(islice(batches, 3))) == 3
    batches.close()
    with pytest.raises(StopIteration):
        next(batches)


def test_an_error_of_reading_reaches_the_reader(opened: Store) -> None:
    sampling = Sampling(history=1, lead=1)
    loader = Loader(opened, windows_of(opened, "train", sampling), sampling)
    with pytest.raises(IndexError, match="window 23 of 23"):
        list(loader.in_order([0, 23], batch=1))


def test_a_split_too_short_for_a_window_is_refused(opened: Store) -> None:
    # Two inputs and one target, 4 frames apart, reach over 9 frames; validation has 8.
    message = (
        r"the validation split \(8 frames in 1 segment\(s\)\) has no unbroken window of 9 frames; "
        r"choose a smaller objective\.lead, model\.history or evaluate\.rollout, or larger splits"
    )
    with pytest.raises(UserError, match=message):
        windows_of(opened, "validation", Sampling(history=2, lead=4))


@pytest.mark.parametrize(
    ("seconds", "phases"),
    [
        # Sine of the year and of the day, then their cosines. 1970-01-01T00:00 is the beginning of both.
        (0, [0, 0, 1, 1]),
        # A quarter of a year of 365.2425 days is 91.310625 days: 91 days and 0.310625 of one.
        (365.2425 * DAY / 4, [1, np.sin(2 * np.pi * 0.310625), 0, np.cos(2 * np.pi * 0.310625)]),
        # 06:00 is a quarter of a day, and a quarter of 1/365.2425 of a year.
        (DAY / 4, [np.sin(np.pi / 2 / 365.2425), 1, np.cos(np.pi / 2 / 365.2425), 0]),
        (-DAY / 2, [-np.sin(np.pi / 365.2425), 0, np.cos(np.pi / 365.2425), -1]),
    ],
)
def test_the_calendar_is_the_phase_of_the_year_and_of_the_day(seconds: float, phases: list[float]) -> None:
    # Whole seconds cut the quarter of a year by less than one second, 1e-4 of a day.
    np.testing.assert_allclose(calendar_phases(np.asarray(int(seconds)), Clock()), phases, atol=1e-4)


def test_each_year_and_each_day_begins_anew() -> None:
    # 400 Gregorian years are 146097 days, 365.2425 each.
    start = np.asarray([0, 146_097 * DAY], np.int64)
    phases = calendar_phases(start, Clock())
    assert phases.shape == (2, 4)
    np.testing.assert_allclose(phases[1], phases[0], atol=1e-6)


@pytest.mark.parametrize("sampling", [Sampling(history=2, lead=1), Sampling(history=1, lead=3, rollout=2)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int16"])
def test_a_tile_is_cut_out_of_the_whole(tmp_path: Path, sampling: Sampling, dtype: str) -> None:
    make_dataset(rows=9, columns=8).to_netcdf(tmp_path / "raw.nc")
    splits = {"train": (0, 20), "validation": (20, 30), "test": (30, 40)}
    store = open_store(stage(tmp_path / "store", make_store_recipe([tmp_path / "raw.nc"], splits, dtype=dtype)))
    windows = windows_of(store, "train", sampling)
    whole = Loader(store, windows, sampling).read([0, 7, 3])
    for number in range(4):
        tile = make_tile((9, 8), (2, 2), number, halo=2, periodic=(False, True))
        part = Loader(store, windows, sampling, tile=tile).read([0, 7, 3])
        assert part.inputs.shape[-2:] == tile.shape
        for space, into in tile.boxes():
            for name in ("inputs", "target"):
                assert torch.equal(getattr(part, name)[(..., *into)], getattr(whole, name)[(..., *space)])


def test_windows_that_share_frames_are_the_same_as_alone(opened: Store) -> None:
    sampling = Sampling(history=3, lead=2, rollout=2)
    loader = Loader(opened, windows_of(opened, "train", sampling), sampling)
    together = loader.read(range(12))
    for number in range(12):
        alone = loader.read([number])
        assert torch.equal(together.inputs[number], alone.inputs[0])
        assert torch.equal(together.target[number], alone.target[0])


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("ahead_bytes", [1, 10**9])
def test_threads_do_not_change_what_is_read(opened: Store, workers: int, ahead_bytes: int) -> None:
    sampling = Sampling(history=2, lead=1)
    windows = windows_of(opened, "train", sampling)
    reading = Reading(workers=workers, memory_bytes=ahead_bytes)
    found = list(training(Loader(opened, windows, sampling, reading=reading), 4, 0, 9, batch=3, slots=range(3)))
    expected = [Loader(opened, windows, sampling).read([sample_at(4, 3 * s + n, len(windows)) for n in range(3)])
                for s in range(9)]  # fmt: skip
    for first, second in zip(found, expected, strict=True):
        assert_same(first, second)


def test_a_damaged_chunk_is_never_trained_on(finished_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "RETRY_SECONDS", ())
    shard = shard_of(finished_store, 0)
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    store, sampling = open_store(finished_store), Sampling(history=1, lead=1)
    loader = Loader(store, windows_of(store, "train", sampling), sampling)
    with pytest.raises(UserError, match=r"store/values/c/0/0/0/0: cannot be read \(chunk \(0, 0, 0, 0\) is damaged"):
        list(training(loader, 0, 0, 20, batch=2, slots=range(2)))


def test_a_store_is_read_where_an_object_store_holds_it(finished_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "me",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        remote = s3fs.S3FileSystem(skip_instance_cache=True)
        remote.mkdir("bucket")
        remote.put(str(finished_store), "bucket/store", recursive=True)
        sampling = Sampling(history=2, lead=1)
        here, there = open_store(finished_store), open_store(place_of("s3://bucket/store"))
        assert there.digest == here.digest
        batches = [
            list(training(Loader(store, windows_of(store, "train", sampling), sampling,
                                 reading=Reading(workers=3)), 1, 0, 4, batch=2, slots=range(2)))
            for store in (here, there)
        ]  # fmt: skip
        for first, second in zip(*batches, strict=True):
            assert_same(first, second)
        monkeypatch.setattr(chunks, "RETRY_SECONDS", ())
        shard = bytearray((finished_store / "values/c/0/0/0/0").read_bytes())
        shard[100] ^= 1
        remote.pipe("bucket/store/values/c/0/0/0/0", bytes(shard))
        with pytest.raises(UserError, match=r"s3://bucket/store/values/c/0/0/0/0: cannot be read \(chunk .*damaged"):
            open_store(place_of("s3://bucket/store")).read(0, 2)
        remote.rm("bucket/store/values/c/1", recursive=True)
        with pytest.raises(UserError, match="s3://bucket/store/values/c/1/0/0/0: is missing"):
            open_store(place_of("s3://bucket/store")).read(16, 20)
    finally:
        server.stop()


def test_memory_stays_as_it_is_over_many_batches(opened: Store) -> None:
    sampling = Sampling(history=2, lead=1)
    loader = Loader(opened, windows_of(opened, "train", sampling), sampling, reading=Reading(workers=2))
    batches, process = training(loader, 0, 0, 10**9, batch=2, slots=range(2)), psutil.Process()
    for batch in islice(batches, 500):  # until caches are full
        del batch
    before = process.memory_info().rss
    for batch in islice(batches, 4000):
        del batch
    batches.close()
    # 4000 batches of 576 bytes: 1 KiB that each left behind would be 4 MB.
    assert process.memory_info().rss - before < 2 << 20


def test_memory_of_a_batch_is_used_again_only_when_nobody_holds_it(opened: Store) -> None:
    sampling = Sampling(history=1, lead=1)
    loader = Loader(opened, windows_of(opened, "train", sampling), sampling)
    kept = loader.read([3])
    view, values = kept.inputs[0], kept.inputs.clone()
    place = kept.inputs.data_ptr()
    del kept
    others = [loader.read([number]) for number in range(10)]
    assert place not in {other.inputs.data_ptr() for other in others}
    assert torch.equal(view, values[0])
    del view
    assert loader.read([0]).inputs.data_ptr() == place


def test_a_read_that_comes_back_late_does_not_touch_what_is_in_use(
    opened: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, released, first = Shard.read_into, threading.Event(), threading.Lock()

    def hangs_once(self: Shard, buffer: memoryview, start: int) -> int:
        if first.acquire(blocking=False):
            released.wait(30)
        return original(self, buffer, start)

    monkeypatch.setattr(Shard, "read_into", hangs_once)
    sampling = Sampling(history=1, lead=1)
    windows = windows_of(opened, "train", sampling)
    loader = Loader(opened, windows, sampling, reading=Reading(patience_seconds=0.2))
    [batch] = loader.in_order([3, 9, 14], batch=3)
    released.set()
    for thread in threading.enumerate():
        if thread.name == "loader":
            thread.join(30)
    assert_same(batch, Loader(opened, windows, sampling).read([3, 9, 14]))


@pytest.mark.parametrize("numbers", [[0, 9], list(range(12))])
def test_samples_lie_in_page_locked_memory_where_asked(
    opened: Store, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned, empty = set(), torch.empty

    def noted(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        tensor = empty(*shape, **options)
        if pin_memory:
            pinned.add(tensor.untyped_storage().data_ptr())
        return tensor

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in pinned:
            copied.append(tensor.shape)
            tensor = tensor.clone()
            pinned.add(tensor.untyped_storage().data_ptr())
        return tensor

    copied: list[torch.Size] = []
    monkeypatch.setattr(torch, "empty", noted)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    sampling = Sampling(history=3, lead=1, rollout=2)
    loader = Loader(opened, windows_of(opened, "train", sampling), sampling, reading=Reading(pin=True))
    # Windows alone, and windows that share most of their frames.
    batch = loader.read(numbers)
    tensors = [held for field in fields(batch) if isinstance(held := getattr(batch, field.name), torch.Tensor)]
    assert len(tensors) == 3
    assert all(tensor.untyped_storage().data_ptr() in pinned for tensor in tensors)
    # The samples were read into such memory, and not copied there.
    assert copied == [(len(numbers), 5, 4)]


def test_no_windows_are_an_empty_batch(opened: Store) -> None:
    sampling = Sampling(history=1, lead=1)
    assert Loader(opened, windows_of(opened, "train", sampling), sampling).read([]).inputs.shape == (0, 1, 2, 3, 4)


def test_an_order_of_other_windows_is_refused(opened: Store) -> None:
    sampling = Sampling(history=1, lead=1)
    train, validation = (windows_of(opened, split, sampling) for split in ("train", "validation"))
    loader, other = Loader(opened, train, sampling), Loader(opened, validation, sampling)
    both = Order(seed=0, batch=2, windows=(train, validation), weights=(1.0, 1.0))
    with pytest.raises(ValueError, match=r"^order: draws from 2 store\(s\), found windows of 1; .* to `mixed`$"):
        loader.training(both, 0, 5, range(2))
    message = "^order: draws from 23 windows of 2 frames of store 0, found 7 other ones of 2; make the order of the "
    with pytest.raises(ValueError, match=message):
        other.training(Order(seed=0, batch=2, windows=(train,)), 0, 5, range(2))
    # The right loaders, in the wrong order.
    with pytest.raises(ValueError, match=message):
        mixed([other, loader], both, 0, 5, [range(2)])
    assert len(list(mixed([loader, other], both, 0, 5, [range(2)]))) == 5


def test_runs_that_take_other_frames_of_equal_windows_are_told_apart(opened: Store) -> None:
    # Both take 5 frames from the first input to the target.
    samplings = Sampling(history=4, lead=1), Sampling(history=2, lead=2)
    windows = [windows_of(opened, "train", sampling) for sampling in samplings]
    assert windows[0].span == windows[1].span == 5
    digests = {Order(seed=0, batch=2, windows=(found,)).digest(3) for found in windows}
    assert len(digests) == 2


def test_windows_too_short_for_a_sample_are_refused(opened: Store) -> None:
    windows = find_windows(opened.segment, opened.valid, opened.splits["train"], 4)
    with pytest.raises(ValueError, match=r"a sample spans 5 frames, the windows 4; find them with `windows_of`"):
        Loader(opened, windows, Sampling(history=2, lead=2))


@pytest.mark.parametrize("numbers", [[0, 9], list(range(12)), []])
def test_a_batch_says_the_memory_it_takes(opened: Store, numbers: list[int]) -> None:
    sampling = Sampling(history=3, lead=1, rollout=2)
    loader = Loader(opened, windows_of(opened, "train", sampling), sampling)
    # 5 frames of 2 channels on 3 x 4 points, of 4 bytes.
    expected = len(numbers) * 5 * 2 * 3 * 4 * 4
    if len(numbers) == 12:
        # Windows 0 to 11 are the frames 0 to 15, which are read once and then copied.
        expected += 16 * 2 * 3 * 4 * 4
    assert loader.job(np.asarray(numbers, np.int64)).size_bytes == expected


@pytest.mark.parametrize("sampling", [Sampling(history=2, lead=1), Sampling(history=7, lead=1)])
def test_batches_and_the_memory_that_waits_for_them_stay_within_the_allowance(
    opened: Store, sampling: Sampling
) -> None:
    # Windows of 8 frames share most of them, so that no two batches take the same memory to read.
    windows, buffers = windows_of(opened, "train", sampling), shared_buffers(pin=False)
    order, before = Order(seed=0, batch=9, windows=(windows,)), buffers.held_bytes
    loader = Loader(opened, windows, sampling)
    largest = max(loader.job(order.draw(step, range(9))[1]).size_bytes for step in range(100))
    reading = Reading(memory_bytes=5 * largest, workers=2)
    most = 0
    for batch in Loader(opened, windows, sampling, reading=reading).training(order, 0, 100, range(9)):
        time.sleep(0.001)  # for as much to be read ahead as may be
        most = max(most, buffers.held_bytes - before)
        assert len(batch.inputs) == 9
    assert largest < most <= 5 * largest


def test_stores_of_a_mixture_share_the_allowance(opened: Store) -> None:
    sampling, buffers = Sampling(history=1, lead=1), shared_buffers(pin=False)
    windows, before = windows_of(opened, "train", sampling), buffers.held_bytes
    loaders = [Loader(opened, windows, sampling, reading=Reading(memory_bytes=1)) for _ in range(8)]
    order = Order(seed=0, batch=4, windows=(windows,) * 8, weights=(1.0,) * 8)
    for _, batch in mixed(loaders, order, 0, 60, [range(4)]):
        assert batch.inputs.shape[0] == 4
    # 4 samples of 2 frames of 2 channels on 3 x 4 points: 768 bytes. In use, handed over and ahead are three of them.
    assert buffers.held_bytes - before <= 3 * 768


def test_reading_that_waits_to_try_again_ends_with_its_reader(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "RETRY_SECONDS", (3600.0,))
    original, failed = Shard.read_into, threading.Event()

    def broken(self: Shard, buffer: memoryview, start: int) -> int:
        if "/c/1/" not in str(self.file):
            return original(self, buffer, start)
        failed.set()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Shard, "read_into", broken)
    sampling = Sampling(history=1, lead=1)
    loader = Loader(opened, windows_of(opened, "train", sampling), sampling)
    # Window 0 lies in the first shard, window 16 in the second one.
    batches = loader.in_order([0, 16], batch=1)
    next(batches)
    assert failed.wait(30)
    before = threading.active_count()
    batches.close()
    assert threading.active_count() == before - 1


LIVE_AT_EXIT = """
import atexit, sys, threading
from pathlib import Path

def at_last():
    print([thread.name for thread in threading.enumerate() if thread.name == "loader"], store.read(0, 1).shape)

atexit.register(at_last)  # the first to be registered is the last to be called

from hyperslab.data.ahead import Reading
from hyperslab.data.loader import Loader, Sampling, windows_of
from hyperslab.data.order import Order
from hyperslab.data.store import open_store

store, sampling = open_store(Path(sys.argv[1])), Sampling(history=1, lead=1)
windows = windows_of(store, "train", sampling)
order = Order(seed=1, batch=8, windows=(windows,))
batches = Loader(store, windows, sampling, reading=Reading(workers=4)).training(order, 0, 10**6, range(8))
next(batches)
print(sum(thread.name == "loader" for thread in threading.enumerate()))
sys.exit(0)
"""


def test_a_process_ends_well_while_it_reads_ahead(finished_store: Path) -> None:
    command = [sys.executable, "-c", LIVE_AT_EXIT, str(finished_store)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    # Its threads are gone before the interpreter is, and the shards that were open can still be read.
    assert ended.stdout == "4\n[] (1, 2, 3, 4)\n"
    assert ended.stderr == ""
    assert ended.returncode == 0
