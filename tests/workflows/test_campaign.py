from pathlib import Path

import pytest

from hyperslab.data.sources.paths import expand
from hyperslab.errors import UserError
from hyperslab.site_configs.loader import load_site
from hyperslab.workflows.campaign import (
    Campaign,
    CampaignDir,
    driver_lock,
    is_driven,
    load_campaign,
    new_directory,
)
from hyperslab.workflows.journal import Journal
from tests.workflows import harness


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_three_lines_make_a_campaign_named_after_its_file(tmp_path: Path) -> None:
    campaign = load_campaign(write(tmp_path / "winds.yaml", "data:\n  files: [raw.nc]\n"), [])
    assert campaign.name == "winds"
    assert campaign.data.files == [str(tmp_path / "raw.nc")]


def test_raw_files_are_found_beside_the_campaign_file_even_where_its_folder_looks_like_a_pattern(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run [1]"
    file = write(folder / "c.yaml", "data:\n  files: ['sub/*.nc', 'sub/a.nc', 'odd[2].nc']\n")
    for name in ("sub/b.nc", "sub/a.nc", "odd[2].nc"):
        write(folder / name, "")
    found = expand(load_campaign(file, []).data.files)
    assert found == [str(folder / name) for name in ("sub/a.nc", "sub/b.nc", "odd[2].nc")]


def test_a_frozen_campaign_reads_back_as_it_was(tmp_path: Path) -> None:
    text = (
        "data:\n  files: [raw.nc]\n  period: {start: 1990-01-01, end: 1999-12-31}\n"
        "  validation: 1997-01-01\n  test: 0.25\n"
    )
    campaign, site = load_campaign(write(tmp_path / "c.yaml", text), ["train.steps=7"]), load_site("local")
    directory = CampaignDir(tmp_path / "campaign")
    with new_directory(directory, campaign, site) as draft:
        Journal(draft.journal).append("created")
    assert directory.read() == campaign
    assert directory.read_site() == site
    assert campaign.train.steps == 7


def test_names_that_would_leave_the_directory_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "c.yaml", "name: ../escape\ndata:\n  files: [raw.nc]\n")
    with pytest.raises(UserError, match=r"c\.yaml: name: found '\.\./escape'; must be up to 100 letters, digits"):
        load_campaign(file, [])


def test_only_one_driver_at_a_time(tmp_path: Path) -> None:
    directory = CampaignDir(tmp_path)
    assert not is_driven(directory)
    with driver_lock(directory):
        assert is_driven(directory)
        with pytest.raises(UserError, match="already running"), driver_lock(directory):
            pass
    assert not is_driven(directory)
    with driver_lock(directory):
        pass


def begin(directory: CampaignDir, campaign: Campaign) -> None:
    with new_directory(directory, campaign, load_site("local")) as draft:
        Journal(draft.journal).append("created")


def test_a_directory_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    campaign = load_campaign(write(tmp_path / "c.yaml", "data:\n  files: [raw.nc]\n"), [])
    directory = CampaignDir(tmp_path / "campaign")

    def interrupted() -> None:
        with new_directory(directory, campaign, load_site("local")):
            assert not directory.path.exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
    begin(directory, campaign)
    assert directory.read() == campaign


def test_of_two_campaigns_begun_at_once_in_one_place_one_is_refused(tmp_path: Path) -> None:
    campaign = load_campaign(write(tmp_path / "c.yaml", "data:\n  files: [raw.nc]\n"), [])
    directory = CampaignDir(tmp_path / "campaign")
    with (
        pytest.raises(UserError, match="already holds a campaign"),
        new_directory(directory, campaign, load_site("local")),
    ):
        begin(directory, campaign)
    assert directory.read() == campaign
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "campaign"]


def test_patterns_that_would_be_chosen_after_the_last_step_are_refused(tmp_path: Path) -> None:
    attention = {"kind": "block_sparse", "pattern": "learned", "probe_from": 2, "probe_steps": 3}
    content = {"model": {"attention": attention}, "train": {"steps": 5}}
    with pytest.raises(UserError, match=r"probe_steps: probing ends after 5 of 5 train\.steps"):
        load_campaign(harness.write_campaign(tmp_path / "c.yaml", **content), [])
