import gzip

import numpy as np
import pytest

from hyperslab.data.sources.fmri.grid import Parcels, Placement, atlas_labels, lay_atlas, mask_of, read_field
from hyperslab.errors import UserError
from tests.data.sources.fmri.raw import SHAPE, series, write_nifti


def test_cropping_keeps_the_middle():
    # 5 -> 3 drops one voxel on each side, 4 -> 2 as well, 3 -> 2 drops the last.
    values = np.arange(60, dtype=np.float32).reshape(1, 5, 4, 3)
    placement = Placement((5, 4, 3), (3, 2, 2))
    np.testing.assert_array_equal(placement.volumes(values), values[:, 1:4, 1:3, 0:2])
    # The first voxel of the result is (1, 1, 0) of 2 mm.
    np.testing.assert_array_equal(placement.affine(np.diag([2.0, 2, 2, 1]))[:3, 3], [2, 2, 0])


def test_padding_is_missing():
    placement = Placement((2, 2, 2), (4, 2, 1))
    result = placement.volumes(np.ones((1, 2, 2, 2), np.float32))
    assert np.isnan(result[0, [0, 3]]).all()
    assert (result[0, 1:3] == 1).all()
    # The first voxel of the result lies one before the volume's.
    np.testing.assert_array_equal(placement.affine(np.eye(4))[:3, 3], [-1, 0, 0])
    np.testing.assert_array_equal(placement.mask(np.ones((2, 2, 2), bool)), ~np.isnan(result[0]))


def test_parcels_are_means_of_their_voxels():
    labels = np.zeros(SHAPE, np.int64)
    labels[0], labels[1, 0] = 7, 3
    volumes = np.moveaxis(series(), -1, 0)
    parcels = Parcels(labels, [3, 5, 7], None)
    assert parcels.voxels.tolist() == [3, 0, 12]
    means = parcels.means(volumes)
    np.testing.assert_allclose(means[:, 2], volumes[:, 0].mean(axis=(1, 2)), rtol=1e-6)
    np.testing.assert_allclose(means[:, 0], volumes[:, 1, 0].mean(axis=1), rtol=1e-6)
    assert np.isnan(means[:, 1]).all()


def test_labels_that_an_atlas_does_not_name_are_of_no_parcel():
    laid = np.array([[[1]], [[2]], [[1_000_000_000]]])
    assert Parcels(laid, [2, 1_000_000_000], None).voxels.tolist() == [1, 1]


def test_a_parcel_with_a_missing_voxel_is_missing():
    labels = np.ones((2, 1, 1), np.int64)
    volumes = np.array([[[[1.0]], [[np.nan]]], [[[1.0]], [[3.0]]]], np.float32)
    np.testing.assert_array_equal(Parcels(labels, [1], None).means(volumes), [[np.nan], [2]])


def test_voxels_outside_the_mask_count_for_no_parcel():
    labels = np.ones((2, 1, 1), np.int64)
    inside = np.array([[[True]], [[False]]])
    np.testing.assert_array_equal(Parcels(labels, [1], inside).means(np.array([[[[4.0]], [[9.0]]]], np.float32)), [[4]])


def test_an_atlas_of_finer_voxels_is_laid_by_the_nearest(tmp_path):
    # Labels 1..5 along x in voxels of 2 mm; on voxels of 4 mm, centres at 0, 4, 8 mm meet labels 1, 3, 5.
    labels = np.broadcast_to(np.arange(1, 6)[:, None, None], SHAPE).astype(np.int16)
    field = read_field(str(write_nifti(tmp_path / "atlas.nii", labels)), "atlas")
    laid = lay_atlas(field, (3, 2, 2), np.diag([4.0, 4, 4, 1]), True)
    np.testing.assert_array_equal(laid[:, 0, 0], [1, 3, 5])


def test_an_atlas_without_orientation_needs_the_shape_of_the_runs(tmp_path):
    field = read_field(str(write_nifti(tmp_path / "atlas.nii", np.ones(SHAPE, np.int16), codes=(0, 0))), "atlas")
    assert lay_atlas(field, SHAPE, np.eye(4), True).all()
    with pytest.raises(UserError, match="states no orientation"):
        lay_atlas(field, (3, 2, 2), np.eye(4), True)


@pytest.mark.parametrize("values", [np.full(SHAPE, 0.5), np.full(SHAPE, -1.0), np.zeros(SHAPE)])
def test_values_that_are_no_labels_are_refused(tmp_path, values):
    field = read_field(str(write_nifti(tmp_path / "atlas.nii", values.astype(np.float32))), "atlas")
    with pytest.raises(UserError, match="are no labels"):
        atlas_labels(field)


def test_a_field_is_a_whole_image_of_three_dimensions(tmp_path):
    with pytest.raises(UserError, match=r"data.fmri.mask: .* give an image of three dimensions"):
        read_field(str(write_nifti(tmp_path / "a.nii")), "mask")
    with pytest.raises(UserError, match="holds missing values"):
        read_field(str(write_nifti(tmp_path / "b.nii", np.full(SHAPE, np.nan, np.float32))), "mask")
    assert read_field(str(write_nifti(tmp_path / "c.nii", np.ones((*SHAPE, 1), np.int16))), "mask").shape == SHAPE
    with pytest.raises(UserError, match="is 0 everywhere"):
        mask_of(read_field(str(write_nifti(tmp_path / "d.nii", np.zeros(SHAPE, np.int16))), "mask"))
    with pytest.raises(UserError, match="no such file"):
        read_field(str(tmp_path / "absent.nii"), "mask")


def test_a_mask_whose_checksum_is_wrong_is_refused(tmp_path):
    path = write_nifti(tmp_path / "mask.nii.gz", np.ones(SHAPE, np.int16))
    raw = bytearray(gzip.compress(gzip.decompress(path.read_bytes())))
    raw[-8] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UserError, match="CRC"):
        read_field(str(path), "mask")
