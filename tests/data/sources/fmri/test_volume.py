import gzip
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from hyperslab.data.sources.fmri.formats import find_header, open_reader
from hyperslab.data.sources.fmri.volume import open_image, open_volume
from hyperslab.errors import UserError
from tests.data.sources.fmri.raw import FRAMES, SHAPE, read, scan, series, write_afni, write_nifti


def time_first(path: Path) -> np.ndarray:
    values: np.ndarray = np.moveaxis(np.asanyarray(nib.load(path).dataobj), -1, 0).astype(np.float32)
    return values


@pytest.mark.parametrize("dtype", ["u1", "i2", ">i2", "i4", "f4", ">f4", "f8"])
@pytest.mark.parametrize("name", ["run.nii", "run.nii.gz"])
def test_values_are_those_that_nibabel_reads(tmp_path, name, dtype):
    values = np.random.default_rng(1).integers(0, 200, (*SHAPE, FRAMES)).astype(dtype)
    header = nib.Nifti1Header(endianness=">" if dtype[0] == ">" else "<")
    header.set_data_dtype(dtype.strip(">"))
    header.set_xyzt_units("mm", "sec")
    image = nib.Nifti1Image(values, np.eye(4), header)
    image.header["pixdim"][4] = 2
    nib.save(image, tmp_path / name)
    np.testing.assert_array_equal(read(scan(tmp_path / name))[:, 0], time_first(tmp_path / name))


def test_scaled_integers_are_read_as_nibabel_reads_them(tmp_path):
    path = write_nifti(tmp_path / "run.nii.gz", series().astype(np.int16))
    raw = bytearray(gzip.decompress(path.read_bytes()))
    raw[112:120] = np.asarray([0.0754, 3100.76], "<f4").tobytes()  # scl_slope, scl_inter
    path.write_bytes(gzip.compress(bytes(raw)))
    assert time_first(path).min() > 3100
    np.testing.assert_array_equal(read(scan(path))[:, 0], time_first(path))


def test_nifti_2_is_read(tmp_path):
    path = write_nifti(tmp_path / "run.nii", image_class=nib.Nifti2Image)
    np.testing.assert_array_equal(read(scan(path))[:, 0], time_first(path))


def test_voxels_are_described_in_millimetres(tmp_path):
    # Zooms of 0.003 m are 3 mm; the affine follows.
    path = write_nifti(tmp_path / "run.nii", affine=np.diag([0.003, 0.003, 0.003, 1]), units=("meter", "sec"))
    volume = open_volume(path, "nifti")
    volume.close()
    assert volume.series.zooms == pytest.approx((3, 3, 3))
    assert np.diag(np.asarray(volume.series.affine)) == pytest.approx([3, 3, 3, 1])
    assert any("converted to mm" in line for line in volume.series.oddities)


def test_an_unknown_orientation_is_told(tmp_path):
    volume = open_volume(write_nifti(tmp_path / "run.nii", codes=(0, 0)), "nifti")
    volume.close()
    assert not volume.series.has_orientation
    assert any("orientation is not stated" in line for line in volume.series.oddities)


def test_dimensions_of_one_after_time_are_left_out(tmp_path):
    path = write_nifti(tmp_path / "run.nii", series((*SHAPE, FRAMES, 1)))
    index = scan(path)
    assert index.shape == (FRAMES, 1, *SHAPE)
    np.testing.assert_array_equal(read(index)[:, 0], series((*SHAPE, FRAMES, 1))[..., 0].transpose(3, 0, 1, 2))


@pytest.mark.parametrize(
    ("shape", "words"),
    [(SHAPE, "one 3-D image"), ((*SHAPE, 1), "holds 1 frame"), ((*SHAPE, 1, 3), "has 5 dimensions")],
)
def test_what_is_no_series_is_refused(tmp_path, shape, words):
    with pytest.raises(UserError, match=words):
        scan(write_nifti(tmp_path / "run.nii", series(shape)))


def test_an_intent_other_than_a_time_series_is_refused(tmp_path):
    with pytest.raises(UserError, match="'z score'"):
        scan(write_nifti(tmp_path / "run.nii", intent_code=5))
    scan(write_nifti(tmp_path / "time.nii", intent_code=2001))


def test_complex_values_are_refused(tmp_path):
    with pytest.raises(UserError, match="not real numbers"):
        scan(write_nifti(tmp_path / "run.nii", series().astype(np.complex64)))


def test_infinite_values_are_refused_unless_the_mask_leaves_them_out(tmp_path):
    values = series()
    values[1, 1, 1, 5] = np.inf
    path = write_nifti(tmp_path / "run.nii", values)
    with pytest.raises(UserError, match=r"infinite values, .*in frame 5"):
        read(scan(path))
    inside = np.ones(SHAPE, np.uint8)
    inside[1, 1, 1] = 0
    assert np.isnan(read(scan(path, mask=str(write_nifti(tmp_path / "mask.nii", inside))))).sum() == FRAMES


def test_doubles_beyond_float32_are_refused(tmp_path):
    path = write_nifti(tmp_path / "run.nii", np.full((*SHAPE, 2), 1e300))
    with pytest.raises(UserError, match="float32 cannot hold"):
        read(scan(path))


def test_all_zeros_are_told_and_read(tmp_path):
    path = write_nifti(tmp_path / "run.nii.gz", np.zeros((20, 20, 20, 20), np.int16))
    index = scan(path)
    assert "run.nii.gz: all values are zero" in index.oddities
    assert not read(index).any()


def test_a_compressed_file_whose_checksum_is_wrong_is_refused(tmp_path):
    path = write_nifti(tmp_path / "run.nii.gz")
    raw = bytearray(path.read_bytes())
    raw[-8] ^= 1  # the checksum stands before the length
    path.write_bytes(raw)
    index = scan(path)
    read(index, 0, FRAMES - 1)
    with pytest.raises(UserError, match="CRC"):
        read(index)


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("name", ["run.nii", "run.nii.gz", "run.nii.bz2"])
def test_a_file_cut_short_is_refused(tmp_path, name, keep):
    path = write_nifti(tmp_path / name)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(keep * len(raw))])
    with pytest.raises(UserError, match=r"cut short|cannot be read"):
        scan(path)


@pytest.mark.parametrize("factor", [0.0, 0.25])
def test_afni_is_read_as_nibabel_reads_it(tmp_path, factor):
    values = np.random.default_rng(0).integers(-500, 500, (*SHAPE, FRAMES))
    header = write_afni(tmp_path / "run+orig", values, factor=factor)
    index = scan(tmp_path / "run+orig.BRIK", header)
    assert [file.path for file in index.files] == [str(header)]
    assert index.time[1] == 2_000_000
    np.testing.assert_array_equal(read(index)[:, 0], time_first(header))


def test_afni_in_milliseconds_is_converted_and_told(tmp_path):
    header = write_afni(tmp_path / "run", np.ones((*SHAPE, 3)), step=2500, unit=77001)
    index = scan(header)
    assert index.time[1] == 2_500_000
    assert any("2500 msec: taken as 2.5 s" in line for line in index.oddities)


def test_an_afni_bucket_is_no_series(tmp_path):
    with pytest.raises(UserError, match="has no time axis"):
        scan(write_afni(tmp_path / "run", np.ones((*SHAPE, 3)), unit=0))


def test_half_of_a_pair_is_refused(tmp_path):
    header = write_afni(tmp_path / "run", np.ones((*SHAPE, 3)))
    (tmp_path / "run.BRIK.gz").write_bytes(b"x")
    with pytest.raises(UserError, match=r"run.BRIK and run.BRIK.gz"):
        scan(header)
    (tmp_path / "run.BRIK.gz").unlink()
    brik = (tmp_path / "run.BRIK").rename(tmp_path / "other.BRIK")
    with pytest.raises(UserError, match="found none"):
        scan(header)
    with pytest.raises(UserError, match=r"other.HEAD is not beside it"):
        find_header(str(brik))


def test_afni_data_of_another_length_are_refused(tmp_path):
    header = write_afni(tmp_path / "run", np.ones((*SHAPE, 3)))
    with (tmp_path / "run.BRIK").open("ab") as file:
        file.write(bytes(2))
    with pytest.raises(UserError, match="2 bytes more"):
        scan(header)


def philips(shared_samples, tmp_path, old: str, new: str):
    source = shared_samples / "fmri" / "phantom_varscale.PAR"
    (tmp_path / "run.REC").write_bytes(source.with_suffix(".REC").read_bytes())
    text = source.read_text()
    assert old in text
    (tmp_path / "run.PAR").write_text(text.replace(old, new))
    return tmp_path / "run.PAR"


def test_a_philips_clock_that_disagrees_needs_the_setting(shared_samples, tmp_path):
    path = philips(shared_samples, tmp_path, ":   2000.000", ":   1000.000")
    with pytest.raises(UserError, match="1 s between excitations, its volumes begin every 2 s"):
        scan(path)
    assert scan(path, repetition_seconds=2.0).time[1] == 2_000_000


def test_compressed_or_mixed_philips_data_are_refused(shared_samples, tmp_path):
    path = philips(shared_samples, tmp_path, " 1  1 0 2 ", " 1  1 0 2 ")
    text, data = path.read_text(), path.with_suffix(".REC")
    # The third volume's images become those of the real part (image_type_mr 1).
    path.write_text(text.replace("   1    3  1 0 2", "   1    3  1 1 2"))
    with pytest.raises(UserError, match=r"several images of a moment .*image_type_mr"):
        scan(path)
    path.write_text(text)
    data.write_bytes(gzip.compress(data.read_bytes()))
    with pytest.raises(UserError, match=r"run.REC: is compressed"):
        scan(path)


def test_only_images_serve_as_masks(tmp_path):
    with pytest.raises(UserError, match="no image of voxels"):
        open_image(tmp_path / "table.csv", "text")


def test_frames_come_in_any_order(tmp_path):
    path = write_nifti(tmp_path / "run.nii.gz")
    reader = open_reader(path, {"format": "nifti"})
    for start, stop in ((5, 8), (0, 2), (3, 3), (2, 6)):
        np.testing.assert_array_equal(reader.frames(start, stop), time_first(path)[start:stop])
    reader.close()
