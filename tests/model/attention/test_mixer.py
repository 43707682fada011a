import gc
import math
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch

from hyperslab.model.attention.block_sparse import BlockSparse
from hyperslab.model.attention.grouped import Window
from hyperslab.model.attention.mixer import Dense, Mixer, Plan, masked_attention
from hyperslab.model.lattice import Lattice, line, make_lattice

CPU = torch.device("cpu")

QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values."""


def lattice_with_holes(*shape: int) -> Lattice:
    present = torch.rand(shape, generator=torch.Generator().manual_seed(3)) > 0.3
    return make_lattice(shape, (False, *[False] * (len(shape) - 2), True), present, block=8)


LATTICES = {
    "two axes": make_lattice((3, 11), (False, False), block=8),
    "three axes round the globe": make_lattice((3, 5, 7), (False, False, True), block=8),
    "four axes": make_lattice((2, 3, 4, 5), (False, True, False, True), block=8),
    "holes": lattice_with_holes(2, 5, 6),
    "line": line(37),
    "one token": line(1),
}
"""Tokens along two to four axes; odd numbers of them everywhere but on four axes."""


def make_qkv(batch: int, tokens: int, *, dtype: torch.dtype = torch.float32, width: int = 4) -> QKV:
    """Queries, keys and values of two heads that want a gradient, each of shape (batch, 2, tokens, width).

    They lie in memory as a model has them: token after token, the heads of one side by side.
    """
    noise = torch.randn(3, batch, tokens, 2, width, dtype=dtype, generator=torch.Generator().manual_seed(1))
    query, key, value = noise.transpose(2, 3)
    return leaves((query, key, value), dtype)


def leaves(tensors: QKV, dtype: torch.dtype) -> QKV:
    """The same numbers in another precision, with gradients of their own."""
    query, key, value = (tensor.detach().to(dtype, copy=True).requires_grad_() for tensor in tensors)
    return query, key, value


def make_valid(batch: int, tokens: int, together: torch.Tensor) -> torch.Tensor:
    """Tokens that hold data: three of four by chance; in the last sample, none of those that lie together."""
    valid = torch.rand(batch, tokens, generator=torch.Generator().manual_seed(2)) > 0.25
    valid[-1] &= ~together
    return valid


def outcome(mixed: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Mixed values, then the gradients of a loss that weighs each of them differently."""
    weights = torch.randn(mixed.shape, generator=torch.Generator().manual_seed(4)).to(mixed)
    return [mixed.detach(), *torch.autograd.grad((mixed * weights).sum(), tensors)]


def assert_same(actual: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


def assert_equals_masked_attention(mixer: Mixer, lattice: Lattice, batch: int, masked: bool) -> None:
    """The mixer in float32 gives what attention under its own mask gives in float64, and so do its gradients."""
    allowed = mixer.allowed(lattice)
    assert allowed is not None
    tensors = make_qkv(batch, len(lattice))
    exact = leaves(tensors, torch.float64)
    # Whole boxes and blocks without data: all that the first token may see.
    valid = make_valid(batch, len(lattice), allowed[0]) if masked else None
    query, key, value = tensors

    actual = outcome(mixer(query, key, value, valid, mixer.plan(lattice, CPU)), tensors)

    # float32 has 24 bits, 6e-8; at most 120 products of sizes up to 10 or so are summed.
    assert_same(actual, outcome(masked_attention(*exact, valid, allowed), exact), tolerance=1e-5)


def assert_finite_without_data(mixer: Mixer, lattice: Lattice) -> None:
    """A sample without any data, between two others, gives finite values and gradients, also where the loss asks."""
    tensors = make_qkv(3, len(lattice))
    valid = make_valid(3, len(lattice), torch.zeros(len(lattice), dtype=torch.bool))
    valid[1] = False
    query, key, value = tensors

    mixed = mixer(query, key, value, valid, mixer.plan(lattice, CPU))
    # The loss is steep: what is divided by nearly nothing in between would run over.
    gradients = torch.autograd.grad((1e3 * mixed).sum(), tensors)

    assert all(tensor.isfinite().all() for tensor in (mixed, *gradients))


def gradients_fit(mixer: Mixer, lattice: Lattice, masked: bool) -> bool:
    """Whether gradients fit finite differences; masked, the last of two samples holds no data."""
    tensors = make_qkv(2, len(lattice), dtype=torch.float64, width=2)
    valid = make_valid(2, len(lattice), torch.ones(len(lattice), dtype=torch.bool)) if masked else None
    plan = mixer.plan(lattice, CPU)
    return torch.autograd.gradcheck(lambda q, k, v: mixer(q, k, v, valid, plan), tensors)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", LATTICES)
def test_dense_attention_is_attention_under_a_mask_of_everything(name, batch, masked):
    assert_equals_masked_attention(Dense(), LATTICES[name], batch, masked)
    assert Dense().allowed(LATTICES[name]).all()


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_dense_attention_fit_finite_differences(masked):
    assert gradients_fit(Dense(), line(5), masked)


def test_dense_attention_of_a_sample_without_data_is_finite():
    assert_finite_without_data(Dense(), line(9))


def test_masked_attention_is_the_mean_of_what_may_be_seen_weighted_by_exponentials():
    query, key, value = (tensor.detach() for tensor in make_qkv(2, 4, dtype=torch.float64))
    allowed = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]]).bool()
    valid = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()

    mixed = masked_attention(query, key, value, valid, allowed)

    # Vaswani et al. 2017, equation 1, one number after another; heads have four features, so q k / 2.
    for sample, head, token in [(s, h, t) for s in range(2) for h in range(2) for t in range(4)]:
        seen = [other for other in range(4) if allowed[token, other] and valid[sample, other]]
        scores = [math.exp(float(query[sample, head, token] @ key[sample, head, other]) / 2) for other in seen]
        expected = sum(
            (score / sum(scores) * value[sample, head, other] for score, other in zip(scores, seen, strict=True)),
            torch.zeros(4, dtype=torch.float64),
        )
        torch.testing.assert_close(mixed[sample, head, token], expected, rtol=1e-12, atol=1e-12)
    # The last token of the second sample sees nothing but itself, which holds no data.
    assert not mixed[1, :, 3].any()


class Counting(Dense):
    """Counts how often it plans."""

    plans = 0

    def make_plan(self, lattice: Lattice) -> Plan:
        self.plans += 1
        return (torch.arange(len(lattice)),)


def test_a_lattice_is_planned_once():
    mixer, lattice = Counting(), make_lattice((2, 3), (False, False))

    assert mixer.plan(lattice, CPU) is mixer.plan(lattice, CPU)
    assert mixer.plans == 1

    mixer.plan(make_lattice((2, 3), (False, False)), CPU)
    assert mixer.plans == 2


def test_a_plan_lies_on_the_device_that_asks_for_it():
    # The mask is asked for on the host as well, before or after the tokens are mixed elsewhere.
    mixer, lattice = Counting(), line(5)

    assert mixer.plan(lattice, CPU)[0].device == CPU
    assert mixer.plan(lattice, torch.device("meta"))[0].device.type == "meta"
    assert mixer.plan(lattice, CPU)[0].device == CPU


def test_a_plan_does_not_keep_its_lattice():
    mixer, lattice = Window(4, shifted=False), make_lattice((2, 3), (False, False))
    mixer.plan(lattice, CPU)
    forgotten = weakref.ref(lattice)

    del lattice
    gc.collect()

    assert forgotten() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "mixer",
    [Window(16, shifted=True), BlockSparse(8, 0.4, "static", lattices={})],
    ids=["window", "block-sparse"],
)
def test_compiled_attention_gives_what_it_gives_uncompiled(mixer):
    lattice = LATTICES["three axes round the globe"]
    tensors, plan = make_qkv(2, len(lattice)), mixer.plan(lattice, CPU)
    valid = make_valid(2, len(lattice), torch.zeros(len(lattice), dtype=torch.bool))
    torch.compiler.reset()
    compiled: Callable[..., torch.Tensor] = torch.compile(mixer, fullgraph=True)

    actual = outcome(compiled(*tensors, valid, plan), tensors)

    assert_same(actual, outcome(mixer(*tensors, valid, plan), tensors), tolerance=1e-5)
