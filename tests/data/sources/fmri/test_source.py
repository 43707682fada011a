import multiprocessing

import numpy as np
import pytest

from hyperslab.data.sources import source_of
from hyperslab.data.sources.fmri.source import Fmri
from hyperslab.errors import UserError
from tests.data.sources.fmri.raw import FRAMES, SHAPE, read, scan, series, write_json, write_nifti, write_table


def test_the_source_is_found_by_its_name():
    assert isinstance(source_of("fmri"), Fmri)


def test_a_file_is_described_in_words(tmp_path):
    path = write_nifti(tmp_path / "sub-01_ses-a_task-rest_run-2_bold.nii.gz")
    description = Fmri().describe(str(path))
    assert description.kind.startswith("NIfTI-1, float32, 5 x 4 x 3 x 8, ")
    assert description.taken == (
        "frames: 8, every 2 s, 16 s in all",
        "space: x (5) x y (4) x z (3), voxels of 2 x 2 x 2 mm",
        "channel bold: blood-oxygen-level-dependent signal, as in the file [1]",
        "run: subject 01, session a, task rest, run 2",
    )
    assert description.oddities == ()


def test_what_would_be_asked_for_is_told(tmp_path):
    path = write_nifti(tmp_path / "sub-01_bold.nii", tr=0.0)
    assert "give data.fmri.repetition_seconds" in Fmri().describe(str(path)).oddities[-1]
    table = write_table(tmp_path / "t.csv", np.random.default_rng(0).normal(size=(4, 9)))
    assert "which axis is time cannot be known" in Fmri().describe(str(table)).oddities[0]


def test_a_directory_is_described_by_its_runs(tmp_path):
    for subject in ("01", "02"):
        write_nifti(tmp_path / f"sub-{subject}" / "func" / f"sub-{subject}_task-rest_bold.nii.gz")
    write_json(tmp_path / "task-rest_bold.json", RepetitionTime=2.0)
    description = Fmri().describe(str(tmp_path))
    assert description.kind == "directory of 2 runs of 2 subjects"
    assert description.taken[0] == "run sub-01/func/sub-01_task-rest_bold.nii.gz: subject 01, task rest"
    assert scan(tmp_path).segment_labels["subject"] == ("01", "02")


def test_a_file_given_twice_is_one_run(tmp_path):
    path = write_nifti(tmp_path / "sub-01_bold.nii")
    assert len(scan(path, tmp_path).files) == 1


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(UserError, match="is a URL"):
        Fmri().describe("s3://openneuro.org/ds000001/sub-01/func/sub-01_bold.nii.gz")
    with pytest.raises(UserError, match="no such file"):
        Fmri().describe(str(tmp_path / "absent.nii"))


def test_a_source_reads_two_archives_in_turn(tmp_path):
    run = write_nifti(tmp_path / "sub-1_bold.nii.gz")
    mask = write_nifti(tmp_path / "mask.nii", np.eye(5, 4)[..., None].repeat(3, 2).astype(np.uint8))
    plain, masked, source = scan(run), scan(run, mask=str(mask)), Fmri()
    for _ in range(2):
        assert not np.isnan(source.read(plain, 0, 3)["values"]).any()
        assert np.isnan(source.read(masked, 3, 6)["values"]).any()


def test_an_error_in_one_run_leaves_the_others_readable(tmp_path):
    good = write_nifti(tmp_path / "sub-1_bold.nii.gz")
    bad = write_nifti(tmp_path / "sub-2_bold.nii.gz")
    raw = bytearray(bad.read_bytes())
    raw[-8] ^= 1
    bad.write_bytes(raw)
    index, source = scan(good, bad), Fmri()
    with pytest.raises(UserError, match="sub-2"):
        source.read(index, 0, 2 * FRAMES)
    np.testing.assert_array_equal(source.read(index, 0, FRAMES)["values"][:, 0], np.moveaxis(series(), -1, 0))


def _read_in_child(source, index, start, stop, queue):
    queue.put(source.read(index, start, stop)["values"])


def test_a_forked_process_does_not_share_the_place_in_an_open_file(tmp_path):
    source = Fmri()
    index = scan(write_nifti(tmp_path / "run.nii.gz", series((20, 20, 20, FRAMES))))
    expected = np.moveaxis(series((20, 20, 20, FRAMES)), -1, 0)
    source.read(index, 0, 2)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_read_in_child, args=(source, index, 2, 5, queue))
    child.start()
    found = queue.get(timeout=60)
    child.join()
    np.testing.assert_array_equal(found[:, 0], expected[2:5])
    np.testing.assert_array_equal(source.read(index, 2, FRAMES)["values"][:, 0], expected[2:])


def test_values_are_as_they_are_where_nothing_is_asked_for(tmp_path):
    index = scan(write_nifti(tmp_path / "run.nii"))
    assert index.shape == (FRAMES, 1, *SHAPE)
    assert read(index).dtype == np.float32
    assert "cleaning" not in index.attributes
