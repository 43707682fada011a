"""Whatever is killed, and whenever: `hyperslab resume` ends where an undisturbed run ends, to the last bit."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from hyperslab.workflows.journal import Journal
from tests.workflows import harness

ROUNDS = int(os.environ.get("HYPERSLAB_KILL_ROUNDS", "1"))


@pytest.fixture(scope="module")
def undisturbed(finished: tuple[Path, float]) -> dict[str, Any]:
    directory, seconds = finished
    return {"seconds": seconds, **harness.outcome(directory)}


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Random moments, whose seed is printed when a test fails."""
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    return random.Random(seed)


def resume_until_done(directory: Path, undisturbed: dict[str, Any]) -> None:
    harness.run("resume", directory)
    expected = {key: value for key, value in undisturbed.items() if key != "seconds"}
    assert harness.outcome(directory) == expected


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_a_killed_driver(
    round_: int, small_campaign: Path, undisturbed: dict[str, Any], chance: random.Random, tmp_path: Path
) -> None:
    longest, directory = undisturbed["seconds"] - 3, tmp_path / "campaign"
    while not run_and_kill(small_campaign, directory, chance.uniform(0, longest)):
        # The undisturbed run met other load, and took longer.
        longest, directory = longest / 2, directory.with_name(f"{directory.name}-")
    assert not harness.events(directory, "driver_ended")
    resume_until_done(directory, undisturbed)


def run_and_kill(campaign: Path, directory: Path, seconds: float) -> bool:
    """Kill the driver of a new campaign some seconds after its start; whether it was not finished by then."""
    driver = harness.start("run", campaign, "--dir", directory)
    harness.wait_for(lambda: harness.events(directory, "driver_started"), driver)
    try:
        driver.wait(seconds)
    except subprocess.TimeoutExpired:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    return not harness.events(directory, "driver_ended")


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_a_killed_staging_worker(
    round_: int, small_campaign: Path, undisturbed: dict[str, Any], chance: random.Random, tmp_path: Path
) -> None:
    directory = tmp_path / "campaign"
    driver = harness.start("run", small_campaign, "--dir", directory)
    parts = directory / "store" / ".hyperslab" / "parts"
    enough = chance.randrange(1, harness.FRAMES - 40)
    harness.wait_for(lambda: parts.exists() and len(list(parts.glob("*.json"))) >= enough, driver)
    chance.choice(harness.processes(directory, "worker")).kill()
    driver.wait(harness.PATIENCE_SECONDS)
    resume_until_done(directory, undisturbed)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_a_killed_rank(
    round_: int, small_campaign: Path, undisturbed: dict[str, Any], chance: random.Random, tmp_path: Path
) -> None:
    directory = tmp_path / "campaign"
    driver = harness.start("run", small_campaign, "--dir", directory)
    ranks = harness.wait_for(lambda: harness.processes(directory, "rank"), driver)
    time.sleep(chance.uniform(0, 3))
    victims = [rank for rank in ranks if rank.is_running()] or harness.processes(directory, "rank")
    if not victims:
        pytest.fail("training ended before its rank could be killed")
    chance.choice(victims).kill()
    driver.wait(harness.PATIENCE_SECONDS)
    codes = [event["exit_code"] for event in harness.events(directory, "job_ended") if event["step"] == "pretrain"]
    assert codes[0] == 128 + signal.SIGKILL
    resume_until_done(directory, undisturbed)


def test_a_killed_driver_leaves_no_worker_behind(small_campaign: Path, tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    driver = harness.start("run", small_campaign, "--dir", directory)
    workers = harness.wait_for(lambda: harness.processes(directory, "worker"), driver)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive


def test_an_interrupted_campaign_stops_at_a_checkpoint_and_resumes(
    small_campaign: Path, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    directory = tmp_path / "campaign"
    driver = harness.start("run", small_campaign, "--dir", directory)
    harness.wait_for(lambda: harness.processes(directory, "rank"), driver)
    time.sleep(1)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(harness.PATIENCE_SECONDS) == 130
    assert harness.events(directory, "driver_ended")[-1]["how"] == "stopped"
    assert not harness.processes(directory, "rank")
    resume_until_done(directory, undisturbed)


def test_cancel_stops_a_campaign_that_is_running_and_one_whose_driver_died(
    small_campaign: Path, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    directory = tmp_path / "campaign"
    driver = harness.start("run", small_campaign, "--dir", directory)
    harness.wait_for(lambda: harness.processes(directory, "rank"), driver)
    harness.run("cancel", directory)
    assert driver.wait(harness.PATIENCE_SECONDS) == 130
    driver = harness.start("resume", directory)
    harness.wait_for(lambda: harness.processes(directory, "rank"), driver)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    harness.run("cancel", directory)
    assert not harness.processes(directory, "rank")
    resume_until_done(directory, undisturbed)


def test_a_cancel_while_the_driver_starts_is_not_lost(small_campaign: Path, tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    driver = harness.start("run", small_campaign, "--dir", directory)
    harness.wait_for(lambda: harness.events(directory, "driver_started"), driver)
    Journal(directory / "journal.jsonl").append("cancel_requested")
    assert driver.wait(harness.PATIENCE_SECONDS) == 130
    assert harness.events(directory, "driver_ended")[-1]["how"] == "stopped"


def test_a_driver_killed_while_it_makes_its_directory_leaves_it_whole_or_absent(
    small_campaign: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    directory = tmp_path / "campaign"
    driver = harness.start("run", small_campaign, "--dir", directory)
    harness.wait_for(lambda: list(tmp_path.glob(".campaign-*")) or directory.exists(), driver)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    if not directory.exists():
        harness.run("run", small_campaign, "--dir", directory)
    resume_until_done(directory, undisturbed)
