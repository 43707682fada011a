import hashlib
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from hyperslab.data.fetch.archives import Cds, Openneuro, Urls
from hyperslab.data.fetch.download import Downloads
from hyperslab.data.fetch.manifest import NAME, opened
from hyperslab.data.fetch.plan import CdsRequest, OpenneuroRequest, UrlsRequest
from hyperslab.data.fetch.rate import Rate
from hyperslab.data.fetch.run import fetch
from hyperslab.errors import Stopped, UserError
from tests.data.fetch.servers import Site

KEY = "12345678-aaaa-bbbb-cccc-0123456789ab"
FILES = {
    "ds000001/README": b"about",
    "ds000001/sub-01/func/sub-01_task-rest_bold.nii.gz": b"one" * 10_000,
    "ds000001/sub-02/func/sub-02_task-rest_bold.nii.gz": b"two" * 10_000,
    "ds000001/sub-02/anat/a b+c.nii.gz": b"three",
    "ds0000012/elsewhere": b"x",
}


@pytest.fixture
def downloads(tmp_path: Path) -> Iterator[Downloads]:
    with opened(tmp_path / "out") as manifest:
        yield Downloads(tmp_path / "out", manifest, Rate(None), tries=2, patience_seconds=0.01)


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def bucket(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket on this machine in place of OpenNeuro's."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_url)
    client = boto3.client(
        "s3", region_name="us-east-1", aws_access_key_id="owner", aws_secret_access_key="owner", endpoint_url=s3_url
    )
    client.create_bucket(Bucket="openneuro.org", ACL="public-read")
    for key, content in FILES.items():
        client.put_object(Bucket="openneuro.org", Key=key, Body=content, ACL="public-read")
    yield client
    for entry in client.list_objects_v2(Bucket="openneuro.org").get("Contents", []):
        client.delete_object(Bucket="openneuro.org", Key=entry["Key"])
    client.delete_bucket(Bucket="openneuro.org")


def openneuro(**choices: Any) -> Openneuro:
    return Openneuro(OpenneuroRequest(archive="openneuro", dataset="ds000001", **choices))


@pytest.mark.usefixtures("bucket")
def test_a_dataset_is_listed_and_fetched_without_a_key(downloads: Downloads) -> None:
    archive = openneuro(exclude=["*/README"])
    items = archive.plan(downloads)
    assert [item.name for item in items] == sorted(key for key in FILES if key.startswith("ds000001/"))
    assert [item.size_bytes for item in items] == [len(FILES[item.name]) for item in items]
    for item in items:
        archive.get(item, downloads)
        assert (downloads.out / item.name).read_bytes() == FILES[item.name]
        entry = downloads.manifest.finished(item.name)
        assert entry is not None
        assert entry["origin"] == f"s3://openneuro.org/{item.name}"
        # The ETag of a file that was uploaded in one piece is its MD5.
        assert entry["verified"] == "md5"


@pytest.mark.usefixtures("bucket")
def test_patterns_choose_files_of_a_dataset(downloads: Downloads) -> None:
    names = [item.name for item in openneuro(include=["sub-*/func/*"], exclude=["sub-01/*"]).plan(downloads)]
    assert names == ["ds000001/sub-02/func/sub-02_task-rest_bold.nii.gz"]


@pytest.mark.usefixtures("bucket")
def test_patterns_that_fit_nothing_are_answered_with_what_there_is(downloads: Downloads) -> None:
    with pytest.raises(UserError, match="include fits none of its 4 files, such as README, sub-01/func"):
        openneuro(include=["sub-09/*"]).plan(downloads)


@pytest.mark.usefixtures("bucket")
def test_a_dataset_that_is_not_there_is_named(downloads: Downloads) -> None:
    archive = Openneuro(OpenneuroRequest(archive="openneuro", dataset="ds999999"))
    with pytest.raises(UserError, match="ds999999: there is no such dataset; check its number"):
        archive.plan(downloads)


def test_a_network_that_is_down_is_named(downloads: Downloads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    archive = openneuro()
    archive._s3.retries = 1
    with pytest.raises(UserError, match=r"s3://openneuro.org/ds000001: cannot be listed: .*check the network"):
        archive.plan(downloads)


def test_a_key_of_a_bucket_that_leads_out_of_the_directory_is_refused(bucket: Any, downloads: Downloads) -> None:
    bucket.put_object(Bucket="openneuro.org", Key="ds000001/../../evil", Body=b"x", ACL="public-read")
    with pytest.raises(UserError, match="leads out of the output directory"):
        openneuro().plan(downloads)
    assert not (downloads.out.parent / "evil").exists()


def test_a_file_that_changed_in_the_bucket_has_another_mark(bucket: Any, downloads: Downloads) -> None:
    (before,) = openneuro(include=["README"]).plan(downloads)
    bucket.put_object(Bucket="openneuro.org", Key="ds000001/README", Body=b"other", ACL="public-read")
    (after,) = openneuro(include=["README"]).plan(downloads)
    assert before.size_bytes == after.size_bytes
    assert before.validator != after.validator


def test_a_private_bucket_takes_the_key_of_the_environment_and_nobody_is_told(
    bucket: Any, downloads: Downloads, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="hyperslab")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "MYACCESSKEYID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "my-secret-access-key")
    bucket.put_object(Bucket="openneuro.org", Key="private/a.bin", Body=b"content")
    archive = Urls(UrlsRequest(archive="urls", urls=["s3://openneuro.org/private/a.bin"]))
    (item,) = archive.plan(downloads)
    assert "Signature" in archive._address(item)
    archive.get(item, downloads)
    assert (downloads.out / "a.bin").read_bytes() == b"content"
    record = (downloads.out / NAME).read_text()
    for secret in ("MYACCESSKEYID", "my-secret-access-key", "Signature"):
        assert secret not in record
        assert secret not in caplog.text
    (gone,) = [Urls(UrlsRequest(archive="urls", urls=["s3://openneuro.org/private/gone.bin"]))]
    with pytest.raises(UserError, match=r"s3://openneuro.org/private/gone.bin: the server answered 404") as caught:
        gone.plan(downloads)
    assert "Signature" not in str(caught.value)


def test_urls_are_planned_with_their_sizes_and_fetched(site: Site, downloads: Downloads) -> None:
    site.files = {"/x/a.nc": b"a" * 1000, "/x/b c.nc": b"b" * 2000}
    archive = Urls(UrlsRequest(archive="urls", urls=[f"{site.url}/x/a.nc?token=secret", f"{site.url}/x/b%20c.nc"]))
    items = archive.plan(downloads)
    assert [(item.name, item.size_bytes) for item in items] == [("a.nc", 1000), ("b c.nc", 2000)]
    for item in items:
        archive.get(item, downloads)
    assert (downloads.out / "b c.nc").read_bytes() == b"b" * 2000
    assert "secret" not in (downloads.out / NAME).read_text()


class Store:
    """A Climate Data Store of one request after the other, as its client sees it."""

    def __init__(self) -> None:
        self.content = b"GRIB of a month" * 1000
        self.submitted: list[dict[str, Any]] = []
        self.polls = 2
        self.known = True
        self.fail: tuple[int, dict[str, Any]] | None = None
        self.job_status = "successful"
        self.keys: set[str] = set()
        self.url = ""

    def answer(self, request: BaseHTTPRequestHandler) -> tuple[int, Any]:
        path = request.path.split("?")[0]
        if path.startswith("/object/"):
            return 200, self.content
        self.keys.add(request.headers.get("PRIVATE-TOKEN", ""))
        if self.fail:
            return self.fail
        if path.endswith("/execution") or path.endswith("/execute"):
            body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
            self.submitted.append(body["inputs"])
            return 201, self._job("accepted")
        if path.endswith("/results"):
            if self.job_status != "successful":
                return 400, {"title": "The job has failed", "detail": f"bad request of {self.keys}"}
            digest = hashlib.md5(self.content).hexdigest()
            href = f"{self.url}/object/a.nc"
            value = {"href": href, "file:size": len(self.content), "type": "x", "file:checksum": digest}
            return 200, {"asset": {"value": value}}
        if "/jobs/" in path:
            if not self.known:
                return 404, {"title": "job not found"}
            self.polls -= 1
            return 200, self._job("running" if self.polls > 0 else self.job_status)
        return 200, {}

    def _job(self, status: str) -> dict[str, Any]:
        links = [
            {"rel": "monitor", "href": f"{self.url}/api/retrieve/v1/jobs/job-1"},
            {"rel": "self", "href": f"{self.url}/api/retrieve/v1/jobs/job-1"},
            {"rel": "results", "href": f"{self.url}/api/retrieve/v1/jobs/job-1/results"},
        ]
        return {"jobID": "job-1", "status": status, "links": links, "created": "2026-01-01T00:00:00", "metadata": {}}


@contextmanager
def serving_store(store: Store) -> Iterator[Store]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = store.answer(self)
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", '"1"')
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    store.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """A store on this machine, and a key for it where its client looks for one."""
    with serving_store(Store()) as started:
        (tmp_path / "rc").write_text(f"url: {started.url}/api\nkey: {KEY}\n")
        monkeypatch.setenv("CDSAPI_RC", str(tmp_path / "rc"))
        yield started


def cds() -> Cds:
    content = {"archive": "cds", "dataset": "reanalysis-era5-single-levels", "variables": ["2m_temperature"]}
    request = CdsRequest.model_validate({**content, "start": "2000-01-01", "end": "2000-01-31"})
    return Cds(request, tries=2, patience_seconds=0.1)


NAME_OF_FILE = "reanalysis-era5-single-levels_2m_temperature_200001.nc"


def test_the_store_is_asked_through_its_client_and_its_file_fetched(store: Store, downloads: Downloads) -> None:
    archive = cds()
    (item,) = archive.plan(downloads)
    archive.get(item, downloads)
    assert (downloads.out / NAME_OF_FILE).read_bytes() == store.content
    assert store.submitted == [item.details["request"]]
    assert store.keys == {KEY}
    entry = downloads.manifest.finished(NAME_OF_FILE)
    assert entry is not None
    assert entry["verified"] == "md5"


def test_a_request_that_was_made_before_is_taken_up_again(store: Store, downloads: Downloads) -> None:
    facts = {"validator": "", "size_bytes": None, "md5": "", "request_id": "job-1"}
    downloads.manifest.record(NAME_OF_FILE, "begun", **facts)
    archive = cds()
    archive.get(archive.plan(downloads)[0], downloads)
    assert store.submitted == []
    assert (downloads.out / NAME_OF_FILE).read_bytes() == store.content


def test_a_request_that_the_store_has_forgotten_is_made_anew(store: Store, downloads: Downloads) -> None:
    store.known = False
    facts = {"validator": "", "size_bytes": None, "md5": "", "request_id": "job-0"}
    downloads.manifest.record(NAME_OF_FILE, "begun", **facts)
    archive = cds()
    with pytest.raises(UserError, match="job not found"):
        # The store of this test forgets the new request, too.
        archive.get(archive.plan(downloads)[0], downloads)
    assert len(store.submitted) == 1


@pytest.mark.parametrize(
    "fail",
    [
        (401, {"title": "Authentication failed", "detail": f"the key {KEY} is unknown"}),
        (403, {"title": "required licences not accepted", "detail": f"for {KEY}"}),
        (400, {"title": "invalid request", "traceback": f"PRIVATE-TOKEN: {KEY}"}),
    ],
)
def test_the_key_is_told_to_nobody(
    fail: tuple[int, dict[str, Any]],
    store: Store,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    caplog.set_level(logging.DEBUG)
    store.fail = fail
    with pytest.raises(UserError) as caught:
        fetch(cds(), tmp_path / "out", jobs=1, rate=Rate(None), progress=print)
    message = str(caught.value)
    assert "\n" not in message
    assert fail[1]["title"] in message
    assert NAME_OF_FILE in message
    printed = capfd.readouterr()
    warned = " ".join(str(warning.message) for warning in recwarn)
    for text in (message, caplog.text, printed.out, printed.err, warned, (tmp_path / "out" / NAME).read_text()):
        assert KEY not in text


def test_a_stop_is_heard_while_the_store_is_at_work(store: Store, downloads: Downloads) -> None:
    store.polls = 10**6
    archive = cds()
    downloads.stop.set()
    with pytest.raises(Stopped):
        archive.get(archive.plan(downloads)[0], downloads)
    begun = downloads.manifest.begun(NAME_OF_FILE)
    assert begun is not None
    assert begun["request_id"] == "job-1"


def test_a_request_that_the_store_rejects_is_said_with_its_words(store: Store, downloads: Downloads) -> None:
    store.job_status = "failed"
    archive = cds()
    with pytest.raises(UserError, match="The job has failed") as caught:
        archive.get(archive.plan(downloads)[0], downloads)
    assert KEY not in str(caught.value)


def test_a_key_that_is_not_there_is_asked_for(downloads: Downloads) -> None:
    archive = cds()
    with pytest.raises(UserError, match=r"no key: Missing/incomplete configuration file: .*how-to-api"):
        archive.get(archive.plan(downloads)[0], downloads)


def test_a_plan_asks_nothing_of_the_store(store: Store, downloads: Downloads) -> None:
    (item,) = cds().plan(downloads)
    assert item.name == NAME_OF_FILE
    assert store.submitted == []
    assert store.keys == set()
