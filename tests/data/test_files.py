from pathlib import Path

import pytest
import xxhash

from hyperslab.data.files import BLOCK_BYTES, digest_of, file_digest, read_json, write_json


def test_what_was_written_is_read_and_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "record.json"
    write_json(path, {"b": [1, 2.5, None], "a": "é"})
    assert read_json(path) == {"b": [1, 2.5, None], "a": "é"}


def test_a_write_that_fails_leaves_the_old_content_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_json(path, {"a": 2, "b": object()})
    assert read_json(path) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_the_digest_of_a_file_is_its_xxh3_whatever_its_size(tmp_path: Path, size: int) -> None:
    content = bytes(number % 251 for number in range(size))
    path = tmp_path / "file"
    path.write_bytes(content)
    assert file_digest(path) == xxhash.xxh3_128(content).hexdigest()


def test_the_digest_of_content_does_not_depend_on_the_order_of_its_keys() -> None:
    assert digest_of({"a": 1, "b": [1, 2]}) == digest_of({"b": [1, 2], "a": 1})
    assert digest_of({"a": 1, "b": [1, 2]}) != digest_of({"a": 1, "b": [2, 1]})
