import zlib
from pathlib import Path

import numpy as np
import pytest

from hyperslab.data.sources.lartpc.source import SOURCE
from hyperslab.errors import UserError
from tests.data.sources.lartpc.raw_files import INFO_LINES, write_pixel_map
from tests.data.sources.lartpc.reading import read, scan


def test_a_file_is_a_frame_of_three_views_with_its_truth_beside(tmp_path: Path) -> None:
    images = [write_pixel_map(tmp_path / f"event_{n}.gz", np.full((3, 500, 500), n, np.uint8)) for n in (3, 7)]
    # A pattern names the truth, too: it is passed over.
    index = scan(*sorted(tmp_path.iterdir()))
    values = read(index)["values"]
    assert np.array_equal(values, np.stack(images))
    assert [channel.name for channel in index.channels] == ["view0", "view1", "view2"]
    assert index.space_shape == (500, 500)
    assert index.frame_labels["event_id"] == ("event_3", "event_7")
    assert index.frame_labels["nu_pdg"] == (14, 14)
    assert index.frame_labels["nu_energy_gev"] == (2.5, 2.5)
    assert index.frame_labels["num_hits"] == (321, 321)
    assert len(index.frame_labels) == 2 + len(INFO_LINES)


def test_a_directory_stands_for_its_files(tmp_path: Path) -> None:
    for number in range(3):
        write_pixel_map(tmp_path / f"event_{number}.gz")
    assert scan(tmp_path).frame_labels["event_id"] == ("event_0", "event_1", "event_2")


def test_one_view_may_be_taken(tmp_path: Path) -> None:
    image = write_pixel_map(tmp_path / "a.gz")
    assert np.array_equal(read(scan(tmp_path / "a.gz", variables=["view2"]))["values"][0, 0], image[2])


def test_early_truth_without_the_last_two_lines_is_read(tmp_path: Path) -> None:
    write_pixel_map(tmp_path / "a.gz", info=INFO_LINES[:14])
    labels = scan(tmp_path / "a.gz").frame_labels
    assert labels["topology_alt"] == (11,)
    assert "num_hits" not in labels


def test_truth_that_not_all_have_is_left_out_and_told(tmp_path: Path) -> None:
    write_pixel_map(tmp_path / "a.gz")
    write_pixel_map(tmp_path / "b.gz", info=None)
    index = scan(tmp_path / "a.gz", tmp_path / "b.gz")
    assert set(index.frame_labels) == {"file", "event_id"}
    told = "\n".join(index.oddities)
    assert "b.gz: no b.info beside it: there is no truth" in told
    assert "facts about events that not all files have are left out: event_weight" in told


@pytest.mark.parametrize(("info", "words"), [((1, 2), "has 2 values"), (("x",) * 14, "cannot be read as CVN's truth")])
def test_truth_of_another_form_is_refused(tmp_path: Path, info: tuple[float, ...], words: str) -> None:
    write_pixel_map(tmp_path / "a.gz", info=info)
    with pytest.raises(UserError, match=rf"a\.info: {words}"):
        scan(tmp_path / "a.gz")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (zlib.compress(bytes(10)), "holds 10 bytes, not the 750,000"),
        (zlib.compress(bytes(800_000)), "holds more bytes, not the 750,000"),
        (zlib.compress(bytes(750_000))[:-2], "is cut short"),
        (b"\x78\x9c" + b"\xff" * 20, "cannot be unpacked"),
    ],
)
def test_an_image_of_another_size_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.gz").write_bytes(content)
    index = scan(tmp_path / "a.gz")
    with pytest.raises(UserError, match=words):
        SOURCE.read(index, 0, 1)
