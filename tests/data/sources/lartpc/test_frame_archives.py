from pathlib import Path

import numpy as np
import pytest

from hyperslab.data.sources.lartpc import frame_archives
from hyperslab.data.sources.lartpc.source import SOURCE
from hyperslab.errors import UserError
from tests.data.sources.lartpc.raw_files import frame_arrays, write_npz, write_tar
from tests.data.sources.lartpc.reading import read, scan


@pytest.mark.parametrize("name", ["a.tar", "a.tar.bz2", "a.tar.gz", "a.tar.xz", "a.npz"])
def test_a_tag_is_a_channel_and_an_ident_an_event(tmp_path: Path, name: str) -> None:
    arrays = {**frame_arrays(12), **frame_arrays(7, tickinfo=(1500, 500, 0))}
    arrays["chanmask_bad_12"] = np.asarray([[11, 0, 4], [11111, 0, 4]], np.int32)
    arrays["summary_gauss0_12"] = np.zeros(3)
    arrays["notes_of_someone"] = np.zeros(1)
    if name.endswith("npz"):
        write_npz(tmp_path / name, arrays)
    else:
        write_tar(tmp_path / name, arrays)
    index = scan(tmp_path / name)
    values = read(index)["values"]
    assert [channel.name for channel in index.channels] == ["gauss0", "wiener0"]
    assert index.axis("wire").values == (10.0, 11.0, 12.0)  # type: ignore[union-attr]
    assert index.axis("tick").values == (0.0, 0.5, 1.0, 1.5)  # type: ignore[union-attr]
    assert index.frame_labels["event_id"] == (12, 7)
    assert index.frame_labels["start_us"] == (0.0, 1.5)
    assert index.frame_labels["mask_bad"] == ("11", "")
    assert index.attributes["tick_ns"] == 500.0
    assert index.split_by == "segment"
    for frame, ident in enumerate((12, 7)):
        for channel, tag in enumerate(("gauss0", "wiener0")):
            assert np.array_equal(values[frame, channel], arrays[f"frame_{tag}_{ident}"])
    told = "\n".join(index.oddities)
    assert "tick: 500 ns, as the file states" in told
    assert "1 of 2 masked stretches lie on wires of the frames" in told
    assert "left out: notes_of_someone.npy" in told


def test_one_tag_and_some_wires_may_be_taken(tmp_path: Path) -> None:
    arrays = frame_arrays(1)
    write_tar(tmp_path / "a.tar", arrays)
    index = scan(tmp_path / "a.tar", variables=["wiener0"], lartpc={"wires": [11, 12], "tick_ns": 500})
    assert np.array_equal(read(index)["values"][0, 0], arrays["frame_wiener0_1"][1:])
    with pytest.raises(UserError, match=r"unknown variable 'raw0'; .* holds gauss0, wiener0"):
        scan(tmp_path / "a.tar", variables=["raw0"])


def test_adc_counts_become_float32(tmp_path: Path) -> None:
    arrays = frame_arrays(1, ["raw0"])
    arrays["frame_raw0_1"] = np.arange(12, dtype=np.int16).reshape(3, 4)
    write_tar(tmp_path / "a.tar", arrays)
    assert read(scan(tmp_path / "a.tar"))["values"].ravel().tolist() == list(range(12))


def test_a_tag_may_hold_underscores(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", frame_arrays(3, ["lf_noisy0"]))
    assert [channel.name for channel in scan(tmp_path / "a.tar").channels] == ["lf_noisy0"]


@pytest.mark.parametrize(
    "other", [{"tickinfo": (0, 512, 0)}, {"first_channel": 20}, {"shape": (3, 5)}, {"tickinfo": (0, 500, 1)}]
)
def test_events_of_different_wires_or_ticks_are_refused(tmp_path: Path, other: dict[str, object]) -> None:
    write_tar(tmp_path / "a.tar", {**frame_arrays(1), **frame_arrays(2, **other)})  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"event 2 has 3 wires .* event 1 has 3 wires from 10 and 4 ticks of 500 ns"):
        scan(tmp_path / "a.tar")


def test_archives_of_different_ticks_are_refused_with_both_names(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", frame_arrays(1))
    write_tar(tmp_path / "b.tar", frame_arrays(2, tickinfo=(0, 512, 0)))
    with pytest.raises(UserError, match=r"b\.tar: differs from .*a\.tar: .*wire 3 .* tick 4"):
        scan(tmp_path / "a.tar", tmp_path / "b.tar")


def test_compressed_archives_ask_to_be_read_many_frames_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {name: values for ident in range(5) for name, values in frame_arrays(ident).items()}
    # A frame has 2 tags of 3 x 4 values of 4 bytes: 96 bytes.
    monkeypatch.setattr(frame_archives, "BLOCK_BYTES", 300)
    assert scan(write_tar(tmp_path / "a.tar", arrays)).block_frames == 1
    assert scan(write_tar(tmp_path / "a.tar.gz", arrays)).block_frames == 3


def test_missing_values_are_kept_and_counted(tmp_path: Path) -> None:
    arrays = frame_arrays(1, ["raw0"])
    arrays["frame_raw0_1"][0, 1] = np.nan
    write_tar(tmp_path / "a.tar", arrays)
    assert np.isnan(read(scan(tmp_path / "a.tar"))["values"][0, 0, 0, 1])
    assert "1 of 12 values are NaN or infinite: kept as they are" in SOURCE.describe(str(tmp_path / "a.tar")).oddities


def test_an_archive_without_frames_is_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"depo_data_0": np.zeros((7, 2)), "chanmask_bad_0": np.zeros((0, 3), int)})
    with pytest.raises(UserError, match=r"holds no frame_TAG_IDENT\.npy \(depo_data_0\.npy\)"):
        scan(tmp_path / "a.tar")


def test_a_mask_of_another_form_is_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {**frame_arrays(1), "chanmask_bad_1": np.zeros((2, 2), int)})
    with pytest.raises(UserError, match=r"chanmask_bad_1.npy is .* not rows of channel, start, stop"):
        scan(tmp_path / "a.tar")
