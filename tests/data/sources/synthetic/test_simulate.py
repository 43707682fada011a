import os
import subprocess
import sys
from pathlib import Path

import pytest

from hyperslab.data.sources.synthetic import simulate as module
from hyperslab.data.sources.synthetic.simulate import FORMS, simulate
from hyperslab.errors import UserError
from tests.data.sources.synthetic.orders import order


def test_an_unknown_kind_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="simulate: found 'eeg'; known are era5, lartpc, fmri"):
        simulate("eeg", order(tmp_path, 1000, "cds"))


def test_an_unknown_format_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--format: found 'grib'; era5 archives are written as cds, classic, packed"):
        simulate("era5", order(tmp_path, 1000, "grib"))


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.nc").write_text("")
    with pytest.raises(UserError, match="is not empty; give a new directory"):
        simulate("fmri", order(tmp_path, 1000, "nifti"))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.nc"]


@pytest.mark.parametrize(("place", "words"), [("file", "is a file"), ("file/below", "cannot be written: Not a dir")])
def test_a_place_that_is_no_directory_is_named(place: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=words):
        simulate("fmri", order(tmp_path / place, 1000, "nifti"))


def test_a_disk_that_is_too_small_is_named_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no space left on the disk \(1,000,000,000,000,000 bytes are needed"):
        simulate("era5", order(tmp_path / "out", 10**15, "cds"))
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
@pytest.mark.parametrize(
    ("kind", "form"), [("era5", "cds"), ("era5", "classic"), ("lartpc", "flow"), ("fmri", "nifti")]
)
def test_a_disk_that_fills_up_meanwhile_is_named(
    kind: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a disk here")
    try:
        monkeypatch.setattr(module, "_make_room", lambda order: order.out.mkdir())
        with pytest.raises(UserError, match=r"no space left on the disk \([\d,]+ bytes are needed"):
            simulate(kind, order(disk / "out", 10_000_000, form))
        assert not list((disk / "out").rglob(".draft.*"))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("kind", FORMS)
def test_memory_does_not_grow_with_the_archive(kind: str, tmp_path: Path) -> None:
    """Peak memory of a process that writes four times as much is the same, but for a fraction of the difference."""
    # Large enough for batches of full size in both.
    smaller = 40_000_000 if kind == "lartpc" else 10_000_000
    sizes = (smaller, 4 * smaller)
    peaks = [_peak_bytes(kind, size, tmp_path / str(size)) for size in sizes]
    assert peaks[1] - peaks[0] < 0.5 * (sizes[1] - sizes[0])
    assert peaks[1] < 400e6


def _peak_bytes(kind: str, size: int, out: Path) -> int:
    script = (
        "import re, sys\nfrom pathlib import Path\n"
        "from hyperslab.data.sources.synthetic.archive import Order\n"
        "from hyperslab.data.sources.synthetic.simulate import FORMS, simulate\n"
        "kind, size, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])\n"
        "grid = 2.0 if kind == 'era5' else None\n"
        "form = next(iter(FORMS[kind]))\n"
        "order = Order(out=out, size_bytes=size, seed=0, form=form, workers=2, grid_degrees=grid)\n"
        "simulate(kind, order)\n"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text()).group(1))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, kind, str(size), str(out)], capture_output=True, text=True, check=True
    )
    return int(done.stdout) * 1024
