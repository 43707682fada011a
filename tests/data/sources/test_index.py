import json
from pathlib import Path

import numpy as np

from hyperslab.data.config import DataSettings
from hyperslab.data.sources import Index, source_of
from tests.conftest import write_netcdf


def index_of(folder: Path) -> Index:
    raw = write_netcdf(folder / "raw.nc", variables=["t"], levels=[500, 850], frames=5)
    return source_of("era5").scan([str(raw)], DataSettings(files=["raw.nc"]))


def test_json_gives_the_same_index_back(tmp_path: Path) -> None:
    index = index_of(tmp_path)
    assert Index.from_json(json.loads(json.dumps(index.to_json()))) == index


def test_the_shape_counts_frames_channels_rows_and_columns(tmp_path: Path) -> None:
    # 5 frames, two levels of one variable, 3 x 4 points: 2 x 3 x 4 float32 values of 4 bytes.
    index = index_of(tmp_path)
    assert index.shape == (5, 2, 3, 4)
    assert index.frame_bytes == 96


def test_times_are_seconds_since_1970(tmp_path: Path) -> None:
    # 2001-01-01 is 31 years after 1970 with the leap days of 1972 to 2000: 31 x 365 + 8 = 11323 days.
    times = index_of(tmp_path).times
    assert times.dtype == np.int64
    assert times.tolist() == [11323 * 86_400 + 6 * 3600 * number for number in range(5)]


def test_the_source_of_a_campaign_is_found_by_its_name() -> None:
    assert type(source_of("era5")).__name__ == "Era5"
