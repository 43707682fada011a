import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.data.sources.era5.packed import pack, unpack


@given(st.lists(st.tuples(st.integers(0, 2**50), st.integers(0, 2**40)), max_size=20))
def test_rows_come_back_as_they_were(pairs: list[tuple[int, int]]) -> None:
    rows = np.asarray(pairs, np.int64).reshape(-1, 2).T
    np.testing.assert_array_equal(unpack(pack(rows.tolist()), 2), rows)


def test_messages_of_one_length_take_little_room() -> None:
    offsets = [2_076_588 * number for number in range(27_000)]
    assert len(pack([offsets, [2_076_588] * 27_000])) < 4000
