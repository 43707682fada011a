import numpy as np
import pytest

from hyperslab.data.clock import Clock
from hyperslab.data.sources.index import Index, RawFile
from hyperslab.data.sources.lartpc import events
from hyperslab.data.sources.lartpc.events import find_events, pieces_of, rows_of
from hyperslab.errors import UserError


def _index(points: list[int]) -> Index:
    count = len(points)
    return Index(
        source="lartpc",
        clock=Clock(kind="event"),
        time=tuple(range(count)),
        segment=tuple(range(count)),
        channels=(),
        space=(),
        files=(),
        points=tuple(points),
    )


def _file(first_frame: int, count: int, pieces: dict[str, list[int]] | None) -> RawFile:
    return RawFile(path="a", size_bytes=0, modified_ns=0, runs=((0, first_frame, count),), details={"pieces": pieces})


def test_sorted_events_need_no_pieces() -> None:
    found = find_events([np.asarray([3, 3, 5]), np.asarray([5, 5, 9])], "a")
    assert found.numbers == (3, 5, 9)
    assert found.points.tolist() == [2, 3, 1]
    assert found.pieces is None
    assert found.oddities == []


def test_events_keep_the_order_in_which_they_first_come() -> None:
    found = find_events([np.asarray([9, 9, 2, 5])], "a")
    assert found.numbers == (9, 2, 5)
    assert found.points.tolist() == [2, 1, 1]
    assert found.pieces is None
    assert "not in the order of their numbers" in found.oddities[0]


def test_pieces_of_one_event_are_joined_in_the_order_of_the_file() -> None:
    # Event 4 has rows 0, 1 and 4; event 1 has rows 2, 3, 5, across two blocks.
    found = find_events([np.asarray([4, 4, 1, 1]), np.asarray([4, 1])], "a")
    assert found.numbers == (4, 1)
    assert found.points.tolist() == [3, 3]
    assert "2 events are not in one piece" in found.oddities[0]
    file = _file(0, 2, found.pieces)
    assert rows_of(file, _index([3, 3]), 0, 2).tolist() == [0, 1, 4, 2, 3, 5]
    assert rows_of(file, _index([3, 3]), 1, 2).tolist() == [2, 3, 5]


def test_rows_of_a_later_file_count_from_its_own_beginning() -> None:
    # Frames 0 and 1 are of another file; this one has events of 4, 5 and 6 points.
    index = _index([10, 20, 4, 5, 6])
    assert rows_of(_file(2, 3, None), index, 1, 3).tolist() == list(range(4, 15))


def test_a_number_of_an_event_may_have_64_bits() -> None:
    assert find_events([np.asarray([2**63 + 1, 2**63 + 2], np.uint64)], "a").numbers == (2**63 + 1, 2**63 + 2)


def test_no_rows_have_no_events() -> None:
    assert find_events([], "a").numbers == ()
    assert find_events([np.empty(0, np.int64)], "a").points.tolist() == []


def test_event_numbers_that_are_no_whole_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="event numbers are of type float64"):
        find_events([np.asarray([1.0])], "a")


def test_events_mixed_row_by_row_are_refused_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PIECES_LIMIT", 4)
    with pytest.raises(UserError, match="change more than 4 times; sort its rows by event"):
        find_events([np.asarray([0, 1] * 3)], "a")


def test_an_event_without_a_piece_has_no_rows() -> None:
    pieces = pieces_of(np.asarray([0, 2]), np.asarray([0, 3]), np.asarray([3, 5]), 3)
    file, index = _file(0, 3, pieces), _index([3, 0, 2])
    assert rows_of(file, index, 1, 2).tolist() == []
    assert rows_of(file, index, 0, 3).tolist() == [0, 1, 2, 3, 4]
