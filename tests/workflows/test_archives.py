"""`simulate` and `fetch` as a person types them: what they print, and the one line of a mistake."""

import re
import socket
from pathlib import Path

import pytest
import yaml

from hyperslab.errors import UserError
from hyperslab.workflows.archives import parse_size
from hyperslab.workflows.cli import app
from tests.data.fetch.servers import Site, serving

KEY = "12345678-aaaa-bbbb-cccc-0123456789ab"


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]):
    """Run a command in this process: what it printed."""

    def run(*arguments: object) -> str:
        app([str(argument) for argument in arguments], standalone_mode=False)
        return capfd.readouterr().out

    return run


@pytest.fixture
def site():
    with serving(Site()) as started:
        yield started


def write_request(path: Path, **content: object) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


CDS = {
    "archive": "cds",
    "dataset": "reanalysis-era5-single-levels",
    "variables": ["2m_temperature"],
    "start": "2000-01-01",
    "end": "2000-02-29",
}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GB", 2 * 10**9),
        ("50 MB", 5 * 10**7),
        ("1.5GiB", 3 * 2**29),
        ("300k", 3 * 10**5),
        ("123", 123),
        ("1tb", 10**12),
    ],
)
def test_a_size_is_read_as_people_write_it(text: str, size: int) -> None:
    assert parse_size(text, "--size") == size


@pytest.mark.parametrize("text", ["", "big", "-1MB", "0", "0.0GB", "2 GBs", "1e3", "5PB"])
def test_a_size_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"--size: found {text!r}") + ".*such as 50MB"):
        parse_size(text, "--size")


@pytest.mark.parametrize(("kind", "name"), [("lartpc", "*.hdf5"), ("fmri", "sub-*/func/*_bold.nii.gz")])
def test_an_archive_is_simulated_in_its_usual_format(call, kind: str, name: str, tmp_path: Path) -> None:
    printed = call("simulate", kind, tmp_path / "out", "--size", "400kB", "--seed", "3")
    files = list((tmp_path / "out").glob(name))
    assert len(files) >= 1
    assert f"{len(files)} raw file(s)" in printed


def test_an_era5_archive_is_simulated_on_the_grid_that_is_asked_for(call, tmp_path: Path) -> None:
    call("simulate", "era5", tmp_path / "out", "--size", "300kB", "--grid", "10", "--format", "classic")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["era5_pl_200001.nc", "era5_static.nc"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("eeg",), "simulate: found 'eeg'; known are era5, lartpc, fmri"),
        (("fmri", "--format", "grib"), "--format: found 'grib'; fmri archives are written as nifti, parcels"),
        (("fmri", "--size", "much"), "--size: found 'much'"),
        (("fmri", "--grid", "1"), "--grid: is of era5 archives alone; leave it out for fmri"),
        (("era5", "--runs", "3"), "--runs: is of fmri archives alone; leave it out for era5"),
    ],
)
def test_a_mistake_of_simulate_is_named(call, arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        call("simulate", arguments[0], tmp_path / "out", *arguments[1:])
    assert not list((tmp_path / "out").glob("*"))


def test_a_dry_run_prints_files_and_bytes_and_writes_nothing(call, tmp_path: Path) -> None:
    request = write_request(tmp_path / "request.yaml", **CDS)
    printed = call("fetch", request, tmp_path / "out", "--dry-run")
    lines = printed.splitlines()
    # 721 x 1440 points x 24 hours x 31 days x 2 bytes.
    assert lines[0].startswith("reanalysis-era5-single-levels_2m_temperature_200001.nc  about 1,54")
    assert lines[-1].startswith("2 of 2 file(s) to fetch, about 2,")
    assert not (tmp_path / "out").exists()


def test_files_are_fetched_once_and_verified(call, site: Site, tmp_path: Path) -> None:
    site.files = {"/a.bin": b"a" * 1000, "/b.bin": b"b" * 3000}
    request = write_request(tmp_path / "r.yaml", archive="urls", urls=[f"{site.url}/a.bin", f"{site.url}/b.bin"])
    out = tmp_path / "out"
    assert "2 of 2 file(s) to fetch, 4,000 bytes" in call("fetch", request, out, "--dry-run")
    printed = call("fetch", request, out, "--rate", "10MB/s", "--jobs", "2")
    assert "b.bin  3,000 bytes" in printed
    assert "fetched 2 file(s); 0 were there already" in printed
    assert "a.bin  1,000 bytes (is there)" in call("fetch", request, out, "--dry-run")
    assert "fetched 0 file(s); 2 were there already" in call("fetch", request, out)
    assert "sound; 2 file(s)" in call("fetch", request, out, "--verify")
    (out / "a.bin").write_bytes(b"A" * 1000)
    with pytest.raises(UserError, match="1 of 2 file"):
        call("fetch", request, out, "--verify")


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ({"archive": "ftp"}, (), r"request\.yaml: archive: found 'ftp'"),
        (CDS, ("--rate", "fast"), "--rate: found 'fast'"),
        (CDS, ("--verify",), "nothing was fetched here"),
        ({"archive": "urls", "urls": ["file:///etc/passwd"]}, (), "not a URL that can be fetched"),
    ],
)
def test_a_mistake_of_fetch_is_named(
    call, content: dict[str, object], options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    request = write_request(tmp_path / "request.yaml", **content)
    with pytest.raises(UserError, match=words) as caught:
        call("fetch", request, tmp_path / "out", *options)
    assert "\n" not in str(caught.value)


def test_a_key_never_appears_in_what_is_printed(
    call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    # Nobody listens at this port.
    monkeypatch.setenv("CDSAPI_URL", f"http://127.0.0.1:{port}/api")
    monkeypatch.setenv("CDSAPI_KEY", KEY)
    monkeypatch.setattr("multiurl.http.time.sleep", lambda seconds: None, raising=False)
    request = write_request(tmp_path / "request.yaml", **CDS)
    with pytest.raises(UserError) as caught:
        call("fetch", request, tmp_path / "out")
    printed = capfd.readouterr()
    written = "".join(path.read_text() for path in (tmp_path / "out").iterdir())
    for text in (str(caught.value), printed.out, printed.err, written):
        assert KEY not in text
