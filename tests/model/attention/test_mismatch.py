import pytest
import torch

from hyperslab.model.attention.linear import Linear
from hyperslab.model.attention.mismatch import learn_from_exact, relative_error
from hyperslab.model.attention.mixer import Dense
from tests.model.attention.test_mixer import make_qkv, make_valid, outcome


def scaled_mix(scale: torch.Tensor):
    """Some approximation with a parameter: values as they are, scaled."""
    return lambda query, key, value: scale * value


def test_the_relative_error_is_that_of_squares():
    # (1 - 1)^2 + (3 - 1)^2 = 4, over 1 + 1 = 2.
    mixed, exact = torch.tensor([1.0, 3]).view(1, 1, 2, 1), torch.ones(1, 1, 2, 1)

    assert float(relative_error(mixed, exact, None)) == 2
    # Of the first token alone 0; of the second alone 4 / 1.
    assert float(relative_error(mixed, exact, torch.tensor([[True, False]]))) == 0
    assert float(relative_error(mixed, exact, torch.tensor([[False, True]]))) == 4
    # Of none at all there is none.
    assert float(relative_error(mixed, exact, torch.tensor([[False, False]]))) == 0


@pytest.mark.parametrize("masked", [False, True])
def test_the_backward_pass_also_lowers_the_error_beside_exact_attention(masked):
    tensors = make_qkv(2, 9, dtype=torch.float64)
    query, key, value = (tensor.detach() for tensor in tensors)
    valid = make_valid(2, 9, torch.arange(9) < 3) if masked else None
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    # By hand: the error of a head of a sample is sum (s v - e)^2 / sum e^2 over tokens with data, so its slope is
    # 2 sum (s v - e) v / sum e^2; that of a batch is the mean over its samples and heads.
    there = torch.ones(2, 9).bool() if valid is None else valid
    exact = Dense()(query, key, value, valid, ()) * there[:, None, :, None]
    value_there = value * there[:, None, :, None]
    slopes = 2 * ((0.7 * value_there - exact) * value_there).sum((2, 3)) / exact.square().sum((2, 3))
    expected = slopes.mean()

    mixed = learn_from_exact(3 * tensors[2], scaled_mix(scale), *tensors, valid)
    # What the loss itself is, and how steep, makes no difference.
    torch.autograd.backward((1000 * mixed).sum())

    assert scale.grad is not None
    torch.testing.assert_close(scale.grad, expected, rtol=1e-10, atol=1e-10)


def test_heads_apart_teach_what_all_teach_together():
    query, key, value = make_qkv(2, 9)
    slopes = []
    for heads, share in ((slice(0, 2), 1.0), (slice(0, 1), 0.5), (slice(1, 2), 0.5)):
        scale = torch.tensor(0.7, requires_grad=True)
        own = query[:, heads], key[:, heads], value[:, heads]
        mixed = learn_from_exact(own[2], scaled_mix(scale), *own, None, share)
        slopes.append(torch.autograd.grad(mixed.sum(), scale)[0])

    torch.testing.assert_close(slopes[1] + slopes[2], slopes[0])


def test_queries_keys_and_values_learn_from_the_loss_alone():
    tensors = make_qkv(2, 9)
    scale = torch.tensor(0.7, requires_grad=True)

    joined = outcome(
        learn_from_exact(3 * tensors[2] + tensors[0] * tensors[1], scaled_mix(scale), *tensors, None), tensors
    )

    for actual, expected in zip(joined, outcome(3 * tensors[2] + tensors[0] * tensors[1], tensors), strict=True):
        assert torch.equal(actual, expected)


@torch.no_grad()
def test_nothing_is_compared_without_gradients():
    query, key, value = make_qkv(1, 5)

    def never(*tensors: torch.Tensor) -> torch.Tensor:
        raise AssertionError("mixed once more")

    assert learn_from_exact(value, never, query, key, value, None) is value


def test_a_sample_without_data_teaches_nothing():
    query, key, value = make_qkv(2, 9)
    scale = torch.tensor(0.7, requires_grad=True)
    slopes = []
    for samples, valid in (
        (slice(0, 2), torch.tensor([[True] * 9, [False] * 9])),
        (slice(0, 1), torch.tensor([[True] * 9])),
    ):
        mixed = learn_from_exact(value[samples], scaled_mix(scale), query[samples], key[samples], value[samples], valid)
        slopes.append(torch.autograd.grad(mixed.sum(), scale)[0])

    # It counts among the samples all the same, so that sharing samples out over ranks changes nothing.
    torch.testing.assert_close(slopes[0], slopes[1] / 2)


def test_directions_trained_for_some_steps_give_what_exact_attention_gives_more_closely():
    torch.manual_seed(4)
    mixer = Linear(4, 8, learned=True)
    query, key, value = (tensor.detach() for tensor in make_qkv(4, 32))
    exact = Dense()(query, key, value, None, ())
    optimizer = torch.optim.Adam(mixer.parameters(), lr=0.03)
    mixer.probing = True

    def error() -> float:
        with torch.no_grad():
            return float(relative_error(mixer(query, key, value, None, ()), exact, None))

    before = error()
    for _ in range(60):
        optimizer.zero_grad()
        # A loss that knows nothing of the directions.
        torch.autograd.backward(mixer(query, key, value, None, ()).mean())
        optimizer.step()

    assert error() < 0.5 * before
