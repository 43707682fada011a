import base64
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hyperslab.data.fetch.download import Downloads, target_of
from hyperslab.data.fetch.manifest import opened
from hyperslab.data.fetch.plan import Item
from hyperslab.data.fetch.rate import Rate
from hyperslab.errors import Stopped, UserError
from tests.data.fetch.servers import Site

CONTENT = np.random.default_rng(0).bytes(3_000_000)
OTHER = np.random.default_rng(1).bytes(2_500_000)


@pytest.fixture
def downloads(tmp_path: Path) -> Iterator[Downloads]:
    with opened(tmp_path / "out") as manifest:
        yield Downloads(tmp_path / "out", manifest, Rate(None), tries=3, patience_seconds=0.01)


def get(downloads: Downloads, site: Site, name: str = "a.bin", md5: str = "") -> bytes:
    downloads.get(Item(name=name, origin=f"{site.url}/a.bin"), f"{site.url}/a.bin", md5=md5)
    return (downloads.out / name).read_bytes()


def test_a_file_is_fetched_whole_and_recorded_with_its_digest(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    assert get(downloads, site, "sub/a.bin") == CONTENT
    entry = downloads.manifest.finished("sub/a.bin")
    assert entry is not None
    assert entry["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert entry["size_bytes"] == len(CONTENT)
    assert entry["validator"] == site.etag("/a.bin")
    assert list((downloads.out / "sub").iterdir()) == [downloads.out / "sub" / "a.bin"]


def test_a_broken_connection_is_taken_up_where_it_broke(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    site.cut_after = [1_000_000, 1_500_000]
    assert get(downloads, site) == CONTENT
    ranges = [wanted for _, wanted in site.requests]
    assert ranges[0] == ""
    assert all(wanted.startswith("bytes=") for wanted in ranges[1:])
    # What was lost on the way is at most what the sockets held when the connection broke.
    assert site.sent < len(CONTENT) + 2 * 1_000_000


def test_an_interrupted_fetch_goes_on_in_another_process(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    downloads.manifest.record("a.bin", "begun", validator=site.etag("/a.bin"), size_bytes=len(CONTENT), md5="")
    (downloads.out / "a.bin.part").write_bytes(CONTENT[:1_234_567])
    assert get(downloads, site) == CONTENT
    assert site.requests == [("/a.bin", "bytes=1234567-")]


def test_a_part_that_is_already_whole_is_not_fetched_again(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    downloads.manifest.record("a.bin", "begun", validator=site.etag("/a.bin"), size_bytes=len(CONTENT), md5="")
    (downloads.out / "a.bin.part").write_bytes(CONTENT)
    assert get(downloads, site) == CONTENT
    assert site.sent == 0


def test_a_file_that_changed_meanwhile_is_begun_anew(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    downloads.manifest.record("a.bin", "begun", validator=site.etag("/a.bin"), size_bytes=len(CONTENT), md5="")
    (downloads.out / "a.bin.part").write_bytes(CONTENT[:1_000_000])
    site.files["/a.bin"] = OTHER
    assert get(downloads, site) == OTHER


def test_a_file_that_changes_while_the_connection_is_broken_is_begun_anew(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    site.cut_after, site.after_cut = [1_000_000], {"/a.bin": OTHER}
    assert get(downloads, site) == OTHER
    entry = downloads.manifest.finished("a.bin")
    assert entry is not None
    assert entry["validator"] == site.etag("/a.bin")


@pytest.mark.parametrize("kept", [b"", b"junk" * 1000])
def test_a_part_that_nobody_knows_of_is_not_trusted(kept: bytes, downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    (downloads.out / "a.bin.part").write_bytes(kept)
    assert get(downloads, site) == CONTENT


def test_a_server_that_gives_no_parts_is_asked_for_the_whole(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    site.ranges = False
    site.cut_after = [1_000_000]
    assert get(downloads, site) == CONTENT


def test_without_etag_and_date_a_part_is_not_gone_on_with(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    site.etags = False
    site.cut_after = [1_000_000]
    assert get(downloads, site) == CONTENT
    assert [wanted for _, wanted in site.requests] == ["", ""]


def test_a_date_of_change_serves_where_there_is_no_etag(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    site.etags = False
    site.headers["Last-Modified"] = "Mon, 01 Jan 2024 00:00:00 GMT"
    assert get(downloads, site) == CONTENT
    entry = downloads.manifest.finished("a.bin")
    assert entry is not None
    assert entry["validator"] == "Mon, 01 Jan 2024 00:00:00 GMT"


def test_a_file_without_a_length_is_fetched(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    site.lengths = False
    assert get(downloads, site) == CONTENT


def test_an_empty_file_is_fetched(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = b""
    assert get(downloads, site) == b""


def test_a_server_that_is_busy_is_asked_again(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    site.failures = [503, 429, 500]
    assert get(downloads, site) == CONTENT
    assert len(site.requests) == 4


def test_a_server_that_stays_busy_is_given_up(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    site.failures = [503] * 20
    with pytest.raises(UserError, match=r"/a\.bin: the server answered 503: try again later"):
        get(downloads, site)
    assert len(site.requests) == 4


def test_a_connection_that_breaks_again_and_again_is_given_up(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    site.cut_after = [0] * 20
    with pytest.raises(UserError, match=r"/a\.bin: the connection broke; try again later: what is there of it is kept"):
        get(downloads, site)


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "wants a key"), (403, "denies access"), (404, "no such file"), (410, "check the address")],
)
def test_a_refusal_is_said_in_words_and_not_repeated(status: int, words: str, downloads: Downloads, site: Site) -> None:
    site.failures = [status]
    with pytest.raises(UserError, match=f"the server answered {status}: .*{words}"):
        get(downloads, site)
    assert len(site.requests) == 1


def test_a_server_that_is_not_there_is_named_without_the_query(downloads: Downloads) -> None:
    item = Item(name="a", origin="http://127.0.0.1:9/a")
    with pytest.raises(UserError, match=r"^http://127\.0\.0\.1:9/a: the server cannot be reached") as caught:
        downloads.get(item, "http://127.0.0.1:9/a?signature=secret")
    assert "secret" not in str(caught.value)


def headers_of(kind: str, content: bytes) -> dict[str, str]:
    digest = hashlib.md5(content)
    coded = base64.b64encode(digest.digest()).decode()
    return {
        "google": {"x-goog-hash": f"crc32c=AAAAAA==,md5={coded}"},
        "md5": {"Content-MD5": coded},
        "amazon": {"x-amz-request-id": "1", "ETag": f'"{digest.hexdigest()}"'},
    }[kind]


@pytest.mark.parametrize("kind", ["google", "md5", "amazon"])
def test_a_digest_that_the_server_tells_is_checked(kind: str, downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    site.etags = kind != "amazon"
    site.headers = headers_of(kind, CONTENT)
    assert get(downloads, site) == CONTENT
    entry = downloads.manifest.finished("a.bin")
    assert entry is not None
    assert entry["verified"] == "md5"


@pytest.mark.parametrize("kind", ["google", "md5", "amazon"])
def test_content_that_does_not_fit_its_digest_is_refused(kind: str, downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    site.etags = kind != "amazon"
    site.headers = headers_of(kind, OTHER)
    with pytest.raises(UserError, match=f"came three times with other content.*{hashlib.md5(OTHER).hexdigest()}"):
        get(downloads, site)
    assert not list(downloads.out.glob("a.bin*"))


def test_a_digest_known_beforehand_is_checked(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    assert get(downloads, site, md5=hashlib.md5(CONTENT).hexdigest()) == CONTENT
    with pytest.raises(UserError, match="came three times with other content"):
        get(downloads, site, "b.bin", md5=hashlib.md5(OTHER).hexdigest())


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-request-id": "1", "ETag": '"0123456789abcdef0123456789abcdef-12"'},
        {
            "x-amz-request-id": "1",
            "ETag": '"0123456789abcdef0123456789abcdef"',
            "x-amz-server-side-encryption": "aws:kms",
        },
        {"ETag": '"0123456789abcdef0123456789abcdef"'},
        {"x-amz-request-id": "1", "ETag": 'W/"0123456789abcdef0123456789abcdef"'},
    ],
)
def test_an_etag_that_is_no_md5_is_not_taken_for_one(headers: dict[str, str], downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    site.etags = False
    site.headers = headers
    assert get(downloads, site) == CONTENT


def test_a_part_that_a_disk_spoiled_is_found_out_and_fetched_anew(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    site.headers = headers_of("google", CONTENT)
    facts = {"validator": site.etag("/a.bin"), "size_bytes": len(CONTENT), "md5": ""}
    downloads.manifest.record("a.bin", "begun", **facts)
    (downloads.out / "a.bin.part").write_bytes(b"\0" * 1_000_000)
    assert get(downloads, site) == CONTENT


def test_content_that_is_compressed_on_the_way_is_kept_as_it_lies_there(downloads: Downloads, site: Site) -> None:
    import gzip

    site.files["/a.bin"] = gzip.compress(CONTENT[:10_000])
    site.headers["Content-Encoding"] = "gzip"
    assert get(downloads, site) == site.files["/a.bin"]


def test_a_stop_ends_a_download_and_keeps_what_there_is(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    downloads.stop.set()
    with pytest.raises(Stopped):
        get(downloads, site)
    assert not (downloads.out / "a.bin").exists()


def test_what_the_server_says_is_asked_without_the_content(downloads: Downloads, site: Site) -> None:
    site.files["/a.bin"] = CONTENT
    remote = downloads.look(f"{site.url}/a.bin", "origin")
    assert (remote.size_bytes, remote.validator) == (len(CONTENT), site.etag("/a.bin"))
    site.ranges = False
    assert downloads.look(f"{site.url}/a.bin", "origin").size_bytes == len(CONTENT)


def test_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (out / "sub").symlink_to(elsewhere)
    (out / "file").symlink_to(elsewhere / "file")
    for name in ("sub/a", "file"):
        with pytest.raises(UserError, match="a link leads out of the output directory"):
            target_of(out, Item(name=name, origin="origin"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_disk_that_fills_up_is_named_with_what_is_needed_and_kept_for_later(tmp_path: Path, site: Site) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a disk here")
    site.files["/a.bin"] = CONTENT
    try:
        with opened(disk / "out") as manifest:
            downloads = Downloads(disk / "out", manifest, Rate(None))
            item = Item(name="a.bin", origin="origin", size_bytes=len(CONTENT))
            with pytest.raises(UserError, match=r"no space left on the disk \([\d,]+ bytes are needed for it\)"):
                downloads.get(item, f"{site.url}/a.bin")
            assert (disk / "out" / "a.bin.part").stat().st_size > 1_000_000
            subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
            downloads.get(item, f"{site.url}/a.bin")
            assert (disk / "out" / "a.bin").read_bytes() == CONTENT
            assert site.requests[-1][1].startswith("bytes=")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
