import io
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from hyperslab.data.sources.synthetic import lartpc
from tests.data.sources.synthetic.orders import digests, order, size_of

EVENTS, HITS = "charge/events", "charge/calib_prompt_hits"


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return lartpc.write(order(tmp_path_factory.mktemp("flow"), 4_000_000, "flow"))


@pytest.mark.parametrize(("form", "size"), [("flow", 10**6), ("flow", 10**7), ("segments", 10**7), ("frames", 10**7)])
def test_the_archive_has_the_size_that_was_asked_for(form: str, size: int, tmp_path: Path) -> None:
    lartpc.write(order(tmp_path, size, form))
    assert size_of(tmp_path) == pytest.approx(size, rel=0.2)


def test_references_lead_from_each_event_to_its_hits(flow: list[Path]) -> None:
    with h5py.File(flow[0]) as file:
        events, hits = file[f"{EVENTS}/data"][:], file[f"{HITS}/data"][:]
        ref, region = file[f"{EVENTS}/ref/{HITS}/ref"][:], file[f"{EVENTS}/ref/{HITS}/ref_region"][:]
        back = file[f"{HITS}/ref/{EVENTS}/ref_region"][:]
    assert len(events) == len(region) > 5
    assert len(hits) == len(ref) == len(back)
    for number, event in enumerate(events):
        own = ref[region["start"][number] : region["stop"][number]]
        assert len(own) == event["nhit"]
        assert (own[:, 0] == number).all()
        assert hits["Q"][own[:, 1]].sum() == pytest.approx(event["ADC"])
    np.testing.assert_array_equal(ref[back["start"], 1], np.arange(len(hits)))
    assert (hits["id"] == np.arange(len(hits))).all()


def test_references_name_both_tables_as_h5flow_does(flow: list[Path]) -> None:
    with h5py.File(flow[0]) as file:
        attributes = dict(file[f"{EVENTS}/ref/{HITS}/ref"].attrs)
        assert attributes["dset0"] == f"/{EVENTS}/data"
        assert attributes["dset1"] == f"/{HITS}/data"
        for side in (0, 1):
            region = file[attributes[f"ref_region{side}"]]
            assert file[region.attrs["ref"]].name == f"/{EVENTS}/ref/{HITS}/ref"


def test_the_truth_of_hits_leads_to_segments_of_the_same_event(flow: list[Path]) -> None:
    with h5py.File(flow[0]) as file:
        segments = file["mc_truth/segments/data"][:]
        truth = file["mc_truth/calib_prompt_hit_backtrack/data"][:]
        ref = file[f"{EVENTS}/ref/{HITS}/ref"][:]
        hits = file[f"{HITS}/data"][:]
    event_of_hit = ref[np.argsort(ref[:, 1]), 0]
    assert (segments["segment_id"] == np.arange(len(segments))).all()
    first = truth["segment_ids"][:, 0]
    assert (first >= 0).all()
    assert (segments["event_id"][first] == event_of_hit).all()
    np.testing.assert_allclose(truth["fraction"].sum(axis=1), 1, atol=1e-5)
    # The segment that gave most lies within a pixel, its own length and the integration time of its hit.
    assert np.abs(segments["y"][first] - hits["y"]).max() < 1.0
    assert np.abs(segments["x"][first] - hits["x"]).max() < 1.0


def test_positions_follow_from_the_drift_time(flow: list[Path]) -> None:
    with h5py.File(flow[0]) as file:
        hits = file[f"{HITS}/data"][:]
        velocity_mm_us = file["lar_info"].attrs["v_drift"]
    side = np.where(hits["io_group"] == 2, 1, -1)
    np.testing.assert_allclose(side * (30.27 - hits["t_drift"] * 0.1 * velocity_mm_us / 10), hits["x"])


def test_files_are_different_and_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for form in lartpc_forms():
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            lartpc.write(order(tmp_path / form / name, 2_500_000, form, seed=seed))
        first, again, other = (digests(tmp_path / form / name) for name in "abc")
        assert first == again
        assert set(first) == set(other)
        assert not set(first.values()) & set(other.values())
        assert len(set(first.values())) == len(first) == 2


def lartpc_forms() -> tuple[str, ...]:
    return ("flow", "segments", "frames")


def test_segments_stand_in_one_table_with_a_fresh_number_each(tmp_path: Path) -> None:
    (path,) = lartpc.write(order(tmp_path, 500_000, "segments"))
    with h5py.File(path) as file:
        segments = file["segments"][:]
    assert segments.dtype.names is not None
    assert {"event_id", "traj_id", "pdg_id", "x_start", "n_electrons", "dEdx"} <= set(segments.dtype.names)
    assert len(set(segments["segment_id"])) == len(segments)


def test_frames_are_mostly_empty_and_never_negative(tmp_path: Path) -> None:
    (path,) = lartpc.write(order(tmp_path, 400_000, "frames"))
    with tarfile.open(path) as archive:
        names = archive.getnames()
        member = archive.extractfile(names[0])
        assert member is not None
        frame = np.load(io.BytesIO(member.read()), allow_pickle=False)
    assert frame.dtype == np.float32
    assert frame.min() == 0
    assert 0.0001 < (frame > 0).mean() < 0.2
    assert len(names) % 3 == 0
