import pytest
import torch

from hyperslab.model.attention import blocks as kernels
from hyperslab.model.attention.blocks import attend_blocks, attend_blocks_flex
from hyperslab.model.attention.mixer import Dense, masked_attention
from hyperslab.model.attention.patterns import token_mask
from tests.model.attention.test_mixer import assert_same, leaves, make_qkv, make_valid, outcome

BLOCK = 4
PATTERN = torch.tensor([[0, 3], [0, 1], [2, 5], [1, 3], [0, 4], [4, 5]])
"""Two of six blocks for each: block 0 is seen by three, block 2 by itself only."""
TOKENS = BLOCK * len(PATTERN)


def valid_or_none(masked: bool) -> torch.Tensor | None:
    """In the last sample nothing that the first block sees, blocks 0 and 3, holds data."""
    return make_valid(2, TOKENS, token_mask(PATTERN, BLOCK, TOKENS)[0]) if masked else None


@pytest.mark.parametrize("masked", [False, True])
def test_blocks_attend_to_their_blocks(masked):
    tensors = make_qkv(2, TOKENS)
    exact = leaves(tensors, torch.float64)
    query, key, value = tensors
    valid = valid_or_none(masked)

    actual = outcome(attend_blocks(query, key, value, PATTERN, valid), tensors)

    expected = masked_attention(*exact, valid, token_mask(PATTERN, BLOCK, TOKENS))
    assert_same(actual, outcome(expected, exact), tolerance=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_blocks_that_see_all_blocks_attend_as_dense_attention_does(masked):
    tensors, valid = make_qkv(2, TOKENS), valid_or_none(masked)
    query, key, value = tensors

    actual = outcome(attend_blocks(query, key, value, torch.arange(6).expand(6, 6), valid), tensors)

    assert_same(actual, outcome(Dense()(query, key, value, valid, ()), tensors), tolerance=1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("gathered_bytes", "chunks"),
    [
        # A row gathers keys and values of 2 samples x 2 heads x 2 blocks x 4 tokens x 4 features of 4 bytes:
        # 2 x 4 x 2 x 4 x 4 x 4 = 1024 bytes. Six rows one by one, four and two, all at once.
        (1, [1] * 6),
        (4 * 1024, [4, 2]),
        (1 << 30, [6]),
    ],
)
def test_rows_worked_on_at_a_time_do_not_change_what_comes_out(monkeypatch, gathered_bytes, chunks, masked):
    tensors, valid = make_qkv(2, TOKENS), valid_or_none(masked)
    query, key, value = tensors
    expected = outcome(attend_blocks(query, key, value, PATTERN, valid), tensors)
    rows = []
    chunked = kernels._chunks

    def noted(key: torch.Tensor, blocks: torch.Tensor) -> list[slice]:
        rows.append([at.stop - at.start for at in chunked(key, blocks)])
        return chunked(key, blocks)

    monkeypatch.setattr(kernels, "GATHERED_BYTES", gathered_bytes)
    monkeypatch.setattr(kernels, "_chunks", noted)

    actual = outcome(attend_blocks(query, key, value, PATTERN, valid), tensors)

    # Forward and backward.
    assert rows == [chunks, chunks]
    # Only gradients of keys and values may be added up in another order.
    assert_same(actual, expected, tolerance=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_gathered_blocks_fit_finite_differences(masked):
    pattern = torch.tensor([[0, 1], [1, 2], [0, 2]])
    tensors = make_qkv(2, 6, dtype=torch.float64, width=2)
    valid = make_valid(2, 6, torch.ones(6, dtype=torch.bool)) if masked else None

    assert torch.autograd.gradcheck(lambda q, k, v: attend_blocks(q, k, v, pattern, valid), tensors)


@pytest.mark.parametrize("masked", [False, True])
def test_blocks_in_half_precision_attend_within_half_precision(masked):
    tensors = make_qkv(2, TOKENS)
    halves = leaves(tensors, torch.bfloat16)
    exact = leaves(halves, torch.float32)
    valid = valid_or_none(masked)

    actual = outcome(attend_blocks(*halves, PATTERN, valid), halves)

    assert all(tensor.dtype == torch.bfloat16 for tensor in actual)
    # bfloat16 has 8 bits: roundings of 2^-9 = 0.002 of values and gradients up to 5 or so.
    assert_same(actual, outcome(attend_blocks(*exact, PATTERN, valid), exact), tolerance=0.03)


@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_flexible_attention_gives_what_gathered_blocks_give(masked):
    query, key, value = (tensor.detach() for tensor in make_qkv(2, TOKENS))
    valid = valid_or_none(masked)

    actual = attend_blocks_flex(query, key, value, PATTERN, valid)

    torch.testing.assert_close(actual, attend_blocks(query, key, value, PATTERN, valid), rtol=1e-5, atol=1e-5)
