import pytest
from pydantic import ValidationError

from hyperslab.data.config import DataSettings


def test_era5_settings_stand_below_the_data() -> None:
    settings = DataSettings.model_validate(
        {"files": ["*.nc"], "era5": {"members": [0, 3], "static": ["lsm"], "regrid": {"resolution_degrees": 1.5}}}
    )
    assert settings.era5.members == [0, 3]
    assert settings.era5.static == ["lsm"]
    assert settings.era5.regrid is not None
    assert settings.era5.regrid.method == "conservative"


def test_no_member_at_all_is_no_choice() -> None:
    with pytest.raises(ValidationError, match="members"):
        DataSettings.model_validate({"files": ["*.nc"], "era5": {"members": []}})


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValidationError, match="'conservative' or 'bilinear'"):
        DataSettings.model_validate(
            {"files": ["*.nc"], "era5": {"regrid": {"resolution_degrees": 1, "method": "cubic"}}}
        )
