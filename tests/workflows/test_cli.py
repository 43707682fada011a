"""What a person types, and what a mistake gets: one clear message, exit code 2, nothing half-written that counts."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from hyperslab.workflows.campaign import CampaignDir, driver_lock, load_campaign, new_directory
from hyperslab.workflows.journal import Journal
from tests.workflows import harness
from tests.workflows.conftest import Cli


@pytest.fixture
def campaign_file(tmp_path: Path) -> Path:
    harness.write_raw(tmp_path / "raw.nc", frames=60)
    return harness.write_campaign(tmp_path / "campaign.yaml", data={"shard_mebibytes": 0.01})


def refused(result: tuple[int, str, str], *words: str) -> None:
    """The command ended with exit code 2 and one line that holds all of these words, without a traceback."""
    code, _, err = result
    assert code == 2, err
    assert "Traceback" not in err
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    for word in words:
        assert re.search(word, lines[0]), (word, lines[0])


def nothing_counts(directory: Path) -> None:
    """No campaign was begun in a directory."""
    assert not (directory / "campaign.yaml").exists()


def test_a_missing_campaign_file_is_named(call: Cli, tmp_path: Path) -> None:
    refused(call("run", tmp_path / "nope.yaml"), r"nope\.yaml: no such file")


def test_a_missing_raw_file_is_named(call: Cli, campaign_file: Path, tmp_path: Path) -> None:
    result = call("run", campaign_file, "--set", "data.files=[gone.nc]", "--dir", tmp_path / "c")
    refused(result, r"data\.files: .*gone\.nc: no such file")
    nothing_counts(tmp_path / "c")


def test_a_pattern_without_match_is_named(call: Cli, campaign_file: Path, tmp_path: Path) -> None:
    refused(call("run", campaign_file, "--set", "data.files=[none*.nc]"), r"none\*\.nc: matches no file")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"just text", "is not netCDF"),
        (b"GRIB....", "its GRIB messages cannot be read"),
    ],
)
def test_a_file_that_is_not_netcdf_is_named(
    content: bytes, words: str, call: Cli, campaign_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "raw.nc").write_bytes(content)
    refused(call("run", campaign_file, "--dir", tmp_path / "c"), r"raw\.nc", words)
    nothing_counts(tmp_path / "c")


def test_a_netcdf_file_that_was_cut_short_is_named(call: Cli, campaign_file: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw.nc"
    raw.write_bytes(raw.read_bytes()[:3000])
    refused(call("run", campaign_file, "--dir", tmp_path / "c"), r"raw\.nc", "cut short")
    nothing_counts(tmp_path / "c")


def test_an_unknown_variable_is_answered_with_the_known_ones(call: Cli, campaign_file: Path) -> None:
    refused(call("run", campaign_file, "--set", "data.variables=[t2n]"), "unknown variable 't2n'", "t2m, u10")


def test_a_file_without_a_time_axis_is_refused(call: Cli, campaign_file: Path, tmp_path: Path) -> None:
    with xr.open_dataset(tmp_path / "raw.nc") as dataset:
        still = dataset.isel(time=0, drop=True).load()
    still.to_netcdf(tmp_path / "raw.nc")
    refused(call("run", campaign_file), r"raw\.nc: no variable has a time axis")


def test_overlapping_files_are_named_with_their_first_common_time(
    call: Cli, campaign_file: Path, tmp_path: Path
) -> None:
    with xr.open_dataset(tmp_path / "raw.nc") as dataset:
        dataset.isel(time=slice(50, 60)).load().to_netcdf(tmp_path / "late.nc")
    result = call("run", campaign_file, "--set", "data.files=[raw.nc, late.nc]")
    # Frame 50 comes 50 x 6 h = 12.5 days after 2001-01-01.
    refused(result, r"raw\.nc and .*late\.nc overlap", "2001-01-13T12:00", "10 frames")


def test_a_typo_in_a_key_is_answered_with_the_nearest_key(call: Cli, campaign_file: Path) -> None:
    result = call("run", campaign_file, "--set", "train.step=5")
    refused(result, r"train\.step: unknown key, found 5; did you mean `steps`")


def test_every_mistake_of_a_campaign_file_is_reported_at_once(call: Cli, campaign_file: Path) -> None:
    code, _, err = call(
        "run", campaign_file, "--set", "train.stesp=5", "--set", "model.heads=3", "--set", "data.test=2"
    )
    assert code == 2
    assert "train.stesp" in err
    assert "model.heads" in err
    assert "data.test" in err


def test_a_directory_that_cannot_be_written_is_named(call: Cli, campaign_file: Path) -> None:
    refused(call("run", campaign_file, "--dir", "/dev/null/campaign"), "/dev/null/campaign: cannot be written")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a disk that cannot be written")
def test_a_read_only_disk_is_named(call: Cli, campaign_file: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted(disk, "ro"):
        refused(call("run", campaign_file, "--dir", disk / "c"), "c: cannot be written: Read-only file system")


@contextlib.contextmanager
def mounted(disk: Path, options: str) -> Iterator[None]:
    """A file system in memory at a directory."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_directory_that_holds_a_campaign_is_not_begun_again(call: Cli, campaign_file: Path, tmp_path: Path) -> None:
    created(campaign_file, tmp_path / "c")
    refused(call("run", campaign_file, "--dir", tmp_path / "c"), "already holds a campaign", "hyperslab resume")


def test_a_directory_with_other_files_is_left_alone(call: Cli, campaign_file: Path, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "precious").write_text("mine")
    refused(call("run", campaign_file, "--dir", tmp_path / "c"), "already exists and is no campaign")
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["precious"]


def test_a_path_with_a_space_is_refused(call: Cli, campaign_file: Path, tmp_path: Path) -> None:
    refused(call("run", campaign_file, "--dir", tmp_path / "my campaign"), "cannot hold spaces")


def created(campaign_file: Path, directory: Path) -> CampaignDir:
    """A campaign that was begun, and never driven."""
    from hyperslab.site_configs.loader import load_site

    found = CampaignDir(directory)
    with new_directory(found, load_campaign(campaign_file, []), load_site("local")) as draft:
        Journal(draft.journal).append("created", key="0", version="0", commit="")
    return found


def test_a_campaign_that_is_already_running_is_refused(call: Cli, campaign_file: Path, tmp_path: Path) -> None:
    directory = created(campaign_file, tmp_path / "c")
    with driver_lock(directory):
        refused(call("resume", directory.path), f"already running as process {os.getpid()}", "hyperslab status")
    assert not Journal(directory.journal).last("driver_started")


def test_a_lock_held_from_another_host_names_that_host(call: Cli, campaign_file: Path, tmp_path: Path) -> None:
    directory = created(campaign_file, tmp_path / "c")
    with (directory.path / "driver.lock").open("w") as lock:
        json.dump({"host": "login07", "pid": 42}, lock)
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(call("resume", directory.path), "process 42 on login07")


@pytest.mark.parametrize("command", ["resume", "status", "cancel", "logs"])
def test_a_directory_without_a_campaign_is_refused(command: str, call: Cli, tmp_path: Path) -> None:
    refused(call(command, tmp_path), str(tmp_path))


def test_a_store_that_does_not_exist_is_refused(call: Cli, tmp_path: Path) -> None:
    refused(call("verify", tmp_path / "store"), "does not exist")


def test_an_unknown_option_and_an_unknown_command_are_mistakes(call: Cli, campaign_file: Path) -> None:
    refused(call("run", campaign_file, "--stie", "local"), "--stie")
    refused(call("rnu", campaign_file), "rnu")


def test_an_unknown_site_is_answered_with_the_known_ones(call: Cli, campaign_file: Path) -> None:
    refused(call("run", campaign_file, "--site", "locl"), "unknown site; known are .*local")


def test_a_constant_variable_is_refused_when_it_is_staged(campaign_file: Path, tmp_path: Path) -> None:
    with xr.open_dataset(tmp_path / "raw.nc") as dataset:
        flat = dataset.load()
    flat["u10"][:] = 1.0
    flat.to_netcdf(tmp_path / "raw.nc")
    done = harness.run("run", campaign_file, "--dir", tmp_path / "c", check=False)
    refused((done.returncode, done.stdout, done.stderr), "u10 never changes in the training split")
    assert not (tmp_path / "c" / "store" / ".hyperslab" / "manifest.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_full_disk_stops_with_the_bytes_needed_and_resumes_when_there_is_room(
    tmp_path: Path, campaign_file: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    # 60 frames of 2 x 8 x 12 float32 are 46,080 bytes: the disk has room for the campaign, not for the store.
    with mounted(disk, "size=64k"):
        done = harness.run("run", campaign_file, "--dir", disk / "c", check=False)
        refused((done.returncode, done.stdout, done.stderr), "46,080", "free some room")
        assert not (disk / "c" / "store" / ".hyperslab" / "manifest.json").exists()
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        harness.run("resume", disk / "c")
        assert (disk / "c" / "report" / "skill.png").exists()


def test_a_dry_run_says_everything_and_writes_nothing(call: Cli, campaign_file: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = call("run", campaign_file, "--dir", tmp_path / "c", "--dry-run")
    assert code == 0
    # A frame is 2 x 8 x 12 x 4 = 768 bytes; 0.01 MiB hold 13 of them, so 60 frames make 5 parts of one chunk each.
    for words in (
        "60 x 2 x 8 x 12",
        "chunks 13 x 2 x 8 x 12",
        "shards 13 x 2 x 8 x 12",
        "46,080 bytes",
        "5 parts",
    ):
        assert words in out
    for words in ("stage", "2 ranks", "exec ", "steps.pretrain", str(tmp_path / "c"), "OMP_NUM_THREADS=1"):
        assert words in out
    assert sorted(tmp_path.rglob("*")) == before


def test_inspect_says_what_is_taken_and_what_is_odd(call: Cli, tmp_path: Path) -> None:
    raw = harness.write_raw(tmp_path / "raw.nc", frames=10)
    with xr.open_dataset(raw) as dataset:
        gap = dataset.isel(time=[0, 1, 2, 6, 7], latitude=slice(None, None, -1)).load()
    gap["mask"] = (("latitude", "longitude"), np.ones((8, 12)))
    gap.to_netcdf(raw)
    code, out, _ = call("inspect", raw)
    assert code == 0
    for words in ("every 6 h, in 2 segment", "channel t2m: 2 metre temperature [K]", "8 x 12", "static field mask"):
        assert words in out
    for words in ("1 gap(s)", "latitude ascends", "mask without a unit"):
        assert words in out


def test_inspect_goes_on_after_a_file_it_cannot_read(call: Cli, tmp_path: Path) -> None:
    harness.write_raw(tmp_path / "raw.nc", frames=10)
    code, out, err = call("inspect", tmp_path / "gone.nc", tmp_path / "raw.nc")
    assert code == 2
    assert "gone.nc" in err
    assert "channel t2m" in out


def test_init_writes_a_campaign_that_loads_and_does_not_overwrite(call: Cli, tmp_path: Path) -> None:
    path = tmp_path / "campaign.yaml"
    assert call("init", path)[0] == 0
    campaign = load_campaign(path, [])
    # The template shows the defaults: leaving everything out but the files must mean the same.
    (tmp_path / "bare.yaml").write_text("name: campaign\ndata: {files: [raw/*.nc]}\n")
    assert campaign == load_campaign(tmp_path / "bare.yaml", [])
    refused(call("init", path), "already exists")


def test_version_is_printed(call: Cli) -> None:
    from hyperslab import __version__

    assert call("version") == (0, f"{__version__}\n", "")


def test_status_verify_and_logs_of_a_finished_campaign(call: Cli, finished: tuple[Path, float]) -> None:
    directory, _ = finished
    code, out, _ = call("status", directory)
    assert code == 0
    assert "finished" in out
    assert f"step {harness.TRAIN_STEPS} of {harness.TRAIN_STEPS}" in out
    assert f"{harness.FRAMES} of {harness.FRAMES} parts" in out
    assert call("status", directory.parent)[1] == out
    code, out, _ = call("verify", directory / "store")
    assert code == 0
    assert "sound" in out
    assert f"{harness.FRAMES} frames" in out
    code, out, _ = call("logs", directory, "--step", "pretrain")
    assert code == 0
    assert "pretrain-0001.log" in out
    assert f"ended at step {harness.TRAIN_STEPS} of {harness.TRAIN_STEPS}" in out
    assert "driver.log" in call("logs", directory)[1]
    for step in ("pretain", "*", "../*"):
        refused(call("logs", directory, "--step", step), f"no log of {re.escape(step)}", "pretrain")


def test_a_finished_campaign_has_nothing_left_to_resume(call: Cli, finished: tuple[Path, float]) -> None:
    directory, _ = finished
    before = Journal(directory / "journal.jsonl").last("job_submitted")
    code, out, _ = call("resume", directory)
    assert code == 0
    assert "RMSE" in out
    assert Journal(directory / "journal.jsonl").last("job_submitted") == before
    refused(call("cancel", directory), "has finished; there is nothing to stop")
    assert "finished" in call("status", directory)[1]


def test_a_flipped_byte_is_named_with_its_file(call: Cli, finished: tuple[Path, float], tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished[0] / "store", store)
    shard = store / "values" / "c" / "7" / "0" / "0" / "0"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    code, out, err = call("verify", store)
    assert code == 2
    assert "values/c/7/0/0/0: changed" in out
    assert "1 thing(s)" in err


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("train.seed=99999999999999999999999", r"train\.seed"),
        ("model.width=1000000000", r"model\.width"),
        ("train.steps=true", r"train\.steps: found True; must not be true or false"),
        ('train.steps=!!int ""', r"--set train\.steps"),
        ("train.steps=!!bool foo", r"--set train\.steps"),
        ("train.steps=" + "[" * 5000, r"--set train\.steps"),
        ("data.files=[~no-such-user/x.nc]", "no such user"),
        ("name=" + "a" * 101, "name: .*up to 100"),
    ],
)
def test_an_odd_setting_is_a_mistake(assignment: str, words: str, call: Cli, campaign_file: Path) -> None:
    refused(call("run", campaign_file, "--dry-run", "--set", assignment), words)


def test_a_path_that_no_disk_can_hold_is_a_mistake(call: Cli, campaign_file: Path, tmp_path: Path) -> None:
    long = tmp_path / ("a" * 300)
    refused(call("run", campaign_file, "--dir", long), "File name too long")
    refused(call("status", long), "File name too long")
    refused(call("run", campaign_file, "--dir", "/proc/x"), "/proc/x: cannot be made")


def test_a_port_that_is_none_is_a_mistake(call: Cli, finished: tuple[Path, float]) -> None:
    refused(call("ui", finished[0], "--port", "99999999"), "--port")


def test_a_full_standard_output_is_a_mistake(finished: tuple[Path, float]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            harness.command("status", finished[0]), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    refused((done.returncode, "", done.stderr), "standard output: no space left")


def test_a_damaged_skill_is_made_anew(call: Cli, finished: tuple[Path, float], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished[0], copy)
    before = (copy / "evaluation" / "skill.json").read_text()
    (copy / "evaluation" / "skill.json").write_text("")
    harness.run("resume", copy)
    assert (copy / "evaluation" / "skill.json").read_text() == before


@pytest.mark.parametrize("name", ["manifest.json", "__0_0.distcp"])
def test_the_steps_of_a_damaged_checkpoint_are_done_again(
    name: str, finished: tuple[Path, float], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished[0], copy)
    expected = harness.outcome(copy)
    (copy / "evaluation" / "skill.json").unlink()
    last = sorted((copy / "checkpoints").iterdir())[-1]
    (last / name).write_text("")
    harness.run("resume", copy)
    assert harness.outcome(copy) == expected
    logs = "".join(path.read_text() for path in (copy / "logs").glob("*.log"))
    assert f"{last.name} is passed over, and step-00000080 is taken" in logs


def test_a_campaign_whose_checkpoints_are_all_damaged_is_refused(
    call: Cli, finished: tuple[Path, float], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished[0], copy)
    for path in (copy / "checkpoints").iterdir():
        (path / "__0_0.distcp").write_text("")
    (copy / "evaluation" / "skill.json").unlink()
    refused(call("resume", copy), "was changed since it was written; none of the checkpoints in .* is whole: restore")
