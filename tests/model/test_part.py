from hypothesis import given
from hypothesis import strategies as st

from hyperslab.model.part import WHOLE, Part


def test_a_part_of_one_is_everything():
    assert WHOLE.run(7) == slice(0, 7)


def test_the_last_parts_may_be_short_or_empty():
    # Nine tokens in eight parts: runs of two.
    assert [Part(number=number, count=8).run(9) for number in (0, 3, 4, 5, 7)] == [
        slice(0, 2), slice(6, 8), slice(8, 9), slice(9, 9), slice(9, 9)
    ]  # fmt: skip


@given(tokens=st.integers(0, 50), count=st.integers(1, 9))
def test_parts_are_runs_of_one_length_until_all_tokens_are_in_one(tokens, count):
    runs = [Part(number=number, count=count).run(tokens) for number in range(count)]

    assert [token for run in runs for token in range(run.start, run.stop)] == list(range(tokens))
    lengths = [run.stop - run.start for run in runs]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) == Part(count=count).length(tokens)
    assert len(set(lengths) - {0, max(lengths)}) <= 1
