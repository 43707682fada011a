import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.data.fetch.plan import (
    CdsRequest,
    Item,
    cds_items,
    check_names,
    chosen,
    load_request,
    months,
    safe_name,
    shown,
    url_name,
)
from hyperslab.errors import UserError

CDS: dict[str, Any] = {
    "archive": "cds",
    "dataset": "reanalysis-era5-pressure-levels",
    "variables": ["temperature", "geopotential"],
    "levels": [500, 850],
    "start": "2000-01-15",
    "end": "2000-03-02",
}


def load(tmp_path: Path, **changes: Any) -> Any:
    content = {key: value for key, value in {**CDS, **changes}.items() if value is not ...}
    (tmp_path / "request.yaml").write_text(yaml.safe_dump(content))
    return load_request(tmp_path / "request.yaml")


def test_the_store_is_asked_once_for_each_variable_and_month(tmp_path: Path) -> None:
    items = cds_items(load(tmp_path, hours=[0, 12], area=[60, -10, 35, 30]))
    assert [item.name for item in items] == [
        f"reanalysis-era5-pressure-levels_{variable}_{month}.nc"
        for variable in ("temperature", "geopotential")
        for month in ("200001", "200002", "200003")
    ]
    assert items[0].details["request"] == {
        "product_type": ["reanalysis"],
        "variable": ["temperature"],
        "pressure_level": ["500", "850"],
        "year": ["2000"],
        "month": ["01"],
        "day": [f"{day:02d}" for day in range(15, 32)],
        "time": ["00:00", "12:00"],
        "area": [60, -10, 35, 30],
        "data_format": "netcdf",
        "download_format": "unarchived",
    }
    assert items[2].details["request"]["day"] == ["01", "02"]
    # 101 rows x 161 columns x 2 levels x 2 hours x 17 days x 2 bytes.
    assert items[0].estimate_bytes == 101 * 161 * 2 * 2 * 17 * 2


def test_an_area_over_the_date_line_is_as_wide_as_it_is(tmp_path: Path) -> None:
    (first, *_) = cds_items(load(tmp_path, hours=[0], levels=[500], area=[10, 170, 0, -170], end="2000-01-15"))
    # 20 degrees: 81 columns; 41 rows; one frame.
    assert first.estimate_bytes == 81 * 41 * 2


def test_a_leap_day_is_in_its_month() -> None:
    days = list(months(date(2000, 2, 27), date(2000, 3, 1)))
    assert [[day.isoformat() for day in month] for month in days] == [
        ["2000-02-27", "2000-02-28", "2000-02-29"],
        ["2000-03-01"],
    ]


@given(start=st.dates(date(1940, 1, 1), date(2030, 1, 1)), length=st.integers(0, 800))
def test_months_hold_every_day_once(start: date, length: int) -> None:
    end = date.fromordinal(start.toordinal() + length)
    parts = list(months(start, end))
    days = [day for part in parts for day in part]
    assert [day.toordinal() for day in days] == list(range(start.toordinal(), end.toordinal() + 1))
    assert len({(part[0].year, part[0].month) for part in parts}) == len(parts)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"archive": "cdss"}, "archive: found 'cdss'; known are cds, arco, openneuro, urls"),
        ({"archive": ...}, "archive: found None; known are"),
        ({"variable": ["t"]}, "variable: unknown key.*did you mean `variables`"),
        ({"start": ...}, "start: missing"),
        ({"end": "1999-01-01"}, "end: 1999-01-01 lies before start, 2000-01-15"),
        ({"levels": ...}, r"levels: missing; .* needs some"),
        ({"dataset": "reanalysis-era5-single-levels"}, "levels: found .*has none, leave them out"),
        ({"dataset": "../x"}, "dataset: found '../x'"),
        ({"area": [10, 0, 20, 5]}, "area: found .*must be north, west, south, east"),
        ({"hours": [24]}, r"hours.*found 24"),
        ({"variables": []}, "variables: found"),
        ({"archive": "openneuro"}, "known keys"),
    ],
)
def test_a_mistake_in_a_request_is_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load(tmp_path, **changes)
    assert "request.yaml" in str(caught.value)


def test_every_archive_has_a_request(tmp_path: Path) -> None:
    for text in (
        "{archive: arco, variables: [temperature], start: 2000-01-01, end: 2000-01-02}",
        "{archive: openneuro, dataset: ds000001, include: [sub-01/*]}",
        "{archive: urls, urls: ['https://example.org/a.nc']}",
    ):
        (tmp_path / "request.yaml").write_text(text)
        assert load_request(tmp_path / "request.yaml").archive in text


def test_a_request_of_single_levels_needs_none(tmp_path: Path) -> None:
    request = load(tmp_path, dataset="reanalysis-era5-single-levels", levels=..., product_type=None)
    assert isinstance(request, CdsRequest)
    asked = cds_items(request)[0].details["request"]
    assert "pressure_level" not in asked
    assert "product_type" not in asked


def test_patterns_choose_paths() -> None:
    names = ["sub-01/func/a_bold.nii.gz", "sub-01/anat/T1w.nii.gz", "sub-02/func/a_bold.nii.gz", "README"]
    assert chosen(names, ["*"], []) == names
    assert chosen(names, ["sub-01/*"], ["*/anat/*"]) == names[:1]
    assert chosen(names, ["*_bold.nii.gz"], []) == [names[0], names[2]]
    assert chosen(names, ["sub-0[2-9]/*", "README"], []) == names[2:]


@pytest.mark.parametrize(
    "name",
    ["../a", "a/../b", "/etc/passwd", "a//b", "a/", "", ".", "a/.", "a\\..\\b", "a\nb", "a\x00b", "..", "./a"],
)
def test_a_path_that_leads_out_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"the path {name!r} leads out of the output directory")):
        safe_name(name, "s3://bucket")


@pytest.mark.parametrize("name", ["a.part", ".fetch.jsonl", "a/b.part/c", "x" * 1001])
def test_names_that_downloads_use_themselves_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="cannot be used here"):
        safe_name(name, "s3://bucket")


@given(st.text(max_size=40))
def test_no_path_that_is_let_through_leads_out(name: str) -> None:
    root = Path("/out")
    try:
        safe_name(name, "s3://bucket")
    except UserError:
        return
    target = Path(*root.parts, *name.split("/"))
    assert target.is_relative_to(root)
    assert ".." not in target.parts
    assert root / name == target


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://example.org/a/b.nc", "b.nc"),
        ("https://example.org/a/b%20c.nc?key=1#x", "b c.nc"),
        ("s3://bucket/a/b.nii.gz", "b.nii.gz"),
    ],
)
def test_the_name_of_a_url_is_what_stands_last(url: str, name: str) -> None:
    assert url_name(url) == name


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/a", "/etc/passwd", "https:///a", "a.nc"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(UserError, match="not a URL that can be fetched"):
        url_name(url)


@pytest.mark.parametrize(
    "url", ["https://example.org/", "https://example.org/a/%2e%2e", "https://example.org/x%2F..%2F.."]
)
def test_a_url_without_a_name_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="leads out of the output directory, or is none"):
        url_name(url)


def test_a_url_is_shown_without_secrets() -> None:
    assert shown("https://me:secret@example.org:8080/a.nc?token=secret#secret") == "https://example.org:8080/a.nc"


def test_two_files_of_one_name_are_refused() -> None:
    items = [Item(name="a", origin="one"), Item(name="a", origin="two")]
    with pytest.raises(UserError, match="a: would come from one and from two"):
        check_names(items)


def test_a_file_that_is_also_a_directory_is_refused() -> None:
    with pytest.raises(UserError, match="a/b: a is a file of its own"):
        check_names([Item(name="a", origin="one"), Item(name="a/b", origin="two")])
