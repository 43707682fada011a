"""A hyperslab is what Zarr-Python reads; nothing that is damaged, missing or slow passes for values."""

import gc
import itertools
import math
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.data import chunks
from hyperslab.data.chunks import WATCH, Shard, ShardedArray, Unwanted, Watch
from hyperslab.data.recipe import ArrayPlan
from hyperslab.data.shard import COMPRESSORS, ShardWriter, fill_value
from hyperslab.errors import UserError

SHAPE, CHUNK, SHARD_LENGTH = (11, 2, 7, 9), (2, 2, 3, 4), 4


def write(folder: Path, values: npt.NDArray[Any], chunk: tuple[int, ...], shard_length: int) -> ShardedArray:
    """Values as a sharded array, with the metadata that Zarr-Python needs."""
    plan = ArrayPlan(
        name="values", dimensions=tuple("abcdef"[: values.ndim]), shape=values.shape, dtype=str(values.dtype),
        chunk=chunk, shard_length=shard_length,
    )  # fmt: skip
    zarr.create_group(folder, zarr_format=3, overwrite=True).create_array(
        plan.name, shape=plan.shape, chunks=plan.chunk, shards=plan.shard, dtype=plan.dtype,
        fill_value=fill_value(plan), compressors=COMPRESSORS,
    )  # fmt: skip
    for part in range(math.ceil(len(values) / shard_length)):
        path = folder.joinpath(plan.name, "c", str(part), *["0"] * (values.ndim - 1))
        with ShardWriter(path, plan) as writer:
            writer.append(values[part * shard_length : (part + 1) * shard_length])
            writer.close()
    return ShardedArray(
        path=folder / plan.name, shape=plan.shape, dtype=np.dtype(plan.dtype), chunk=plan.chunk, shard=plan.shard
    )


@pytest.fixture(scope="module")
def values() -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)


@pytest.fixture
def array(tmp_path: Path, values: npt.NDArray[np.float32]) -> ShardedArray:
    return write(tmp_path, values, CHUNK, SHARD_LENGTH)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "RETRY_SECONDS", (0.0, 0.0))


@given(data=st.data(), dtype=st.sampled_from(["float32", "float16", "int16", "int64"]))
def test_any_hyperslab_is_what_zarr_reads(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, dtype: str
) -> None:
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)))
    chunk = (
        data.draw(st.integers(1, 3)), shape[1],
        data.draw(st.integers(1, shape[2])), data.draw(st.integers(1, shape[3])),
    )  # fmt: skip
    values = (100 * np.random.default_rng(0).normal(size=shape)).astype(dtype)
    folder = tmp_path_factory.mktemp("array")
    array = write(folder, values, chunk, chunk[0] * data.draw(st.integers(1, 3)))
    ranges = []
    for size in shape[: data.draw(st.integers(1, 4))]:
        start = data.draw(st.integers(0, size - 1))
        ranges.append(slice(start, data.draw(st.integers(start + 1, size))))
    found = array.read(*ranges)
    np.testing.assert_array_equal(found, values[tuple(ranges)])
    np.testing.assert_array_equal(found, zarr.open_group(folder, mode="r")["values"][tuple(ranges)])


def test_a_tile_reads_only_the_chunks_it_touches(array: ShardedArray, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[Path, int, int]] = []
    original = Shard.read_into

    def noted(self: Shard, buffer: memoryview, start: int) -> int:
        read.append((self.file, start, start + len(buffer)))
        return original(self, buffer, start)

    monkeypatch.setattr(Shard, "read_into", noted)
    # Rows 0 to 2 and columns 4 to 7 are one of 3 x 3 tiles; frames 1 to 4 are three chunks, in two shards.
    array.read(slice(1, 5), slice(0, 2), slice(0, 3), slice(4, 8))
    index = {part: array.open_shard(part).index for part in (0, 1)}
    wanted = [(0, (0, 0, 0, 1)), (0, (1, 0, 0, 1)), (1, (0, 0, 0, 1))]
    expected = [(part, *index[part][numbers].tolist()) for part, numbers in wanted]
    assert [(start, stop - start) for _, start, stop in read] == [(offset, length) for _, offset, length in expected]


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


@given(place=st.integers(0, 10**6))
def test_a_flipped_bit_is_found_by_whoever_reads_its_chunk(
    tmp_path_factory: pytest.TempPathFactory, values: npt.NDArray[np.float32], place: int
) -> None:
    folder = tmp_path_factory.mktemp("array")
    array = write(folder, values, CHUNK, SHARD_LENGTH)
    file = folder.joinpath("values", "c", "1", "0", "0", "0")
    size = file.stat().st_size
    flip(file, place % size)
    fresh = ShardedArray(path=array.path, shape=array.shape, dtype=array.dtype, chunk=array.chunk, shard=array.shard)
    index_bytes = 16 * math.prod((2, 1, 3, 3)) + 4
    with pytest.raises(UserError, match=r"c/1/0/0/0: cannot be read .*(chunk \(|index of its chunks).*damaged"):
        fresh.read(slice(4, 8))
    if place % size < size - index_bytes:
        # Every other chunk of the shard still reads.
        sound = {
            numbers for numbers in itertools.product(range(2), [0], range(3), range(3)) if reads(fresh, values, numbers)
        }
        assert len(sound) == 17


def reads(array: ShardedArray, values: npt.NDArray[np.float32], numbers: tuple[int, ...]) -> bool:
    """Whether a chunk of the second shard reads right; otherwise it is named."""
    corner = [number * size for number, size in zip(numbers, CHUNK, strict=True)]
    corner[0] += SHARD_LENGTH
    at = tuple(slice(low, min(low + n, size)) for low, n, size in zip(corner, CHUNK, SHAPE, strict=True))
    try:
        found = array.read(*at)
    except UserError as error:
        return f"chunk {numbers} is damaged" not in str(error)
    np.testing.assert_array_equal(found, values[at])
    return True


def test_a_missing_shard_is_named(array: ShardedArray) -> None:
    file = array.path.joinpath("c", "2", "0", "0", "0")
    file.unlink()
    with pytest.raises(UserError, match="c/2/0/0/0: is missing; stage it again with `hyperslab repair`"):
        array.read(slice(7, 9))


@pytest.mark.parametrize("kept", [0, 3, 100, -1])
def test_a_shard_that_was_cut_is_damaged(array: ShardedArray, kept: int) -> None:
    file = array.path.joinpath("c", "0", "0", "0", "0")
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"c/0/0/0/0: cannot be read .*the index of its chunks is damaged"):
        array.read(slice(0, 1))


def failing(times: int) -> Iterator[bool]:
    """True so many times."""
    yield from [True] * times
    yield from itertools.repeat(False)


@pytest.mark.parametrize("times", [1, 2])
def test_a_read_that_fails_now_and_then_is_tried_again(
    array: ShardedArray, values: npt.NDArray[np.float32], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, original = failing(times), Shard.read_into

    def flaky(self: Shard, buffer: memoryview, start: int) -> int:
        if next(state):
            raise OSError(5, "Input/output error")
        return original(self, buffer, start)

    monkeypatch.setattr(Shard, "read_into", flaky)
    np.testing.assert_array_equal(array.read(slice(0, 11)), values)


def test_a_read_that_goes_on_failing_names_the_shard_and_the_chunk(
    array: ShardedArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Shard, buffer: memoryview, start: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Shard, "read_into", broken)
    message = (
        r"values/c/0/0/0/0: cannot be read \(chunk \(1, 0, 2, 1\): \[Errno 5\] Input/output error\), tried 3 times; "
        "look at the file system, or mend the store with `hyperslab repair`"
    )
    # Frame 3 is in the second chunk of two frames, row 6 in the third of three, column 5 in the second of four.
    with pytest.raises(UserError, match=message):
        array.read(slice(3, 4), slice(0, 2), slice(6, 7), slice(5, 6))


@pytest.fixture
def watch() -> Iterator[Watch]:
    """What this thread reads, watched."""
    token = WATCH.set(Watch())
    yield WATCH.get()
    WATCH.reset(token)


def test_a_failed_read_is_tried_again_after_longer_and_longer_pauses(
    array: ShardedArray, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    pauses: list[float] = []

    def broken(self: Shard, buffer: memoryview, start: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Shard, "read_into", broken)
    monkeypatch.setattr(watch.over, "wait", pauses.append)
    with pytest.raises(UserError, match="tried 5 times"):
        array.read(slice(0, 1))
    assert pauses == [0.1, 0.5, 2.0, 5.0]


def test_a_file_handle_that_has_gone_stale_is_opened_anew(
    array: ShardedArray, values: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    stale, original = array.open_shard(0), Shard.read_into

    def read_into(self: Shard, buffer: memoryview, start: int) -> int:
        if self is stale:
            raise OSError(116, "Stale file handle")
        return original(self, buffer, start)

    monkeypatch.setattr(Shard, "read_into", read_into)
    np.testing.assert_array_equal(array.read(slice(0, 4)), values[:4])


def test_a_shard_that_is_opened_anew_is_read_by_its_new_index(
    tmp_path: Path, array: ShardedArray, values: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, replaced = Shard.read_into, [False]

    def read_into(self: Shard, buffer: memoryview, start: int) -> int:
        if not replaced[0]:
            # Staged again meanwhile: what compresses to nothing in the first chunk moves all the others.
            other = values.copy()
            other[0] = 0
            write(tmp_path, other, CHUNK, SHARD_LENGTH)
            replaced[0] = True
            raise OSError(116, "Stale file handle")
        return original(self, buffer, start)

    monkeypatch.setattr(Shard, "read_into", read_into)
    np.testing.assert_array_equal(array.read(slice(1, 4)), values[1:4])


def test_nothing_is_read_for_those_who_are_gone(array: ShardedArray, watch: Watch) -> None:
    watch.over.set()
    with pytest.raises(Unwanted):
        array.read(slice(0, 1))


def test_a_pause_ends_with_the_wish_to_read(array: ShardedArray, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "RETRY_SECONDS", (3600.0,))

    def broken(self: Shard, buffer: memoryview, start: int) -> int:
        threading.Timer(0.05, watch.over.set).start()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Shard, "read_into", broken)
    with pytest.raises(Unwanted):
        array.read(slice(0, 1))


def test_the_watch_says_what_is_read_and_when_an_answer_came(
    array: ShardedArray, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, said = Shard.read_into, []

    def read_into(self: Shard, buffer: memoryview, start: int) -> int:
        said.append(watch.in_flight())
        return original(self, buffer, start)

    monkeypatch.setattr(Shard, "read_into", read_into)
    began = time.monotonic()
    array.read(slice(4, 5))
    assert set(said) == {str(array.path / "c/1/0/0/0")}
    assert began <= watch.answered <= time.monotonic()
    assert watch.in_flight() == "a read"


@pytest.mark.parametrize("start", [0, 1, 2, 4, 11])
def test_an_empty_range_is_empty(array: ShardedArray, start: int) -> None:
    # Inside a chunk, between two, between two shards, and at the end.
    assert array.read(slice(start, start)).shape == (0, 2, 7, 9)
    assert list(array.touched(slice(start, start))) == []
    assert array.read(slice(0, 4), slice(0, 2), slice(3, 3)).shape == (4, 2, 0, 9)


def test_a_shard_of_another_size_than_was_staged_is_not_read(array: ShardedArray) -> None:
    first, second = (array.path.joinpath("c", str(part), "0", "0", "0") for part in (0, 1))
    sizes = [file.stat().st_size for file in (first, second)]
    assert sizes[0] != sizes[1]
    recorded = replace(array, staged_bytes=lambda part: sizes[part] if part < 2 else None)
    np.testing.assert_array_equal(recorded.read(slice(0, 11)), array.read(slice(0, 11)))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    swapped = replace(recorded)
    message = rf"c/0/0/0/0: cannot be read \(has {sizes[1]:,} bytes, {sizes[0]:,} were staged: it is another file"
    with pytest.raises(UserError, match=message):
        swapped.read(slice(0, 1))


def test_a_short_read_is_tried_again(
    array: ShardedArray, values: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, original = failing(1), os.preadv

    def short(handle: int, buffers: list[memoryview], offset: int) -> int:
        return original(handle, [buffers[0][: len(buffers[0]) // 2]] if next(state) else buffers, offset)

    monkeypatch.setattr(os, "preadv", short)
    np.testing.assert_array_equal(array.read(slice(0, 4)), values[:4])


def open_files(folder: Path) -> list[str]:
    """Files of a folder that this process has open."""
    return sorted(
        str(path.resolve().relative_to(folder))
        for path in Path("/proc/self/fd").iterdir()
        if str(path.resolve()).startswith(f"{folder}/")
    )


def test_a_process_keeps_only_so_many_shards_open(
    tmp_path: Path, values: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "MAX_OPEN_SHARDS", 3)
    first, second = (write(tmp_path / name, values, (1, 2, 7, 9), 1) for name in ("first", "second"))
    np.testing.assert_array_equal(first.read(slice(0, 11)), values)
    np.testing.assert_array_equal(second.read(slice(0, 2)), values[:2])
    # Those that were used last, of all arrays.
    assert open_files(tmp_path) == [
        "first/values/c/10/0/0/0", "second/values/c/0/0/0/0", "second/values/c/1/0/0/0",
    ]  # fmt: skip
    first.read(slice(10, 11))
    second.read(slice(5, 6))
    assert open_files(tmp_path) == [
        "first/values/c/10/0/0/0", "second/values/c/1/0/0/0", "second/values/c/5/0/0/0",
    ]  # fmt: skip


def test_far_fewer_shards_are_kept_open_than_files_may_be() -> None:
    # The soft limit of most systems is 1024 files.
    assert chunks.MAX_OPEN_SHARDS <= 1024 // 4


def test_the_shards_of_an_array_that_is_gone_are_closed(tmp_path: Path, values: npt.NDArray[np.float32]) -> None:
    array = write(tmp_path, values, CHUNK, SHARD_LENGTH)
    array.read(slice(0, 11))
    assert len(open_files(tmp_path)) == 3
    del array
    gc.collect()
    assert open_files(tmp_path) == []


def test_many_threads_share_the_few_shards_that_are_open(
    tmp_path: Path, values: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "MAX_OPEN_SHARDS", 2)
    array = write(tmp_path, values, (1, 2, 7, 9), 1)
    wrong: list[object] = []

    def read(seed: int) -> None:
        try:
            for frame in np.random.default_rng(seed).integers(0, 11, 200).tolist():
                np.testing.assert_array_equal(array.read(slice(frame, frame + 1))[0], values[frame])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(open_files(tmp_path)) <= 2
