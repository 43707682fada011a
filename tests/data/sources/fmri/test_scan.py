import os

import numpy as np
import pytest
from nilearn.signal import clean
from pydantic import ValidationError

from hyperslab.data.config import DataSettings
from hyperslab.data.sources.fmri import scan as module
from hyperslab.data.sources.fmri.source import Fmri
from hyperslab.data.sources.index import Index
from hyperslab.errors import UserError
from tests.data.sources.fmri.raw import (
    FRAMES,
    SHAPE,
    read,
    scan,
    series,
    settings,
    write_cifti,
    write_json,
    write_nifti,
    write_table,
)

SPACE = "space-MNI_desc-preproc_bold.nii.gz"


def test_a_run_is_a_segment_and_runs_stand_in_order(tmp_path):
    files = {
        name: write_nifti(tmp_path / f"sub-{name}_bold.nii", series((*SHAPE, frames), seed))
        for seed, (name, frames) in enumerate(
            {"02_task-rest_run-1": 4, "01_ses-b_task-rest": 5, "01_ses-a_task-rest_run-10": 3}.items()
        )
    } | {"first": write_nifti(tmp_path / "sub-01_ses-a_task-rest_run-2_bold.nii", series((*SHAPE, 2), 9))}
    index = scan(*files.values())
    assert index.segment_labels["subject"] == ("01", "01", "01", "02")
    assert index.segment_labels["session"] == ("a", "a", "b", "")
    assert index.segment_labels["run"] == ("2", "10", "", "1")
    assert np.bincount(index.segments).tolist() == [2, 3, 5, 4]
    assert index.time == tuple(2_000_000 * frame for count in (2, 3, 5, 4) for frame in range(count))
    assert (index.source, index.split_by, index.robust) == ("fmri", "subject", True)
    assert [channel.name for channel in index.channels] == ["bold"]
    np.testing.assert_array_equal(read(index)[0, 0], series((*SHAPE, 2), 9)[..., 0])
    np.testing.assert_array_equal(read(index, 4, 11)[1:6, 0], np.moveaxis(series((*SHAPE, 5), 1), -1, 0))


def test_the_time_of_frames_is_exact(tmp_path):
    # 1.35 s as float32 is 1.35000002384: after 1000 frames 24 us late.
    index = scan(write_nifti(tmp_path / "run.nii", np.zeros((1, 1, 1, 1001), np.float32), tr=1.35))
    assert index.time[1000] == 1_350_000_000


def test_a_run_without_a_repetition_time_is_refused_with_what_to_do(tmp_path):
    path = write_nifti(tmp_path / "sub-01_bold.nii", units=("mm", "unknown"))
    with pytest.raises(UserError, match=r"give data.fmri.repetition_seconds, or a BIDS sidecar with RepetitionTime"):
        scan(path)
    assert scan(path, repetition_seconds=0.8).time[1] == 800_000
    write_json(tmp_path / "sub-01_bold.json", RepetitionTime=1.2)
    assert scan(path).time[1] == 1_200_000


def test_seconds_that_are_milliseconds_are_refused(tmp_path):
    with pytest.raises(UserError, match="2000 sec, which cannot be so"):
        scan(write_nifti(tmp_path / "run.nii", tr=2000.0))
    assert scan(write_nifti(tmp_path / "ms.nii", tr=2000.0, units=("mm", "msec"))).time[1] == 2_000_000


def test_runs_that_differ_in_repetition_time_are_told(tmp_path):
    files = [write_nifti(tmp_path / f"sub-{n}_bold.nii", tr=n) for n in (2.0, 3.0)]
    index = scan(*files)
    assert index.segment_labels["repetition_seconds"] == (2.0, 3.0)
    assert any("2 s (1 runs), 3 s (1 runs)" in line for line in index.oddities)


def test_an_oddity_of_many_files_is_one_line(tmp_path):
    files = [write_nifti(tmp_path / f"sub-{n}_bold.nii", codes=(0, 0)) for n in range(3)]
    (line,) = [line for line in scan(*files).oddities if "orientation" in line]
    assert line.startswith("3 files, such as sub-0_bold.nii: ")


def test_runs_of_another_shape_or_affine_are_refused_by_name(tmp_path):
    first = write_nifti(tmp_path / "sub-1_bold.nii")
    shape = write_nifti(tmp_path / "sub-2_bold.nii", series((5, 4, 2, 6)))
    affine = write_nifti(tmp_path / "sub-3_bold.nii", affine=np.diag([2.0, 2, 3, 1]))
    with pytest.raises(UserError, match=rf"{shape}: its shape .* differs from that of {first}"):
        scan(first, shape)
    with pytest.raises(UserError, match=rf"{affine}: its affine .*give data.fmri.shape to crop and pad"):
        scan(first, affine)


def test_a_given_size_crops_and_pads_about_the_middle(tmp_path):
    files = [
        write_nifti(tmp_path / "sub-1_bold.nii"),
        write_nifti(tmp_path / "sub-2_bold.nii", series((3, 4, 3, 2), 1)),
    ]
    index = scan(*files, shape=(5, 2, 3))
    assert index.shape == (FRAMES + 2, 1, 5, 2, 3)
    values = read(index)[:, 0]
    np.testing.assert_array_equal(values[:FRAMES], np.moveaxis(series(), -1, 0)[:, :, 1:3])
    np.testing.assert_array_equal(values[FRAMES:, 1:4], np.moveaxis(series((3, 4, 3, 2), 1), -1, 0)[:, :, 1:3])
    assert np.isnan(values[FRAMES:, [0, 4]]).all()
    # Every run has a value only in the three middle places of x.
    np.testing.assert_array_equal(Fmri().read_statics(index)[0, :, 0, 0], [0, 1, 1, 1, 0])
    assert any("cropped and padded" in line for line in index.oddities)
    assert any("one voxel is another place" in line for line in index.oddities)


def test_a_mask_makes_the_voxels_outside_missing(tmp_path):
    inside = np.zeros(SHAPE, np.uint8)
    inside[1:4] = 1
    mask = write_nifti(tmp_path / "mask.nii.gz", inside)
    index = scan(write_nifti(tmp_path / "sub-1_bold.nii"), mask=str(mask))
    values = read(index)[:, 0]
    assert np.isnan(values[:, [0, 4]]).all()
    np.testing.assert_array_equal(values[:, 1:4], np.moveaxis(series(), -1, 0)[:, 1:4])
    np.testing.assert_array_equal(Fmri().read_statics(index), inside[None])
    assert index.attributes["mask"]["path"] == str(mask)
    assert len(index.attributes["mask"]["sha256"]) == 64


def test_a_mask_that_lies_elsewhere_is_refused(tmp_path):
    run = write_nifti(tmp_path / "sub-1_bold.nii")
    other = write_nifti(tmp_path / "a.nii", np.ones((5, 4, 2), np.uint8))
    moved = write_nifti(tmp_path / "b.nii", np.ones(SHAPE, np.uint8), affine=np.eye(4))
    with pytest.raises(UserError, match=r"is 5 x 4 x 2, .* is 5 x 4 x 3; resample it"):
        scan(run, mask=str(other))
    with pytest.raises(UserError, match="but another affine; resample it"):
        scan(run, mask=str(moved))


def test_each_run_takes_the_brain_mask_of_fmriprep(tmp_path):
    inside = np.ones((2, *SHAPE), np.uint8)
    inside[0, 0], inside[1, 4] = 0, 0
    for subject in (0, 1):
        write_nifti(tmp_path / f"sub-{subject}_task-rest_{SPACE}")
        write_nifti(tmp_path / f"sub-{subject}_task-rest_space-MNI_desc-brain_mask.nii.gz", inside[subject])
    index = scan(tmp_path, mask="brain")
    values = read(index)[:, 0]
    assert np.isnan(values[:FRAMES, 0]).all()
    assert not np.isnan(values[:FRAMES, 1:]).any()
    assert np.isnan(values[FRAMES:, 4]).all()
    np.testing.assert_array_equal(Fmri().read_statics(index)[0], inside.min(axis=0))


def test_an_atlas_makes_volumes_into_parcels(tmp_path):
    labels = np.zeros(SHAPE, np.int16)
    labels[:2], labels[3:] = 4, 9
    atlas = write_nifti(tmp_path / "atlas.nii.gz", labels)
    files = [write_nifti(tmp_path / "sub-1_bold.nii"), write_nifti(tmp_path / "sub-2_bold.nii", series(seed=1))]
    index = scan(*files, atlas=str(atlas))
    assert (index.space[0].name, index.space[0].names) == ("parcel", ("4", "9"))
    volumes = np.moveaxis(series(), -1, 0)
    expected = [volumes[:, :2].mean(axis=(1, 2, 3)), volumes[:, 3:].mean(axis=(1, 2, 3))]
    np.testing.assert_allclose(read(index)[:FRAMES, 0], np.transpose(expected), rtol=1e-6)
    assert index.statics == ()
    assert Fmri().read_statics(index).shape == (0, 2)


def test_an_atlas_on_other_voxels_is_laid_by_the_nearest_and_told(tmp_path):
    labels = np.repeat(np.repeat(np.repeat(np.arange(60).reshape(5, 4, 3), 2, 0), 2, 1), 2, 2).astype(np.int16)
    atlas = write_nifti(tmp_path / "atlas_1mm.nii.gz", labels, affine=np.diag([1.0, 1, 1, 1]))
    index = scan(write_nifti(tmp_path / "sub-1_bold.nii"), atlas=str(atlas))
    # The centre of a voxel of 2 mm is that of the even voxels of 1 mm.
    np.testing.assert_allclose(read(index)[:, 0], np.moveaxis(series(), -1, 0).reshape(FRAMES, 60)[:, 1:], rtol=1e-6)
    assert any("by the nearest neighbour" in line for line in index.oddities)


def test_parcels_that_the_runs_do_not_cover_are_missing_and_told(tmp_path):
    labels = np.ones((7, 4, 3), np.int16)
    labels[6] = 2  # x of 12 mm, where the run ends at 8 mm
    atlas = write_nifti(tmp_path / "atlas_4mm.nii.gz", labels)
    index = scan(write_nifti(tmp_path / "sub-1_bold.nii"), atlas=str(atlas))
    assert np.isnan(read(index)[:, 0, 1]).all()
    assert "sub-1_bold.nii: 1 parcels have no voxel and are missing: 2" in index.oddities
    assert any("its name says 4 mm, its voxels are 2 x 2 x 2 mm" in line for line in index.oddities)


def preprocessed(tmp_path, frames: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """A run of fMRIPrep with its confounds, as it leaves the disk."""
    values = series((*SHAPE, frames))
    confounds = np.random.default_rng(3).normal(size=(frames, 3)).round(5)
    confounds[0, 2] = np.nan
    write_nifti(tmp_path / f"sub-1_task-rest_{SPACE}", values)
    path = tmp_path / "sub-1_task-rest_desc-confounds_timeseries.tsv"
    write_table(path, confounds, ["trans_x", "rot_x", "trans_x_derivative1"], "\t")
    path.write_text(path.read_text().replace("nan", "n/a"))
    confounds[0, 2] = confounds[1, 2]
    return np.moveaxis(values, -1, 0).reshape(frames, -1), confounds


@pytest.mark.parametrize("detrend", ["none", "linear"])
def test_confounds_are_regressed_out_as_nilearn_does(tmp_path, detrend):
    values, confounds = preprocessed(tmp_path)
    index = scan(tmp_path / f"sub-1_task-rest_{SPACE}", confounds=["trans_x*", "rot_?"], detrend=detrend)
    expected = clean(
        values.astype(float), detrend=detrend == "linear", standardize=None, confounds=confounds, filter=False
    )
    np.testing.assert_allclose(read(index).reshape(30, -1), expected, atol=1e-3)
    source = Fmri()
    pieces = [source.read(index, start, start + 10)["values"] for start in (20, 0, 10)]
    np.testing.assert_allclose(np.concatenate(pieces).reshape(30, -1), np.roll(expected, 10, axis=0), atol=1e-3)
    assert index.attributes["cleaning"]["confounds"] == ["trans_x*", "rot_?"]
    assert any("confounds regressed out: trans_x, trans_x_derivative1, rot_x" in line for line in index.oddities)
    assert any("the second stands in, as in nilearn" in line for line in index.oddities)


def test_parcels_are_cleaned_as_volumes_are(tmp_path):
    values, confounds = preprocessed(tmp_path)
    atlas = write_nifti(tmp_path / "labels.nii", np.arange(1, 61).reshape(SHAPE).astype(np.int16))
    index = scan(tmp_path / f"sub-1_task-rest_{SPACE}", confounds=["*"], atlas=str(atlas))
    expected = clean(values.astype(float), detrend=False, standardize=None, confounds=confounds, filter=False)
    np.testing.assert_allclose(read(index)[:, 0], expected, atol=1e-3)


def test_tables_and_surfaces_are_detrended_too(tmp_path):
    values = np.random.default_rng(0).normal(size=(20, 3)).cumsum(axis=0).round(3)
    index = scan(write_table(tmp_path / "run.csv", values, list("abc")), detrend="linear", repetition_seconds=2)
    np.testing.assert_allclose(
        read(index)[:, 0], clean(values, detrend=True, standardize=None, filter=False), atol=1e-5
    )


def test_a_changed_file_is_refused(tmp_path):
    preprocessed(tmp_path)
    mask = write_nifti(tmp_path / "mask.nii", np.ones(SHAPE, np.uint8))
    run = tmp_path / f"sub-1_task-rest_{SPACE}"
    index = scan(run, confounds=["rot_x"], mask=str(mask))
    read(index)
    for path in (run, mask, tmp_path / "sub-1_task-rest_desc-confounds_timeseries.tsv"):
        state = path.stat()
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
        with pytest.raises(UserError, match=rf"{path}: has changed since it was indexed; start a new campaign"):
            read(index)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    run.unlink()
    with pytest.raises(UserError, match="cannot be read any more"):
        read(index)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"mask": "m.nii"}, r"data.fmri.mask: is for volumes"),
        ({"shape": (2, 2, 2)}, r"data.fmri.shape: is for volumes"),
        ({"atlas": "a.nii"}, r"data.fmri.atlas: is for volumes"),
        ({"parcels": 3}, r"data.fmri.parcels: is for tables"),
    ],
)
def test_choices_for_volumes_are_refused_for_surfaces(tmp_path, choices, words):
    with pytest.raises(UserError, match=words):
        scan(write_cifti(tmp_path / "run.dtseries.nii"), **choices)


def test_settings_that_fmri_has_no_use_for_are_refused(tmp_path):
    run = write_nifti(tmp_path / "sub-1_bold.nii")
    atlas = write_nifti(tmp_path / "atlas.nii", np.ones(SHAPE, np.int16))
    with pytest.raises(UserError, match=r"data.fmri.shape: has no use"):
        scan(run, shape=(2, 2, 2), atlas=str(atlas))
    with pytest.raises(UserError, match=r"data.variables: .* is no table"):
        scan(run, variables=["bold"])
    with pytest.raises(UserError, match=r"data.levels: fmri files have no levels"):
        Fmri().scan([str(run)], DataSettings(source="fmri", files=["x"], levels=[500]))
    period = DataSettings.model_validate({"files": ["x"], "period": {"start": "2000-01-01"}})
    with pytest.raises(UserError, match=r"data.period: .* no calendar"):
        Fmri().scan([str(run)], period)


@pytest.mark.parametrize(
    "choices",
    [{"repetition_seconds": 0}, {"repetition_seconds": 2000}, {"shape": (2, 2)}, {"confounds": []}, {"atlass": "x"}],
)
def test_settings_that_cannot_be_are_refused(choices):
    with pytest.raises(ValidationError):
        settings(**choices)


def test_tables_with_other_parcels_are_refused(tmp_path):
    first = write_table(tmp_path / "a.csv", np.eye(4)[:, :3], ["V1", "M1", "S1"])
    with pytest.raises(UserError, match=r"calls parcel 1 'S1', .* 'M1'; all runs need the same parcels"):
        scan(first, write_table(tmp_path / "b.csv", np.eye(4)[:, :3], ["V1", "S1", "M1"]), repetition_seconds=2)
    with pytest.raises(UserError, match=r"has 2 places \(parcel\), .* has 3"):
        scan(first, write_table(tmp_path / "c.csv", np.eye(4)[:, :2], ["V1", "M1"]), repetition_seconds=2)
    with pytest.raises(UserError, match="calls parcel 0 'no name'"):
        scan(first, write_table(tmp_path / "d.1D", np.eye(4)[:, 1:] + 0.5, delimiter=" "), repetition_seconds=2)


def test_blocks_hold_no_more_than_their_bound(tmp_path, monkeypatch):
    path = write_nifti(tmp_path / "run.nii")
    assert scan(path).block_frames == FRAMES
    monkeypatch.setattr(module, "BLOCK_BYTES", 4 * 60 * 3)
    assert scan(path).block_frames == 3
    monkeypatch.setattr(module, "BLOCK_BYTES", 1)
    assert scan(path).block_frames == 1


def test_the_index_goes_through_json(tmp_path):
    index = Fmri().scan([str(write_nifti(tmp_path / "run.nii"))], settings(detrend="linear"))
    assert Index.from_json(index.to_json()) == index
