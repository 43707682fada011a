import threading
import time
from pathlib import Path

import pytest

from hyperslab.data.sources.synthetic.archive import draft, in_order


def test_results_come_in_the_order_of_their_items() -> None:
    def slow_first(item: int) -> int:
        time.sleep(0.02 if item == 0 else 0)
        return item

    assert list(in_order(slow_first, range(50), workers=4)) == list(range(50))


def test_items_are_taken_only_a_little_ahead_of_their_results() -> None:
    taken = 0

    def counted(item: int) -> int:
        nonlocal taken
        taken = item
        return item

    results = in_order(lambda item: item, map(counted, range(1, 1001)), workers=3)
    next(results)
    # Twice the threads are under way when the first result is handed out.
    assert taken <= 6


def test_an_error_in_one_item_ends_the_work() -> None:
    ended = threading.Event()

    def fail(item: int) -> int:
        if item == 3:
            ended.set()
            raise RuntimeError("item 3")
        return item

    with pytest.raises(RuntimeError, match="item 3"):
        list(in_order(fail, range(10), workers=2))
    assert ended.is_set()


def test_a_file_whose_writing_fails_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with draft(tmp_path / "a" / "file") as path:
            path.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert list((tmp_path / "a").iterdir()) == []
