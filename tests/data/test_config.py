from datetime import date
from typing import Any

import pytest

from hyperslab.data.config import DataSettings
from hyperslab.errors import UserError
from hyperslab.settings import parse


def settings(**content: Any) -> DataSettings:
    return parse(DataSettings, {"files": ["*.nc"], **content}, "campaign.yaml")


def test_files_are_all_that_must_be_said() -> None:
    assert settings().variables is None


def test_a_campaign_without_files_is_refused() -> None:
    with pytest.raises(UserError, match="files: missing; this key is required"):
        parse(DataSettings, {}, "campaign.yaml")
    with pytest.raises(UserError, match=r"files: found \[\]; list should have at least 1 item"):
        settings(files=[])


@pytest.mark.parametrize("key", ["validation", "test"])
@pytest.mark.parametrize("share", [1, -0.1, 1.5, 7, float("nan")])
def test_a_share_that_is_none_is_refused(key: str, share: float) -> None:
    with pytest.raises(UserError, match=f"{key}: found .*; must be a share between 0 and 1, or a date"):
        settings(**{key: share})


def test_splits_may_be_given_as_dates_or_shares() -> None:
    result = settings(validation=date(1990, 1, 1), test=0.25)
    assert (result.validation, result.test) == (date(1990, 1, 1), 0.25)


@pytest.mark.parametrize("size", [0, -1])
def test_a_shard_without_room_is_refused(size: float) -> None:
    with pytest.raises(UserError, match=r"shard_mebibytes: found .*; input should be greater than 0"):
        settings(shard_mebibytes=size)


def test_an_unknown_source_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="source: found 'era6'; input should be 'era5'"):
        settings(source="era6")


def test_a_bare_year_is_not_taken_for_seconds_since_1970() -> None:
    with pytest.raises(UserError, match=r"period\.start"):
        settings(period={"start": 1990})


def test_a_mistake_is_reported_once_under_the_key_that_a_person_wrote() -> None:
    with pytest.raises(UserError) as caught:
        settings(validation="soon")
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == ["validation"]


def test_a_shard_without_end_is_refused() -> None:
    with pytest.raises(UserError, match="shard_mebibytes"):
        settings(shard_mebibytes=float("inf"))


@pytest.mark.parametrize("key", ["variables", "levels", "files", "difference_leads"])
def test_an_empty_list_is_refused(key: str) -> None:
    with pytest.raises(UserError, match=rf"{key}: found \[\]"):
        parse(DataSettings, {"files": ["raw.nc"], key: []}, "here.yaml")


def test_a_period_that_ends_before_it_begins_is_refused() -> None:
    content = {"files": ["raw.nc"], "period": {"start": "2001-02-01", "end": "2001-01-01"}}
    with pytest.raises(UserError, match=r"period: .*start \(2001-02-01\) must not come after end \(2001-01-01\)"):
        parse(DataSettings, content, "here.yaml")


def test_settings_of_another_source_are_refused() -> None:
    content = {"files": ["raw.nc"], "fmri": {"detrend": "linear"}}
    with pytest.raises(UserError, match="fmri: is for source fmri, found source era5; leave it out"):
        parse(DataSettings, content, "here.yaml")
    assert parse(DataSettings, {**content, "source": "fmri"}, "here.yaml").fmri.detrend == "linear"
