import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperslab.model.attention.patterns import (
    hops,
    learned_pattern,
    neighbours,
    num_blocks,
    random_pattern,
    static_pattern,
    token_mask,
)
from hyperslab.model.lattice import line, make_lattice
from tests.model.attention.test_mixer import LATTICES


def chain(count: int) -> torch.Tensor:
    """Blocks one after another, each touching itself and the next."""
    numbers = torch.arange(count)
    return (numbers[:, None] - numbers).abs() <= 1


def touching_pairs(touching: torch.Tensor) -> set[tuple[int, int]]:
    """Different blocks that touch, each pair once."""
    return {(one, other) for one, other in touching.nonzero().tolist() if one < other}


def assert_rows_are_sound(pattern: torch.Tensor, count: int, seen: int) -> None:
    """Each row has so many different blocks of those there are, in ascending order, its own among them."""
    assert pattern.shape == (count, seen)
    assert pattern.dtype == torch.int64
    assert (pattern.diff(dim=1) > 0).all()
    assert ((pattern >= 0) & (pattern < count)).all()
    assert all(row in blocks for row, blocks in enumerate(pattern.tolist()))


@given(data=st.data(), shape=st.lists(st.integers(1, 6), min_size=2, max_size=4), block=st.integers(1, 8))
def test_every_block_sees_as_many_blocks_and_itself(data, shape, block):
    lattice = make_lattice(shape, [False, *[True] * (len(shape) - 1)], block=block)
    count = num_blocks(lattice, block)
    seen = data.draw(st.integers(1, min(count, 20)))
    influence = torch.rand(count, count, generator=torch.Generator().manual_seed(seen))

    assert_rows_are_sound(static_pattern(lattice, block, seen), count, seen)
    assert_rows_are_sound(random_pattern(lattice, block, seen, seed=1), count, seen)
    assert_rows_are_sound(learned_pattern(influence, neighbours(lattice, block), seen), count, seen)


@pytest.mark.parametrize("block", [4, 8])
@pytest.mark.parametrize("name", LATTICES)
def test_blocks_touch_where_cells_of_theirs_share_a_face(name, block):
    lattice = LATTICES[name]
    cells = lattice.cells.tolist()
    expected = torch.eye(num_blocks(lattice, block), dtype=torch.bool)
    for number, one in enumerate(cells):
        for axis, (size, closes) in enumerate(zip(lattice.shape, lattice.periodic, strict=True)):
            beyond = list(one)
            beyond[axis] = (one[axis] + 1) % size if closes else one[axis] + 1
            if beyond in cells:
                first, second = number // block, cells.index(beyond) // block
                expected[first, second] = expected[second, first] = True

    touching = neighbours(lattice, block)

    assert torch.equal(touching, expected)
    assert torch.equal(touching, touching.T)


@pytest.mark.parametrize(
    ("closes", "pairs"),
    [
        # Eight cells in blocks of two: a chain of four blocks, or a ring.
        (False, {(0, 1), (1, 2), (2, 3)}),
        (True, {(0, 1), (1, 2), (2, 3), (0, 3)}),
    ],
)
def test_blocks_along_one_axis_touch_those_before_and_after(closes, pairs):
    assert touching_pairs(neighbours(make_lattice((1, 8), (False, closes), block=2), 2)) == pairs


@pytest.mark.parametrize(
    ("closes", "pairs"),
    [
        # 4 x 6 cells in boxes of 2 x 2, numbered 0 1 2 / 3 4 5. Corners do not touch; round the last axis the first
        # and third of each row do.
        (False, {(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)}),
        (True, {(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5), (0, 2), (3, 5)}),
    ],
)
def test_blocks_of_a_plane_touch_along_both_axes(closes, pairs):
    assert touching_pairs(neighbours(make_lattice((1, 4, 6), (False, False, closes), block=4), 4)) == pairs


@pytest.mark.parametrize(
    ("closes", "pairs"),
    [
        # Cells 0 1 . . 4 5, in blocks of two: apart, but for the seam.
        (False, set()),
        (True, {(0, 1)}),
    ],
)
def test_blocks_do_not_touch_across_absent_cells(closes, pairs):
    present = torch.tensor([[1, 1, 0, 0, 1, 1]]).bool()

    assert touching_pairs(neighbours(make_lattice((1, 6), (False, closes), present, block=2), 2)) == pairs


def test_hops_count_steps_from_block_to_touching_block():
    # 0 - 1 - 2, and 3 by itself, as far as there are blocks.
    touching = torch.eye(4, dtype=torch.bool)
    touching[:3, :3] = chain(3)

    assert hops(touching).tolist() == [[0, 1, 2, 4], [1, 0, 1, 4], [2, 1, 0, 4], [4, 4, 4, 0]]


def test_hops_count_from_the_nearest_of_some_blocks():
    # 0 - 1 - 2 - 3 - 4; from nowhere no way leads.
    sources = torch.zeros(5, 5, dtype=torch.bool)
    sources[0, [0, 3]] = True
    sources[1, 1] = True

    distances = hops(chain(5), sources).tolist()

    assert distances[0] == [0, 1, 1, 0, 1]
    assert distances[1] == [1, 0, 1, 2, 3]
    assert distances[2] == [5] * 5


def test_hops_round_a_ring_are_at_most_half_of_it():
    touching = neighbours(make_lattice((1, 12), (False, True), block=2), 2)

    # Six blocks in a ring.
    assert hops(touching)[0].tolist() == [0, 1, 2, 3, 2, 1]


def test_a_static_pattern_is_half_near_a_quarter_global_and_a_quarter_strided():
    # Eight blocks in a chain, four seen: two near ones; the middle of all, 4; and one opposite, row + 4.
    # Row 0: near 0 1, global 4, strided 4 as well, so that the next near one, 2, takes the place.
    # Row 1: near 1 0 (2 is as near; the first counts), global 4, strided 5.
    # Row 3: near 3 2, global 4, strided 7.
    # Row 4: near 4 3, global 4: the next near one, 5; strided 0.
    # Row 7: near 7 6, global 4, strided (7 + 4) mod 8 = 3.
    pattern = static_pattern(line(16), 2, 4).tolist()

    assert pattern[0] == [0, 1, 2, 4]
    assert pattern[1] == [0, 1, 4, 5]
    assert pattern[3] == [2, 3, 4, 7]
    assert pattern[4] == [0, 3, 4, 5]
    assert pattern[7] == [3, 4, 6, 7]


def test_near_blocks_of_a_static_pattern_are_near_in_space_time():
    # Boxes of 2 x 2, numbered 0 1 2 / 3 4 5; two seen, none global or strided: block 0 touches 1 and 3, the first
    # in the order of tokens counts; block 3 touches 0 and 4, 4 is closer to it in the order.
    pattern = static_pattern(make_lattice((1, 4, 6), (False, False, False), block=4), 4, 2).tolist()

    assert pattern[0] == [0, 1]
    assert pattern[3] == [3, 4]


def test_random_patterns_follow_from_their_seed():
    first, again, other = (random_pattern(line(40), 2, 5, seed) for seed in (1, 1, 2))

    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_random_patterns_favour_no_block():
    # 3000 rows of ten blocks, each with two of the nine others: every other one is seen with probability 2/9, 0.222,
    # with a standard error of sqrt(0.222 x 0.778 / 3000) = 0.0076.
    patterns = torch.stack([random_pattern(line(20), 2, 3, seed) for seed in range(3000)])
    share = torch.nn.functional.one_hot(patterns, 10).sum(2).double().mean(0)

    others = share[~torch.eye(10, dtype=torch.bool)]
    assert (share.diagonal() == 1).all()
    assert (others - 2 / 9).abs().max() < 5 * 0.0076


def test_a_learned_pattern_grows_from_what_stands_out_over_the_graph():
    # Six blocks in a chain. Row 0 depends on block 4 by 8 and on block 2 by 3.
    # Averaged over the touching rows 0 and 1, half: 4 and 1.5. Averaged over touching columns: 1 and 2 see a third of
    # 1.5, 0.5; 3 a third of 5.5, 1.833; 4 a third of 4, 1.333; 5 half of 4, 2. With the influence itself, halved:
    # row 0: own, 0.25, 1.75, 0.917, 4.667, 1. The median is 1, the median deviation 0.75: from 4.336 it stands out.
    # 0 and 4 are seeds. 1, 3 and 5 touch them: 5 and 3 are strongest of these, though 2 is stronger.
    # Row 1 sees no influence of its own: averaged over rows 0, 1, 2, a third of the above, so that its columns are
    # 0, own, 0.167, 0.611, 0.444, 0.667 (halved): nothing stands out. 0 and 2 touch it, then 3.
    influence = torch.zeros(6, 6)
    influence[0, 4], influence[0, 2] = 8, 3

    pattern = learned_pattern(influence, chain(6), 4).tolist()

    assert pattern[0] == [0, 3, 4, 5]
    assert pattern[1] == [0, 1, 2, 3]


def test_influence_of_its_own_makes_a_seed_rather_than_that_of_neighbours():
    # Twelve blocks in a chain; row 0 depends on block 4 by 6 and on blocks 6 and 7 by 4 each.
    # Averaged over rows: 3, 2, 2. Averaged over columns: 4 sees 1, 5 sees 5/3, 6 and 7 see 4/3.
    # With the influence itself, halved: 4 has 3.5, 6 and 7 have 2.667, 5 has 0.833, 3 has 0.5.
    # Seeds are 0 and 4, though the average alone is largest at 5. Of 1, 3, 5 blocks 5 and 3 are added.
    influence = torch.zeros(12, 12)
    influence[0, 4], influence[0, 6], influence[0, 7] = 6, 4, 4

    assert learned_pattern(influence, chain(12), 4)[0].tolist() == [0, 3, 4, 5]


def test_a_learned_pattern_is_local_where_influence_is_noise():
    # A plane of 8 x 8 blocks, nine seen: but for rows in which chance stands out, a block and those around it.
    touching = neighbours(make_lattice((1, 16, 16), (False, True, True), block=4), 4)
    influence = 1 + 0.1 * torch.randn(64, 64, generator=torch.Generator().manual_seed(3))

    pattern = learned_pattern(influence, touching, 9)

    assert (hops(touching).gather(1, pattern) <= 2).all(1).double().mean() > 0.6


def test_a_learned_pattern_finds_the_influence_that_was_planted():
    # Every block depends on one other alone, far from it; 12 blocks round a ring, four seen: itself and the other are
    # seeds.
    touching = neighbours(make_lattice((1, 24), (False, True), block=2), 2)
    other = (torch.arange(12) + 5) % 12
    influence = torch.zeros(12, 12).scatter_(1, other[:, None], 1.0)

    pattern = learned_pattern(influence, touching, 4).tolist()

    assert all({row, int(other[row])} <= set(blocks) for row, blocks in enumerate(pattern))


@pytest.mark.parametrize("seen", [2, 3])
def test_of_few_blocks_one_is_that_of_most_influence(seen):
    influence = torch.zeros(9, 9)
    influence[:, 7] = 1.0

    assert (learned_pattern(influence, chain(9), seen) == 7).any(1).all()


def test_a_region_without_an_edge_goes_on_from_the_strongest_block_elsewhere():
    # No block touches another, so nothing is averaged. Row 0: seed 0, then 2 with 3, then 3 with 2.
    influence = torch.zeros(4, 4)
    influence[0] = torch.tensor([0.0, 1, 3, 2])

    assert learned_pattern(influence, torch.eye(4, dtype=torch.bool), 3)[0].tolist() == [0, 2, 3]


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("seen", [1, 3, 4, 7, 12])
def test_blocks_of_the_same_influence_give_a_sound_pattern_again_and_again(seen, value):
    influence = torch.full((12, 12), value)

    pattern = learned_pattern(influence, chain(12), seen)

    assert_rows_are_sound(pattern, 12, seen)
    assert torch.equal(pattern, learned_pattern(influence.clone(), chain(12), seen))


def test_choosing_a_pattern_leaves_the_influence_as_it_was():
    influence = torch.rand(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    before = influence.clone()

    learned_pattern(influence, chain(6), 3)

    assert torch.equal(influence, before)


def test_all_blocks_are_seen_where_as_many_are_asked_for():
    everything = [list(range(6))] * 6
    influence = torch.rand(6, 6, generator=torch.Generator().manual_seed(2))

    assert static_pattern(line(12), 2, 6).tolist() == everything
    assert random_pattern(line(12), 2, 6, seed=1).tolist() == everything
    assert learned_pattern(influence, chain(6), 6).tolist() == everything


def test_the_mask_of_a_pattern_token_by_token():
    # Blocks of two, the last of one token.
    mask = token_mask(torch.tensor([[0, 2], [1, 2], [0, 2]]), 2, 5)

    assert mask.int().tolist() == [
        [1, 1, 0, 0, 1],
        [1, 1, 0, 0, 1],
        [0, 0, 1, 1, 1],
        [0, 0, 1, 1, 1],
        [1, 1, 0, 0, 1],
    ]


def test_the_last_block_may_be_short():
    assert [num_blocks(line(tokens), 4) for tokens in (1, 4, 5, 8)] == [1, 1, 2, 2]
