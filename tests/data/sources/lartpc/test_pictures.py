import numpy as np
import pytest

from hyperslab.data.config import DataSettings
from hyperslab.data.sources.lartpc.numpy_archive import NpyHeader
from hyperslab.data.sources.lartpc.pictures import Event, Picture, Tag, mask_text, picture_of
from hyperslab.errors import UserError

FLOAT, INT = np.dtype(np.float32), np.int32


def _event(**tags: Tag) -> Event:
    return Event(tags=tags)


def _tag(channels: object = (5, 7, 6), ticks: int = 4, tickinfo: object = (2000.0, 500.0, 3.0)) -> Tag:
    numbers = np.asarray(channels)
    return Tag(NpyHeader((len(numbers), ticks), True, FLOAT), numbers, np.asarray(tickinfo))


def _settings(**lartpc: object) -> DataSettings:
    return DataSettings(source="lartpc", files=["a"], lartpc=lartpc)


def test_ticks_are_us_since_the_frames_start_from_the_first_bin_on() -> None:
    picture = picture_of(_event(a=_tag()), 1, ["a"], _settings(), "f.tar")
    wire, tick = picture.space
    assert wire.values == (5.0, 7.0, 6.0)
    # Bins 3 to 6 of 500 ns; the start, 2000 ns, is a fact about the frame.
    assert tick.values == (1.5, 2.0, 2.5, 3.0)
    assert (tick.units, picture.start_ns, picture.rows) == ("us", 2000.0, None)


def test_wires_of_one_plane_may_be_chosen() -> None:
    picture = picture_of(_event(a=_tag()), 1, ["a"], _settings(wires=(6, 9)), "f.tar")
    assert (picture.channels, picture.rows) == ((7.0, 6.0), (1, 2))
    with pytest.raises(UserError, match=r"numbers 5 to 7, data.lartpc.wires asks for 8 to 9"):
        picture_of(_event(a=_tag()), 1, ["a"], _settings(wires=(8, 9)), "f.tar")


def test_the_tick_asked_for_is_compared_with_the_one_stated() -> None:
    picture_of(_event(a=_tag()), 1, ["a"], _settings(tick_ns=500), "f.tar")
    with pytest.raises(UserError, match=r"tickinfo_a_1.npy states a tick of 500 ns, data.lartpc.tick_ns is 512 ns"):
        picture_of(_event(a=_tag()), 1, ["a"], _settings(tick_ns=512), "f.tar")


@pytest.mark.parametrize(
    "tickinfo", [(0, 0, 0), (0, -500, 0), (0, 0.5, 0), (0, 1e9, 0), (0, 500, -1), (0, 500, 0.5), (0, 500, 1e12)]
)
def test_a_tick_that_is_nonsense_is_refused(tickinfo: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match="a tick lies between 1 and 100000 ns and the bin is a whole number"):
        picture_of(_event(a=_tag(tickinfo=tickinfo)), 1, ["a"], _settings(), "f.tar")


@pytest.mark.parametrize("tickinfo", [(0, 500), (0, np.nan, 0), (np.inf, 500, 0), ((0, 500, 0),)])
def test_tickinfo_of_another_form_is_refused(tickinfo: object) -> None:
    with pytest.raises(UserError, match="it must be time, tick and first bin, in ns"):
        picture_of(_event(a=_tag(tickinfo=tickinfo)), 1, ["a"], _settings(), "f.tar")


def test_a_frame_needs_its_channels_and_tickinfo() -> None:
    with pytest.raises(UserError, match=r"holds no channels_a_1.npy, tickinfo_a_1.npy"):
        picture_of(_event(a=Tag(_tag().header)), 1, ["a"], _settings(), "f.tar")


@pytest.mark.parametrize("channels", [(5, 6), (5, 5, 6), (0.5, 1, 2)])
def test_channels_must_number_the_rows_once(channels: tuple[float, ...]) -> None:
    tag = Tag(NpyHeader((3, 4), False, FLOAT), np.asarray(channels), np.asarray((0, 500, 0)))
    with pytest.raises(UserError, match="must number the 3 channels of its frame, each once"):
        picture_of(_event(a=tag), 1, ["a"], _settings(), "f.tar")


@pytest.mark.parametrize("header", [NpyHeader((3,), False, FLOAT), NpyHeader((3, 0), False, FLOAT)])
def test_a_frame_that_is_no_image_is_refused(header: NpyHeader) -> None:
    with pytest.raises(UserError, match="must be numbers, channels by ticks"):
        picture_of(_event(a=Tag(header, np.arange(3), np.asarray((0, 500, 0)))), 1, ["a"], _settings(), "f.tar")


def test_tags_of_different_shape_are_refused_unless_one_is_chosen() -> None:
    event = _event(a=_tag(), b=_tag(ticks=5))
    with pytest.raises(UserError, match="the tags a and b of event 1 differ in wires or ticks"):
        picture_of(event, 1, ["a", "b"], _settings(), "f.tar")
    settings = DataSettings(files=["a"], variables=["b"])
    assert picture_of(event, 1, ["a", "b"], settings, "f.tar").num_ticks == 5


def test_an_event_without_a_tag_that_is_taken_is_refused() -> None:
    for event in (_event(a=_tag()), _event(a=_tag(), b=_tag(), c=_tag())):
        with pytest.raises(UserError, match=r"event 2 and the first one do not both have the tag [bc]"):
            picture_of(event, 2, ["a", "b"], _settings(), "f.tar")
    picture_of(_event(a=_tag()), 2, ["a", "b"], DataSettings(files=["a"], variables=["a"]), "f.tar")


def test_masked_stretches_are_told_by_wire_and_columns() -> None:
    picture = Picture((5.0, 6.0), None, 4, 0.0, 500.0, 3)
    # Bins 3 to 6 are columns 0 to 3; wire 9 is not of the frame.
    mask = np.asarray([[5, 0, 100], [6, 4, 6], [9, 0, 100]], INT)
    assert mask_text(mask, picture) == "5 6[1:3]"
    assert mask_text(None, picture) == ""
