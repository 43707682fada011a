import gzip

import nibabel as nib
import numpy as np
import pytest
from nibabel.cifti2 import cifti2_axes

from hyperslab.data.sources.fmri import surface
from hyperslab.errors import UserError
from tests.data.sources.fmri.raw import FRAMES, read, scan, series, write_cifti, write_gifti, write_nifti


def test_grayordinates_are_read_as_nibabel_reads_them(tmp_path, monkeypatch):
    path = write_cifti(tmp_path / "run.dtseries.nii")
    index = scan(path)
    assert index.time[1] == 720_000
    assert [axis.name for axis in index.space] == ["grayordinate"]
    assert index.attributes["structures"] == [
        ["CIFTI_STRUCTURE_CORTEX_LEFT", 0, 10],
        ["CIFTI_STRUCTURE_CORTEX_RIGHT", 10, 20],
    ]
    np.testing.assert_array_equal(read(index)[:, 0], series((FRAMES, 30)))
    monkeypatch.setattr(surface, "SLAB_BYTES", 8 * FRAMES * 7)  # 7 of 30 places at a time
    monkeypatch.setattr(surface, "WHOLE_BYTES", 0)
    np.testing.assert_array_equal(read(index, 2, 5)[:, 0], series((FRAMES, 30))[2:5])


def test_compressed_grayordinates_are_checked_to_the_end(tmp_path):
    path = write_cifti(tmp_path / "run.dtseries.nii")
    path.write_bytes(gzip.compress(path.read_bytes()))
    np.testing.assert_array_equal(read(scan(path))[:, 0], series((FRAMES, 30)))
    raw = bytearray(path.read_bytes())
    raw[-8] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UserError, match="CRC"):
        read(scan(path))


def test_parcels_of_cifti_have_their_names(tmp_path):
    index = scan(write_cifti(tmp_path / "run.ptseries.nii", parcels=True))
    assert (index.space[0].name, index.space[0].names) == ("parcel", ("V1", "M1"))
    np.testing.assert_array_equal(read(index)[:, 0], series((FRAMES, 2)))


def test_other_grayordinates_are_refused(tmp_path):
    first = write_cifti(tmp_path / "sub-1_bold.dtseries.nii")
    where = cifti2_axes.BrainModelAxis.from_surface(np.arange(30), 40, "CIFTI_STRUCTURE_CORTEX_LEFT")
    image = nib.Cifti2Image(series((FRAMES, 30)), (cifti2_axes.SeriesAxis(0, 0.72, FRAMES), where))
    image.nifti_header.set_intent("ConnDenseSeries")
    nib.save(image, tmp_path / "sub-2_bold.dtseries.nii")
    with pytest.raises(UserError, match="its places are others than those of"):
        scan(first, tmp_path / "sub-2_bold.dtseries.nii")


def test_cifti_cut_short_is_refused(tmp_path):
    path = write_cifti(tmp_path / "run.dtseries.nii")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match="cut short"):
        scan(path)


def test_vertices_are_read_as_nibabel_reads_them(tmp_path):
    path = write_gifti(tmp_path / "sub-1_hemi-L_bold.func.gii")
    with pytest.raises(UserError, match="does not say in which unit"):
        scan(path)
    index = scan(path, repetition_seconds=1.5)
    assert [axis.name for axis in index.space] == ["vertex"]
    np.testing.assert_array_equal(read(index)[:, 0], series((FRAMES, 12)))


def test_one_array_of_vertices_by_time_is_a_series(tmp_path):
    values = series((FRAMES, 12))
    array = nib.gifti.GiftiDataArray(values.T.copy(), intent="NIFTI_INTENT_TIME_SERIES", datatype="NIFTI_TYPE_FLOAT32")
    nib.save(nib.gifti.GiftiImage(darrays=[array]), tmp_path / "run.func.gii")
    np.testing.assert_array_equal(read(scan(tmp_path / "run.func.gii", repetition_seconds=1))[:, 0], values)


def test_the_two_sides_of_a_brain_do_not_mix(tmp_path):
    files = [write_gifti(tmp_path / f"sub-{n}_hemi-{side}_bold.func.gii") for n, side in enumerate("LR")]
    with pytest.raises(UserError, match="its places are others than those of"):
        scan(*files, repetition_seconds=1)


@pytest.mark.parametrize("intent", ["NIFTI_INTENT_SHAPE", "NIFTI_INTENT_POINTSET", "NIFTI_INTENT_ZSCORE"])
def test_a_gifti_of_something_else_is_refused(tmp_path, intent):
    with pytest.raises(UserError, match="no GIFTI series"):
        scan(write_gifti(tmp_path / "run.gii", intent=intent), repetition_seconds=1)


def test_a_gifti_that_names_another_file_is_refused(tmp_path):
    path = write_gifti(tmp_path / "run.func.gii", np.ones((2, 3), np.float32))
    (tmp_path / "secret").write_bytes(bytes(12))
    text = path.read_text().replace("GZipBase64Binary", "ExternalFileBinary")
    path.write_text(text.replace('ExternalFileName=""', 'ExternalFileName="secret"'))
    with pytest.raises(UserError, match="ExternalFileBinary is not supported"):
        scan(path, repetition_seconds=1)


def test_surfaces_and_volumes_do_not_mix(tmp_path):
    with pytest.raises(UserError, match=r"its places are x x y x z, those of .* vertex; stage them apart"):
        scan(write_gifti(tmp_path / "a.gii"), write_nifti(tmp_path / "b.nii"), repetition_seconds=1)
