import json
from pathlib import Path

import nibabel
import numpy as np
import pytest

from hyperslab.data.sources.synthetic import fmri
from hyperslab.data.sources.synthetic.brain import haemodynamic_response
from tests.data.sources.synthetic.orders import digests, order, size_of


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bids")
    fmri.write(order(out, 500_000, "nifti"))
    return out


@pytest.mark.parametrize(("form", "size"), [("nifti", 500_000), ("nifti", 8_000_000), ("parcels", 10**6)])
def test_the_archive_has_the_size_that_was_asked_for(form: str, size: int, tmp_path: Path) -> None:
    fmri.write(order(tmp_path, size, form))
    assert size_of(tmp_path) == pytest.approx(size, rel=0.2)


def test_as_many_runs_are_made_as_are_wanted(tmp_path: Path) -> None:
    files = fmri.write(order(tmp_path, 5_000_000, "nifti", runs=50))
    assert len(files) >= 45


def test_a_run_is_a_four_dimensional_image_with_its_repetition_time(archive: Path) -> None:
    path = archive / "sub-01" / "func" / "sub-01_task-rest_run-01_bold.nii.gz"
    image = nibabel.load(path)
    assert image.shape == (16, 16, 10, 30)
    assert image.get_data_dtype() == np.int16
    assert [float(zoom) for zoom in image.header.get_zooms()] == [14.0, 14.0, 14.0, 2.0]
    assert image.header.get_xyzt_units() == ("mm", "sec")
    assert (int(image.header["qform_code"]), int(image.header["sform_code"])) == (1, 1)
    sidecar = json.loads(path.with_name("sub-01_task-rest_run-01_bold.json").read_text())
    assert sidecar["RepetitionTime"] == 2.0
    assert sidecar["TaskName"] == "rest"


def test_the_tree_is_one_of_bids(archive: Path) -> None:
    assert json.loads((archive / "dataset_description.json").read_text())["BIDSVersion"] == "1.9.0"
    people = (archive / "participants.tsv").read_text().splitlines()
    assert people[0].split("\t") == ["participant_id", "age", "sex"]
    assert [line.split("\t")[0] for line in people[1:]] == sorted(path.name for path in archive.glob("sub-*"))


def test_mask_and_atlas_fit_the_runs(archive: Path) -> None:
    image = nibabel.load(archive / "sub-01" / "func" / "sub-01_task-rest_run-01_bold.nii.gz")
    mask = nibabel.load(archive / "derivatives" / "network" / "desc-brain_mask.nii.gz")
    atlas = nibabel.load(archive / "derivatives" / "network" / "atlas-network_dseg.nii.gz")
    for other in (mask, atlas):
        np.testing.assert_array_equal(other.affine, image.affine)
        assert other.shape == image.shape[:3]
    inside = np.asarray(mask.dataobj) > 0
    np.testing.assert_array_equal(np.asarray(atlas.dataobj) > 0, inside)
    volumes = np.asarray(image.dataobj)
    assert volumes[inside].mean() > 10 * volumes[~inside].mean()
    names = (archive / "derivatives" / "network" / "atlas-network_dseg.tsv").read_text().splitlines()
    assert len(names) - 1 == np.asarray(atlas.dataobj).max()


def test_voxels_of_a_region_go_together(archive: Path) -> None:
    volumes = np.asarray(nibabel.load(archive / "sub-01" / "func" / "sub-01_task-rest_run-02_bold.nii.gz").dataobj)
    labels = np.asarray(nibabel.load(archive / "derivatives" / "network" / "atlas-network_dseg.nii.gz").dataobj)
    first = np.corrcoef(volumes[labels == 1])
    assert np.median(first[np.triu_indices(len(first), 1)]) > 0.4


def test_the_signal_of_a_region_is_as_slow_as_blood(tmp_path: Path) -> None:
    paths = fmri.write(order(tmp_path, 400_000, "parcels"))
    table = np.genfromtxt(paths[0], delimiter="\t", names=True)
    names = table.dtype.names
    assert names is not None
    assert names[0] == "region001"
    series = np.stack([table[name] for name in names], axis=1)
    assert series.std() == pytest.approx(1, abs=1e-3)
    # Two seconds later the answer to the same activity still stands, as the response's own correlation says.
    response = haemodynamic_response(np.arange(0, 32, 2.0))
    own = np.corrcoef(response[1:], response[:-1])[0, 1]
    lagged = np.mean([np.corrcoef(column[1:], column[:-1])[0, 1] for column in series.T])
    assert lagged > own - 0.25


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for form in ("nifti", "parcels"):
        for name, seed in (("a", 4), ("b", 4), ("c", 5)):
            fmri.write(order(tmp_path / form / name, 200_000, form, seed=seed))
        first, again, other = (digests(tmp_path / form / name) for name in "abc")
        assert first == again
        assert first != other


def test_runs_of_one_subject_differ(archive: Path) -> None:
    made = digests(archive / "sub-01" / "func")
    images = [digest for name, digest in made.items() if name.endswith(".nii.gz")]
    assert len(set(images)) == len(images) == 2
