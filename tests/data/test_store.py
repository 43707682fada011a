import http.server
import json
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from hyperslab.data import chunks, store
from hyperslab.data.recipe import Recipe
from hyperslab.data.staging import create, finalise, write_part
from hyperslab.data.store import FORMAT, is_finished, manifest_path, open_store, place_of, record_path
from hyperslab.data.verify import verify
from hyperslab.errors import UserError
from tests.conftest import make_dataset, make_store_recipe, shard_of, stage

SPLITS = {"train": (0, 24), "validation": (24, 32), "test": (32, 40)}


def test_a_store_gives_back_what_the_raw_files_hold(tmp_path: Path) -> None:
    dataset = make_dataset(rows=3, columns=4)
    dataset.to_netcdf(tmp_path / "raw.nc")
    opened = open_store(stage(tmp_path / "store", make_store_recipe([tmp_path / "raw.nc"], SPLITS)))
    expected = np.stack([dataset["msl"].values, dataset["t2m"].values], axis=1)
    np.testing.assert_array_equal(opened.read(0, 40), expected)
    np.testing.assert_array_equal(opened.time, dataset.time.values.astype("datetime64[s]").astype(np.int64))
    assert opened.latitude.tolist() == [90, 0, -90]
    assert opened.longitude.tolist() == [0, 90, 180, 270]
    assert opened.channels == ("msl", "t2m")
    assert opened.units == {"msl": "Pa", "t2m": "K"}
    assert opened.cadence == "6 h"
    assert opened.splits == {name: (bounds,) for name, bounds in SPLITS.items()}
    assert opened.segment.tolist() == [0] * 40
    assert opened.valid.tolist() == [True] * 40


def test_xarray_opens_a_store_without_a_warning(tmp_path: Path) -> None:
    dataset = make_dataset()
    dataset.to_netcdf(tmp_path / "raw.nc")
    path = stage(tmp_path / "store", make_store_recipe([tmp_path / "raw.nc"], SPLITS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = xr.open_zarr(path).load()
    assert opened["values"].dims == ("frame", "channel", "latitude", "longitude")
    assert opened["channel"].values.tolist() == ["msl", "t2m"]
    np.testing.assert_array_equal(opened["values"].sel(channel="t2m").values, dataset["t2m"].values)
    np.testing.assert_array_equal(opened["time"].values, dataset["time"].values)
    np.testing.assert_array_equal(opened["latitude"].values, dataset["latitude"].values)


def test_a_whole_store_has_nothing_to_report_and_may_be_moved(tmp_path: Path, finished_store: Path) -> None:
    assert list(verify(finished_store)) == []
    moved = finished_store.rename(tmp_path / "moved")
    assert list(verify(moved)) == []
    assert open_store(moved).read(0, 40).shape == (40, 2, 3, 4)


@pytest.mark.parametrize("name", ["values/c/1/0/0/0", "values/zarr.json", "mean/c/0", "zarr.json"])
def test_a_changed_byte_is_found_and_its_file_named(finished_store: Path, name: str) -> None:
    content = bytearray((finished_store / name).read_bytes())
    content[len(content) // 2] ^= 0xFF
    (finished_store / name).write_bytes(content)
    [line] = verify(finished_store)
    assert line.startswith(f"{name}: changed: XXH3 ")


def test_a_missing_file_is_named(finished_store: Path) -> None:
    shard_of(finished_store, 2).unlink()
    assert list(verify(finished_store)) == ["values/c/2/0/0/0: missing"]


def test_an_unknown_file_is_named(finished_store: Path) -> None:
    (finished_store / "values" / "notes.txt").write_text("mine")
    assert list(verify(finished_store)) == ["values/notes.txt: not in the manifest"]


def test_a_manifest_that_was_edited_is_found(finished_store: Path) -> None:
    path = finished_store / ".hyperslab" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["files"]["values/c/2/0/0/0"]
    path.write_text(json.dumps(manifest))
    assert list(verify(finished_store)) == [
        ".hyperslab/manifest.json: its own digest does not fit its content",
        "values/c/2/0/0/0: not in the manifest",
    ]


def test_a_manifest_that_is_no_json_is_refused(finished_store: Path) -> None:
    (finished_store / ".hyperslab" / "manifest.json").write_text('{"digest": "ab')
    with pytest.raises(UserError, match=r"manifest\.json: is not valid JSON .*stage the store anew"):
        open_store(finished_store)


def test_a_manifest_that_lacks_its_keys_is_refused(finished_store: Path) -> None:
    (finished_store / ".hyperslab" / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"manifest\.json"):
        open_store(finished_store)


@pytest.mark.parametrize("content", ["null", "[]", "3", '"format"'])
def test_a_manifest_that_is_no_mapping_is_refused(finished_store: Path, content: str) -> None:
    manifest_path(finished_store).write_text(content)
    with pytest.raises(UserError, match=r"manifest\.json: is no manifest of format 3 \(it says .*\); use the version"):
        open_store(finished_store)


@pytest.mark.parametrize("changes", [{"digest": 1}, {"files": 3}, {"files": None}])
def test_a_manifest_of_other_types_is_refused(finished_store: Path, changes: dict[str, Any]) -> None:
    path = manifest_path(finished_store)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=r"manifest\.json: says no digest of the store, or none of its files"):
        open_store(finished_store)


def test_a_manifest_that_may_not_be_read_is_said_to_be_so(
    finished_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(store, "read_json", refused)
    with pytest.raises(UserError, match=r"manifest\.json: cannot be read \(.*Permission denied.*\); ask its owner for"):
        open_store(finished_store)


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "winds.nc").write_bytes(b"CDF")
    with pytest.raises(UserError, match=r"winds\.nc: is a file, no store; give the directory"):
        open_store(tmp_path / "winds.nc")


def test_a_store_of_a_later_format_is_refused(finished_store: Path) -> None:
    path = finished_store / ".hyperslab" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": FORMAT + 1}))
    with pytest.raises(UserError, match="format"):
        open_store(finished_store)


def test_a_shard_that_is_gone_is_not_read_as_missing_data(finished_store: Path) -> None:
    shard_of(finished_store, 1).unlink()
    with pytest.raises(UserError, match="values/c/1/0/0/0"):
        open_store(finished_store).read(16, 32)


def test_a_store_counts_only_once_it_is_finalised(tmp_path: Path, store_recipe: Recipe) -> None:
    path = tmp_path / "store"
    with pytest.raises(UserError, match="the store does not exist; stage it with `hyperslab run`"):
        open_store(path)
    create(path, store_recipe)
    for part in range(store_recipe.num_parts):
        write_part(path, part)
    assert not is_finished(path)
    for use in (open_store, lambda path: list(verify(path))):
        with pytest.raises(UserError, match=r"the store is unfinished \(it has no manifest\)"):
            use(path)
    digest = finalise(path)
    assert is_finished(path)
    assert open_store(path).digest == digest


def swap(first: Path, second: Path) -> None:
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def test_a_shard_in_the_place_of_another_one_is_not_read(finished_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "RETRY_SECONDS", ())
    swap(shard_of(finished_store, 0), shard_of(finished_store, 1))
    opened = open_store(finished_store)
    for part in (0, 1):
        # Every chunk of it is sound.
        message = rf"values/c/{part}/0/0/0: cannot be read \(has .* bytes, .* were staged: it is another file"
        with pytest.raises(UserError, match=message):
            opened.read(16 * part, 16 * part + 1)
    assert opened.read(32, 40).shape == (8, 2, 3, 4)


def test_a_store_whose_records_are_gone_or_of_other_shards_is_read(finished_store: Path) -> None:
    expected = open_store(finished_store).read(0, 40)
    # While a part is mended.
    record_path(finished_store, 0).unlink()
    # Once an append has staged the last part anew, which the store does not know yet.
    path = record_path(finished_store, 2)
    record = json.loads(path.read_text())
    record["files"]["values/c/2/0/0/0"] = {"bytes": 1000, "digest": "0" * 32}
    path.write_text(json.dumps(record))
    np.testing.assert_array_equal(open_store(finished_store).read(0, 40), expected)


@pytest.mark.parametrize("start", [0, 5, 16, 40])
def test_no_frames_are_an_empty_array(finished_store: Path, start: int) -> None:
    assert open_store(finished_store).read(start, start).shape == (0, 2, 3, 4)


@pytest.mark.parametrize("text", ["http://[::1", "ftp2://host/store"])
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="; give a path, or a URL such as s3://bucket/store"):
        place_of(text)


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Serves parts of files, as object stores do."""

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        said, path = self.headers.get("Range"), Path(self.translate_path(self.path))
        if said is None or not path.is_file():
            super().do_GET()
            return
        content, (first, last) = path.read_bytes(), said.removeprefix("bytes=").split("-")
        part = content[-int(last) :] if not first else content[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


class WholeFiles(Ranges):
    """Serves whole files only, as `python -m http.server` does."""

    do_GET = http.server.SimpleHTTPRequestHandler.do_GET


@pytest.fixture(params=[Ranges])
def url(request: pytest.FixtureRequest, finished_store: Path) -> Iterator[str]:
    """URL of the finished store, from a server of that kind."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(request.param, directory=finished_store.parent))
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}/store"
    server.shutdown()
    server.server_close()
    serving.join()


def test_a_store_is_read_over_http(finished_store: Path, url: str) -> None:
    np.testing.assert_array_equal(open_store(place_of(url)).read(0, 40), open_store(finished_store).read(0, 40))


@pytest.mark.parametrize("with_records", [True, False])
def test_a_shard_in_the_place_of_another_one_is_not_read_over_http(
    finished_store: Path, url: str, with_records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "RETRY_SECONDS", ())
    swap(shard_of(finished_store, 0), shard_of(finished_store, 1))
    if with_records:
        with pytest.raises(UserError, match="values/c/0/0/0/0: cannot be read"):
            open_store(place_of(url)).read(0, 1)
    else:
        # What is not noticed where nothing says the size (docs/adr/0008).
        record_path(finished_store, 0).unlink()
        assert open_store(place_of(url)).read(0, 1).shape == (1, 2, 3, 4)


@pytest.mark.parametrize("url", [WholeFiles], indirect=True)
@pytest.mark.parametrize("with_records", [True, False])
def test_a_server_that_serves_no_parts_of_files_is_named(finished_store: Path, url: str, with_records: bool) -> None:
    if not with_records:
        record_path(finished_store, 0).unlink()
    message = (
        r"^http://[^ ]*/store/values/c/0/0/0/0: 20 bytes of it were asked for, .* came: the server does not serve "
        r"parts of files \(HTTP's Range\); use one that does"
    )
    # Offset and length of the only chunk, and a checksum.
    with pytest.raises(UserError, match=message):
        open_store(place_of(url)).read(0, 1)


def test_a_server_without_the_store_is_told_from_one_that_is_down(url: str) -> None:
    with pytest.raises(UserError, match="/elsewhere: the store does not exist; check the URL"):
        open_store(place_of(url.replace("/store", "/elsewhere")))
    # Port 9 is that of a service that nobody runs.
    with pytest.raises(UserError, match=r"^http://127\.0\.0\.1:9/store: cannot be reached \(.*\); check the URL"):
        open_store(place_of("http://127.0.0.1:9/store"))
