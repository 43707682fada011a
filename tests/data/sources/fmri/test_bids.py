from pathlib import Path

import pytest

from hyperslab.data.sources.fmri.bids import Name, Neighbours, find_runs, label_runs
from hyperslab.errors import UserError
from tests.data.sources.fmri.raw import write_json

RUN = "sub-01_ses-pre_task-rest_run-2_space-MNI152_desc-preproc_bold"


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


def test_entities_and_suffix_are_of_the_name():
    name = Name.of(Path(f"/d/{RUN}.nii.gz"))
    assert name.suffix == "bold"
    assert name.entities == {
        "sub": "01",
        "ses": "pre",
        "task": "rest",
        "run": "2",
        "space": "MNI152",
        "desc": "preproc",
    }
    assert Name.of(Path("/d/sub-01_bold.dtseries.nii")).suffix == "bold"


def test_labels_are_of_the_name(tmp_path):
    (label,) = label_runs([tmp_path / f"{RUN}.nii.gz"])
    assert (label.subject, label.session, label.task, label.run) == ("01", "pre", "rest", "2")
    assert label.oddity == ""


def test_a_subject_of_a_folder_is_told(tmp_path):
    (label,) = label_runs([tmp_path / "sub-07" / "func" / "bold.nii"])
    assert label.subject == "07"
    assert "folder sub-07" in label.oddity


@pytest.mark.parametrize("name", ["Pitt_0050003_rois_cc200.1D", "Leuven_1_0050682_rois_aal.1D"])
def test_a_subject_of_abide_is_the_beginning_of_the_name(tmp_path, name):
    (label,) = label_runs([tmp_path / name])
    assert label.subject == name.split("_rois")[0]
    assert "beginning of its name" in label.oddity


def test_files_without_a_subject_count_as_subjects_of_their_own(tmp_path):
    labels = label_runs([tmp_path / "a" / "scan.nii", tmp_path / "b" / "scan.nii"])
    assert [label.subject for label in labels] == ["a/scan", "b/scan"]
    assert "subject of its own" in labels[0].oddity


def test_subjects_of_two_data_sets_stay_apart(tmp_path):
    labels = label_runs([tmp_path / f"ds{n}" / "sub-01" / "func" / "sub-01_task-rest_bold.nii" for n in (1, 2)])
    assert [label.subject for label in labels] == ["ds1/01", "ds2/01"]


def test_data_sets_of_one_name_stay_apart(tmp_path):
    labels = label_runs([tmp_path / f"ds{n}" / "fmriprep" / "sub-01" / "sub-01_task-rest_bold.nii" for n in (1, 2)])
    assert [label.subject for label in labels] == [f"{tmp_path}/ds{n}/fmriprep/01" for n in (1, 2)]


def test_one_run_in_two_spaces_is_refused(tmp_path):
    files = [tmp_path / f"sub-01_task-rest_space-{space}_bold.nii" for space in ("T1w", "MNI")]
    with pytest.raises(UserError, match="are the same run"):
        label_runs(files)


def test_echoes_and_acquisitions_are_runs_of_their_own(tmp_path):
    assert len(label_runs([tmp_path / f"sub-01_task-rest_acq-{acq}_bold.nii" for acq in ("a", "b")])) == 2


def test_runs_are_ordered_by_number(tmp_path):
    labels = label_runs([tmp_path / f"sub-01_task-rest_run-{run}_bold.nii" for run in (10, 2, 1)])
    assert [label.run for label in sorted(labels, key=lambda label: label.order)] == ["1", "2", "10"]


def test_the_nearest_sidecar_holds(tmp_path):
    path = touch(tmp_path / "sub-01" / "func" / "sub-01_task-rest_bold.nii.gz")
    assert Neighbours().repetition_seconds(path) is None
    write_json(tmp_path / "task-rest_bold.json", RepetitionTime=3.0)
    assert Neighbours().repetition_seconds(path) == 3.0
    write_json(tmp_path / "sub-01" / "sub-01_bold.json", RepetitionTime=2.5)
    assert Neighbours().repetition_seconds(path) == 2.5
    write_json(path.with_name("sub-01_task-rest_bold.json"), RepetitionTime=2)
    assert Neighbours().repetition_seconds(path) == 2.0


def test_a_sidecar_of_another_run_does_not_hold(tmp_path):
    path = touch(tmp_path / "sub-01" / "func" / "sub-01_task-rest_bold.nii.gz")
    write_json(tmp_path / "task-motor_bold.json", RepetitionTime=3.0)
    write_json(tmp_path / "task-rest_events.json", RepetitionTime=3.0)
    write_json(tmp_path.parent / "task-rest_bold.json", RepetitionTime=3.0)  # above the data set
    assert Neighbours().repetition_seconds(path) is None


def test_a_sidecar_that_says_nothing_passes_to_the_next(tmp_path):
    path = touch(tmp_path / "sub-01" / "func" / f"{RUN}.nii.gz")
    write_json(path.with_name(f"{RUN}.json"), SkullStripped=False)
    write_json(tmp_path / "task-rest_bold.json", RepetitionTime=0.8)
    assert Neighbours().repetition_seconds(path) == 0.8


@pytest.mark.parametrize("value", ["2", True, [2]])
def test_a_sidecar_whose_time_is_no_number_is_refused(tmp_path, value):
    path = touch(tmp_path / "sub-01_bold.nii.gz")
    write_json(tmp_path / "sub-01_bold.json", RepetitionTime=value)
    with pytest.raises(UserError, match="must be a number of seconds"):
        Neighbours().repetition_seconds(path)


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000])
def test_a_broken_sidecar_is_refused(tmp_path, text):
    path = touch(tmp_path / "sub-01_bold.nii.gz")
    path.with_name("sub-01_bold.json").write_text(text)
    with pytest.raises(UserError, match="mend or remove it"):
        Neighbours().repetition_seconds(path)


def test_sparse_sampling_is_refused(tmp_path):
    path = touch(tmp_path / "sub-01_bold.nii.gz")
    write_json(tmp_path / "sub-01_bold.json", VolumeTiming=[0, 2, 9])
    with pytest.raises(UserError, match="VolumeTiming"):
        Neighbours().repetition_seconds(path)


@pytest.mark.parametrize("ending", ["timeseries", "regressors"])
def test_confounds_and_masks_are_found_beside_a_run(tmp_path, ending):
    path = touch(tmp_path / f"{RUN}.nii.gz")
    scan = "sub-01_ses-pre_task-rest_run-2"
    confounds = touch(tmp_path / f"{scan}_desc-confounds_{ending}.tsv")
    touch(tmp_path / f"{scan}_space-T1w_desc-brain_mask.nii.gz")
    mask = touch(tmp_path / f"{scan}_space-MNI152_desc-brain_mask.nii.gz")
    assert Neighbours().confounds(path) == confounds
    assert Neighbours().brain_mask(path) == mask


def test_absent_confounds_are_refused(tmp_path):
    path = touch(tmp_path / f"{RUN}.nii.gz")
    touch(tmp_path / "sub-01_ses-pre_task-rest_run-1_desc-confounds_timeseries.tsv")
    with pytest.raises(UserError, match=r"needs one file \*_desc-confounds_timeseries.tsv .* found none"):
        Neighbours().confounds(path)


def test_a_data_set_gives_its_runs_but_not_its_derivatives(tmp_path):
    run = touch(tmp_path / "sub-01" / "func" / "sub-01_task-rest_bold.nii.gz")
    touch(tmp_path / "sub-01" / "anat" / "sub-01_T1w.nii.gz")
    touch(tmp_path / "sub-01" / "func" / "sub-01_task-rest_sbref.nii.gz")
    touch(tmp_path / "derivatives" / "sub-01" / "func" / "sub-01_task-rest_space-MNI_desc-preproc_bold.nii.gz")
    assert find_runs(tmp_path) == [run]


def test_derivatives_give_their_preprocessed_runs(tmp_path):
    func = tmp_path / "sub-01" / "func"
    run = touch(func / "sub-01_task-rest_space-MNI_desc-preproc_bold.nii.gz")
    touch(func / "sub-01_task-rest_space-MNI_boldref.nii.gz")
    touch(func / "sub-01_task-rest_space-MNI_desc-brain_mask.nii.gz")
    assert find_runs(tmp_path) == [run]


def test_derivatives_in_two_spaces_need_a_choice(tmp_path):
    for space in ("MNI", "T1w"):
        touch(tmp_path / f"sub-01_task-rest_space-{space}_desc-preproc_bold.nii.gz")
    with pytest.raises(UserError, match=r"several forms .*such as .*/\*_space-MNI_desc-preproc_bold.nii.gz"):
        find_runs(tmp_path)


def test_a_folder_of_tables_gives_all_of_them(tmp_path):
    files = [touch(tmp_path / name) for name in ("a.1D", "b.1D")]
    touch(tmp_path / "README.md")
    assert find_runs(tmp_path) == files


def test_a_folder_that_links_to_itself_ends(tmp_path):
    run = touch(tmp_path / "sub-01" / "sub-01_bold.nii")
    (tmp_path / "sub-01" / "again").symlink_to(tmp_path)
    assert run in find_runs(tmp_path)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no runs"):
        find_runs(tmp_path)
