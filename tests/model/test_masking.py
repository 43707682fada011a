import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.model.config import MaskSettings
from hyperslab.model.lattice import Lattice, line, make_lattice
from hyperslab.model.masking import generator_of, hide, kept_layers


@st.composite
def any_lattice(draw):
    shape = draw(st.lists(st.integers(1, 6), min_size=2, max_size=4))
    closed = [False, *draw(st.lists(st.booleans(), min_size=len(shape) - 1, max_size=len(shape) - 1))]
    return make_lattice(shape, closed, block=draw(st.sampled_from([1, 8, 64])))


@given(lattice=any_lattice(), kind=st.sampled_from(["random", "block"]), ratio=st.floats(0.01, 0.99))
def test_as_many_tokens_are_hidden_as_asked_for_but_one_at_least_and_never_all(lattice, kind, ratio):
    hidden = hide(MaskSettings(kind=kind, ratio=ratio), lattice, generator_of(1))

    count = len(lattice)
    assert hidden.dtype == torch.bool
    assert hidden.shape == (count,)
    assert int(hidden.sum()) == (0 if count == 1 else min(max(1, round(ratio * count)), count - 1))


@given(lattice=any_lattice(), ratio=st.floats(0.01, 0.99))
def test_tubes_hide_whole_places_and_as_many_as_asked_for(lattice, ratio):
    hidden = hide(MaskSettings(kind="tube", ratio=ratio), lattice, generator_of(2))

    places = math.prod(lattice.shape[1:])
    whole = torch.zeros(lattice.shape, dtype=torch.bool)
    whole[tuple(lattice.cells.unbind(1))] = hidden
    if places == 1:  # one place only: some of its times
        count = lattice.shape[0]
        assert int(hidden.sum()) == (0 if count == 1 else min(max(1, round(ratio * count)), count - 1))
    else:
        assert torch.equal(whole, whole[:1].expand_as(whole))
        assert int(whole[0].sum()) == min(max(1, round(ratio * places)), places - 1)


@pytest.mark.parametrize(
    ("count", "hidden"),
    # 0.3 x 10 = 3; of two tokens 0.6 rounds to 1; of one or none there is nothing to hide.
    [(10, 3), (2, 1), (1, 0), (0, 0)],
)
@pytest.mark.parametrize("kind", ["random", "block", "tube"])
def test_tokens_along_a_curve_are_hidden_too(kind, count, hidden):
    assert int(hide(MaskSettings(kind=kind, ratio=0.3), line(count), generator_of(3)).sum()) == hidden


@pytest.mark.parametrize("kind", ["random", "block", "tube"])
def test_tokens_that_are_no_cells_of_the_whole_lattice_are_left_alone(kind):
    # Two of three columns hold data: 4 frames x 2 rows x 2 columns = 16 tokens.
    present = torch.tensor([True, False, True]).expand(4, 2, 3)
    lattice = make_lattice((4, 2, 3), (False, False, True), present)

    assert int(hide(MaskSettings(kind=kind, ratio=0.5), lattice, generator_of(4)).sum()) == 8


def neighbours_that_are_hidden(lattice: Lattice, hidden: torch.Tensor) -> float:
    """Share of the pairs of hidden tokens and cells beside them, along time or space, that are both hidden."""
    whole = torch.zeros(lattice.shape, dtype=torch.bool)
    whole[tuple(lattice.cells.unbind(1))] = hidden
    both = [(whole & whole.roll(1, axis)).sum() for axis in range(whole.ndim)]
    return float(sum(both) / (whole.sum() * whole.ndim))


@pytest.mark.parametrize("ratio", [0.2, 0.5])
def test_boxes_are_compact_pieces_of_space_time(ratio):
    lattice = make_lattice((8, 12, 12), (False, True, True))

    def share(kind: str) -> float:
        masks = [hide(MaskSettings(kind=kind, ratio=ratio), lattice, generator_of(5, i)) for i in range(10)]
        return sum(neighbours_that_are_hidden(lattice, mask) for mask in masks) / len(masks)

    # Of tokens hidden at random the neighbour is hidden at the ratio; in a box of 3 x 3 x 3 in two of three
    # cases at least.
    assert share("random") == pytest.approx(ratio, abs=0.03)
    assert share("block") > 0.6 + 0.3 * ratio


def test_a_box_goes_on_across_a_seam():
    # 16 columns and a box of 5: reach of 2 on either side. Some of many boxes cross the seam.
    lattice = make_lattice((1, 16), (False, True))
    masks = [hide(MaskSettings(kind="block", ratio=0.3), lattice, generator_of(6, i)) for i in range(50)]
    whole = torch.zeros(50, 16, dtype=torch.bool)
    whole[:, lattice.cells[:, 1]] = torch.stack(masks)

    assert (whole[:, 0] & whole[:, 15]).any()
    # Each column is hidden as often as the others: 0.3 x 16 rounds to 5, so 5/16 of 50 is 16, give or take
    # three standard deviations of 3.3.
    assert ((whole.sum(0) - 16).abs() <= 10).all()


@pytest.mark.parametrize("kind", ["random", "block", "tube"])
def test_the_same_generator_gives_the_same_mask_and_another_one_another(kind):
    lattice = make_lattice((4, 6, 6), (False, False, True))
    settings = MaskSettings(kind=kind, ratio=0.4)

    first, same, other = (hide(settings, lattice, generator_of(7, number)) for number in (1, 1, 2))

    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("kind", ["random", "block", "tube"])
def test_every_token_is_hidden_now_and_then(kind):
    lattice = make_lattice((3, 4, 4), (False, False, True))
    masks = [hide(MaskSettings(kind=kind, ratio=0.25), lattice, generator_of(8, number)) for number in range(200)]
    often = torch.stack(masks).float().mean(0)

    # 200 draws at 1/4, standard deviation 0.031; boxes hide corners somewhat less often than the middle.
    assert float(often.mean()) == pytest.approx(0.25, abs=1e-6)
    assert float(often.min()) > 0.05


def test_shares_of_layers_are_one_in_the_mean():
    # 4000 draws of rates up to 1/2: a share is 0 or 2, standard deviation 1, of the mean 0.016.
    shares = torch.stack([kept_layers(0.5, 5, generator_of(9, number)) for number in range(4000)])

    torch.testing.assert_close(shares.mean(0), torch.ones(5), rtol=0, atol=0.08)
    # Rates rise evenly: 0, 1/8, 1/4, 3/8, 1/2.
    rates = torch.tensor([0, 1, 2, 3, 4]) / 8
    torch.testing.assert_close((shares == 0).float().mean(0), rates, rtol=0, atol=0.04)
    torch.testing.assert_close(shares.amax(0), 1 / (1 - rates))


def test_a_single_layer_and_a_rate_of_zero_leave_nothing_out():
    assert all(kept_layers(0.9, 1, generator_of(number)).tolist() == [1.0] for number in range(50))
    assert all(kept_layers(0.0, 3, generator_of(number)).tolist() == [1.0] * 3 for number in range(50))


def draws(*numbers: int, count: int = 8) -> list[float]:
    return torch.rand(count, generator=generator_of(*numbers)).tolist()


def test_a_generator_depends_on_its_numbers_and_their_order_alone():
    torch.manual_seed(1)
    first = draws(3, 4)
    torch.manual_seed(2)

    assert draws(3, 4) == first
    assert draws(4, 3) != first
    assert draws(3, 4, 0) != first
    assert draws(-1) == draws(2**64 - 1)


def test_neighbouring_numbers_have_independent_draws():
    # 400 seeds x samples: first draws uniform (Kolmogorov's distance below 1.63 / sqrt(400) at 1 %), no two
    # the same, and neighbours uncorrelated (standard error of 400 pairs 0.05).
    first = torch.tensor([[draws(seed, sample, count=1)[0] for sample in range(20)] for seed in range(20)])
    ordered = first.flatten().sort().values

    assert len(torch.unique(ordered)) == 400
    assert float((ordered - (torch.arange(400) + 0.5) / 400).abs().max()) < 1.63 / 20
    for axis in (0, 1):
        here, there = first.narrow(axis, 0, 19).flatten(), first.narrow(axis, 1, 19).flatten()
        assert abs(float(torch.corrcoef(torch.stack([here, there]))[0, 1])) < 0.16


def test_many_samples_of_a_run_have_generators_of_their_own():
    # PyTorch's generator takes 32 bits of a seed: of 3000 about 3000^2 / 2^33 = 0.001 pairs fall together.
    states = {tuple(draws(0, sample, 1, count=3)) for sample in range(3000)}

    assert len(states) == 3000
