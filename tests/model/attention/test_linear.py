import math

import pytest
import torch

from hyperslab.model.attention import linear
from hyperslab.model.attention.linear import Linear, orthogonal_directions
from hyperslab.model.attention.mismatch import relative_error
from hyperslab.model.attention.mixer import Dense
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


def make_linear(width: int, num_features: int, *, learned: bool = False, seed: int = 0) -> Linear:
    torch.manual_seed(seed)
    return Linear(width, num_features, learned=learned).double()


def features(tensor: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """exp(w x - |x|^2 / 2) of vectors scaled by D^-1/4 (arXiv 2009.14794, lemma 1), as it stands there."""
    scaled = tensor / tensor.shape[-1] ** 0.25
    return torch.exp(scaled @ directions.T - (scaled * scaled).sum(-1, keepdim=True) / 2)


def explicit_kernel(tensors: QKV, valid: torch.Tensor | None, directions: torch.Tensor) -> torch.Tensor:
    """The matrix of all N x N products of features, each row divided by its sum, times the values."""
    query, key, value = tensors
    kernel = features(query, directions) @ features(key, directions).transpose(-1, -2)
    if valid is not None:
        kernel = kernel * valid[:, None, None]
    return kernel / kernel.sum(-1, keepdim=True) @ value


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("tokens", [1, 37])
def test_attention_by_features_is_its_kernel_normalised_by_rows(tokens, learned, masked):
    mixer, tensors = make_linear(4, 6, learned=learned), make_qkv(3, tokens, dtype=torch.float64)
    query, key, value = tensors
    valid = make_valid(3, tokens, torch.arange(tokens) < 9) if masked and tokens > 1 else None

    actual = outcome(mixer(query, key, value, valid, mixer.plan(line(tokens), CPU)), tensors)

    expected = outcome(explicit_kernel(tensors, valid, mixer.directions.detach()), tensors)
    assert_same(actual, expected, tolerance=1e-10)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("most", "smallest", "sizes"),
    [
        # 37 tokens in at most 16 pieces of at least 5: 7 pieces, of ceil(37 / 7) = 6; at most 3: of 13; or at once.
        (16, 5, [6, 6, 6, 6, 6, 6, 1]),
        (3, 5, [13, 13, 11]),
        (16, 512, [37]),
    ],
)
def test_pieces_that_tokens_are_worked_on_in_do_not_change_what_comes_out(monkeypatch, most, smallest, sizes, masked):
    mixer, tensors = make_linear(4, 6, learned=True), make_qkv(3, 37, dtype=torch.float64)
    # The first pieces of the last sample hold no data, and their keys would be the longest.
    valid = make_valid(3, 37, torch.arange(37) < 13) if masked else None
    if valid is not None:
        tensors = leaves((tensors[0], torch.where(valid[:, None, :, None], tensors[1], 9.0), tensors[2]), torch.float64)
    query, key, value = tensors
    mixer.probing = True
    given = [*tensors, mixer.directions]
    seen = []
    summed = linear._summed

    def noted(key: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(key.shape[2])
        return summed(key, *others)

    monkeypatch.setattr(linear, "_summed", noted)
    monkeypatch.setattr(linear, "MOST_PIECES", most)
    monkeypatch.setattr(linear, "SMALLEST_PIECE", smallest)

    actual = outcome(mixer(query, key, value, valid, ()), given)

    assert seen[: len(sizes)] == sizes
    expected = outcome(explicit_kernel(tensors, valid, mixer.directions.detach()), tensors)
    assert_same(actual[:-1], expected, tolerance=1e-10)
    exact = Dense()(query, key, value, valid, ()).detach()
    kernel = explicit_kernel(tensors, valid, mixer.directions)
    (slope,) = torch.autograd.grad(relative_error(kernel, exact, valid), mixer.directions)
    assert_same(actual[-1:], [slope], tolerance=1e-10)


@pytest.mark.parametrize(("of_query", "of_key"), [(10.0, 1.0), (1.0, 20.0)])
def test_features_too_small_for_the_precision_are_mixed_by_their_proportions(of_query, of_key):
    # Vectors of 10 sqrt(4) / 4^(1/4) = 14 have features about exp(-14^2 / 2) = 1e-43, those of 28 about 1e-170:
    # nothing in float32.
    mixer, tensors = make_linear(4, 6), make_qkv(1, 9, dtype=torch.float64)
    query, key, value = of_query * tensors[0], of_key * tensors[1], tensors[2]

    mixed = mixer.float()(query.float(), key.float(), value.float(), None, ())

    expected = explicit_kernel((query, key, value), None, mixer.directions.double())
    # Exponents up to some hundreds are rounded by 1e-5 in float32.
    torch.testing.assert_close(mixed.double(), expected, rtol=1e-3, atol=1e-3)


def test_long_queries_and_keys_do_not_run_over():
    # exp(w x) alone with |x| = 60 x 2 / sqrt(2) is more than float32 holds.
    mixer = make_linear(4, 6).float()
    query, key, value = make_qkv(1, 9)

    mixed = mixer(60 * query, 60 * key, value, None, ())

    assert mixed.isfinite().all()


def test_the_mean_over_many_directions_is_the_exponential_of_the_score():
    torch.manual_seed(1)
    directions = orthogonal_directions(40_000, 4).double()
    query, key = (tensor.detach()[0, 0] for tensor in make_qkv(1, 8, dtype=torch.float64)[:2])
    # Scaled by 4^-1/4 they are half as long as one.
    query, key = (0.5 * 4**0.25 * torch.nn.functional.normalize(tensor, dim=-1) for tensor in (query, key))

    mean = features(query, directions) @ features(key, directions).T / len(directions)

    # One product has the relative variance exp(|q + k|^2) - 1, e - 1 at most as |q + k| is at most one: a standard
    # error of sqrt(1.72 / 40000) = 0.0066, and less for orthogonal directions. Five of these.
    torch.testing.assert_close(mean / (query @ key.T / 2).exp(), torch.ones(8, 8).double(), rtol=0, atol=0.033)


def test_directions_lean_no_way():
    torch.manual_seed(2)
    directions = orthogonal_directions(40_000, 4)

    # Each number is normal: means of 40000 have a standard error of 0.005, those of squares one of sqrt(2) x 0.005.
    torch.testing.assert_close(directions.mean(0), torch.zeros(4), rtol=0, atol=5 * 0.005)
    covariance = directions.T @ directions / len(directions)
    torch.testing.assert_close(covariance, torch.eye(4), rtol=0, atol=5 * math.sqrt(2) * 0.005)


def test_directions_are_orthogonal_in_runs_of_the_width():
    torch.manual_seed(3)
    directions = orthogonal_directions(10, 4).double()

    assert directions.shape == (10, 4)
    for run in torch.split(directions, 4):
        products = run @ run.T
        torch.testing.assert_close(products, products.diagonal().diag(), rtol=0, atol=1e-5)


def test_more_features_are_nearer_to_exact_attention():
    query, key, value = (tensor.detach() for tensor in make_qkv(2, 64, dtype=torch.float64))
    # As short as this the products vary little more than they are large (see the mean over many directions).
    query, key = query / 2, key / 2
    exact = Dense()(query, key, value, None, ())

    def error(num_features: int) -> float:
        """The mean over ten draws."""
        mixers = [make_linear(4, num_features, seed=seed) for seed in range(10)]
        errors = [relative_error(mixer(query, key, value, None, ()), exact, None) for mixer in mixers]
        return float(torch.stack(errors).mean())

    # The mean square falls as one over the number of directions; where they are few it is less regular.
    few, more, many = error(8), error(64), error(512)
    assert more < few / 2
    assert many < more / 4


def test_tokens_without_data_have_no_influence_at_all():
    mixer, tensors = make_linear(4, 6), make_qkv(2, 20, dtype=torch.float64)
    valid = make_valid(2, 20, torch.arange(20) < 8)
    there = valid[:, None, :, None]
    # Long keys would be most of any sum, or of its largest number.
    changed = [torch.where(there, tensor, 100 * tensor).detach() for tensor in tensors]

    mixed = mixer(*tensors, valid, ())
    gradients = torch.autograd.grad((mixed * there).sum(), tensors)

    assert torch.equal((mixer(*changed, valid, ()) * there), mixed * there)
    assert not any((gradient * ~there).any() for gradient in gradients)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("probing", [False, True])
@pytest.mark.parametrize("smallest", [2, 512])
def test_gradients_of_attention_by_features_fit_finite_differences(monkeypatch, smallest, probing, masked):
    monkeypatch.setattr(linear, "SMALLEST_PIECE", smallest)
    mixer = make_linear(2, 3, learned=True)
    mixer.probing = probing

    assert gradients_fit(mixer, line(5), masked)


@pytest.mark.parametrize("probing", [False, True])
@pytest.mark.parametrize("smallest", [4, 512])
def test_features_of_a_sample_without_data_are_finite(monkeypatch, smallest, probing):
    monkeypatch.setattr(linear, "SMALLEST_PIECE", smallest)
    mixer = make_linear(4, 6, learned=True).float()
    mixer.probing = probing

    assert_finite_without_data(mixer, line(20))


def test_learned_directions_are_parameters_and_random_ones_are_kept_in_the_state():
    learned, drawn = make_linear(4, 6, learned=True), make_linear(4, 6)

    assert [name for name, _ in learned.named_parameters()] == ["directions"]
    assert not list(drawn.parameters())
    assert drawn.state_dict().keys() == {"directions"}
    assert torch.equal(learned.directions, drawn.directions)


def test_directions_are_trained_only_while_probing_and_nothing_else_by_it():
    mixer, tensors = make_linear(4, 6, learned=True), make_qkv(2, 20, dtype=torch.float64)
    without = outcome(mixer(*tensors, None, ()), tensors)
    torch.autograd.backward(mixer(*tensors, None, ()).sum())
    assert mixer.directions.grad is None

    mixer.probing = True
    probed = outcome(mixer(*tensors, None, ()), tensors)
    torch.autograd.backward(mixer(*tensors, None, ()).sum())

    assert all(torch.equal(one, other) for one, other in zip(probed, without, strict=True))
    assert mixer.directions.grad is not None
    assert mixer.directions.grad.any()


def test_random_directions_do_not_learn():
    mixer, tensors = make_linear(4, 6), make_qkv(1, 20, dtype=torch.float64)
    mixer.probing = True
    before = mixer.directions.clone()

    torch.autograd.backward(mixer(*tensors, None, ()).sum())

    assert torch.equal(mixer.directions, before)
    assert not mixer.directions.requires_grad


def test_drawn_anew_directions_are_others():
    mixer = make_linear(4, 6, learned=True)
    before = mixer.directions.detach().clone()

    mixer.reset_parameters()

    assert not torch.equal(mixer.directions, before)
    assert mixer.directions.requires_grad


def test_attention_by_features_has_no_mask_that_makes_it_exact():
    assert make_linear(4, 6).allowed(line(3)) is None
