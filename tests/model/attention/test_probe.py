import math

import pytest
import torch

from hyperslab.model.attention import probe
from hyperslab.model.attention.mixer import Dense
from hyperslab.model.attention.probe import attention_weights, covered_mass, probed_attention, sum_blocks
from tests.model.attention.test_mixer import QKV, make_qkv, make_valid, outcome

TOKENS, BLOCK = 11, 3
"""Four blocks, the last of two tokens."""


def valid_or_none(masked: bool) -> torch.Tensor | None:
    """In the last sample the second block holds no data."""
    return make_valid(2, TOKENS, torch.arange(TOKENS) // BLOCK == 1) if masked else None


def influence_by_scores(tensors: QKV, valid: torch.Tensor | None, every: int) -> torch.Tensor:
    """The size of the loss's gradient by scores of some queries, from PyTorch itself, summed pair by pair."""
    query, key, value = (tensor.detach() for tensor in tensors)
    scores = (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])).requires_grad_()
    seen = scores if valid is None else scores.masked_fill(~valid[:, None, None], -torch.inf)
    _, gradient = outcome(seen.softmax(-1) @ value, [scores])
    influence = torch.zeros(-(-TOKENS // BLOCK), -(-TOKENS // BLOCK), dtype=torch.float64)
    for row in range(TOKENS):
        for column in range(TOKENS) if row % BLOCK % every == 0 else ():
            influence[row // BLOCK, column // BLOCK] += gradient[:, :, row, column].abs().sum()
    return influence


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_the_influence_is_the_gradient_by_the_scores(monkeypatch, masked, every):
    monkeypatch.setattr(probe, "PROBED_EVERY", every)
    tensors, valid = make_qkv(2, TOKENS, dtype=torch.float64), valid_or_none(masked)
    query, key, value = tensors
    influence = torch.zeros(4, 4, dtype=torch.float64)

    outcome(probed_attention(query, key, value, valid, influence, BLOCK), tensors)

    expected = influence_by_scores(tensors, valid, every)
    torch.testing.assert_close(influence, expected, rtol=1e-10, atol=1e-10)
    # What a second batch adds comes on top.
    outcome(probed_attention(query, key, value, valid, influence, BLOCK), tensors)
    torch.testing.assert_close(influence, 2 * expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_not_finite_adds_nothing(wrong):
    tensors = make_qkv(2, TOKENS)
    query, key, value = tensors
    influence = torch.zeros(4, 4)
    outcome(probed_attention(query, key, value, None, influence, BLOCK), tensors)
    before = influence.clone()

    outcome(probed_attention(query, key, value, None, influence, BLOCK) * wrong, tensors)

    assert torch.equal(influence, before)


def test_nothing_is_seen_to_depend_on_keys_without_data():
    tensors = make_qkv(2, TOKENS)
    query, key, value = tensors
    valid = torch.arange(TOKENS).expand(2, -1) // BLOCK != 1
    influence = torch.zeros(4, 4)

    outcome(probed_attention(query, key, value, valid, influence, BLOCK), tensors)

    assert not influence[:, 1].any()
    assert influence[:, [0, 2, 3]].all()


@pytest.mark.parametrize("masked", [False, True])
def test_probing_changes_neither_what_comes_out_nor_its_gradients(masked):
    tensors, valid = make_qkv(2, TOKENS), valid_or_none(masked)
    query, key, value = tensors

    probed = outcome(probed_attention(query, key, value, valid, torch.zeros(4, 4), BLOCK), tensors)

    for actual, expected in zip(probed, outcome(Dense()(query, key, value, valid, ()), tensors), strict=True):
        assert torch.equal(actual, expected)


def test_nothing_is_added_without_gradients_or_before_the_backward_pass():
    query, key, value = make_qkv(2, TOKENS)
    influence = torch.zeros(4, 4)

    with torch.no_grad():
        mixed = probed_attention(query, key, value, None, influence, BLOCK)
    probed_attention(query, key, value, None, influence, BLOCK)

    assert not influence.any()
    torch.testing.assert_close(mixed, Dense()(query, key, value, None, ()))


def test_the_influence_of_samples_adds_up():
    query, key, value = make_qkv(2, TOKENS, dtype=torch.float64)
    together, apart = torch.zeros(2, 4, 4, dtype=torch.float64)
    torch.autograd.backward(probed_attention(query, key, value, None, together, BLOCK).sum())

    for one in (slice(0, 1), slice(1, 2)):
        mixed = probed_attention(query[one], key[one], value[one], None, apart, BLOCK)
        torch.autograd.backward(mixed.sum())

    torch.testing.assert_close(apart, together, rtol=1e-10, atol=1e-10)


def test_attention_weights_sum_to_one_over_keys_with_data():
    query, key, value = make_qkv(2, TOKENS, dtype=torch.float64)
    valid = make_valid(2, TOKENS, torch.arange(TOKENS) < 4)

    weights = attention_weights(query, key, valid)

    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, TOKENS, dtype=torch.float64))
    assert not weights[~valid[:, None, None].expand_as(weights)].any()
    torch.testing.assert_close(weights @ value, Dense()(query, key, value, valid, ()), rtol=1e-12, atol=1e-12)


def test_sums_over_runs_of_which_the_last_may_be_short():
    # 1 + 2, 3 + 4, 5.
    assert sum_blocks(torch.tensor([[1.0, 2, 3, 4, 5]]), 2).tolist() == [[3, 7, 5]]


@pytest.mark.parametrize("rows", [1, 4, 64])
@pytest.mark.parametrize("masked", [False, True])
def test_the_mass_covered_is_the_mean_weight_of_what_is_allowed(monkeypatch, masked, rows):
    monkeypatch.setattr(probe, "PROBED_ROWS", rows)
    query, key, _ = (tensor.detach() for tensor in make_qkv(2, TOKENS, dtype=torch.float64))
    allowed = torch.rand(TOKENS, TOKENS, generator=torch.Generator().manual_seed(6)) > 0.5
    valid = valid_or_none(masked)

    shares = []
    for sample, head, row in [(s, h, n) for s in range(2) for h in range(2) for n in range(TOKENS)]:
        there = torch.ones(TOKENS).bool() if valid is None else valid[sample]
        if there[row]:
            # Heads have four features: q k / 2.
            weights = (key[sample, head] @ query[sample, head, row] / 2).exp() * there
            shares.append(float((weights * allowed[row]).sum() / weights.sum()))

    assert float(covered_mass(query, key, valid, allowed)) == pytest.approx(sum(shares) / len(shares), rel=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_a_mask_of_everything_covers_all_mass_and_one_of_nothing_none(masked):
    query, key, _ = (tensor.detach() for tensor in make_qkv(2, 150))
    valid = make_valid(2, 150, torch.arange(150) < 70) if masked else None

    assert float(covered_mass(query, key, valid, torch.ones(150, 150).bool())) == pytest.approx(1, abs=1e-5)
    assert float(covered_mass(query, key, valid, torch.zeros(150, 150).bool())) == 0


def test_samples_without_data_cover_nothing():
    query, key, _ = (tensor.detach() for tensor in make_qkv(1, 5))

    assert float(covered_mass(query, key, torch.zeros(1, 5).bool(), torch.ones(5, 5).bool())) == 0
