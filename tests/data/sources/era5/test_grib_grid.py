from typing import Any

import eccodes
import numpy as np
import pytest

from hyperslab.data.sources.era5.grib_grid import grid_of, why_no_grid
from hyperslab.data.sources.era5.grid import Grid
from hyperslab.errors import UserError


def grid(sample: str = "regular_ll_pl_grib2", **keys: Any) -> Grid:
    handle = eccodes.codes_grib_new_from_samples(sample)
    for key, value in keys.items():
        eccodes.codes_set(handle, key, value)
    found = grid_of(handle, "raw.grib")
    eccodes.codes_release(handle)
    return found


REGION: dict[str, Any] = {
    "Ni": 5,
    "Nj": 3,
    "latitudeOfFirstGridPointInDegrees": 20,
    "latitudeOfLastGridPointInDegrees": 0,
    "longitudeOfFirstGridPointInDegrees": 350,
    "longitudeOfLastGridPointInDegrees": 10,
    "iDirectionIncrementInDegrees": 5,
    "jDirectionIncrementInDegrees": 10,
}


def test_a_region_over_greenwich_lies_between_its_ends() -> None:
    found = grid(**REGION)
    assert found.latitude.tolist() == [20, 10, 0]
    assert found.longitude.tolist() == [-10, -5, 0, 5, 10]


def test_points_may_run_westward() -> None:
    ends = {"longitudeOfFirstGridPointInDegrees": 10, "longitudeOfLastGridPointInDegrees": 350}
    found = grid(**{**REGION, **ends, "iScansNegatively": 1})
    assert found.longitude.tolist() == [-10, -5, 0, 5, 10]
    assert found.columns.tolist() == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("sample", ["regular_gg_pl_grib1", "regular_gg_pl_grib2"])
def test_rows_of_a_gaussian_grid_are_where_eccodes_has_them(sample: str) -> None:
    handle = eccodes.codes_grib_new_from_samples(sample)
    expected = np.unique(eccodes.codes_get_array(handle, "latitudes"))[::-1]
    np.testing.assert_allclose(grid(sample).latitude, expected, atol=1e-6)


def test_a_part_of_a_gaussian_grid_is_found_by_its_ends() -> None:
    whole = grid("regular_gg_pl_grib2").latitude
    first, last = float(whole[3]), float(whole[7])
    part = grid(
        "regular_gg_pl_grib2",
        Nj=5,
        latitudeOfFirstGridPointInDegrees=first,
        latitudeOfLastGridPointInDegrees=last,
    )
    np.testing.assert_array_equal(part.latitude, whole[3:8])
    with pytest.raises(UserError, match=r"contradicts itself: 4 rows of a Gaussian grid of \d+ do not reach"):
        grid(
            "regular_gg_pl_grib2", Nj=4, latitudeOfFirstGridPointInDegrees=first, latitudeOfLastGridPointInDegrees=last
        )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"jDirectionIncrementInDegrees": 2}, "3 latitudes from 20 to 0 are not 2 degrees apart; .*`grib_set"),
        ({"iDirectionIncrementInDegrees": 1}, "5 longitudes from 350 to 370 are not 1 degrees apart; .*`grib_set"),
        ({"alternativeRowScanning": 1}, "its rows run to and fro .*`cdo remapbil"),
        ({"Nj": 2_000_000}, "its header states 2000000 rows and 5 columns; download it again"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"raw.grib: .*{message}"):
        grid(**{**REGION, **keys})


def test_a_step_rounded_to_thousandths_is_no_contradiction() -> None:
    # A third of a degree in edition 1: 0.333 times 540 steps is 179.82.
    ends = {"latitudeOfFirstGridPointInDegrees": 90, "latitudeOfLastGridPointInDegrees": -90}
    found = grid("regular_ll_pl_grib1", **{**REGION, **ends, "Nj": 541, "jDirectionIncrementInDegrees": 0.333})
    np.testing.assert_allclose(found.latitude, np.linspace(90, -90, 541))


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("reduced_gg", "cdo setgridtype,regular"),
        ("sh", "cdo sp2gpl"),
        ("rotated_ll", "the grid rotated_ll; interpolate it with `cdo remapbil"),
    ],
)
def test_another_grid_is_answered_with_a_command(kind: str, advice: str) -> None:
    assert advice in why_no_grid(kind)
