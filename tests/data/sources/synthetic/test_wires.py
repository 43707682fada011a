import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from hyperslab.data.sources.synthetic.drift import Clouds
from hyperslab.data.sources.synthetic.wires import WIRES, FrameArchive, image, num_ticks, planes


def clouds(y: float, z: float, drift_us: float, charge_ke: float = 100.0, side: int = 0) -> Clouds:
    zero = np.array([0])
    return Clouds(zero, zero, np.array([side]), *(np.array([value]) for value in (y, z, drift_us, charge_ke)))


def test_charge_is_found_on_one_wire_of_each_plane_at_its_tick() -> None:
    frame = image(WIRES, clouds(10.0, -20.0, 200.0), np.random.default_rng(0))
    counts = [plane.num_wires for plane in planes(WIRES.box)]
    assert frame.shape == (sum(counts), num_ticks(WIRES))
    wires = np.flatnonzero(frame.any(axis=1))
    assert len(wires) == 3
    # 200 us at 0.5 us a tick; noise moves the highest tick by one at most.
    assert np.abs(frame[wires].argmax(axis=1) - 400).max() <= 1
    # Plane W has vertical wires 0.3 cm apart from z = -60: (-20 + 60) / 0.3 = 133.3.
    assert wires[2] - counts[0] - counts[1] == 133


def test_a_pulse_keeps_its_charge() -> None:
    quiet = type(WIRES)(box=WIRES.box, noise_ke=0.0)
    frame = image(quiet, clouds(0.0, 0.0, 100.0, charge_ke=50.0), np.random.default_rng(0))
    # In electrons, once in each of three planes.
    assert frame.sum() == pytest.approx(3 * 50_000, rel=1e-5)


def test_what_drifts_to_the_other_anode_is_not_in_the_image() -> None:
    assert not image(WIRES, clouds(0.0, 0.0, 100.0, side=1), np.random.default_rng(0)).any()


def test_the_archive_holds_the_three_arrays_of_each_event(tmp_path: Path) -> None:
    frame = np.arange(12, dtype=np.float32).reshape(3, 4)
    with FrameArchive.create(tmp_path / "frames.tar.gz") as file:
        file.append(5, frame)
        file.append(6, frame + 1)
        assert file.size_bytes > 0
    with tarfile.open(tmp_path / "frames.tar.gz") as archive:
        held = {m.name: np.load(io.BytesIO(archive.extractfile(m).read()), allow_pickle=False) for m in archive}  # type: ignore[union-attr]
    assert list(held)[:3] == ["frame_gauss0_5.npy", "channels_gauss0_5.npy", "tickinfo_gauss0_5.npy"]
    np.testing.assert_array_equal(held["frame_gauss0_6.npy"], frame + 1)
    assert held["channels_gauss0_5.npy"].tolist() == [0, 1, 2]
    assert held["tickinfo_gauss0_5.npy"].tolist() == [0.0, 500.0, 0.0]
