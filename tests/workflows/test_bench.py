"""`hyperslab bench read`: a table for a person, and one line for a mistake."""

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hyperslab.data import chunks, verify
from hyperslab.data.chunks import Shard
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
        (["--workers", "1,3000"], "--workers: found '1,3000'; give whole numbers from 1 to 256, such as 1,2,4"),
        (["--workers", "9" * 5000], f"--workers: found '{'9' * 40}'; give whole numbers from 1 to 256"),
        (["--parts", "9" * 5000], f"--parts: found '{'9' * 40}'; give whole numbers from 1 on"),
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


def test_batches_beyond_memory_are_one_line(
    call: Cli, finished: tuple[Path, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = finished
    # 1000 samples of 2 frames of 2 channels on 8 x 12 points are 1.5 MB or, as the windows share frames, a little more;
    # of those three are held.
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=4_000_000))
    code, _, error = call("bench", "read", directory, "--batch", "1000", "--workers", "1")
    assert code == 2
    assert error.startswith("hyperslab: --batch: 1000 samples of 2 frames take 5 MB with 1 worker(s), 4 MB of memory")
    assert "give a smaller --batch, --frames or --workers" in error
    assert len(error.strip().splitlines()) == 1
    code, _, _ = call("bench", "read", directory, "--batch", "100", "--workers", "1", "--seconds", "0.1")
    assert code == 0


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere", "the store does not exist; stage it with `hyperslab run`"),
        ("a.nc", "a.nc: is a file, no store"),
        ("ftp2://host/store", "ftp2://host/store: "),
        ("memory://store", "memory://store: the store does not exist; check the URL"),
        ("http://[::1", "http://[::1: Invalid IPv6 URL; give a path, or a URL"),
        ("http://127.0.0.1:9/store", "http://127.0.0.1:9/store: cannot be reached"),
    ],
)
def test_a_place_without_a_store_is_one_line(call: Cli, tmp_path: Path, place: str, said: str) -> None:
    (tmp_path / "a.nc").write_bytes(b"CDF")
    code, _, error = call("bench", "read", place if "://" in place else tmp_path / place)
    assert code == 2
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_a_read_of_the_floor_that_fails_is_tried_again(
    call: Cli, finished: tuple[Path, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = Shard.fetch, [0]

    def flaky(self: Shard, wanted: list[tuple[int, ...]]) -> list[bytes]:
        calls[0] += 1
        if calls[0] == 2:
            raise OSError(5, "Input/output error")
        return original(self, wanted)

    monkeypatch.setattr(Shard, "fetch", flaky)
    monkeypatch.setattr(chunks, "RETRY_SECONDS", (0.0,))
    code, printed, _ = call("bench", "read", finished[0], "--seconds", "0.1", "--workers", "1")
    assert code == 0
    assert "share of floor" in printed
    assert calls[0] > 2


def test_a_file_that_may_not_be_read_is_said_to_be_so(
    call: Cli, finished: tuple[Path, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, access = finished[0] / "store" / ".hyperslab" / "manifest.json", os.access

    def refused(path: Path) -> dict[str, object]:
        raise PermissionError(13, "Permission denied", str(manifest))

    # The superuser may read everything, so that the file's own permissions would change nothing.
    monkeypatch.setattr(verify, "read_manifest", refused)
    monkeypatch.setattr(
        os, "access", lambda path, mode: access(path, mode) and (str(path), mode) != (str(manifest), os.R_OK)
    )
    code, _, error = call("verify", finished[0])
    assert code == 2
    assert (
        error == f"hyperslab: {manifest}: cannot be read: Permission denied; ask its owner for the right to read it\n"
    )
