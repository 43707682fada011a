"""`hyperslab bench read`: a table for a person, and one line for a mistake."""

import os
from pathlib import Path

import pytest

from tests.workflows.conftest import Cli


def test_reading_is_measured_for_each_number_of_workers(call: Cli, finished: tuple[Path, float]) -> None:
    directory, _ = finished
    code, printed, _ = call("bench", "read", directory, "--seconds", "0.1", "--workers", "1,3", "--parts", "1,2")
    assert code == 0
    title, *rows = [line.split() for line in printed.splitlines() if line.strip()]
    assert title[0] == "workers"
    assert [row[0] for row in rows] == ["1", "3"]
    for row in rows:
        samples, megabytes, share, stored = int(row[1]), int(row[2]), float(row[3].rstrip("%")), int(row[4])
        # 2 frames of 2 channels on half of 8 x 12 points are 768 bytes a sample.
        assert abs(megabytes - samples * 768 / 1e6) <= 1
        assert share > 0
        # Some hundred bytes are less than half of a kB.
        assert stored <= 1


def test_cold_has_the_system_forget_every_shard(
    call: Cli, finished: tuple[Path, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = finished
    forgotten: set[Path] = set()
    monkeypatch.setattr(
        os, "posix_fadvise", lambda handle, *rest: forgotten.add(Path(f"/proc/self/fd/{handle}").resolve())
    )
    code, printed, _ = call("bench", "read", directory / "store", "--seconds", "0.1", "--workers", "1", "--cold")
    assert code == 0
    assert "share of floor" in printed
    assert {path.resolve() for path in (directory / "store" / "values" / "c").rglob("0") if path.is_file()} <= forgotten


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--split", "all"], "--split: found 'all'; choose one of train, validation, test"),
        (["--workers", "two"], "--workers: found 'two'; give whole numbers"),
        (["--workers", "0"], "--workers: found '0'; give whole numbers"),
        (["--workers", ","], "--workers: found ','; give whole numbers"),
        (
            ["--parts", "2"],
            "--parts: found '2'; give a number for each axis of the store's space (latitude, ",
        ),
        (["--parts", "9,1"], "--parts: found '9,1'; the axes have 8 x 12 cells"),
        (["--frames", "500"], "has no unbroken window of 500 frames; choose another --frames"),
        (["--seconds", "inf"], "--seconds"),
        (["--batch", "1000000000000"], "--batch"),
    ],
)
def test_a_mistake_is_one_line(call: Cli, finished: tuple[Path, float], options: list[str], said: str) -> None:
    directory, _ = finished
    code, _, error = call("bench", "read", directory, *options)
    assert code == 2
    assert said in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("place", ["nowhere", "ftp2://host/store", "memory://store"])
def test_a_place_without_a_store_is_one_line(call: Cli, tmp_path: Path, place: str) -> None:
    code, _, error = call("bench", "read", place if "://" in place else tmp_path / place)
    assert code == 2
    assert len(error.strip().splitlines()) == 1
