"""Arrays in `.mat`, `.npy` and `.npz` files; nothing in them is ever run."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from hyperslab.data.sources.fmri.content import Kind, check_length, decoding, is_compressed
from hyperslab.data.sources.fmri.sheet import TABLE_BYTES, Sheet
from hyperslab.errors import UserError

MATLAB_NUMBERS = ("double", "single", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def read_array(path: Path, kind: Kind, variables: Sequence[str] | None) -> Sheet:
    """The array in a file.

    Parameters
    ----------
    variables
        The name of the array, where the file holds several.

    Raises
    ------
    UserError
        When the file cannot be read, or holds no array, or several.
    """
    if is_compressed(path):
        raise UserError(f"{path}: is compressed; decompress it, such as with `gunzip`")
    if kind == "npy":
        return _sheet(path, _load_npy(path), "NumPy array")
    if kind == "npz":
        name, array = _load_npz(path, variables)
        return _sheet(path, array, f"NumPy archive, array {name!r}")
    name, array = _load_mat(path, variables)
    return _sheet(path, array, f"MATLAB, variable {name!r}")


def _sheet(path: Path, array: Any, kind: str) -> Sheet:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf":
        raise UserError(f"{path}: holds no array of real numbers ({kind}); write one of shape (frame, parcel)")
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise UserError(f"{path}: its array has {array.ndim} dimensions {array.shape}; write one of (frame, parcel)")
    time_axis, evidence = None, ""
    if 1 in array.shape and array.shape != (1, 1):
        time_axis, evidence = int(array.shape[0] == 1), "it is a single series"
    with np.errstate(invalid="ignore"):  # a signalling NaN, which damaged data hold
        values = np.asarray(array, np.float64)
    return Sheet(values=values, kind=f"{kind}, {array.dtype}", time_axis=time_axis, evidence=evidence)


def _load_npy(path: Path) -> Any:
    with decoding(path, "a NumPy array"), path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        start = file.tell()
    if dtype.kind not in "iuf":
        raise UserError(f"{path}: holds values of type {dtype}, not real numbers; write them as float32")
    length = int(np.prod(shape, dtype=object)) * dtype.itemsize
    _check_size(path, length)
    check_length(path, start + length)
    with decoding(path, "a NumPy array"):
        return np.load(path, allow_pickle=False)


def _load_npz(path: Path, variables: Sequence[str] | None) -> tuple[str, Any]:
    with decoding(path, "a NumPy archive"):
        with zipfile.ZipFile(path) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
        names = [name.removesuffix(".npy") for name in sizes if name.endswith(".npy")]
    name = _choose(path, names, variables)
    _check_size(path, sizes[f"{name}.npy"])
    with decoding(path, "a NumPy archive"), np.load(path, allow_pickle=False) as archive:
        return name, archive[name]


def _load_mat(path: Path, variables: Sequence[str] | None) -> tuple[str, Any]:
    with decoding(path, "a MATLAB file"):
        held = scipy.io.whosmat(str(path))
    shapes = {name: shape for name, shape, kind in held if kind in MATLAB_NUMBERS and max(shape, default=0) > 1}
    name = _choose(path, list(shapes), variables)
    _check_size(path, 8 * int(np.prod(shapes[name], dtype=object)))
    with decoding(path, "a MATLAB file"):
        return name, scipy.io.loadmat(str(path), variable_names=[name])[name]


def _choose(path: Path, names: list[str], variables: Sequence[str] | None) -> str:
    held = ", ".join(sorted(names)) or "none"
    if variables is None and len(names) == 1:
        return names[0]
    if variables is None:
        raise UserError(f"{path}: needs one array of numbers, found {held}; name it in data.variables")
    if len(variables) != 1 or variables[0] not in names:
        raise UserError(f"data.variables: found {list(variables)}; name one array of {path}, which holds {held}")
    return variables[0]


def _check_size(path: Path, length: int) -> None:
    if length > TABLE_BYTES:
        raise UserError(
            f"{path}: its array takes {length:,} bytes, a table at most {TABLE_BYTES:,}; write CIFTI or split it"
        )
