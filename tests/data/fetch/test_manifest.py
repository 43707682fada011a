import json
from pathlib import Path

import pytest

from hyperslab.data.fetch.manifest import NAME, opened, read
from hyperslab.errors import UserError


def test_the_last_line_about_a_file_counts(tmp_path: Path) -> None:
    with opened(tmp_path) as manifest:
        manifest.record("a", "begun", validator="1")
        manifest.record("a", "finished", sha256="x")
        manifest.record("b", "begun", validator="2")
    held = read(tmp_path)
    assert held.begun("a") is None
    finished, begun = held.finished("a"), held.begun("b")
    assert finished is not None
    assert finished["sha256"] == "x"
    assert begun is not None
    assert begun["validator"] == "2"
    assert list(held.all_finished()) == ["a"]


def test_a_line_that_a_crash_cut_off_is_left_out_and_spoils_no_other(tmp_path: Path) -> None:
    with opened(tmp_path) as manifest:
        manifest.record("a", "finished", sha256="x")
    with (tmp_path / NAME).open("a") as file:
        file.write('{"name": "b", "state": "fini')
    with opened(tmp_path) as manifest:
        assert manifest.finished("b") is None
        manifest.record("c", "finished", sha256="y")
    assert list(read(tmp_path).all_finished()) == ["a", "c"]


@pytest.mark.parametrize(
    "line", ["", "no json", "[]", '"text"', "7", '{"state": "begun"}', '{"name": 1, "state": "begun"}']
)
def test_lines_of_another_kind_are_left_out(line: str, tmp_path: Path) -> None:
    entry = json.dumps({"name": "a", "state": "finished"})
    (tmp_path / NAME).write_text(f"{line}\n{entry}\n")
    assert list(read(tmp_path).all_finished()) == ["a"]


def test_a_second_fetch_into_the_same_directory_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(UserError, match="another fetch is at work here"):
        opened(tmp_path).__enter__()


def test_a_directory_without_a_fetch_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing was fetched here"):
        read(tmp_path)


def test_a_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file; give a directory"):
        opened(tmp_path / "file").__enter__()
