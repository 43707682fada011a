import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.errors import UserError
from hyperslab.model.config import MaskSettings, ModelSettings, ObjectiveSettings, TokenSettings
from hyperslab.model.fields import Field, FieldSample, FieldStream, fill_in_time, join_some
from hyperslab.model.masking import generator_of, hide
from hyperslab.model.objectives import forecast_loss, reconstruction_loss
from hyperslab.model.part import Part
from hyperslab.model.positions import Axis, octaves
from hyperslab.model.transformer import SpaceTimeTransformer

NAN = torch.nan
GLOBE = (
    Axis(name="latitude", values=(60.0, 30.0, 0.0, -30.0, -60.0)),
    Axis(name="longitude", values=tuple(range(0, 360, 45)), periodic=True),
)
VOLUME = tuple(Axis(name=name, values=tuple(3.0 * number for number in range(4))) for name in "zyx")
PARCELS = (Axis(name="parcel", values=tuple(range(1, 12)), nominal=True),)
KINDS: list[Any] = [
    "dense",
    {"kind": "window", "window": 8},
    "axial",
    {"kind": "block_sparse", "block": 8, "density": 0.5},
    {"kind": "linear", "features": 16},
    {"kind": "nystrom", "landmarks": 8},
]


def field_of(
    axes: tuple[Axis, ...] = GLOBE,
    *,
    kind: str = "both",
    leads: int = 1,
    history: int = 4,
    patch: Any = (2, 2, 2),
    present: torch.Tensor | None = None,
    block: int = 64,
) -> Field:
    return Field(
        channels=2,
        axes=axes,
        tokens=TokenSettings(history=history, patch=list(patch) if isinstance(patch, tuple) else patch),
        objective=ObjectiveSettings(kind=kind, leads=leads),
        present=present,
        block=block,
    )


def model_of(field: Field, attention: Any = "dense", *, trained: bool = True) -> SpaceTimeTransformer:
    """A model of one archive; a `trained` one has heads that are not zero."""
    torch.manual_seed(1)
    model = SpaceTimeTransformer(ModelSettings(width=16, heads=2, depth=2, attention=attention), {"own": field})
    if trained:
        for name, parameter in model.named_parameters():
            if ".head_" in name:
                torch.nn.init.normal_(parameter)
    return model


def tokens_of(stream: FieldStream, sample: FieldSample) -> torch.Tensor:
    return stream.tokens(sample, stream.see(sample))


def stream_of(field: Field) -> FieldStream:
    stream = model_of(field).streams["own"]
    assert isinstance(stream, FieldStream)
    return stream


def frames_of(field: Field, batch: int = 2, seed: int = 2) -> torch.Tensor:
    shape = (batch, field.tokens.history, field.channels, *(len(axis.values) for axis in field.axes))
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sample_of(frames: torch.Tensor, hidden: torch.Tensor | None = None, *, lead: int = 1) -> FieldSample:
    return FieldSample(
        inputs_BTCS=frames,
        calendar_BF=torch.randn(len(frames), 4, generator=torch.Generator().manual_seed(3)),
        lead_B=torch.full((len(frames),), lead),
        complete=bool(frames.isfinite().all()),
        hidden_BN=hidden,
    )


def hidden_of(field: Field, batch: int = 2, ratio: float = 0.5) -> torch.Tensor:
    settings = MaskSettings(ratio=ratio)
    return torch.stack([hide(settings, field.lattice, generator_of(4, row)) for row in range(batch)])


def with_gaps(frames: torch.Tensor, share: float = 0.3) -> torch.Tensor:
    gaps = torch.rand(frames.shape, generator=torch.Generator().manual_seed(5)) < share
    return frames.masked_fill(gaps, NAN)


@pytest.mark.parametrize("axes", [GLOBE, VOLUME, PARCELS])
@pytest.mark.parametrize("patch", [None, 1, 3])
@pytest.mark.parametrize("history", [1, 3])
def test_predictions_have_the_shapes_of_frames_whatever_the_axes_patch_and_history(axes, patch, history):
    field = field_of(axes, patch=patch, history=history)
    frames = frames_of(field)

    predictions = model_of(field)("own", sample_of(frames))

    assert predictions["forecast"].shape == frames[:, 0].shape
    assert predictions["reconstruction"].shape == frames.shape


@pytest.mark.parametrize(
    ("kind", "names"),
    [("forecast", {"forecast"}), ("masked", {"reconstruction"}), ("both", {"forecast", "reconstruction"})],
)
def test_only_what_the_objective_asks_for_is_predicted(kind, names):
    field = field_of(kind=kind)

    assert model_of(field)("own", sample_of(frames_of(field))).keys() == names


@pytest.mark.parametrize("axes", [GLOBE, VOLUME, PARCELS])
def test_an_untrained_model_forecasts_persistence_exactly(axes):
    field = field_of(axes, kind="forecast", patch=2)
    frames = frames_of(field)

    assert torch.equal(model_of(field, trained=False)("own", sample_of(frames))["forecast"], frames[:, -1])


def test_an_untrained_model_forecasts_what_the_last_frame_is_filled_with():
    field = field_of()
    frames = with_gaps(frames_of(field))

    forecast = model_of(field, trained=False)("own", sample_of(frames))["forecast"]

    # Without hidden tokens a missing value counts as the mean, which is 0.
    assert torch.equal(forecast, frames[:, -1].nan_to_num(0.0))


def test_an_untrained_model_reconstructs_by_interpolation_in_time_exactly():
    # One channel of eight frames, one place a token: each token is one value.
    field = Field(
        channels=1,
        axes=(Axis(name="x", values=(0.0, 1.0)),),
        tokens=TokenSettings(history=8, patch=1),
        objective=ObjectiveSettings(kind="masked"),
        block=1,
    )
    frames = torch.tensor([[3.0, 1], [9, 2], [9, 3], [9, 4], [7, 5], [9, 6], [9, 7], [9, 8]])[None, :, None]
    # The first place is visible at frames 0 and 4: 3, 4, 5, 6, 7, and 7 from there on; the second one nowhere.
    hidden = torch.ones(8, 2, dtype=torch.bool)
    hidden[[0, 4], 0] = False
    hidden_BN = hidden[tuple(field.lattice.cells.unbind(1))][None]

    found = model_of(field, trained=False)("own", sample_of(frames, hidden_BN))["reconstruction"]

    assert found[0, :, 0, 0].tolist() == [3, 4, 5, 6, 7, 7, 7, 7]
    assert found[0, :, 0, 1].tolist() == [0] * 8


def test_an_untrained_model_leaves_what_is_visible_as_it_is():
    field = field_of()
    frames, hidden = frames_of(field), hidden_of(field)

    found = model_of(field, trained=False)("own", sample_of(frames, hidden))["reconstruction"]

    visible = ~field.spread(hidden)
    assert torch.equal(found[visible], frames[visible])
    assert not torch.equal(found, frames)


@pytest.mark.parametrize("attention", KINDS)
@pytest.mark.parametrize("gaps", [False, True])
def test_hidden_values_have_no_influence_whatever(attention, gaps):
    field = field_of(leads=2)
    model, frames, hidden = model_of(field, attention), frames_of(field), hidden_of(field)
    inside = field.spread(hidden)
    if gaps:
        frames = torch.where(inside, frames, with_gaps(frames))
    garbage = torch.where(inside, 1e6 * frames_of(field, seed=6), frames)

    before, after = model("own", sample_of(frames, hidden)), model("own", sample_of(garbage, hidden))

    for name in before:
        assert torch.equal(after[name], before[name])
    # While visible ones have.
    seen = model("own", sample_of(torch.where(inside, frames, 2 * frames), hidden))
    assert not torch.allclose(seen["reconstruction"][inside], before["reconstruction"][inside], atol=1e-3)


def test_hidden_values_send_no_gradient_back():
    field = field_of()
    frames, hidden = frames_of(field).requires_grad_(), hidden_of(field)
    predictions = model_of(field)("own", sample_of(frames, hidden))

    (gradient,) = torch.autograd.grad(sum(value.square().sum() for value in predictions.values()), frames)

    inside = field.spread(hidden)
    assert not gradient[inside].any()
    assert (gradient[~inside] != 0).all()


def test_that_a_token_is_hidden_is_seen():
    # The same frames, constant in time, so that what is hidden is filled with what it was.
    field = field_of()
    frames = frames_of(field)[:, :1].expand(-1, 4, -1, -1, -1)
    one = torch.zeros(2, len(field.lattice), dtype=torch.bool)
    one[:, 3] = True

    model = model_of(field)
    shown = model("own", sample_of(frames, torch.zeros_like(one)))
    hidden = model("own", sample_of(frames, one))

    assert not torch.allclose(hidden["forecast"], shown["forecast"], atol=1e-3)


def test_a_missing_input_counts_as_the_mean_and_is_told():
    # Inputs are normalised, so the mean is zero.
    field = field_of(kind="forecast")
    model, frames = model_of(field), frames_of(field)
    filled, gappy = frames.clone(), frames.clone()
    filled[0, 0, 1, 2, 3], gappy[0, 0, 1, 2, 3] = 0.0, NAN
    filled[1, 1, 0, 4], gappy[1, 1, 0, 4] = 0.0, NAN

    forecast = model("own", sample_of(gappy))["forecast"]
    taken_as_zero = model("own", sample_of(filled))["forecast"]

    assert forecast.isfinite().all()
    assert not torch.allclose(forecast, taken_as_zero, atol=1e-3)
    torch.nn.init.zeros_(model.get_parameter("streams.own.embed_missing"))
    assert torch.equal(model("own", sample_of(gappy))["forecast"], taken_as_zero)


def test_a_token_tells_the_share_of_it_that_is_missing():
    # Patches of 2 frames x 2 x 2 points of 2 channels hold 16 values. Calendar and positions do not count.
    field = field_of()
    stream, frames = stream_of(field), frames_of(field)
    torch.nn.init.zeros_(stream.embed.weight)
    torch.nn.init.ones_(stream.embed_missing)
    gappy = frames.clone()
    gappy[:, 0, 0, 0, 0] = NAN
    gappy[:, 1, :, 0, 1] = NAN

    change = tokens_of(stream, sample_of(gappy)) - tokens_of(stream, sample_of(frames))

    first = int((field.cells == 0).nonzero())
    expected = torch.zeros(2, len(field.lattice), 16)
    expected[:, first] = 3 / 16
    torch.testing.assert_close(change, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("attention", KINDS)
@pytest.mark.parametrize("masked", [False, True])
def test_missing_values_never_make_outputs_or_gradients_nan(attention, masked):
    # Gaps all over the first sample, a whole frame missing, a whole channel, and a sample of nothing at all.
    field = field_of(leads=2)
    model = model_of(field, attention)
    frames = with_gaps(frames_of(field, batch=4))
    frames[1, 2], frames[2, :, 1], frames[3] = NAN, NAN, NAN
    hidden = hidden_of(field, batch=4) if masked else None
    target = with_gaps(frames_of(field, batch=4, seed=7)[:, 0])
    predictions = model("own", sample_of(frames, hidden))

    everything = torch.ones_like(frames, dtype=torch.bool)
    loss = forecast_loss(predictions["forecast"], target, torch.ones(1))
    loss = loss + reconstruction_loss(predictions["reconstruction"], frames, everything, torch.ones(1))
    torch.autograd.backward(loss)

    assert all(value.isfinite().all() for value in predictions.values())
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


def test_a_token_without_any_data_is_not_seen():
    field = field_of()
    model, frames = model_of(field), frames_of(field)
    marks = torch.zeros(2, len(field.lattice), dtype=torch.bool)
    marks[:, field.cells == 7] = True
    marks[:, field.cells == 12 + 2] = True  # of the newest two frames
    nothing = frames.masked_fill(field.spread(marks), NAN)

    place = stream_of(field).see(sample_of(nothing)).place
    assert place.valid is not None
    assert torch.equal(place.valid, ~marks)
    # What it would say of itself reaches nobody: not even where it lies.
    reference = model("own", sample_of(nothing))["forecast"]
    torch.nn.init.constant_(model.get_parameter("streams.own.embed_missing"), 7.0)
    others = ~field.spread(marks)[:, -1]
    changed = model("own", sample_of(nothing))["forecast"]
    torch.testing.assert_close(changed[others], reference[others], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(changed[~others], reference[~others], atol=1e-3)


def test_a_token_with_a_single_value_is_seen():
    field = field_of()
    frames = frames_of(field)
    alone = torch.full_like(frames, NAN)
    alone[:, 0, 1, 4, 7] = frames[:, 0, 1, 4, 7]

    valid = stream_of(field).see(sample_of(alone)).place.valid

    assert valid is not None
    # The last row and column of the first two frames.
    token = int((field.lattice.cells == torch.tensor([0, 2, 3])).all(1).nonzero())
    assert valid.sum(1).tolist() == [1, 1]
    assert valid[:, token].all()


def test_a_token_with_a_single_value_is_seen_in_half_precision_too():
    # 1 of 20 x 20 x 2 = 800 values: 799/800 would be rounded to 1 in bfloat16.
    axes = tuple(Axis(name=name, values=tuple(map(float, range(20)))) for name in "yx")
    field = field_of(axes, history=1, patch=20)
    stream = stream_of(field)
    for parameter in stream.parameters():
        parameter.data = parameter.data.bfloat16()
    frames = torch.full((1, 1, 2, 20, 20), NAN)
    frames[0, 0, 0, 3, 3] = 1.0

    valid = stream.see(sample_of(frames)).place.valid

    assert valid is not None
    assert valid.all()


def test_hidden_tokens_are_seen_whether_they_hold_data_or_not():
    # The model is to know that they are asked for.
    field = field_of()
    hidden = hidden_of(field)

    valid = stream_of(field).see(sample_of(torch.full_like(frames_of(field), NAN), hidden)).place.valid

    assert valid is not None
    assert torch.equal(valid, hidden)


def test_complete_samples_need_no_mask():
    field = field_of()

    assert stream_of(field).see(sample_of(frames_of(field), hidden_of(field))).place.valid is None


def test_patches_in_which_no_grid_point_holds_data_are_no_tokens():
    # 5 x 8 points in patches of 2 x 2: 3 x 4 places, 2 times. All but the first row and point (3, 5), which is of
    # patch (1, 2), are empty: patches (0, 0..3) and (1, 2).
    present = torch.zeros(5, 8, dtype=torch.bool)
    present[0], present[3, 5] = True, True
    field = field_of(present=present)

    assert len(field.lattice) == 2 * 5
    places = {tuple(cell) for cell in field.lattice.cells[:, 1:].tolist()}
    assert places == {(0, 0), (0, 1), (0, 2), (0, 3), (1, 2)}
    # Frames come back, 0 where there is no token; patch (1, 2) is rows 2-3 and columns 4-5.
    frames = frames_of(field)
    kept = torch.zeros(5, 8, dtype=torch.bool)
    kept[0:2], kept[2:4, 4:6] = True, True
    assert torch.equal(field.join(field.cut(frames)), torch.where(kept, frames, 0.0))


def test_predictions_where_no_grid_point_holds_data_are_the_mean():
    present = torch.zeros(5, 8, dtype=torch.bool)
    present[:2] = True
    field = field_of(present=present)
    frames = frames_of(field).masked_fill(~present, NAN)

    predictions = model_of(field)("own", sample_of(frames, hidden_of(field)))

    assert not predictions["forecast"][..., 2:, :].any()
    assert not predictions["reconstruction"][..., 2:, :].any()
    assert (predictions["forecast"][..., :2, :] != 0).all()


def test_an_archive_without_any_data_is_refused():
    with pytest.raises(
        UserError, match=r"model\.empty: no grid point ever holds data; look at the archive with `hyperslab"
    ):
        _ = field_of(present=torch.zeros(5, 8, dtype=torch.bool)).lattice


def test_marks_of_tokens_spread_over_all_that_lies_in_them():
    # Two frames of three points, patches of one frame and two points; the tokens are (0, 0), (0, 1), (1, 0), (1, 1).
    field = Field(
        channels=2,
        axes=(Axis(name="x", values=(0.0, 1.0, 2.0)),),
        tokens=TokenSettings(history=2, patch=2),
        objective=ObjectiveSettings(kind="masked"),
    )
    marks = torch.zeros(2, 2, dtype=torch.bool)
    marks[0, 1], marks[1, 0] = True, True

    spread = field.spread(marks[tuple(field.lattice.cells.unbind(1))][None])

    assert spread.dtype == torch.bool
    for channel in range(2):
        assert spread[0, :, channel].tolist() == [[False, False, True], [True, True, False]]


def test_some_patches_are_put_together_and_the_others_are_zero():
    # Four points in patches of two; only the second patch is given.
    patches = field_of(PARCELS, patch=1).frame_patches
    values = torch.tensor([[[5.0], [7.0]]])

    assert join_some(patches, values, torch.tensor([2, 9])).flatten().tolist() == [0, 0, 5, 0, 0, 0, 0, 0, 0, 7, 0]


def in_time(*values: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of one point, of which those left out are not visible and would be noticed."""
    visible = torch.tensor([value is not None for value in values])
    frames = torch.tensor([1e6 if value is None else value for value in values])
    return frames.view(1, -1, 1, 1), visible.view(1, -1, 1, 1)


@pytest.mark.parametrize(
    ("values", "filled"),
    [
        # Between two visible ones on a straight line, which weighs 1/4, 2/4, 3/4.
        ((0.0, None, None, None, 8.0), (0, 2, 4, 6, 8)),
        # Before the first and after the last its value goes on.
        ((None, None, 3.0, None), (3, 3, 3, 3)),
        ((None, 2.0, None, 6.0, None), (2, 2, 4, 6, 6)),
        # Each gap by its own two ends.
        ((1.0, None, 3.0, None, None, 9.0), (1, 2, 3, 5, 7, 9)),
        # Never visible: the mean, which is 0.
        ((None, None, None), (0, 0, 0)),
        ((None,), (0,)),
        ((4.0,), (4,)),
    ],
)
def test_gaps_are_filled_in_time(values, filled):
    frames, visible = in_time(*values)

    assert fill_in_time(frames, visible).flatten().tolist() == list(filled)


@given(seed=st.integers(0, 10_000), count=st.integers(1, 9), share=st.floats(0, 1))
def test_gaps_are_filled_as_by_looking_for_neighbours_one_by_one(seed, count, share):
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randn(2, count, 1, 3, dtype=torch.float64, generator=generator)
    visible = torch.rand(frames.shape, generator=generator) < share
    found = fill_in_time(torch.where(visible, frames, NAN), visible)

    for row in range(2):
        for place in range(3):
            seen = [time for time in range(count) if visible[row, time, 0, place]]
            for time in range(count):
                before, after = [t for t in seen if t <= time], [t for t in seen if t >= time]
                ends = [float(frames[row, t, 0, place]) for t in (*before[-1:], *after[:1])]
                expected = 0.0 if not ends else ends[0]
                if len(ends) == 2 and before[-1] < after[0]:
                    expected += (ends[1] - ends[0]) * (time - before[-1]) / (after[0] - before[-1])
                assert float(found[row, time, 0, place]) == pytest.approx(expected, abs=1e-12)
    assert torch.equal(found[visible], frames[visible])


def test_filling_sends_gradients_to_visible_values_by_their_weights():
    # 0, gap, gap, 9: the gaps are 2/3 a + 1/3 b and 1/3 a + 2/3 b; the sum is 2 a + 2 b.
    frames, visible = in_time(0.0, None, None, 9.0)
    frames.requires_grad_()

    (gradient,) = torch.autograd.grad(fill_in_time(frames, visible).sum(), frames)

    torch.testing.assert_close(gradient.flatten(), torch.tensor([2.0, 0, 0, 2]))


@pytest.mark.parametrize("block", [2, 4, 8])
def test_the_order_of_tokens_does_not_matter(block):
    # Exact attention knows no order, and frames come back in their own.
    straight, other = field_of(leads=2, block=10_000), field_of(leads=2, block=block)
    assert not torch.equal(other.cells, straight.cells)
    model, turned = model_of(straight), model_of(other)
    turned.load_state_dict(model.state_dict())
    frames, hidden = with_gaps(frames_of(straight)), hidden_of(straight)
    by_cell = torch.zeros_like(hidden).index_copy_(1, straight.cells, hidden)

    before = model("own", sample_of(frames, hidden))
    after = turned("own", sample_of(frames, by_cell[:, other.cells]))

    assert torch.equal(other.spread(by_cell[:, other.cells]), straight.spread(hidden))
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [GLOBE, VOLUME, PARCELS])
@pytest.mark.parametrize("block", [1, 8, 64])
def test_frames_cut_into_tokens_and_put_together_are_unchanged(axes, block):
    field = field_of(axes, patch=(2,) * (len(axes) + 1), block=block)
    frames = frames_of(field)

    assert field.cut(frames).shape == (2, len(field.lattice), 2 * math.prod(field.patches.patch))
    assert torch.equal(field.join(field.cut(frames)), frames)


def trained_on_leads(model: SpaceTimeTransformer, frames: torch.Tensor, leads: int) -> float:
    """Loss after learning that a frame grows by 1 with each lead."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(30 * leads):
        lead = 1 + step % leads
        forecast = model("own", sample_of(frames, lead=lead))["forecast"]
        optimizer.zero_grad()
        torch.autograd.backward(forecast_loss(forecast, frames[:, -1] + lead, torch.ones(1)))
        optimizer.step()
    with torch.no_grad():
        losses = [
            forecast_loss(model("own", sample_of(frames, lead=lead))["forecast"], frames[:, -1] + lead, torch.ones(1))
            for lead in range(1, leads + 1)
        ]
    return float(max(losses))


def test_leads_are_told_apart_by_a_trained_model():
    # One that cannot tell three leads apart says 2 to all of them: a loss of 1 for the outer two.
    field = field_of(VOLUME[:1], kind="forecast", history=1, patch=2, leads=3)

    assert trained_on_leads(model_of(field, trained=False), frames_of(field), 3) < 0.1


@pytest.mark.parametrize("leads", [2, 3, 7, 32])
def test_leads_that_follow_one_another_lie_a_quarter_turn_apart_in_some_octave(leads):
    lead = octaves(torch.arange(1, leads + 1)[:, None] / leads)

    # Two points of the unit circle a quarter turn apart are sqrt(2) from one another.
    assert (lead.diff(dim=0).norm(dim=1) > 1.4).all()
    assert torch.cdist(lead, lead).add(9 * torch.eye(leads)).min() > 1


def test_a_model_of_one_lead_is_not_told_it():
    field = field_of(kind="forecast")
    model, frames = model_of(field), frames_of(field)

    assert not any("embed_lead" in name for name, _ in model.named_parameters())
    first, second = (model("own", sample_of(frames, lead=lead))["forecast"] for lead in (1, 2))
    assert torch.equal(first, second)


def test_a_forecast_depends_on_each_past_frame_their_order_and_the_calendar():
    field = field_of(kind="forecast", history=2, patch=2)
    model, sample = model_of(field), sample_of(frames_of(field))

    def change(sample: FieldSample) -> torch.Tensor:
        difference: torch.Tensor = model("own", sample)["forecast"] - sample.inputs_BTCS[:, -1]
        return difference

    reference, frames = change(sample), sample.inputs_BTCS
    older, newer = frames.clone(), frames.clone()
    older[:, 0] += 1
    newer[:, 1] += 1
    for other in (older, newer, frames.flip(1)):
        assert not torch.allclose(change(replace(sample, inputs_BTCS=other)), reference, atol=1e-3)
    turned = replace(sample, calendar_BF=sample.calendar_BF.flip(1))
    assert not torch.allclose(change(turned), reference, atol=1e-3)


@pytest.mark.parametrize("told_by", ["embed_age", "rotary"])
def test_the_age_of_past_frames_tells_them_apart(told_by):
    # Attention itself has no order: without ages and angles, older frames could be swapped unnoticed.
    field = field_of(kind="forecast", history=3, patch=2)
    model, frames = model_of(field), frames_of(field)
    stream = model.streams["own"]
    assert isinstance(stream, FieldStream)

    def is_noticed() -> bool:
        before = model("own", sample_of(frames))["forecast"]
        swapped = model("own", sample_of(frames[:, [1, 0, 2]]))["forecast"]
        return not torch.allclose(swapped, before, atol=1e-4)

    if told_by == "embed_age":
        stream.cosine.fill_(1.0)
        stream.sine.zero_()
        assert is_noticed()
        torch.nn.init.zeros_(stream.embed_age)
        assert not is_noticed()
    else:
        torch.nn.init.zeros_(stream.embed_age)
        assert is_noticed()


def test_the_forecast_is_read_from_the_tokens_of_the_newest_frames():
    # Blocks that pass their tokens on leave each token by itself.
    field = field_of(kind="forecast")
    model, frames = model_of(field), frames_of(field)
    for name, parameter in model.named_parameters():
        if name.startswith("blocks.") and name.endswith("output.weight"):
            torch.nn.init.zeros_(parameter)

    def change(frames: torch.Tensor) -> torch.Tensor:
        difference: torch.Tensor = model("own", sample_of(frames))["forecast"] - frames[:, -1]
        return difference

    # Frames 2 and 3 of four are the newest patch of two.
    reference = change(frames)
    for frame, matters in enumerate([False, False, True, True]):
        other = frames.clone()
        other[:, frame] += 1
        assert torch.allclose(change(other), reference, atol=1e-5) != matters


def test_each_token_is_predicted_from_its_own_place():
    # The same: a change of one patch changes that patch, of all its frames, and no other.
    field = field_of(kind="masked")
    model, frames = model_of(field), frames_of(field)
    for name, parameter in model.named_parameters():
        if name.startswith("blocks.") and name.endswith("output.weight"):
            torch.nn.init.zeros_(parameter)
    other = frames.clone()
    other[:, 0, :, 2, 6] += 1

    def change(frames: torch.Tensor) -> torch.Tensor:
        difference: torch.Tensor = model("own", sample_of(frames))["reconstruction"] - frames
        return difference

    moved = (change(other) - change(frames)).abs() > 1e-4
    expected = torch.zeros_like(moved)
    expected[:, :2, :, 2:4, 6:8] = True
    assert torch.equal(moved, expected)


def test_parcels_have_embeddings_of_their_own_and_no_angles_of_their_order():
    field = field_of(PARCELS, patch=(1, 1))
    stream = stream_of(field)

    assert stream.embed_place.shape == (11, 16)
    # All parcels of one time have the same angles, and times have others.
    by_cell = torch.zeros(4, 11, stream.cosine.shape[1])
    by_cell[tuple(field.lattice.cells.unbind(1))] = stream.cosine
    assert torch.equal(by_cell, by_cell[:, :1].expand_as(by_cell))
    assert not torch.equal(by_cell[0], by_cell[1])


def test_grids_have_no_embeddings_of_places():
    assert not hasattr(stream_of(field_of()), "embed_place")


def turned_globe(columns: int) -> tuple[Axis, ...]:
    """The globe from another first column on."""
    longitude = [value + 360.0 * (value < 45 * columns) for value in GLOBE[1].values]
    return GLOBE[0], replace(GLOBE[1], values=tuple(sorted(longitude)))


def test_turning_the_globe_by_whole_patches_turns_the_forecast():
    # Longitudes 0, 45, ... turned by one patch of two columns: the same points under other numbers, so the
    # forecast is the same field under other numbers.
    model, turned = model_of(field_of()), model_of(field_of(turned_globe(2)))
    turned.load_state_dict(model.state_dict())
    frames = with_gaps(frames_of(field_of()))

    forecast = turned("own", sample_of(frames.roll(-2, dims=-1)))["forecast"]

    expected = model("own", sample_of(frames))["forecast"].roll(-2, dims=-1)
    torch.testing.assert_close(forecast, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [8, 7])
def test_angles_round_the_globe_have_no_seam(columns):
    # Differences of angles between one token and its eastern neighbour are the same all the way round where the
    # patches are even; with 7 columns and a patch of 2 the last one is narrower.
    axes = (GLOBE[0], Axis(name="longitude", values=tuple(360 / columns * n for n in range(columns)), periodic=True))
    field = field_of(axes, history=1, patch=2, block=1)
    stream = FieldStream(field, ModelSettings(width=48, heads=1))
    turns = torch.complex(stream.cosine, stream.sine)
    by_cell = torch.zeros(1, 3, 4, 24, dtype=turns.dtype)
    by_cell[tuple(field.lattice.cells.unbind(1))] = turns

    # The last of the three shares of pairs is longitude's. Its slowest pairs turn as the globe does.
    step = (by_cell.roll(-1, dims=2) * by_cell.conj())[0, 0, :, 16:]

    # Centres lie 2 of 8 columns apart; or 2, 2, 1.5 and 1.5 of 7.
    apart = torch.tensor([2, 2, 2, 2] if columns == 8 else [2, 2, 1.5, 1.5])
    torch.testing.assert_close(step[:, -1].angle(), 2 * math.pi * apart / columns, rtol=0, atol=1e-5)
    if columns == 8:
        torch.testing.assert_close(step, step[:1].expand_as(step), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("patch", "history", "said"),
    [
        ([2, 2, 2, 2], 4, r"found \[2, 2, 2, 2\] for frames along latitude, longitude and a history of 4 frames"),
        ([2], 4, r"one number, 2 numbers, or 3 that begin with a divisor of model.history"),
        ([3, 2, 2], 4, r"model.patch: found \[3, 2, 2\]"),
        ([8, 2, 2], 4, r"a divisor of model.history"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(patch, history, said):
    with pytest.raises(UserError, match=said):
        _ = field_of(patch=patch, history=history).patches


def test_a_patch_larger_than_the_grid_is_refused():
    with pytest.raises(UserError, match=r"model\.patch: found 10000 .* give sides within the grid"):
        _ = field_of(patch=10_000).patches


@pytest.mark.parametrize(
    ("patch", "sides"),
    [(3, (1, 3, 3)), ([3, 4], (1, 3, 4)), ([2, 3, 4], (2, 3, 4)), (None, (1, 1, 1)), ([4, 2, 90], (4, 2, 90))],
)
def test_a_patch_is_one_number_or_one_for_each_axis_or_begins_with_its_frames(patch, sides):
    assert field_of(patch=patch).patches.patch == sides


def test_a_patch_that_is_not_given_keeps_a_frame_within_the_limit_of_tokens():
    # 30 x 21 points are 630 tokens; in patches of 2 they are 15 x 11 = 165.
    axes = tuple(Axis(name=name, values=tuple(map(float, range(size)))) for name, size in (("y", 30), ("x", 21)))

    assert field_of(axes, patch=None).patches.patch == (1, 2, 2)


def test_only_space_may_close_on_itself():
    assert field_of().patches.periodic == (False, False, True)


def test_parameters_in_half_precision_leave_frames_exact():
    field = field_of(leads=2)
    model, frames, hidden = model_of(field, trained=False), frames_of(field), hidden_of(field)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()

    predictions = model("own", sample_of(frames, hidden))

    filled = field.filled(frames, hidden)
    assert torch.equal(predictions["forecast"], filled[:, -1])
    assert torch.equal(predictions["reconstruction"], filled)


@pytest.mark.parametrize("attention", KINDS)
def test_parameters_in_half_precision_predict_about_the_same(attention):
    field = field_of(leads=2)
    model, sample = model_of(field, attention), sample_of(with_gaps(frames_of(field)), hidden_of(field))
    exact = model("own", sample)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()

    rounded = model("own", sample)

    for name in exact:
        assert rounded[name].dtype == torch.float32
        # bfloat16 keeps 8 bits: some percent of changes of about 4 after two layers.
        error = (rounded[name] - exact[name]).square().mean().sqrt()
        assert error < 0.05 * exact[name].square().mean().sqrt()


def test_a_sample_beside_one_with_a_gap_is_told_the_same_as_by_itself():
    # A patch that lies partly where there never is data misses nothing, whether another sample does or not.
    present = torch.ones(5, 8, dtype=torch.bool)
    present[0, 0] = False
    field = replace(field_of(kind="forecast"), present=present)
    stream = stream_of(field)
    frames = frames_of(field, batch=2)
    frames[..., 0, 0] = NAN
    gappy = frames.clone()
    gappy[1, 0, 0, 2, 2] = NAN
    whole = replace(sample_of(frames), complete=True)
    alone = replace(whole, inputs_BTCS=frames[:1], calendar_BF=whole.calendar_BF[:1], lead_B=whole.lead_B[:1])

    beside = tokens_of(stream, replace(whole, inputs_BTCS=gappy, complete=False))

    torch.testing.assert_close(beside[:1], tokens_of(stream, alone))


@pytest.mark.parametrize(("rollout", "axis"), [(2, "longitude"), (1, None)])
def test_parts_know_no_forecast_across_a_seam_that_a_patch_reaches_over(rollout, axis):
    # Nine places round the globe in patches of two: the last one holds the first place as well.
    axes = (
        Axis(name="latitude", values=(60.0, 30.0, 0.0, -30.0)),
        Axis(name="longitude", values=tuple(40.0 * place for place in range(9)), periodic=True),
    )
    field = Field(
        channels=1, axes=axes, tokens=TokenSettings(history=1, patch=2), objective=ObjectiveSettings(rollout=rollout)
    )
    half = replace(field, part=Part(number=0, count=2))

    assert field.held_patches == field.patches
    if axis is None:
        assert half.held_patches.sizes == (1, 2, 9)
    else:
        with pytest.raises(UserError, match=rf"model\.patch: found 2 along {axis}, which closes on itself after 9"):
            _ = half.held_patches


def test_parts_of_a_field_hold_what_the_whole_holds():
    field = Field(
        channels=2, axes=GLOBE, tokens=TokenSettings(history=2, patch=1), objective=ObjectiveSettings(), block=8
    )
    frames = torch.randn(1, 2, 2, *(len(axis.values) for axis in GLOBE))
    whole = field.cut(frames)

    parts = [replace(field, part=Part(number=number, count=5)) for number in range(5)]

    assert torch.equal(torch.cat([part.cut(frames[:, :, :, part.band]) for part in parts], dim=1), whole)
    owned = torch.zeros(frames.shape[3:])
    for part in parts:
        assert part.owned is not None
        owned[part.band] += part.owned
    assert (owned == 1).all()
