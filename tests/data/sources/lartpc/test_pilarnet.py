from pathlib import Path

import h5py
import numpy as np
import pytest

from hyperslab.data.sources.lartpc.source import SOURCE
from hyperslab.errors import UserError
from tests.data.sources.lartpc.raw_files import write_pilarnet
from tests.data.sources.lartpc.reading import label, read, scan


@pytest.mark.parametrize(("width", "revision"), [(5, "revision 1"), (6, "revision 2 or later")])
def test_clusters_give_their_truth_to_their_points(tmp_path: Path, width: int, revision: str) -> None:
    points = write_pilarnet(tmp_path / "a.h5", [[], [2, 3], [1]], width)
    index = scan(tmp_path / "a.h5")
    block = read(index)
    assert revision in SOURCE.describe(str(tmp_path / "a.h5")).kind
    assert index.points == (0, 5, 1)
    data = np.concatenate(points)
    assert np.array_equal(block["position"], data[:, :3])
    assert np.array_equal(block["feature"], data[:, 3:])
    assert [axis.units for axis in index.space] == ["voxel"] * 3
    names = ["fragment_id", "group_id", "interaction_id", "semantic", "particle"][: width - 1]
    assert [channel.name for channel in index.labels] == names
    # Cluster n has labels 10n, 10n + 1, and so on.
    assert label(index, block, "group_id").tolist() == [1, 1, 11, 11, 11, 1]
    assert label(index, block, "semantic").tolist() == [3, 3, 13, 13, 13, 3]
    assert any("voxel numbers: the file states no size of a voxel" in line for line in index.oddities)


def test_a_width_that_fits_by_chance_is_told_by_the_points(tmp_path: Path) -> None:
    # Six clusters of 5 columns are 30 values, as five of 6 would be.
    write_pilarnet(tmp_path / "a.h5", [[1, 2, 3, 4, 5, 6]], 5)
    assert scan(tmp_path / "a.h5").attributes["cluster_width"] == 5


def test_only_the_features_asked_for_are_taken(tmp_path: Path) -> None:
    points = write_pilarnet(tmp_path / "a.h5", [[2]])
    index = scan(tmp_path / "a.h5", variables=["dx", "value"])
    assert np.array_equal(read(index)["feature"], points[0][:, [7, 3]])


def test_more_truth_than_whole_numbers_hold_is_told(tmp_path: Path) -> None:
    write_pilarnet(tmp_path / "a.h5", [[2]])
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.create_dataset("cluster_extra", (1,), h5py.vlen_dtype(np.float32))
    assert any("cluster_extra" in line for line in scan(tmp_path / "a.h5").oddities)


def test_points_and_clusters_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    write_pilarnet(tmp_path / "a.h5", [[2], [3]])
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["point"][1] = np.zeros(16, np.float32)
    index = scan(tmp_path / "a.h5")
    with pytest.raises(UserError, match="event 1 has 16 values of points, its clusters have 3 points of 8"):
        SOURCE.read(index, 1, 2)


def test_clusters_of_another_width_are_refused(tmp_path: Path) -> None:
    write_pilarnet(tmp_path / "a.h5", [[2, 3]], 7)
    with pytest.raises(UserError, match=r"event 0 \(14 values\) add up .* neither with 5 .* nor with 6"):
        scan(tmp_path / "a.h5")


def test_clusters_of_no_points_or_a_broken_row_are_refused(tmp_path: Path) -> None:
    write_pilarnet(tmp_path / "a.h5", [[2], [3]])
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["cluster"][1] = np.asarray([-3, 0, 0, 0, 0, 0], np.int32)
    with pytest.raises(UserError, match="clusters of event 1 are not rows of 6"):
        scan(tmp_path / "a.h5")


def test_positions_and_values_that_are_odd_are_counted(tmp_path: Path) -> None:
    write_pilarnet(tmp_path / "a.h5", [[2]])
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["point"][0] = np.asarray([np.nan, *[1] * 7, 1, 1, 1, -1, 1, 1, 1, 1], np.float32)
    lines = SOURCE.describe(str(tmp_path / "a.h5")).oddities
    assert "1 points have a position that is NaN or infinite: kept as it is" in lines
    assert "1 points have a negative value: kept as it is" in lines


def test_datasets_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["point"], file["cluster"] = np.zeros((2, 8)), np.zeros((2, 5))
    with pytest.raises(UserError, match="is no list of number arrays"):
        scan(tmp_path / "a.h5")
