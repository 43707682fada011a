"""Exact attention of rows of queries to chosen blocks of keys: the kernels behind block-sparse attention and groups."""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

GATHERED_BYTES = 1 << 19
"""Keys and values that are gathered at a time, about: they stay in a core's cache while they are used."""


def attend_blocks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, blocks: torch.Tensor, valid: torch.Tensor | None
) -> torch.Tensor:
    """Attention of each block of queries to the keys of its blocks, shape (B, A, N, D).

    On a CPU blocks of keys are gathered and attended to a few rows at a time, and gathered again in the backward pass,
    so that memory stays that of PyTorch's flash attention. Elsewhere all are gathered at once.

    Parameters
    ----------
    query, key, value
        Shape (B, A, N, D), N a multiple of the block.
    blocks
        Blocks of keys that each block of queries sees, each once; shape (N / block, M).
    valid
        Keys that may be seen, bool, shape (B, N); None where all may.
    """
    b, a, n, d = query.shape
    rows = len(blocks)
    # A gather copies whole runs of memory only where a tensor is contiguous.
    query, key, value = (tensor.contiguous().view(b * a, rows, n // rows, d) for tensor in (query, key, value))
    own = torch.arange(rows, device=blocks.device)[:, None]
    bias = None
    if valid is not None:
        bias = as_bias(valid, query.dtype).repeat_interleave(a, 0).view(b * a, rows, -1, 1)
    return attend_rows(query, key, value, own, blocks, bias).view(b, a, n, d)


def attend_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    own: torch.Tensor,
    seen: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    filled: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of rows of blocks to the keys of as many blocks each, shape as that of the queries.

    Parameters
    ----------
    query, key, value
        Batch and heads as one dimension, shape (B A, block, tokens of a block, D).
    own
        Blocks whose queries make up each row, shape (row, Q); each block is in one row.
    seen
        Blocks whose keys each row sees, shape (row, M); None where it sees its own.
    bias
        What is added to the scores of each key, shape (B A, block, tokens of a block, 1); None for nothing.
    filled
        Where rows of blocks of one token see their own: which of these are there, shape (row, Q). None where all are.
    """
    if query.device.type == "cpu":
        mixed: torch.Tensor = _Gathered.apply(query, key, value, own, seen, bias, filled)  # type: ignore[no-untyped-call]
        return mixed
    seen = own if seen is None else seen
    mask = _mask(key, bias, seen, filled, slice(None), slice(None))
    part = F.scaled_dot_product_attention(_gather(query, own), _gather(key, seen), _gather(value, seen), mask)
    if filled is not None:
        part = part * filled[..., None]
    return part.new_zeros(query.shape).index_add(1, own.flatten(), part.reshape(len(query), -1, *query.shape[2:]))


def attend_blocks_flex(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, blocks: torch.Tensor, valid: torch.Tensor | None
) -> torch.Tensor:
    """The same with FlexAttention, for GPUs: on a CPU it has no backward pass. Parameters as for `attend_blocks`.

    Its backward pass on a GPU was never run here.
    """
    rows, seen = blocks.shape
    order = F.pad(blocks, (0, rows - seen)).to(torch.int32)[None, None]
    counts = torch.full((1, 1, rows), seen, dtype=torch.int32, device=blocks.device)
    size = query.shape[2] // rows
    pairs = torch.zeros(rows, rows, dtype=torch.bool, device=blocks.device).scatter_(1, blocks, True)

    # FlexAttention that is not compiled goes by this alone: it has to know the blocks as well.
    def may_be_seen(b: torch.Tensor, _a: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        seen = pairs[query // size, key // size]
        return seen if valid is None else seen & valid[b, key]

    if valid is None:
        none = torch.zeros_like(counts)
        mask = BlockMask.from_kv_blocks(none, order, counts, order, BLOCK_SIZE=size, mask_mod=may_be_seen)
    else:
        mask = BlockMask.from_kv_blocks(counts, order, BLOCK_SIZE=size, mask_mod=may_be_seen)
    mixed: torch.Tensor = _flex(query.device.type)(query, key, value, block_mask=mask)
    return mixed


@cache
def _flex(device: str) -> Any:
    """FlexAttention, which is fast only when it is compiled."""
    return flex_attention if device == "cpu" else torch.compile(flex_attention, dynamic=False)


class _Gathered(torch.autograd.Function):
    """Flash attention on gathered blocks, a few rows at a time, forward and backward."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> torch.Tensor:
        query, key, value, own, seen, bias, filled = given
        seen = own if seen is None else seen  # a tensor that is given twice could not be compiled
        mixed = torch.zeros_like(query)
        # Flash attention keeps the logarithms of its sums in float32 where tokens are in half precision.
        precision = torch.promote_types(query.dtype, torch.float32)
        sums = query.new_empty(len(query), len(own), own.shape[1] * query.shape[2], dtype=precision)
        for heads, at in _parts(key, seen):
            part, sums[heads, at] = _FLASH(
                _gather(query[heads], own[at]),
                _gather(key[heads], seen[at]),
                _gather(value[heads], seen[at]),
                attn_mask=_mask(key, bias, seen, filled, heads, at),
            )
            _scatter(mixed[heads], own[at], part if filled is None else part.mul_(filled[at, :, None]))
        ctx.save_for_backward(*given, mixed, sums)
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, own, seen, bias, filled, mixed, sums = ctx.saved_tensors
        seen = own if seen is None else seen
        gradient = gradients[0].contiguous()
        into = [torch.zeros_like(tensor) for tensor in (query, key, value)]
        for heads, at in _parts(key, seen):
            part = _gather(gradient[heads], own[at])
            parts = _FLASH_BACKWARD(
                part if filled is None else part.mul_(filled[at, :, None]),
                _gather(query[heads], own[at]),
                _gather(key[heads], seen[at]),
                _gather(value[heads], seen[at]),
                _gather(mixed[heads], own[at]),
                sums[heads, at],
                0.0,
                False,
                attn_mask=_mask(key, bias, seen, filled, heads, at),
            )
            for total, blocks, part in zip(into, (own, seen, seen), parts, strict=True):
                _scatter(total[heads], blocks[at], part)
        return *into, None, None, None, None


def _parts(key: torch.Tensor, seen: torch.Tensor) -> list[tuple[slice, slice]]:
    """Heads and rows that are worked on at a time."""
    return [(heads, at) for at in _chunks(key, seen) for heads in _heads(key, seen)]


def _chunks(key: torch.Tensor, seen: torch.Tensor) -> list[slice]:
    """Rows that are worked on at a time."""
    step = max(1, GATHERED_BYTES // (len(key) * _row_bytes(key, seen)))
    return [slice(start, min(len(seen), start + step)) for start in range(0, len(seen), step)]


def _heads(key: torch.Tensor, seen: torch.Tensor) -> list[slice]:
    """Heads that are worked on at a time: where even one row is too much, no more than there are threads."""
    step = max(_num_threads(), GATHERED_BYTES // _row_bytes(key, seen))
    return [slice(start, start + step) for start in range(0, len(key), step)]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _num_threads() -> int:
    return torch.get_num_threads()


def _row_bytes(key: torch.Tensor, seen: torch.Tensor) -> int:
    """Keys and values that a row sees in one head."""
    return 2 * seen.shape[1] * key[0, 0].numel() * key.element_size()


def _gather(tensor: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Blocks (B A, row, M x tokens, D) of some rows."""
    merged, _, _, d = tensor.shape
    return tensor.index_select(1, blocks.flatten()).view(merged, len(blocks), -1, d)


def _scatter(total: torch.Tensor, blocks: torch.Tensor, part: torch.Tensor) -> None:
    """Add to blocks what `_gather` would gather from them."""
    total.index_add_(1, blocks.flatten(), part.reshape(len(total), -1, *total.shape[2:]))


def _mask(
    key: torch.Tensor,
    bias: torch.Tensor | None,
    seen: torch.Tensor,
    filled: torch.Tensor | None,
    heads: slice,
    at: slice,
) -> torch.Tensor | None:
    """What is added to the scores of some heads and rows, shape (heads or 1, rows, 1, M x tokens)."""
    there = None if filled is None else as_bias(filled[None, at, None], key.dtype)
    if bias is None:
        return there
    mask = _gather(bias[heads], seen[at]).transpose(-1, -2)
    return mask if there is None else mask + there


def as_bias(there: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the scores of keys so that only those that are there are seen; shape as given."""
    return torch.zeros(there.shape, dtype=dtype, device=there.device).masked_fill_(~there, -torch.inf)
