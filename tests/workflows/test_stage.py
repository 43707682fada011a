"""`hyperslab stage`, `stage --append` and `repair`, as a person types them."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import xarray as xr

from hyperslab.data.store import open_store
from tests.workflows import harness
from tests.workflows.conftest import Cli

KILLS = int(os.environ.get("HYPERSLAB_STAGING_KILLS", "3"))


@pytest.fixture
def campaign_file(tmp_path: Path) -> Path:
    """A campaign over a month in two files, of which the second comes later."""
    whole = harness.write_raw(tmp_path / "whole", frames=120)
    with xr.open_dataset(whole) as dataset:
        dataset.isel(time=slice(0, 100)).to_netcdf(tmp_path / "raw_1.nc")
        dataset.isel(time=slice(100, 120)).to_netcdf(tmp_path / "later_2.nc")
    # A frame is 768 bytes: 10 frames make a part.
    return harness.write_campaign(tmp_path / "campaign.yaml", data={"files": ["raw_*.nc"], "shard_mebibytes": 0.0074})


def test_a_store_is_staged_appended_to_damaged_and_repaired(call: Cli, campaign_file: Path, tmp_path: Path) -> None:
    directory = tmp_path / "c"
    code, out, _ = call("stage", campaign_file, "--dir", directory)
    assert code == 0
    assert "staged; digest" in out
    assert "100 frames" in out
    first = open_store(directory / "store").digest

    code, _, err = call("stage", directory, "--append")
    assert code == 2
    assert "already holds every file that data.files names; name later files" in err
    code, out, _ = call("stage", directory, "--append", "--dry-run", "--files", tmp_path / "later_2.nc")
    assert code == 0
    assert "= 120 x 2 x 8 x 12" in out
    assert open_store(directory / "store").digest == first
    assert len(open_store(directory / "store").time) == 100
    code, out, _ = call("stage", directory, "--append", "--files", tmp_path / "later_2.nc")
    assert code == 0
    assert "120 frames" in out
    second = open_store(directory / "store").digest
    assert second != first

    shard = directory / "store" / "values" / "c" / "4" / "0" / "0" / "0"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    code, out, err = call("verify", directory)
    assert code == 2
    assert "values/c/4/0/0/0: changed" in out
    assert "hyperslab repair" in err
    code, out, _ = call("repair", directory)
    assert code == 0
    assert second in out
    assert shard.read_bytes() == content
    assert call("verify", directory)[0] == 0
    assert len(harness.events(directory, "repaired")) == 1

    # What was only staged is trained by resume.
    code, out, _ = call("resume", directory)
    assert code == 0
    assert "RMSE" in out


def test_a_dry_run_of_staging_writes_nothing(call: Cli, campaign_file: Path, tmp_path: Path) -> None:
    code, out, _ = call("stage", campaign_file, "--dir", tmp_path / "c", "--dry-run")
    assert code == 0
    assert "values (frame, channel, latitude, longitude) = 100 x 2 x 8 x 12 float32" in out
    assert not (tmp_path / "c").exists()


def test_append_needs_a_store(call: Cli, campaign_file: Path) -> None:
    code, _, err = call("stage", campaign_file, "--append")
    assert code == 2
    assert "give the campaign's directory" in err


def test_a_second_driver_of_a_store_is_refused(campaign_file: Path, tmp_path: Path) -> None:
    directory = tmp_path / "c"
    driver = harness.start("stage", campaign_file, "--dir", directory)
    harness.wait_for(lambda: harness.events(directory, "driver_started"), driver)
    driver.send_signal(signal.SIGSTOP)  # or it would be done before the others have begun
    try:
        for command in ("stage", "resume", "repair"):
            second = harness.run(command, directory, check=False)
            assert second.returncode == 2
            assert f"is already running as process {driver.pid}" in second.stderr
    finally:
        driver.send_signal(signal.SIGCONT)
    assert driver.wait(harness.PATIENCE_SECONDS) == 0


def test_kills_at_random_moments_of_one_staging_change_nothing(campaign_file: Path, tmp_path: Path) -> None:
    undisturbed, directory = tmp_path / "undisturbed", tmp_path / "c"
    began = time.monotonic()
    harness.run("stage", campaign_file, "--dir", undisturbed)
    whole = time.monotonic() - began
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    chance = random.Random(seed)
    driver = harness.start("stage", campaign_file, "--dir", directory)
    harness.wait_for(lambda: harness.events(directory, "driver_started"), driver)
    for number in range(KILLS):
        if number:
            driver = harness.start("stage", directory)
        time.sleep(chance.uniform(0, whole))
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    harness.run("stage", directory)
    assert open_store(directory / "store").digest == open_store(undisturbed / "store").digest
