import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.data.files import file_digest
from hyperslab.data.recipe import ArrayPlan
from hyperslab.data.shard import COMPRESSORS, ShardWriter, fill_value, reread_digest


def write(folder: Path, plan: ArrayPlan, values: npt.NDArray[np.float32], step: int) -> zarr.Array:
    """Write an array shard by shard, some rows at a time, and open it with Zarr-Python."""
    group = zarr.create_group(folder, zarr_format=3, overwrite=True)
    array = group.create_array(
        plan.name, shape=plan.shape, chunks=plan.chunk, shards=plan.shard, dtype=plan.dtype,
        fill_value=fill_value(plan), compressors=COMPRESSORS,
    )  # fmt: skip
    for part in range(math.ceil(plan.shape[0] / plan.shard_length)):
        path = folder.joinpath(plan.name, "c", str(part), *["0"] * (len(plan.shape) - 1))
        stop = min(plan.shape[0], (part + 1) * plan.shard_length)
        with ShardWriter(path, plan) as writer:
            for start in range(part * plan.shard_length, stop, step):
                writer.append(values[start : min(start + step, stop)])
            assert writer.close() == file_digest(path) == reread_digest(path)
    return array


@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
    chunk=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
    chunks_in_shard=st.integers(1, 3),
    step=st.integers(1, 4),
)
def test_zarr_reads_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    shape: tuple[int, ...],
    chunk: tuple[int, int, int],
    chunks_in_shard: int,
    step: int,
) -> None:
    plan = ArrayPlan(
        name="values", dimensions=("frame", "channel", "y", "x"), shape=shape, dtype="float32",
        chunk=(chunk[0], shape[1], min(chunk[1], shape[2]), min(chunk[2], shape[3])),
        shard_length=chunk[0] * chunks_in_shard,
    )  # fmt: skip
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    array = write(tmp_path_factory.mktemp("array"), plan, values, step)
    np.testing.assert_array_equal(array[:], values)
    np.testing.assert_array_equal(array[-1], values[-1])


def plan_of(length: int = 4) -> ArrayPlan:
    return ArrayPlan(
        name="values", dimensions=("frame", "x"), shape=(length, 3), dtype="float32", chunk=(1, 3), shard_length=length
    )


def test_the_bytes_do_not_depend_on_how_rows_are_handed_over(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    digests = set()
    for number, pieces in enumerate(([4], [1, 3], [2, 1, 1])):
        with ShardWriter(tmp_path / str(number), plan_of()) as writer:
            for start, size in zip(np.cumsum([0, *pieces]), pieces, strict=False):
                writer.append(values[start : start + size])
            digests.add(writer.close())
    assert len(digests) == 1


def test_a_shard_that_is_not_closed_leaves_nothing_behind(tmp_path: Path) -> None:
    def break_off() -> None:
        with ShardWriter(tmp_path / "0", plan_of()) as writer:
            writer.append(np.zeros((2, 3), np.float32))
            raise RuntimeError("the raw file broke")

    with pytest.raises(RuntimeError, match="the raw file broke"):
        break_off()
    assert list(tmp_path.iterdir()) == []


def test_a_shard_takes_the_place_of_an_old_one_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "0"
    path.write_bytes(b"old")
    with ShardWriter(path, plan_of()) as writer:
        writer.append(np.zeros((4, 3), np.float32))
        assert path.read_bytes() == b"old"
        writer.close()
    assert path.stat().st_size > 3
