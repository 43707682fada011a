import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hyperslab.data.packing import LARGEST, MISSING, Values, loss_of, pack

FRAMES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4)),
    elements=st.one_of(st.floats(-(2.0**100), 2.0**100, width=32), st.just(float("nan"))),
)


def frame_of(*values: float) -> Values:
    return np.asarray(values, np.float32).reshape(1, 1, -1)


def test_float32_is_stored_as_it_is() -> None:
    values = frame_of(1.1, np.nan)
    assert pack(values, "float32").values is values


def test_integers_spread_over_the_range_of_each_frame_and_channel() -> None:
    # 250 to 310 K: the middle is 280, and an integer counts 30 / 32767 K (rounded up by a bit).
    packed = pack(frame_of(250, 280, 310), "int16")
    assert packed.offset is not None
    assert packed.scale is not None
    assert packed.offset.tolist() == [[280]]
    assert packed.scale[0, 0] == pytest.approx(30 / 32767, rel=1e-6)
    assert packed.values.ravel().tolist() == [-LARGEST, 0, LARGEST]


def test_a_missing_value_stays_missing() -> None:
    packed = pack(frame_of(1, np.nan, 3), "int16")
    assert packed.values.ravel()[1] == MISSING
    assert np.isnan(packed.unpack().ravel()).tolist() == [False, True, False]


def test_a_frame_without_any_value_is_missing_throughout() -> None:
    assert np.isnan(pack(frame_of(np.nan, np.nan), "int16").unpack()).all()


@given(values=FRAMES)
def test_the_loss_of_integers_is_at_most_half_of_what_one_counts(values: Values) -> None:
    packed = pack(values, "int16")
    found = packed.unpack()
    assert packed.scale is not None
    np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
    # Half a step, and the rounding of the offset and the sum to float32.
    bound = packed.scale[..., None] * 0.5 + 4 * np.spacing(np.nanmax(np.abs(np.nan_to_num(values)), initial=1e-30))
    assert (np.nan_to_num(np.abs(found.astype(np.float64) - values)) <= bound).all()


def test_half_precision_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(OverflowError, match=r"70000 is more than half precision holds \(65504\)"):
        pack(frame_of(1, 70000), "float16")


def test_the_loss_is_measured_by_channel() -> None:
    # Half precision counts by 0.25 between 256 and 512: 280.1 becomes 280.0, 0.5 stays.
    values = np.asarray([[[280.1, 280.0], [0.5, np.nan]]], np.float32)
    worst, squares = loss_of(values, pack(values, "float16"))
    assert worst == pytest.approx([0.1, 0], abs=1e-5)
    assert squares == pytest.approx([0.01, 0], abs=1e-5)
