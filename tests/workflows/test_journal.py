from pathlib import Path

from hyperslab.workflows.journal import Journal, Spool, read_metrics


def test_events_are_read_in_the_order_they_were_appended(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("first", number=1)
    journal.append("second", text="a\nb")
    events = list(journal.read())
    assert [event["event"] for event in events] == ["first", "second"]
    assert events[1]["text"] == "a\nb"
    assert events[0]["time"] <= events[1]["time"]


def test_a_line_that_a_crash_cut_short_is_passed_over_and_the_next_one_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("whole")
    with journal.path.open("a") as file:
        file.write('{"time":1,"event":"to')
    assert [event["event"] for event in journal.read()] == ["whole"]
    journal.append("after")
    assert [event["event"] for event in journal.read()] == ["whole", "after"]


def test_a_journal_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "none.jsonl")
    assert list(journal.read()) == []
    assert journal.tail() == []
    assert journal.last("anything") is None


def test_the_tail_of_a_long_journal_holds_its_latest_events(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "long.jsonl")
    for number in range(1000):
        journal.append("count", number=number)
    tail = journal.tail()
    assert tail[-1]["number"] == 999
    assert 0 < len(tail) < 1000
    assert [event["number"] for event in tail] == list(range(1000 - len(tail), 1000))


def test_steps_done_again_after_a_crash_count_once_and_the_later_segment_stands(tmp_path: Path) -> None:
    first, second = (Spool(Journal(tmp_path / f"{number:04d}.jsonl")) for number in (1, 2))
    for step in (1, 2, 3):
        first.log(step, {"train/loss": 10.0 * step})
    first.log(3, {"validation/loss": 7.0})
    for step in (3, 4):
        second.log(step, {"train/loss": 100.0 * step})
    entries = [(entry["step"], entry["values"]) for entry in read_metrics(tmp_path)]
    assert entries == [
        (1, {"train/loss": 10.0}),
        (2, {"train/loss": 20.0}),
        (3, {"train/loss": 300.0}),
        (3, {"validation/loss": 7.0}),
        (4, {"train/loss": 400.0}),
    ]
