import itertools
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.model.config import ModelSettings, ObjectiveSettings, TokenSettings
from hyperslab.model.hits import ROUND, Cloud, HitSample, HitStream, group_hits, morton, num_cells
from hyperslab.model.objectives import hit_loss
from hyperslab.model.transformer import SpaceTimeTransformer

KINDS: list[Any] = [
    "dense",
    {"kind": "window", "window": 16},
    "axial",
    {"kind": "block_sparse", "block": 8, "density": 0.5},
    {"kind": "linear", "features": 16},
    {"kind": "nystrom", "landmarks": 8},
]


def cloud_of(axes: int = 3, *, history: int = 1, channels: int = 1, cells: int = 8) -> Cloud:
    """A detector of cells of 1 unit."""
    return Cloud(
        channels=channels,
        low=(0.0,) * axes,
        cell=(1.0,) * axes,
        shape=(cells,) * axes,
        tokens=TokenSettings(history=history),
        objective=ObjectiveSettings(kind="masked"),
    )


def grouped(
    cloud: Cloud,
    position: Any,
    feature: Any = None,
    *,
    frame: Any = None,
    start: Any = None,
) -> HitSample:
    """The cells of hits, by default of one sample, one frame and features of 1."""
    position = torch.as_tensor(position, dtype=torch.float32).view(-1, len(cloud.cell))
    count = len(position)
    feature = torch.ones(count, 1) if feature is None else torch.as_tensor(feature, dtype=torch.float32)
    return group_hits(
        cloud,
        position,
        feature.view(count, cloud.channels),
        torch.zeros(count, dtype=torch.int64) if frame is None else torch.as_tensor(frame),
        torch.tensor([0, count] if start is None else start),
    )


def some_hits(cloud: Cloud, counts: list[int], seed: int = 1) -> HitSample:
    """Samples of so many hits."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(counts)
    start = torch.tensor([0, *counts]).cumsum(0)
    extent = torch.tensor(cloud.shape) * torch.tensor(cloud.cell)
    return group_hits(
        cloud,
        torch.tensor(cloud.low) + extent * torch.rand(total, len(cloud.cell), generator=generator),
        torch.randn(total, cloud.channels, generator=generator),
        torch.randint(cloud.tokens.history, (total,), generator=generator),
        start,
    )


def model_of(cloud: Cloud, attention: Any = "dense") -> SpaceTimeTransformer:
    """A model that is not untrained: its head is not zero."""
    torch.manual_seed(2)
    settings = ModelSettings(width=16, heads=2, depth=2, attention=attention)
    model = SpaceTimeTransformer(settings, {"hits": cloud})
    for name, parameter in model.named_parameters():
        if ".head_" in name:
            torch.nn.init.normal_(parameter)
    return model


def rows(tensor: torch.Tensor, sample: HitSample) -> list[list[list[float]]]:
    """What valid tokens of each sample hold."""
    return [own[valid].tolist() for own, valid in zip(tensor, sample.valid_BN, strict=True)]


def test_hits_of_one_cell_are_one_token():
    # Cells of 2 x 10 from (-1, 100): hits at (0, 101) and (0.5, 109) are at (0.5, 0.1) and (0.75, 0.9) in cells:
    # parts, along the second axis first, number 2 (second half, first half) and 3.
    cloud = replace(cloud_of(2, channels=2), low=(-1.0, 100.0), cell=(2.0, 10.0))

    sample = grouped(cloud, [[0, 101], [0.5, 109]], [[3, 4], [5, 6]])

    assert sample.values_BNP.shape == (1, ROUND, 12)
    assert sample.valid_BN.sum(1).tolist() == [1]
    assert sample.values_BNP[0, 0].tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 3, 4, 5, 6]
    torch.testing.assert_close(sample.position_BNS[0, 0], torch.tensor([0, 0.625, 0.5]))
    assert sample.hidden_BN is None


def test_hits_of_one_part_have_their_mean_features():
    sample = grouped(cloud_of(1), [[2.1], [2.2], [2.4], [2.9]], [1.0, 2.0, 6.0, 5.0])

    # The first half holds three hits of mean 3, the second one of 5.
    assert rows(sample.values_BNP, sample) == [[[1, 1, 3, 5]]]
    torch.testing.assert_close(sample.position_BNS[0, 0], torch.tensor([0, 2.4]))


def test_hits_of_two_cells_are_two_tokens_along_the_curve():
    sample = grouped(cloud_of(1), [[5.5], [2.25]], [7.0, 8.0])

    assert rows(sample.values_BNP, sample) == [[[1, 0, 8, 0], [0, 1, 0, 7]]]
    assert rows(sample.position_BNS, sample) == [[[0, 2.25], [0, 5.5]]]


def test_samples_are_kept_apart_and_one_may_be_empty():
    # Of five hits two are of the first sample, none of the second, three of the third, all in one place.
    sample = grouped(cloud_of(1), [[1.25]] * 5, [1, 3, 4, 5, 6], start=[0, 2, 2, 5])

    assert sample.valid_BN.sum(1).tolist() == [1, 0, 1]
    assert rows(sample.values_BNP, sample) == [[[1, 0, 2, 0]], [], [[1, 0, 5, 0]]]
    assert not sample.values_BNP[1].any()
    assert not sample.position_BNS[1].any()


def test_frames_are_kept_apart_and_come_one_after_another():
    sample = grouped(cloud_of(1, history=3), [[6.5], [1.25], [6.5], [6.5]], [1, 2, 3, 4], frame=[2, 2, 0, 2])

    # Frame 0 first; in frame 2 the cell 1 comes before cell 6, whose hits have features 1 and 4.
    assert rows(sample.position_BNS, sample) == [[[0, 6.5], [2, 1.25], [2, 6.5]]]
    assert rows(sample.values_BNP, sample) == [[[0, 1, 0, 3], [1, 0, 2, 0], [0, 1, 0, 2.5]]]


def test_samples_are_padded_to_the_longest_in_steps():
    def tokens(*counts: int) -> int:
        position = torch.cat([torch.arange(float(count)) + 0.5 for count in counts])
        return grouped(cloud_of(1), position, start=[0, *torch.tensor(counts).cumsum(0).tolist()]).valid_BN.shape[1]

    assert (tokens(1), tokens(64, 3), tokens(3, 65), tokens(129)) == (64, 64, 128, 192)


def test_no_hits_at_all_are_padding_only():
    sample = grouped(cloud_of(2), torch.zeros(0, 2), start=[0, 0, 0])

    assert sample.valid_BN.shape == (2, ROUND)
    assert not sample.valid_BN.any()


@st.composite
def any_hits(draw):
    axes, history = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    counts = draw(st.lists(st.integers(0, 12), min_size=1, max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    # Whole numbers of quarters: places on the edge of a cell and of a part come up, and sums are exact.
    position = torch.randint(0, 16, (sum(counts), axes), generator=generator) / 4
    feature = torch.randint(-9, 9, (sum(counts), 2), generator=generator).float()
    frame = torch.randint(history, (sum(counts),), generator=generator)
    return cloud_of(axes, history=history, channels=2), position, feature, frame, counts


@given(hits=any_hits())
def test_every_hit_is_in_one_cell_and_every_cell_holds_its_hits(hits):
    cloud, position, feature, frame, counts = hits
    start = [0, *torch.tensor(counts).cumsum(0).tolist()]
    sample = grouped(cloud, position, feature, frame=frame, start=start)

    # Place by place, with a dictionary.
    for row, (low, high) in enumerate(itertools.pairwise(start)):
        cells = defaultdict(list)
        for hit in range(low, high):
            cells[int(frame[hit]), *position[hit].floor().int().tolist()].append(hit)
        places = torch.tensor([place[1:] for place in cells], dtype=torch.int64).view(-1, len(cloud.cell))
        curve = dict(zip(cells, morton(places).tolist(), strict=True))
        ordered = sorted(cells, key=lambda place: (place[0], curve[place]))
        assert sample.valid_BN[row].tolist() == [True] * len(ordered) + [False] * (ROUND - len(ordered))
        for token, place in enumerate(ordered):
            own = cells[place]
            expected = torch.tensor([float(place[0]), *position[own].mean(0).tolist()])
            torch.testing.assert_close(sample.position_BNS[row, token], expected)
            by_part = defaultdict(list)
            for hit in own:
                halves = (2 * (position[hit] % 1)).int().tolist()
                by_part[int("".join(map(str, halves)), 2)].append(feature[hit])
            parts = cloud.parts
            marks = [float(part in by_part) for part in range(parts)]
            means = [
                (torch.stack(by_part[part]).mean(0) if part in by_part else torch.zeros(2)) for part in range(parts)
            ]
            torch.testing.assert_close(
                sample.values_BNP[row, token], torch.cat([torch.tensor(marks), torch.cat(means)])
            )


@given(hits=any_hits(), seed=st.integers(0, 100))
def test_the_order_of_hits_inside_a_sample_changes_nothing(hits, seed):
    cloud, position, feature, frame, counts = hits
    start = [0, *torch.tensor(counts).cumsum(0).tolist()]
    generator = torch.Generator().manual_seed(seed)
    order = torch.cat(
        [first + torch.randperm(count, generator=generator) for first, count in zip(start, counts, strict=False)]
    )

    straight = grouped(cloud, position, feature, frame=frame, start=start)
    shuffled = grouped(cloud, position[order], feature[order], frame=frame[order], start=start)

    assert torch.equal(shuffled.valid_BN, straight.valid_BN)
    torch.testing.assert_close(shuffled.values_BNP, straight.values_BNP)
    torch.testing.assert_close(shuffled.position_BNS, straight.position_BNS)


def test_hits_below_the_low_end_count_as_at_it():
    sample = grouped(cloud_of(1), [[-3.5], [-0.25], [0.75], [1.25]], [1, 3, 4, 5])

    # Cell 0 holds three hits, two of them in its first half; its mean place lies in it.
    assert rows(sample.values_BNP, sample) == [[[1, 1, 2, 4], [1, 0, 5, 0]]]
    assert rows(sample.position_BNS, sample) == [[[0, 0.25], [0, 1.25]]]


def test_hits_beyond_the_detector_have_cells_of_their_own_up_to_the_end_of_the_curve():
    # Cells 9 and 700 of a detector of 8; 2000 and 3000 fall into the last cell of the curve, 1023.
    sample = grouped(cloud_of(1), [[9.5], [700.5], [2000.5], [3000.5]])

    cells = [place[1] // 1 for place in rows(sample.position_BNS, sample)[0]]
    assert cells == [9, 700, 1023]


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_hits_far_outside_stay_in_their_own_sample_and_frame(axes):
    # The same four places, all at the ends of the curve, in both frames of three samples.
    places = torch.tensor([-1e6, -1.0, 1023.5, 1e6])[:, None].expand(4, axes).repeat(6, 1)
    frame = torch.tensor([0] * 4 + [1] * 4).repeat(3)

    sample = grouped(cloud_of(axes, history=2), places, torch.arange(24.0), frame=frame, start=[0, 8, 16, 24])

    # Each frame has two cells, 0 and 1023; features number the hits, and their means tell which they were.
    assert sample.valid_BN.sum(1).tolist() == [4, 4, 4]
    assert sample.position_BNS[:, :4, 0].tolist() == [[0, 0, 1, 1]] * 3
    means = sample.values_BNP[:, :4, cloud_of(axes).parts :].sum(-1)
    expected = torch.arange(24.0).view(12, 2).mean(1).view(3, 4)
    torch.testing.assert_close(means, expected)


@pytest.mark.parametrize(("samples", "history"), [(3000, 1), (80, 100_000), (2, 8193)])
def test_many_samples_and_long_histories_are_kept_apart(samples, history):
    # One hit in the first and one in the last frame of each sample, of four axes: the longest numbers there are.
    cloud = cloud_of(4, history=history)
    frame = torch.tensor([0, history - 1]).repeat(samples)
    start = torch.arange(0, 2 * samples + 1, 2)

    sample = group_hits(cloud, torch.full((2 * samples, 4), 1023.5), torch.ones(2 * samples, 1), frame, start)

    cells = 1 if history == 1 else 2
    assert sample.valid_BN.sum(1).tolist() == [cells] * samples
    assert sample.position_BNS[:, :cells, 0].tolist() == [[0, history - 1][:cells]] * samples


def test_the_curve_of_two_axes_by_hand():
    # Bits are taken in turn, the first axis's before the second's: (2, 3) is 10 and 11, so 1101 = 13.
    cells = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [2, 0], [2, 3], [1023, 1023]])

    assert morton(cells).tolist() == [0, 1, 2, 3, 4, 8, 13, 2**20 - 1]


def test_the_curve_of_four_axes_fits_forty_bits():
    assert morton(torch.tensor([[1023] * 4, [512, 0, 0, 0]])).tolist() == [2**40 - 1, 2**39]


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_runs_of_the_curve_are_compact(axes):
    # Every run of 2^(k axes) cells from a multiple of it is a cube of side 2^k.
    every = torch.cartesian_prod(*[torch.arange(8)] * axes).view(-1, axes)
    ordered = every[morton(every).argsort()]

    assert morton(ordered).tolist() == list(range(8**axes))
    for power in (1, 2):
        cubes = ordered.view(-1, 2 ** (power * axes), axes)
        assert (cubes.amax(1) - cubes.amin(1) == 2**power - 1).all()


@pytest.mark.parametrize(("low", "high", "cell", "count"), [(0, 8, 1, 8), (0, 8.5, 1, 9), (-5, 5, 3, 4), (2, 2, 1, 1)])
def test_a_stretch_of_space_takes_as_many_cells_as_cover_it(low, high, cell, count):
    assert num_cells(low, high, cell) == count


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("channels", [1, 3])
def test_predictions_tell_parts_and_their_features_of_every_token(axes, channels):
    cloud = cloud_of(axes, channels=channels)
    sample = some_hits(cloud, [9, 4])

    predictions = model_of(cloud)("hits", sample)

    parts = 2**axes
    assert predictions["occupancy"].shape == (2, ROUND, parts)
    assert predictions["feature"].shape == (2, ROUND, parts, channels)
    assert predictions["occupancy"].isfinite().all()


def test_an_untrained_model_says_that_parts_are_as_likely_full_as_empty():
    predictions = SpaceTimeTransformer(ModelSettings(width=16, heads=2, depth=1), {"hits": cloud_of()})(
        "hits", some_hits(cloud_of(), [20])
    )

    assert not predictions["occupancy"].any()
    assert not predictions["feature"].any()


def half_hidden(sample: HitSample) -> HitSample:
    hidden = torch.rand(sample.valid_BN.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    return replace(sample, hidden_BN=hidden)


@pytest.mark.parametrize("attention", KINDS)
def test_what_hidden_cells_hold_has_no_influence_whatever(attention):
    cloud = cloud_of(history=2)
    model, sample = model_of(cloud, attention), half_hidden(some_hits(cloud, [60, 20]))
    assert sample.hidden_BN is not None
    hidden = sample.hidden_BN[..., None]
    # Other parts, other features, and another place in the same cell.
    moved = sample.position_BNS.clone()
    moved[..., 1:] = moved[..., 1:].floor() + torch.rand(moved[..., 1:].shape)
    other = replace(
        sample,
        values_BNP=torch.where(hidden, 1e6 * torch.randn(sample.values_BNP.shape), sample.values_BNP),
        position_BNS=torch.where(hidden, moved, sample.position_BNS),
    )

    before, after = model("hits", sample), model("hits", other)

    for name in before:
        assert torch.equal(after[name], before[name])
    # While what visible cells hold has.
    seen = replace(sample, values_BNP=torch.where(hidden, sample.values_BNP, 2 * sample.values_BNP))
    assert not torch.allclose(model("hits", seen)["occupancy"], before["occupancy"], atol=1e-3)


def test_hidden_hits_outside_the_detector_have_no_influence_either():
    cloud = cloud_of(1)
    model = model_of(cloud)

    def predicted(far: float) -> torch.Tensor:
        sample = grouped(cloud, [[far], [0.75], [5.5]], [1, 2, 3])
        hidden = torch.zeros(1, ROUND, dtype=torch.bool)
        hidden[0, 0] = True
        occupancy: torch.Tensor = model("hits", replace(sample, hidden_BN=hidden))["occupancy"]
        return occupancy[0, :2]

    assert torch.equal(predicted(-9.5), predicted(0.25))


def test_a_hidden_cell_stands_in_its_middle_and_in_its_own_frame():
    # A cell whose only hit lies in the middle has the same place whether it is hidden or not.
    cloud = cloud_of(2, history=4)
    sample = grouped(cloud, [[2.5, 6.5], [3.5, 0.5]], frame=[3, 1])
    stream = model_of(cloud).streams["hits"]
    assert isinstance(stream, HitStream)

    visible = stream.see(sample).place
    hidden = stream.see(replace(sample, hidden_BN=torch.ones_like(sample.valid_BN))).place

    torch.testing.assert_close(hidden.cosine[:, :, :2], visible.cosine[:, :, :2])
    torch.testing.assert_close(hidden.sine[:, :, :2], visible.sine[:, :, :2])


@pytest.mark.parametrize("attention", KINDS)
def test_what_padding_holds_has_no_influence(attention):
    cloud = cloud_of(history=2)
    model, sample = model_of(cloud, attention), half_hidden(some_hits(cloud, [40, 10]))
    padding = ~sample.valid_BN[..., None]
    other = replace(
        sample,
        values_BNP=torch.where(padding, 100 * torch.randn(sample.values_BNP.shape), sample.values_BNP),
        position_BNS=torch.where(padding, torch.ones(()), sample.position_BNS),
        hidden_BN=sample.hidden_BN | ~sample.valid_BN if sample.hidden_BN is not None else None,
    )

    before, after = model("hits", sample), model("hits", other)

    for name in before:
        torch.testing.assert_close(after[name][sample.valid_BN], before[name][sample.valid_BN], rtol=1e-4, atol=1e-5)


def test_a_sample_is_predicted_the_same_alone_and_padded_beside_a_longer_one():
    cloud = cloud_of(2, cells=20)
    position = 20 * torch.rand(250, 2, generator=torch.Generator().manual_seed(4))
    feature = torch.randn(250, 1, generator=torch.Generator().manual_seed(5))
    model = model_of(cloud)

    together = grouped(cloud, position, feature, start=[0, 30, 250])
    alone = grouped(cloud, position[:30], feature[:30])

    assert together.valid_BN.shape[1] > alone.valid_BN.shape[1] == ROUND
    count = int(alone.valid_BN.sum())
    for name, value in model("hits", together).items():
        torch.testing.assert_close(value[0, :count], model("hits", alone)[name][0, :count], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", KINDS)
def test_a_sample_without_a_hit_and_one_of_a_single_hit_give_finite_gradients(attention):
    cloud = cloud_of()
    model = model_of(cloud, attention)
    sample = some_hits(cloud, [0, 1, 30])
    sample = replace(sample, hidden_BN=torch.zeros_like(sample.valid_BN).index_fill(1, torch.tensor([0]), True))
    predictions = model("hits", sample)

    torch.autograd.backward(hit_loss(predictions["occupancy"], predictions["feature"], sample))

    for parameter in model.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()
    assert all(value.isfinite().all() for value in predictions.values())


@pytest.mark.parametrize("attention", KINDS)
def test_a_batch_of_one_hit_is_predicted(attention):
    cloud = cloud_of()
    sample = grouped(cloud, [[1.5, 2.5, 3.5]])

    assert model_of(cloud, attention)("hits", sample)["occupancy"][0, 0].isfinite().all()


def test_frames_and_places_of_cells_are_told_apart():
    cloud = cloud_of(1, history=2)
    model = model_of(cloud)

    def predicted(place: float, frame: int) -> torch.Tensor:
        sample = grouped(cloud, [[place], [3.5]], frame=[frame, 0])
        # Of the cell at 3.5, which is always there.
        at = (sample.position_BNS[0] == torch.tensor([0, 3.5])).all(-1) & sample.valid_BN[0]
        occupancy: torch.Tensor = model("hits", sample)["occupancy"]
        return occupancy[0, at]

    here = predicted(5.5, 0)
    assert not torch.allclose(predicted(6.5, 0), here, atol=1e-3)
    assert not torch.allclose(predicted(5.5, 1), here, atol=1e-3)


def test_predictions_are_in_float32_whatever_the_parameters_are():
    cloud = cloud_of()
    model, sample = model_of(cloud), half_hidden(some_hits(cloud, [30]))
    exact = model("hits", sample)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()

    rounded = model("hits", sample)

    assert rounded["occupancy"].dtype == rounded["feature"].dtype == torch.float32
    # bfloat16 keeps 8 bits; a few layers of it stay within some percent of values of about 4.
    torch.testing.assert_close(rounded["occupancy"], exact["occupancy"], rtol=0, atol=0.3)
