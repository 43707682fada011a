import subprocess
import sys
from pathlib import Path

from hyperslab.data.files import digest_of, read_json, write_json
from hyperslab.parallel.catalog import Progress, damage_of, entries, finished, latest, read_progress


def leave_checkpoint(directory: Path, step: int) -> Path:
    path = directory / f"step-{step:08d}"
    manifest = {"step": step, "store_digest": "s", "order_digest": "o", "files": {}, "digest": digest_of({})}
    write_json(path / "manifest.json", manifest)
    return path


def test_a_run_has_no_latest_checkpoint_before_the_first(tmp_path):
    assert latest(tmp_path) is None
    assert latest(tmp_path / "absent") is None


def test_checkpoints_come_in_the_order_of_their_steps(tmp_path):
    # As text without their zeros, 9 would come after 10 and 100.
    paths = [leave_checkpoint(tmp_path, step) for step in (100, 9, 10)]

    assert list(finished(tmp_path)) == [paths[1], paths[2], paths[0]]
    assert latest(tmp_path) == paths[0]


def test_a_checkpoint_without_its_manifest_does_not_count(tmp_path):
    first = leave_checkpoint(tmp_path, 1)
    (leave_checkpoint(tmp_path, 2) / "manifest.json").unlink()

    assert latest(tmp_path) == first


def test_a_draft_does_not_count_even_with_its_manifest(tmp_path):
    first = leave_checkpoint(tmp_path, 1)
    leave_checkpoint(tmp_path, 2).rename(tmp_path / ".step-00000002.draft")

    assert list(finished(tmp_path)) == [first]


def test_a_checkpoint_whose_manifest_is_damaged_does_not_count_but_is_there(tmp_path):
    first, second = leave_checkpoint(tmp_path, 1), leave_checkpoint(tmp_path, 2)
    (second / "manifest.json").write_text('{"digest": ')

    assert latest(tmp_path) == first
    assert entries(tmp_path) == [first, second]


def test_what_only_begins_like_a_checkpoint_is_none(tmp_path):
    leave_checkpoint(tmp_path, 1).rename(tmp_path / "step-00000001-copy")

    assert entries(tmp_path) == []


def test_checkpoints_of_more_digits_than_usual_come_last(tmp_path):
    paths = [leave_checkpoint(tmp_path, step) for step in (100_000_000, 99_999_999)]

    assert entries(tmp_path) == [paths[1], paths[0]]


def test_each_share_looks_at_files_of_its_own(tmp_path):
    path = leave_checkpoint(tmp_path, 1)
    files = dict.fromkeys("abc", "of another content")
    for name in files:
        (path / name).touch()
    manifest = read_json(path / "manifest.json")
    write_json(path / "manifest.json", manifest | {"files": files, "digest": digest_of(files)})

    # In the order of the manifest, whose names are sorted: a and c are of the first share, b of the second.
    assert damage_of(path) == f"{path}/a: was changed since it was written"
    assert damage_of(path, 1, 2) == f"{path}/b: was changed since it was written"
    assert damage_of(path, 3, 4) is None


def test_the_progress_is_that_of_the_manifest(tmp_path):
    path = leave_checkpoint(tmp_path, 12)

    assert read_progress(path) == Progress(step=12, store_digest="s", order_digest="o")


def test_looking_for_checkpoints_needs_no_torch():
    program = "import sys; import hyperslab.parallel.catalog; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
