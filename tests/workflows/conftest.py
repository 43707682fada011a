"""One small campaign, run once for all tests that look at a finished one."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hyperslab.workflows import cli
from tests.workflows import harness

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def small_campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of a campaign that runs in seconds."""
    folder = tmp_path_factory.mktemp("small")
    harness.write_raw(folder / "raw.nc")
    return harness.write_campaign(folder / "campaign.yaml")


@pytest.fixture(scope="session")
def finished(small_campaign: Path) -> tuple[Path, float]:
    """Directory of that campaign after an undisturbed run, and the seconds that the run took."""
    directory = small_campaign.parent / "campaigns" / "undisturbed"
    began = time.monotonic()
    harness.run("run", small_campaign, "--dir", directory)
    return directory, time.monotonic() - began


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run the command in this process: its exit code, and what it printed on both streams."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hyperslab", *map(str, arguments)])
        code = cli.main()
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    return run
