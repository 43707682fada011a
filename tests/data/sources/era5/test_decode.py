from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.data.sources.era5.decode import decode, decoder_of

PACKINGS: list[dict[str, Any]] = [
    {},
    {"scale_factor": 0.001973, "add_offset": 275.31},
    {"scale_factor": np.float32(0.01)},
    {"scale_factor": 1e-5, "add_offset": 0.32, "_FillValue": -32767, "missing_value": -32767},
    {"_FillValue": 5, "missing_value": 6},
    {"scale_factor": 2.0},
    {"add_offset": np.float64(1.0)},
]


def reference(values: np.ndarray, attributes: dict[str, Any]) -> np.ndarray:
    """What xarray makes of stored values, as float32."""
    dataset = xr.Dataset({"x": ("place", values, attributes)})
    return np.asarray(xr.decode_cf(dataset)["x"].values).astype(np.float32)


@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
@pytest.mark.parametrize("attributes", PACKINGS)
@pytest.mark.parametrize("dtype", ["i2", "u2", ">i2", "i1", "u1", "i4", "i8", "f4", ">f4", "f8"])
def test_values_are_decoded_as_xarray_decodes_them(dtype: str, attributes: dict[str, Any]) -> None:
    kind = np.dtype(dtype)
    attributes = {
        name: np.asarray(value).astype(kind.newbyteorder("="))[()] if name in ("_FillValue", "missing_value") else value
        for name, value in attributes.items()
    }
    values = np.asarray([0, 1, 5, 6, 7, 100, 127], kind)
    if kind.kind == "i" and kind.itemsize > 1:
        values = np.append(values, np.asarray([-32767, -32768, 32767], kind)).astype(kind)
    out = np.empty(values.shape, np.float32)
    decoder_of(kind, attributes)(values, out)
    np.testing.assert_array_equal(out, reference(values, attributes))


def test_bytes_that_are_called_unsigned_are() -> None:
    values = np.asarray([-1, 0, 1], np.int8)
    out = np.empty(3, np.float32)
    decoder_of(values.dtype, {"_Unsigned": "true"})(values, out)
    assert out.tolist() == [255, 0, 1]


def test_a_fill_value_of_float32_is_missing() -> None:
    values = np.asarray([1, -999, 3], np.float32)
    out = np.empty(3, np.float32)
    decoder_of(values.dtype, {"_FillValue": np.float32(-999)})(values, out)
    np.testing.assert_array_equal(out, [1, np.nan, 3])


def test_values_go_into_a_place_that_is_no_stretch_of_memory() -> None:
    values = np.arange(6, dtype=np.int16).reshape(2, 3)
    out = np.zeros((2, 2, 3), np.float32)
    decoder_of(values.dtype, {"scale_factor": 2.0})(values.T, out[:, 1].T)
    np.testing.assert_array_equal(out[:, 1], 2 * values)
    assert not out[:, 0].any()


@given(st.floats(-1e3, 1e3), st.floats(1e-6, 1e3))
def test_any_scale_and_offset_give_what_xarray_gives(offset: float, scale: float) -> None:
    attributes = {"scale_factor": scale, "add_offset": offset}
    values = np.arange(-32768, 32767, 997, dtype=np.int16)
    out = np.empty(values.shape, np.float32)
    decoder_of(values.dtype, attributes)(values, out)
    np.testing.assert_array_equal(out, reference(values, attributes))


def test_units_of_time_do_not_make_a_field_a_time() -> None:
    assert decode(np.asarray([1.0, 2.0]), {"units": "days"}).tolist() == [1, 2]
