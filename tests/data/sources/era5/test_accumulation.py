import pytest

from hyperslab.data.sources.era5.accumulation import accumulation_line, is_accumulated


@pytest.mark.parametrize(
    ("variable", "units", "found"),
    [("tp", "m", True), ("ssrd", "J m**-2", True), ("tp", "mm/day", False), ("t2m", "K", False), ("e", "1", False)],
)
def test_an_accumulation_is_known_by_its_name_and_unit(variable: str, units: str, found: bool) -> None:
    assert is_accumulated(variable, units, {}) == found


def test_what_the_file_says_goes_before_the_name() -> None:
    assert not is_accumulated("tp", "m", {"GRIB_stepType": "instant"})
    assert is_accumulated("rain", "kg", {"GRIB_stepType": "accum"})
    assert is_accumulated("rain", "kg", {"cell_methods": "area: mean time: sum"})


def test_the_line_counts() -> None:
    assert accumulation_line(["tp"]).startswith("tp is an accumulation")
    assert accumulation_line(["tp", "e"]).startswith("tp, e are accumulations")
