"""Damaged files: a clear line or a result of the right form, never a traceback or a crash of the process."""

import json
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperslab.data.config import DataSettings
from hyperslab.data.sources.index import Index
from hyperslab.data.sources.lartpc.source import SOURCE
from hyperslab.errors import UserError
from tests.data.sources.lartpc import raw_files

TIMEOUT_SECONDS = 20
FINE, REFUSED, BROKEN = 0, 3, 4


def _compressed_segments(path: Path) -> None:
    table = raw_files.write_segments(path, [0, 0, 1, 1, 1, 2] * 50)
    with h5py.File(path, "w") as file:
        file.create_dataset("segments", data=table, chunks=(40,), compression="gzip", fletcher32=True)


def _packets(path: Path) -> None:
    table = raw_files.noise(50, raw_files.PACKET_FIELDS)
    table["packet_type"] = np.arange(50) % 9 // 2
    raw_files.write_packets(path, table)


def _cloud(path: Path) -> None:
    columns = {name: np.arange(20.0) for name in ("x", "y", "z", "Q")}
    raw_files.write_npz(path, {"event_id": np.arange(20) // 6, **columns}, compressed=True)


def _depos(path: Path) -> None:
    raw_files.write_npz(path, {"depo_data_0": np.ones((7, 5)), "depo_info_0": np.ones((4, 5), int)})


def _frames(path: Path) -> None:
    raw_files.write_tar(path, {**raw_files.frame_arrays(1), **raw_files.frame_arrays(2)})


GOOD: dict[str, Callable[[Path], object]] = {
    "segments.h5": lambda path: raw_files.write_segments(path, [0, 0, 1, 1, 1, 2] * 5),
    "compressed.h5": _compressed_segments,
    "columns.h5": lambda path: raw_files.write_columns(path, [0, 0, 1, 1]),
    "flow.h5": lambda path: raw_files.write_flow(path, [(0, 0), (0, 1), (1, 2), (2, 3), (2, 4)], 3, 5),
    "packets.h5": _packets,
    "events.h5": lambda path: raw_files.write_event_display(path, [slice(0, 3), slice(3, 7), None], 8),
    "readout.h5": lambda path: raw_files.write_readout(path, {"batch_0/event_3": 3, "batch_0/event_10": 2}),
    "pilarnet.h5": lambda path: raw_files.write_pilarnet(path, [[3, 2], [4]]),
    "cloud.npz": _cloud,
    "depos.npz": _depos,
    "frames.tar": _frames,
    "frames.tar.gz": _frames,
    "frames.tar.bz2": _frames,
    "frames.tar.xz": _frames,
    "map.gz": raw_files.write_pixel_map,
}


@st.composite
def _damage(draw: st.DrawFn) -> Callable[[bytearray], bytearray]:
    kind = draw(st.sampled_from(["cut", "flip", "overwrite", "empty"]))
    places = draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4))
    bit, filling = draw(st.integers(0, 7)), draw(st.binary(min_size=1, max_size=40))

    def apply(data: bytearray) -> bytearray:
        spots = [int(place * len(data)) for place in places]
        if kind == "cut":
            return data[: spots[0]]
        for spot in spots:
            if kind == "flip":
                data[spot] ^= 1 << bit
            elif kind == "overwrite":
                data[spot : spot + len(filling)] = filling
        return data if kind != "empty" else bytearray()

    return apply


def _try(path: Path) -> int:
    """Look at a file in every way; what came of it as an exit code."""
    message = ""
    try:
        SOURCE.describe(str(path))
        index = SOURCE.scan([str(path)], DataSettings(files=["raw"]))
        index = Index.from_json(json.loads(json.dumps(index.to_json())))
        block = SOURCE.read(index, 0, len(index.time))
        if index.is_ragged:
            assert block["position"].shape == (index.total_points, len(index.space))
            assert block["feature"].shape == (index.total_points, len(index.channels))
        else:
            assert block["values"].shape == index.shape
    except UserError as error:
        message = str(error)
    if not message:
        return FINE
    assert message.startswith((str(path), str(path.with_suffix(".info"))))
    assert "\n" not in message
    return REFUSED


def _try_in_a_child(path: Path) -> int:
    child = os.fork()
    if child == 0:
        code = BROKEN
        try:
            signal.alarm(TIMEOUT_SECONDS)  # ends the child, whatever it does
            code = _try(path)
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("name", GOOD)
def test_a_good_file_is_read(tmp_path: Path, name: str) -> None:
    GOOD[name](tmp_path / name)
    assert _try(tmp_path / name) == FINE


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork in a process with threads
@pytest.mark.parametrize("name", GOOD)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=_damage())
def test_a_damaged_file_never_ends_in_a_traceback_or_a_crash(
    tmp_path: Path, name: str, damage: Callable[[bytearray], bytearray]
) -> None:
    good, bad = tmp_path / name, tmp_path / f"bad_{name}"
    if not good.exists():
        GOOD[name](good)
    bad.write_bytes(damage(bytearray(good.read_bytes())))
    assert _try_in_a_child(bad) in (FINE, REFUSED)
