"""Every real file: its values as the reference library reads them, or one line that says why not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import scipy.io

from hyperslab.data.sources.fmri.source import Fmri
from hyperslab.errors import UserError
from tests.data.sources.fmri.raw import read, scan


def _volumes(path: Path) -> np.ndarray:
    return np.moveaxis(np.asanyarray(nib.load(path).dataobj), -1, 0)


def _grayordinates(path: Path) -> np.ndarray:
    return np.asanyarray(nib.load(path).dataobj)


def _vertices(path: Path) -> np.ndarray:
    return np.stack([array.data for array in nib.load(path).darrays])


def _columns(path: Path) -> np.ndarray:
    return np.loadtxt(path, delimiter="\t" if path.suffix == ".1D" else ",", skiprows=0 if path.suffix == ".1D" else 1)


def _matlab(path: Path) -> np.ndarray:
    values: np.ndarray = scipy.io.loadmat(path)["tc"].T
    return values


ABIDE = {"repetition_seconds": 2.0}
READ: dict[str, tuple[Callable[[Path], np.ndarray], dict[str, Any], int]] = {
    "functional.nii": (_volumes, {}, 2_000_000),
    "ds003_sub-01_mc.nii.gz": (_volumes, {}, 2_000_000),
    "subject1_bet.nii.gz": (_volumes, {}, 1_000_000),
    "example4d.nii.gz": (_volumes, {"repetition_seconds": 2.0}, 2_000_000),
    "isc_subj1.nii.gz": (_volumes, {"repetition_seconds": 1.5}, 1_500_000),
    "sub-01_task-mixedgamblestask_run-01_bold.nii.gz": (_volumes, {"repetition_seconds": 2.0}, 2_000_000),
    "example4d+orig.HEAD": (_volumes, {}, 3_000_000),
    "example4d+orig.BRIK.gz": (_volumes, {}, 3_000_000),
    "phantom_varscale.PAR": (_volumes, {}, 2_000_000),
    "phantom_varscale.REC": (_volumes, {}, 2_000_000),
    "Conte69.MyelinAndCorrThickness.32k_fs_LR.dtseries.nii": (_grayordinates, {}, 1_000_000),
    "task.func.gii": (_vertices, {"repetition_seconds": 1.0}, 1_000_000),
    "nitime_fmri_timeseries.csv": (_columns, {"repetition_seconds": 1.89}, 1_890_000),
    "gw_NAP_001_BOLD_rsfMRI.mat": (_matlab, {"repetition_seconds": 2.0, "parcels": 94}, 2_000_000),
    "Pitt_0050003_rois_cc200.1D": (_columns, ABIDE, 2_000_000),
    "OHSU_0050142_rois_cc200.1D": (_columns, ABIDE, 2_000_000),
    "NYU_0051036_rois_cc200.1D": (_columns, ABIDE, 2_000_000),
    "Caltech_0051469_rois_cc200.1D": (_columns, ABIDE, 2_000_000),
}
UNTIMED = {
    "example4d.nii.gz": "2000 sec, which cannot be so",
    "isc_subj1.nii.gz": "in the unit 'unknown', which is no time",
    "sub-01_task-mixedgamblestask_run-01_bold.nii.gz": "in the unit 'unknown', which is no time",
    "task.func.gii": "does not say in which unit",
    "nitime_fmri_timeseries.csv": "a table does not state",
    "gw_NAP_001_BOLD_rsfMRI.mat": "which axis is time cannot be known; give data.fmri.parcels",
    "Pitt_0050003_rois_cc200.1D": "a table does not state",
}
REFUSED = {
    # Its data begin 352 bytes later than its header says: nibabel reads it shifted by 176 voxels.
    "nitime_fmri1.nii.gz": "352 bytes more than the 144,352",
    "bold_empty.nii.gz": "is empty",
    "sub-01_task-mixedgamblestask_run-02_bold.nii.gz": "one 3-D image",
    "ds003_sub-01_mc_brainmask.nii.gz": "one 3-D image",
    "mask.nii.gz": "one 3-D image",
    "big.nii.gz": "one 3-D image",
    "A424+4mm.nii.gz": r"its name says 4 mm, its voxels are 2 x 2 x 2 mm",
    "5D_small.nii": "has 5 dimensions",
    "desc-motion_timeseries.tsv": "table of confounds",
    "test_desc-confounds_regressors.tsv": "table of confounds",
    "test-v21_desc-confounds_timeseries.tsv": "table of confounds",
    "no_nonsteady_desc-confounds_regressors.tsv": "table of confounds",
    "test_desc-ICA_mixing.tsv": "table of components",
    "pybids_4d_header_only.nii.gz": "tells of 134,218,080 bytes, 352 are there",
    "fake_space-MNI_desc-preproc_bold.nii.gz": "is text",
    "not-nifti.nii": "no fmri format that is known",
    "ones.dscalar.nii": "not a series",
    "rh.shape.curv.gii": "no GIFTI series",
    "nitime_event_related_fmri.csv": "column 'events' is no parcel",
}


def test_every_sample_is_accounted_for(shared_samples):
    lines = (shared_samples / "INDEX.tsv").read_text().splitlines()
    names = {line.split("\t")[0].removeprefix("fmri/") for line in lines if line.startswith("fmri/")}
    assert names == set(READ) | set(REFUSED)


@pytest.mark.parametrize("name", READ)
def test_a_sample_is_read_as_the_reference_library_reads_it(shared_samples, name):
    reference, choices, second_frame = READ[name]
    path = shared_samples / "fmri" / name
    index = scan(path, **choices)
    expected = reference(path).astype(np.float32)
    np.testing.assert_array_equal(read(index), expected[:, None])
    assert index.time[:2] == (0, second_frame)
    assert index.clock.kind == "elapsed"


@pytest.mark.parametrize("name", READ)
def test_a_sample_read_in_pieces_is_the_whole(shared_samples, name):
    index = scan(shared_samples / "fmri" / name, **READ[name][1])
    whole, source, middle = read(index), Fmri(), len(index.time) // 2
    pieces = [source.read(index, *bounds)["values"] for bounds in ((middle, len(index.time)), (0, middle))]
    np.testing.assert_array_equal(np.concatenate(pieces[::-1]), whole)


@pytest.mark.parametrize("name", REFUSED)
def test_a_sample_that_is_no_series_is_refused_with_one_line(shared_samples, name):
    path = str(shared_samples / "fmri" / name)
    for act in (Fmri().describe, lambda p: scan(Path(p), repetition_seconds=2.0)):
        with pytest.raises(UserError, match=REFUSED[name]) as caught:
            act(path)
        assert path in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", UNTIMED)
def test_a_sample_that_does_not_state_its_time_says_what_to_do(shared_samples, name):
    with pytest.raises(UserError, match=UNTIMED[name]) as caught:
        scan(shared_samples / "fmri" / name)
    assert "; give data.fmri." in str(caught.value)


@pytest.mark.parametrize("name", READ)
def test_a_sample_is_described(shared_samples, name):
    description = Fmri().describe(str(shared_samples / "fmri" / name))
    assert description.kind
    assert description.taken or "cannot be known" in description.oddities[0]


def test_the_oddities_of_samples_are_told(shared_samples):
    def oddities(name: str) -> str:
        return "\n".join(Fmri().describe(str(shared_samples / "fmri" / name)).oddities)

    assert "qform and sform codes are 0" in oddities("ds003_sub-01_mc.nii.gz")
    assert "80 of 200 parcels are dead" in oddities("Caltech_0051469_rois_cc200.1D")
    assert "all values are zero" in oddities("sub-01_task-mixedgamblestask_run-01_bold.nii.gz")
    assert "2000 msec: taken as 2 s" in oddities("phantom_varscale.PAR")
    assert "1 s, which writers also put where they were not told" in oddities("subject1_bet.nii.gz")


def test_the_four_sites_of_abide_are_one_archive(shared_samples):
    files = sorted((shared_samples / "fmri").glob("*.1D"))
    index = scan(*files, repetition_seconds=2.0)
    assert index.segment_labels["subject"] == ("Caltech_0051469", "NYU_0051036", "OHSU_0050142", "Pitt_0050003")
    assert index.segment_labels["dead"] == (80, 0, 0, 0)
    assert index.space[0].names[:3] == ("1", "2", "3")
    assert np.bincount(index.segments).tolist() == [146, 176, 78, 196]
    assert any("subject is the beginning of its name" in line for line in index.oddities)


def test_the_bold_column_of_an_event_table_is_taken_where_it_is_named(shared_samples):
    path = shared_samples / "fmri" / "nitime_event_related_fmri.csv"
    index = scan(path, variables=["bold"], repetition_seconds=2.0)
    np.testing.assert_array_equal(read(index)[:, 0, 0], _columns(path)[:, 0].astype(np.float32))
    assert index.space[0].names == ("bold",)


def test_a_mask_without_orientation_is_laid_voxel_by_voxel(shared_samples):
    folder = shared_samples / "fmri"
    index = scan(folder / "subject1_bet.nii.gz", mask=str(folder / "mask.nii.gz"))
    inside = np.asanyarray(nib.load(folder / "mask.nii.gz").dataobj) != 0
    assert any("states no orientation" in line for line in index.oddities)
    np.testing.assert_array_equal(Fmri().read_statics(index)[0], inside)
    np.testing.assert_array_equal(np.isnan(read(index))[:, 0], np.broadcast_to(~inside, (10, *inside.shape)))
