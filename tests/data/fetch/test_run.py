import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from hyperslab.data.fetch.archives import Urls
from hyperslab.data.fetch.manifest import NAME
from hyperslab.data.fetch.plan import Item, UrlsRequest
from hyperslab.data.fetch.rate import Rate
from hyperslab.data.fetch.run import Plan, fetch, plan, verify
from hyperslab.errors import UserError
from tests.data.fetch.servers import Site


def content(number: int, size: int = 200_000) -> bytes:
    return np.random.default_rng(number).bytes(size)


@pytest.fixture
def archive(site: Site) -> Urls:
    site.files = {f"/{number}.bin": content(number) for number in range(6)}
    return Urls(UrlsRequest(archive="urls", urls=[f"{site.url}{path}" for path in site.files]))


def run(archive: Urls, out: Path, jobs: int = 2, rate: float | None = None) -> Plan:
    return fetch(archive, out, jobs=jobs, rate=Rate(rate), progress=lambda item: None, patience_seconds=0.01)


def is_complete(out: Path) -> bool:
    return all((out / f"{number}.bin").read_bytes() == content(number) for number in range(6))


def test_all_files_are_fetched_and_told(archive: Urls, tmp_path: Path) -> None:
    told: list[Item] = []
    found = fetch(archive, tmp_path, jobs=3, rate=Rate(None), progress=told.append)
    assert is_complete(tmp_path)
    assert sorted(item.name for item in told) == [f"{number}.bin" for number in range(6)]
    assert len(found.missing) == 6
    assert verify(tmp_path) == (6, [])


def test_a_second_fetch_fetches_nothing(archive: Urls, site: Site, tmp_path: Path) -> None:
    run(archive, tmp_path)
    before = len(site.requests)
    found = run(archive, tmp_path)
    assert found.missing == []
    # A byte of each file, to see whether it has changed.
    assert [wanted for _, wanted in site.requests[before:]] == ["bytes=0-0"] * 6


def test_only_what_is_missing_or_changed_is_fetched(archive: Urls, site: Site, tmp_path: Path) -> None:
    run(archive, tmp_path)
    (tmp_path / "1.bin").unlink()
    (tmp_path / "2.bin").write_bytes(b"cut")
    site.files["/3.bin"] = content(30)
    found = run(archive, tmp_path)
    assert [item.name for item in found.missing] == ["1.bin", "2.bin", "3.bin"]
    assert (tmp_path / "3.bin").read_bytes() == content(30)
    assert (tmp_path / "2.bin").read_bytes() == content(2)


def test_a_plan_says_what_is_missing_and_writes_nothing(archive: Urls, tmp_path: Path) -> None:
    found = plan(archive, tmp_path / "out")
    assert found.missing_bytes == 6 * 200_000
    assert not (tmp_path / "out").exists()
    run(archive, tmp_path / "out")
    assert plan(archive, tmp_path / "out").missing == []


def test_a_file_that_fails_does_not_keep_the_others(archive: Urls, site: Site, tmp_path: Path) -> None:
    planned = archive.plan

    def plan_then_lose(downloads):
        items = planned(downloads)
        del site.files["/2.bin"], site.files["/4.bin"]
        return items

    archive.plan = plan_then_lose  # type: ignore[method-assign]
    with pytest.raises(UserError) as caught:
        run(archive, tmp_path)
    lines = str(caught.value).split("\nhyperslab: ")
    assert sorted(line.split(": ")[0].rpartition("/")[2] for line in lines) == ["2.bin", "4.bin"]
    assert all("the server answered 404" in line for line in lines)
    assert {path.name for path in tmp_path.glob("*.bin")} == {"0.bin", "1.bin", "3.bin", "5.bin"}


def test_verify_names_what_is_not_what_was_fetched(archive: Urls, tmp_path: Path) -> None:
    run(archive, tmp_path)
    (tmp_path / "1.bin").unlink()
    (tmp_path / "2.bin").write_bytes(content(2)[:-1])
    flipped = bytearray(content(3))
    flipped[1000] ^= 1
    (tmp_path / "3.bin").write_bytes(flipped)
    count, problems = verify(tmp_path)
    assert count == 6
    assert [problem.split(": ")[0].rpartition("/")[2] for problem in problems] == ["1.bin", "2.bin", "3.bin"]
    assert "is missing" in problems[0]
    assert "has 199,999 bytes instead of 200,000" in problems[1]
    assert "SHA-256 differs" in problems[2]


def test_the_rate_holds_for_all_downloads_together(archive: Urls, tmp_path: Path) -> None:
    began = time.monotonic()
    run(archive, tmp_path, jobs=4, rate=600_000)
    # 1.2 MB at 0.6 MB/s, of which the first second's worth is there at once.
    assert 0.9 < time.monotonic() - began < 2.5
    assert is_complete(tmp_path)


def test_a_disk_without_room_is_named_before_anything_is_fetched(
    archive: Urls, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = os.statvfs(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000, "total": usage.f_blocks}))
    with pytest.raises(UserError, match=r"no space left on the disk \(1,200,000 bytes are needed, 1,000 are free\)"):
        run(archive, tmp_path)
    assert {wanted for _, wanted in site.requests} == {"bytes=0-0"}


def test_two_fetches_into_one_directory_at_a_time_are_refused(archive: Urls, site: Site, tmp_path: Path) -> None:
    site.pace = threading.Event()
    first = threading.Thread(target=run, args=(archive, tmp_path))
    first.start()
    try:
        while not list(tmp_path.glob("*.part")):
            time.sleep(0.01)
        with pytest.raises(UserError, match="another fetch is at work here"):
            run(archive, tmp_path)
    finally:
        site.pace.set()
        first.join()
    assert is_complete(tmp_path)


SCRIPT = """
import sys
from pathlib import Path
from hyperslab.data.fetch.archives import Urls
from hyperslab.data.fetch.plan import UrlsRequest
from hyperslab.data.fetch.rate import Rate
from hyperslab.data.fetch.run import fetch
archive = Urls(UrlsRequest(archive="urls", urls=sys.argv[2:]))
fetch(archive, Path(sys.argv[1]), jobs=2, rate=Rate(1_500_000), progress=lambda item: None)
"""


def test_killed_at_any_moment_it_goes_on_and_ends_with_the_same_bytes(site: Site, tmp_path: Path) -> None:
    site.files = {f"/{number}.bin": content(number, 700_000) for number in range(3)}
    urls = [f"{site.url}{path}" for path in site.files]
    moments = random.Random(0)
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path), *urls])
        # Until it has begun; then for up to half of the second that the rest takes at least.
        deadline = time.monotonic() + 30
        size = sum(part.stat().st_size for part in tmp_path.glob("*.part"))
        while time.monotonic() < deadline and process.poll() is None:
            now = sum(part.stat().st_size for part in tmp_path.glob("*.part"))
            if now > size:
                break
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path), *urls], check=True, timeout=60)
    for number in range(3):
        assert (tmp_path / f"{number}.bin").read_bytes() == content(number, 700_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == [NAME, "0.bin", "1.bin", "2.bin"]
    # What was there when it was killed was gone on with: less was sent than all files again for each kill.
    assert any(wanted not in ("", "bytes=0-0") for _, wanted in site.requests)
    assert site.sent < 2_100_000 * 2.5
    assert verify(tmp_path) == (3, [])
