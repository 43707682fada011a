"""Every sample file: what h5py and numpy read of it, or one clear line."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from hyperslab.data.sources import Block
from hyperslab.data.sources.index import Index
from hyperslab.data.sources.lartpc.source import SOURCE
from hyperslab.errors import UserError
from tests.data.sources.lartpc.reading import feature, label, read, scan

EDEP_FEATURES = ["dE", "dEdx", "dx", "n_electrons", "t", "t_start", "t_end", "tran_diff", "long_diff"]
ENDS = [f"{axis}_{end}" for axis in "xyz" for end in ("start", "end")]


def _by_event(events: np.ndarray) -> np.ndarray:
    """Rows, event after event as they first come, in the order of the file."""
    return np.concatenate([np.flatnonzero(events == event) for event in dict.fromkeys(events.tolist())])


def _segments(path: Path, index: Index, block: Block) -> None:
    with h5py.File(path) as file:
        table = file["segments"][:]
    rows = _by_event(table["eventID"])
    assert index.frame_labels["event_id"] == tuple(dict.fromkeys(table["eventID"].tolist()))
    for number, axis in enumerate("xyz"):
        assert np.array_equal(block["position"][:, number], table[axis][rows])
    wanted = {*EDEP_FEATURES, *ENDS} | {name for name in table.dtype.names if name.startswith(("t0", "n_photons"))}
    assert {channel.name for channel in index.channels} == wanted
    for name in wanted:
        assert np.array_equal(feature(index, block, name), table[name][rows].astype(np.float32))
    for name in ("trackID", "pdgId", "pixel_plane"):
        assert np.array_equal(label(index, block, name), table[name][rows])
    assert {channel.name: channel.units for channel in index.channels}["dE"] == "MeV"


def _columns(path: Path, index: Index, block: Block) -> None:
    with h5py.File(path) as file:
        table = {name: file[name][:] for name in file}
    assert index.points == (100,) * 20
    middle = (table["StartZPos"].astype(np.float64) + table["EndZPos"]) / 2
    assert np.array_equal(block["position"][:, 2], middle.astype(np.float32))
    assert np.array_equal(feature(index, block, "EnergyDep"), table["EnergyDep"])
    assert np.array_equal(label(index, block, "TrackID"), table["TrackID"])


def _packets(path: Path, index: Index, block: Block) -> None:
    with h5py.File(path) as file:
        table = file["packets"][:]
    good = table[(table["packet_type"] == 0) & (table["valid_parity"] == 1)]
    assert index.points == (len(good),) == (12_200,)
    assert np.array_equal(block["position"][:, 3], good["channel_id"])
    assert np.array_equal(feature(index, block, "dataword"), good["dataword"])
    assert np.array_equal(label(index, block, "timestamp"), good["timestamp"].astype(np.int64))
    assert any("1 timestamp" in line for line in index.oddities)


def _event_display(path: Path, index: Index, block: Block) -> None:
    with h5py.File(path) as file:
        hits = [file["hits"][event["hit_ref"]] for event in file["events"][:]]
    table = np.concatenate(hits)
    assert index.points == tuple(map(len, hits))
    assert np.array_equal(block["position"][:, 0], (table["px"] * 0.1).astype(np.float32))
    times = np.concatenate([(event["ts"] - event["ts"].min()) * 0.1 for event in hits])
    assert np.array_equal(block["position"][:, 2], times.astype(np.float32))
    assert np.array_equal(feature(index, block, "q"), table["q"].astype(np.float32))
    assert np.array_equal(label(index, block, "ts"), table["ts"])
    assert "2,187 of 10,743 hits have a negative q: kept as it is" in SOURCE.describe(str(path)).oddities


def _readout(path: Path, index: Index, block: Block) -> None:
    with h5py.File(path) as file:
        groups = sorted((int(b[6:]), int(e[6:]), f"{b}/{e}") for b in file for e in file[b])
        events = [file[name] for _, _, name in groups]
        assert index.frame_labels["event_id"] == tuple(int(event["eventID"][0]) for event in events)
        assert np.array_equal(block["position"][:, 1], np.concatenate([event["pix_y"][:] for event in events]))
        for name in ("Q", "adc", "adc_clean", "ticks"):
            assert np.array_equal(feature(index, block, name), np.concatenate([event[name][:] for event in events]))
        assert np.array_equal(label(index, block, "pixels"), np.concatenate([event["pixels"][:] for event in events]))


def _cloud(path: Path, index: Index, block: Block) -> None:
    with np.load(path) as arrays:
        rows = _by_event(arrays["event_id"])
        for number, axis in enumerate("xyz"):
            assert np.array_equal(block["position"][:, number], arrays[axis][rows])
        for name in ("adcs", "Q", "ticks"):
            assert np.array_equal(feature(index, block, name), arrays[name][rows])


def _depos(path: Path, index: Index, block: Block) -> None:
    with np.load(path) as arrays:
        data, info = arrays["depo_data_0"].astype(np.float64), arrays["depo_info_0"]
    assert np.array_equal(block["position"], (data[2:5] * 0.1).T.astype(np.float32))
    assert np.array_equal(feature(index, block, "t"), (data[0] * 1e-3).astype(np.float32))
    assert np.array_equal(feature(index, block, "q"), data[1].astype(np.float32))
    assert np.array_equal(block["labels"], info.T)


def _frames(path: Path, index: Index, block: Block) -> None:
    with tarfile.open(path) as archive:
        arrays = {member.name: np.load(io.BytesIO(archive.extractfile(member).read())) for member in archive}  # type: ignore[union-attr]
    ident = index.frame_labels["event_id"][0]
    for number, channel in enumerate(index.channels):
        assert np.array_equal(block["values"][0, number], arrays[f"frame_{channel.name}_{ident}.npy"])
        assert index.space[0].values == tuple(arrays[f"channels_{channel.name}_{ident}.npy"].tolist())
    assert index.attributes["tick_ns"] == 500
    assert index.space[1].values[:3] == (0.0, 0.5, 1.0)
    mask = arrays[f"chanmask_bad_{ident}.npy"]
    masked = [str(row[0]) for row in mask if row[0] in index.space[0].values]
    assert index.frame_labels["mask_bad"] == (" ".join(masked),)


TAKEN: dict[str, Callable[[Path, Index, Block], None]] = {
    "FakeTrackDataSet.h5": _columns,
    "edepsim_test_inputs.h5": _segments,
    "jax_input_0.h5": _segments,
    "jax_input_0_shifted_y.h5": _segments,
    "jax_input_1.h5": _segments,
    "jax_output_0_v3.h5": _readout,
    "jax_output_lut_1.npz": _cloud,
    "larpix_evd_qc_tpc.h5": _event_display,
    "larpix_packets_v2.3_10k.h5": _packets,
    "module0_corsika.edep.h5": _segments,
    "muon-depos.npz": _depos,
    "protodunehd-sp-frames-anode1.tar.bz2": _frames,
    "protodunevd-sp-frames-anode7-tick500.tar.bz2": _frames,
}
PACMAN = r"holds raw PACMAN messages; convert it with larpix-control: `convert_rawhdf5_to_hdf5\.py"
REFUSED = {
    "TestLArNDSim.lfs-pointer.h5": r"is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`",
    "binary-2023_07_07_16_25_PDT.h5": PACMAN,
    "binary-2023_07_07_16_30_PDT.h5": PACMAN,
    "binary-2023_07_07_16_33_PDT.h5": PACMAN,
    "binary-2023_07_07_16_37_PDT.h5": PACMAN,
    "jax_output_0_v1.h5": "is larnd-sim-jax readout without events and positions",
    "jax_output_2_v1.h5": "is larnd-sim-jax readout without events and positions",
    "larpixdisplay_test.json": "is JSON: lists of hits without names of their columns, units or events",
    "light_noise-module0.npy": "is a single numpy array without events",
    "module0-fake_thresholds-12ke.npz": r"its arrays \(default, keys, values\) are no events",
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_sample_gives_what_its_library_reads(shared_samples: Path, name: str) -> None:
    path = shared_samples / "lartpc" / name
    index = scan(path)
    TAKEN[name](path, index, read(index))
    assert SOURCE.describe(str(path)).taken


@pytest.mark.parametrize("name", REFUSED)
def test_a_sample_without_events_is_refused_in_one_clear_line(shared_samples: Path, name: str) -> None:
    path = shared_samples / "lartpc" / name
    for look in (lambda: SOURCE.describe(str(path)), lambda: scan(path)):
        with pytest.raises(UserError, match=REFUSED[name]) as caught:
            look()
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


def test_every_sample_of_the_folder_is_tried(shared_samples: Path) -> None:
    assert {path.name for path in (shared_samples / "lartpc").iterdir()} == set(TAKEN) | set(REFUSED)


def test_samples_of_one_layout_are_an_archive(shared_samples: Path) -> None:
    folder = shared_samples / "lartpc"
    index = scan(folder / "jax_input_0.h5", folder / "jax_input_1.h5")
    assert index.total_points == 168 + 120
    read(index)
    with pytest.raises(UserError, match=r"edepsim_test_inputs.h5: differs from .*corsika.*more channels \(n_photons\)"):
        scan(folder / "module0_corsika.edep.h5", folder / "edepsim_test_inputs.h5")
    wanted = ["dE", "dx", "dEdx"]
    index = scan(folder / "module0_corsika.edep.h5", folder / "edepsim_test_inputs.h5", variables=wanted)
    assert read(index)["feature"].shape == (1095 + 2736, 3)


def test_a_tick_other_than_the_detectors_is_refused(shared_samples: Path) -> None:
    path = shared_samples / "lartpc" / "protodunehd-sp-frames-anode1.tar.bz2"
    assert scan(path, lartpc={"tick_ns": 500}).shape == (1, 2, 2560, 5999)
    with pytest.raises(UserError, match=r"states a tick of 500 ns, data.lartpc.tick_ns is 512 ns"):
        scan(path, lartpc={"tick_ns": 512})
