import pytest
import torch

from hyperslab.model.attention import nystrom
from hyperslab.model.attention.mixer import Dense
from hyperslab.model.attention.nystrom import Nystrom, inverse
from hyperslab.model.lattice import line
from tests.model.attention.test_mixer import (
    CPU,
    QKV,
    assert_finite_without_data,
    assert_same,
    gradients_fit,
    leaves,
    make_qkv,
    make_valid,
    outcome,
)


def make_distinct(batch: int, tokens: int, run: int) -> QKV:
    """Queries and keys of runs that differ, so that each landmark sees itself most: the inverse is well determined."""
    query, key, value = make_qkv(batch, tokens, dtype=torch.float64)
    towards = 3 * torch.eye(4, dtype=torch.float64)[torch.arange(tokens) // run]
    return leaves((towards + 0.3 * query, towards + 0.3 * key, value), torch.float64)


def by_formula(tensors: QKV, valid: torch.Tensor | None, run: int) -> torch.Tensor:
    """softmax(q k~) softmax(q~ k~)^-1 softmax(q~ k) (arXiv 2102.03902, equation 13), sample by sample.

    Tokens without data are left out before anything is done, and so are runs of nothing else.
    """
    query, key, value = tensors
    mixed = torch.zeros_like(value)
    for sample in range(len(query)):
        there = torch.ones(query.shape[2]).bool() if valid is None else valid[sample]
        runs = [torch.arange(query.shape[2])[first : first + run] for first in range(0, query.shape[2], run)]
        kept = [tokens[there[tokens]] for tokens in runs if there[tokens].any()]
        for head in range(query.shape[1]):
            q, k, v = (tensor[sample, head] for tensor in (query, key, value))
            near_q, near_k = (torch.stack([tensor[tokens].mean(0) for tokens in kept]) for tensor in (q, k))
            # Heads have four features: q k / 2.
            first = (q[there] @ near_k.T / 2).softmax(-1)
            between = torch.linalg.pinv((near_q @ near_k.T / 2).softmax(-1))
            last = (near_q @ k[there].T / 2).softmax(-1)
            mixed[sample, head, there] = first @ between @ last @ v[there]
    return mixed


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("tokens", "num_landmarks", "run", "without"),
    [
        # 12 tokens, 4 landmarks: runs of 3. Some tokens of the last sample hold no data, or a whole run, the second.
        (12, 4, 3, []),
        (12, 4, 3, [0, 5, 11]),
        (12, 4, 3, [2, 3, 4, 5]),
        # 11 tokens: runs of 3, 3, 3, 2.
        (11, 4, 3, []),
        (11, 4, 3, [0, 5, 9, 10]),
        # 10 tokens, 4 landmarks: runs of 3, 3, 3, 1. With 3 of them: runs of 4, 4, 2.
        (10, 4, 3, [1]),
        (10, 3, 4, [1]),
    ],
)
def test_attention_through_landmarks_is_its_formula(tokens, num_landmarks, run, without, batch):
    mixer, tensors = Nystrom(num_landmarks), make_distinct(batch, tokens, run)
    valid = torch.ones(batch, tokens).bool() if without else None
    if valid is not None:
        valid[-1, without] = False
    query, key, value = tensors

    mixed = mixer(query, key, value, valid, mixer.plan(line(tokens), CPU))
    there = 1 if valid is None else valid[:, None, :, None]
    actual = outcome(mixed * there, tensors)

    # Landmarks weigh themselves by more than others by e^(9/2) or so: the iteration ends at the last bits.
    assert_same(actual, outcome(by_formula(tensors, valid, run), tensors), tolerance=1e-9)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("num_landmarks", [9, 64])
def test_as_many_landmarks_as_tokens_are_dense_attention(num_landmarks, masked):
    tensors, valid = make_qkv(2, 9), make_valid(2, 9, torch.arange(9) < 4) if masked else None
    query, key, value = tensors

    actual = outcome(Nystrom(num_landmarks)(query, key, value, valid, ()), tensors)

    assert_same(actual, outcome(Dense()(query, key, value, valid, ()), tensors), tolerance=1e-6)


def test_one_landmark_is_the_same_for_all_tokens():
    # Weights of one landmark are all one, its inverse as well: what is left is softmax(q~ k) v.
    query, key, value = make_qkv(1, 6, dtype=torch.float64)

    mixed = Nystrom(1)(query, key, value, None, ())

    expected = (query.mean(2, keepdim=True) @ key.transpose(-1, -2) / 2).softmax(-1) @ value
    torch.testing.assert_close(mixed, expected.expand_as(mixed), rtol=1e-12, atol=1e-12)


def test_tokens_without_data_have_no_influence_at_all():
    mixer, tensors = Nystrom(4), make_qkv(2, 18, dtype=torch.float64)
    # The first run of five holds no data at all.
    valid = make_valid(2, 18, torch.arange(18) < 5)
    there = valid[:, None, :, None]
    changed = [torch.where(there, tensor, 100 * tensor).detach() for tensor in tensors]

    mixed = mixer(*tensors, valid, ())
    gradients = torch.autograd.grad((mixed * there).sum(), tensors)

    torch.testing.assert_close(mixer(*changed, valid, ()) * there, mixed * there, rtol=1e-12, atol=1e-12)
    assert not any((gradient * ~there).any() for gradient in gradients)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("num_landmarks", [2, 3, 7])
def test_gradients_of_attention_through_landmarks_fit_finite_differences(num_landmarks, masked):
    assert gradients_fit(Nystrom(num_landmarks), line(7), masked)


@pytest.mark.parametrize("num_landmarks", [4, 7, 64])
def test_landmarks_of_a_sample_without_data_are_finite(num_landmarks):
    assert_finite_without_data(Nystrom(num_landmarks), line(20))


def test_the_inverse_of_known_weights():
    # Determinant 0.8 x 0.7 - 0.2 x 0.3 = 0.5; and the identity beside it.
    weights = torch.tensor([[[0.8, 0.2], [0.3, 0.7]], [[1, 0], [0, 1]]], dtype=torch.float64)
    expected = torch.tensor([[[1.4, -0.4], [-0.6, 1.6]], [[1, 0], [0, 1]]], dtype=torch.float64)

    torch.testing.assert_close(inverse(weights), expected, rtol=1e-12, atol=1e-12)


def test_one_step_cubes_the_error_of_the_inverse(monkeypatch):
    # diag(1, 1/2): the largest sums of rows and columns are 1, so the iteration begins at diag(1, 1/2) and the error
    # e = 1 - a z is 0 and 3/4. With a z = 1 - e, one step leaves (3 e^3 + e^4) / 4:
    # (3 x 27/64 + 81/256) / 4 = 405/1024 = 0.396, so that z = 2 (1 - 405/1024) = 619/512.
    monkeypatch.setattr(nystrom, "ITERATIONS", 1)
    weights = torch.tensor([[1, 0], [0, 0.5]], dtype=torch.float64)

    found = inverse(weights)

    assert found.tolist() == [[1, 0], [0, 619 / 512]]


def test_attention_through_landmarks_has_no_mask_that_makes_it_exact():
    assert Nystrom(4).allowed(line(9)) is None
