from collections.abc import Callable

import pytest
import torch

from hyperslab.model.attention import patterns
from hyperslab.model.attention.block_sparse import BlockSparse
from hyperslab.model.attention.mixer import Dense
from hyperslab.model.lattice import Lattice, line, make_lattice
from tests.model.attention.test_mixer import (
    CPU,
    LATTICES,
    assert_equals_masked_attention,
    assert_finite_without_data,
    assert_same,
    gradients_fit,
    make_qkv,
    make_valid,
    outcome,
)

GLOBE = LATTICES["three axes round the globe"]
"""105 tokens: 14 blocks of 8, the last of one token."""


def make_learned(lattice: Lattice, block: int = 8, density: float = 0.3, num_seen: int | None = None) -> BlockSparse:
    return BlockSparse(block, density, "learned", lattices={"globe": lattice}, num_seen=num_seen)


def make_settled(lattice: Lattice) -> BlockSparse:
    mixer = make_learned(lattice)
    influence = mixer.get_buffer("influence_globe")
    influence.copy_(torch.rand(influence.shape, generator=torch.Generator().manual_seed(5)))
    mixer.settle()
    return mixer


KINDS: dict[str, Callable[[Lattice], BlockSparse]] = {
    "static": lambda lattice: BlockSparse(8, 0.3, "static", lattices={}),
    "random": lambda lattice: BlockSparse(8, 0.3, "random", lattices={}, seed=2),
    "learned, not yet settled": make_learned,
    "learned": make_settled,
    "two blocks": lambda lattice: BlockSparse(8, 1.0, "static", lattices={}, num_seen=2),
    "one block": lambda lattice: BlockSparse(8, 0.01, "random", lattices={}),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LATTICES)
def test_blocks_are_attention_under_their_mask(name, kind, batch, masked):
    assert_equals_masked_attention(KINDS[kind](LATTICES[name]), LATTICES[name], batch, masked)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LATTICES)
def test_tokens_see_those_of_the_blocks_that_their_block_sees(name, kind):
    lattice, mixer = LATTICES[name], KINDS[kind](LATTICES[name])
    pattern = mixer.plan(lattice, CPU)[0].tolist()

    expected = [[key // 8 in pattern[query // 8] for key in range(len(lattice))] for query in range(len(lattice))]

    assert mixer.allowed(lattice).tolist() == expected


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rule", ["static", "random", "learned"])
def test_blocks_that_see_all_are_dense(rule, masked):
    mixer = BlockSparse(8, 1.0, rule, lattices={"globe": GLOBE})
    tensors = make_qkv(2, len(GLOBE))
    query, key, value = tensors
    valid = make_valid(2, len(GLOBE), torch.ones(len(GLOBE), dtype=torch.bool)) if masked else None

    actual = outcome(mixer(query, key, value, valid, mixer.plan(GLOBE, CPU)), tensors)

    assert_same(actual, outcome(Dense()(query, key, value, valid, ()), tensors), tolerance=1e-6)
    assert mixer.allowed(GLOBE).all()


@pytest.mark.parametrize(
    ("density", "num_seen", "seen"),
    [
        # 14 blocks: 0.3 x 14 = 4.2; at least one; a number goes before a share, and there are no more than 14.
        (0.3, None, 4),
        (0.001, None, 1),
        (0.3, 7, 7),
        (0.3, 20, 14),
        (1.0, None, 14),
    ],
)
def test_blocks_seen_by_share_and_by_number(density, num_seen, seen):
    mixer = BlockSparse(8, density, "static", lattices={}, num_seen=num_seen)

    assert mixer.seen(GLOBE) == seen
    assert mixer.plan(GLOBE, CPU)[0].shape == (14, seen)


def test_random_patterns_follow_from_the_seed():
    first, again, other = (BlockSparse(8, 0.3, "random", lattices={}, seed=seed) for seed in (1, 1, 2))

    assert torch.equal(first.allowed(GLOBE), again.allowed(GLOBE))
    assert not torch.equal(first.allowed(GLOBE), other.allowed(GLOBE))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("probing", [False, True])
def test_gradients_of_blocks_fit_finite_differences(probing, masked):
    # Seven tokens in blocks of two, the last of one; two of four blocks are seen, all while probing.
    mixer = make_learned(line(7), block=2, density=0.5).double()
    mixer.probing = probing

    assert gradients_fit(mixer, line(7), masked)


@pytest.mark.parametrize("probing", [False, True])
def test_blocks_of_a_sample_without_data_are_finite(probing):
    mixer = make_learned(GLOBE)
    mixer.probing = probing

    assert_finite_without_data(mixer, GLOBE)
    assert mixer.get_buffer("influence_globe").isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_both_backends_give_the_same(masked):
    query, key, value = make_qkv(2, len(GLOBE))
    valid = make_valid(2, len(GLOBE), torch.zeros(len(GLOBE), dtype=torch.bool)) if masked else None
    gathered, flexible = (BlockSparse(8, 0.3, "static", lattices={}, backend=name) for name in ("gather", "flex"))

    actual = flexible(query, key, value, valid, flexible.plan(GLOBE, CPU))

    expected = gathered(query, key, value, valid, gathered.plan(GLOBE, CPU))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_learned_pattern_begins_as_the_static_one():
    static = BlockSparse(8, 0.3, "static", lattices={})

    assert torch.equal(make_learned(GLOBE).allowed(GLOBE), static.allowed(GLOBE))


def test_a_lattice_for_which_nothing_is_learned_has_the_static_pattern_also_while_probing():
    other = LATTICES["four axes"]
    mixer, static = make_settled(GLOBE), BlockSparse(8, 0.3, "static", lattices={})
    mixer.probing = True
    tensors = make_qkv(1, len(other))

    actual = outcome(mixer(*tensors, None, mixer.plan(other, CPU)), tensors)

    assert_same(actual, outcome(static(*tensors, None, static.plan(other, CPU)), tensors), tolerance=0)
    assert not mixer.get_buffer("influence_globe").any()


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_dense_while_probing_and_adds_up_its_influence(masked):
    mixer, tensors = make_learned(GLOBE), make_qkv(2, len(GLOBE))
    valid = make_valid(2, len(GLOBE), torch.arange(len(GLOBE)) < 20) if masked else None
    influence = mixer.get_buffer("influence_globe")
    mixer.probing = True

    actual = outcome(mixer(*tensors, valid, mixer.plan(GLOBE, CPU)), tensors)

    assert_same(actual, outcome(Dense()(*tensors, valid, ()), tensors), tolerance=1e-6)
    # Every block depends on every other one, as no weight is zero: that of the last token alone may be masked.
    assert (influence[:, :-1] > 0).all()
    once = influence.clone()
    outcome(mixer(*tensors, valid, mixer.plan(GLOBE, CPU)), tensors)
    torch.testing.assert_close(influence, 2 * once)


def test_nothing_is_added_to_the_influence_unless_probing_and_not_without_gradients():
    mixer, tensors = make_learned(GLOBE), make_qkv(1, len(GLOBE))

    outcome(mixer(*tensors, None, mixer.plan(GLOBE, CPU)), tensors)
    mixer.probing = True
    with torch.no_grad():
        mixer(*tensors, None, mixer.plan(GLOBE, CPU))

    assert not mixer.get_buffer("influence_globe").any()


def test_the_pattern_settles_on_what_the_loss_was_seen_to_depend_on():
    # Eight blocks of a line. Queries score the keys of block 5 at c^2 / sqrt(4) = 2 and all others at 0: each of its
    # eight keys has a weight of e^2 / (8 e^2 + 56) = 0.064, each other key one of 0.0087. The loss depends on a key
    # by its weight times a number of the same size for all.
    lattice = line(64)
    mixer = make_learned(lattice, num_seen=4)
    query, key, value = (tensor.detach() for tensor in make_qkv(1, 64))
    query[:], key[:] = 0, 0
    query[..., 0], key[:, :, 40:48, 0] = 2, 2
    mixer.probing = True
    assert not all(5 in seen for seen in mixer.plan(lattice, CPU)[0].tolist())

    outcome(mixer(query.requires_grad_(), key, value, None, mixer.plan(lattice, CPU)), [query])
    mixer.settle()

    # Half of four are seeds: the block itself and the strongest one.
    pattern = mixer.plan(lattice, CPU)[0].tolist()
    assert all({row, 5} <= set(seen) for row, seen in enumerate(pattern))
    assert not mixer.get_buffer("influence_globe").any()


def test_settling_follows_from_the_influence_alone_and_forgets_it():
    mixers = [make_learned(GLOBE) for _ in range(2)]
    influence = torch.rand(14, 14, generator=torch.Generator().manual_seed(6))
    for mixer in mixers:
        mixer.get_buffer("influence_globe").copy_(influence)
        mixer.settle()

    first, second = (mixer.plan(GLOBE, CPU)[0] for mixer in mixers)
    assert torch.equal(first, patterns.learned_pattern(influence, patterns.neighbours(GLOBE, 8), 4))
    assert torch.equal(first, second)
    assert not any(mixer.get_buffer("influence_globe").any() for mixer in mixers)
    # The mask is that of the new pattern.
    assert torch.equal(mixers[0].allowed(GLOBE), patterns.token_mask(first, 8, len(GLOBE)))


def test_a_pattern_stays_where_no_influence_was_added_up():
    unseen, settled = make_learned(GLOBE), make_settled(GLOBE)
    before = settled.allowed(GLOBE)

    unseen.settle()
    settled.settle()

    assert torch.equal(unseen.allowed(GLOBE), make_learned(GLOBE).allowed(GLOBE))
    assert torch.equal(settled.allowed(GLOBE), before)


def test_each_lattice_settles_on_its_own_pattern():
    first, second = LATTICES["two axes"], line(64)
    mixer = BlockSparse(8, 0.5, "learned", lattices={"first": first, "second": second})
    for seed, name in enumerate(("first", "second")):
        influence = mixer.get_buffer(f"influence_{name}")
        influence.copy_(torch.rand(influence.shape, generator=torch.Generator().manual_seed(seed)))
    expected = [
        patterns.learned_pattern(
            mixer.get_buffer(f"influence_{name}").clone(), patterns.neighbours(lattice, 8), mixer.seen(lattice)
        )
        for name, lattice in (("first", first), ("second", second))
    ]

    mixer.settle()

    assert torch.equal(mixer.plan(first, CPU)[0], expected[0])
    assert torch.equal(mixer.plan(second, CPU)[0], expected[1])


def test_what_was_learned_goes_with_the_state_of_the_layer():
    saved, restored = make_settled(GLOBE), make_learned(GLOBE)
    saved.get_buffer("influence_globe").copy_(torch.rand(14, 14, generator=torch.Generator().manual_seed(8)))
    assert not torch.equal(saved.allowed(GLOBE), restored.allowed(GLOBE))
    restored.plan(GLOBE, CPU)  # a plan made before the state came is not kept

    restored.load_state_dict(saved.state_dict())

    assert torch.equal(restored.plan(GLOBE, CPU)[0], saved.plan(GLOBE, CPU)[0])
    assert torch.equal(restored.allowed(GLOBE), saved.allowed(GLOBE))
    assert torch.equal(restored.get_buffer("influence_globe"), saved.get_buffer("influence_globe"))


@pytest.mark.parametrize("rule", ["static", "random"])
def test_patterns_by_rule_leave_nothing_in_the_state(rule):
    mixer = BlockSparse(8, 0.3, rule, lattices={"globe": GLOBE})

    mixer.plan(GLOBE, CPU)
    mixer.settle()

    assert not mixer.state_dict()


def test_a_block_longer_than_the_lattice_sees_itself():
    lattice = make_lattice((1, 3), (False, False))
    mixer = BlockSparse(8, 0.3, "static", lattices={})

    assert mixer.plan(lattice, CPU)[0].tolist() == [[0]]
    assert mixer.allowed(lattice).all()
