import torch

from hyperslab.model.attention.dense import DenseAttention


def make_attention(width: int, heads: int) -> DenseAttention:
    torch.manual_seed(3)
    attention = DenseAttention(width, heads).double()
    with torch.no_grad():  # norms that differ from one, so that leaving them out is noticed
        attention.query_norm.weight.uniform_(0.5, 1.5)
        attention.key_norm.weight.uniform_(0.5, 1.5)
    return attention


def make_tokens(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def attention_by_formula(attention: DenseAttention, tokens: torch.Tensor) -> torch.Tensor:
    """softmax(q k^T / sqrt(d)) v, head by head and sample by sample (Vaswani et al. 2017, equation 1)."""
    width, size = tokens.shape[-1], tokens.shape[-1] // attention.heads

    def normalised(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    samples = []
    for sample in tokens:
        projected = sample @ attention.query_key_value.weight.T
        heads = []
        for head in range(attention.heads):
            columns = slice(head * size, (head + 1) * size)
            query = normalised(projected[:, :width][:, columns], attention.query_norm.weight)
            key = normalised(projected[:, width : 2 * width][:, columns], attention.key_norm.weight)
            value = projected[:, 2 * width :][:, columns]
            scores = (query @ key.T / size**0.5).exp()
            heads.append(scores / scores.sum(-1, keepdim=True) @ value)
        samples.append(torch.cat(heads, dim=-1) @ attention.output.weight.T)
    return torch.stack(samples)


def test_attention_is_softmax_of_scaled_products_times_values():
    attention, tokens = make_attention(12, 3), make_tokens(2, 7, 12)

    torch.testing.assert_close(attention(tokens), attention_by_formula(attention, tokens), rtol=1e-11, atol=1e-12)


def test_gradients_of_attention_fit_finite_differences():
    attention, tokens = make_attention(4, 2), make_tokens(1, 3, 4).requires_grad_()
    names, weights = zip(*attention.named_parameters(), strict=True)

    def forward(tokens: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.func.functional_call(attention, dict(zip(names, weights, strict=True)), (tokens,))
        return output

    assert torch.autograd.gradcheck(forward, (tokens, *weights))


def test_attention_of_shuffled_tokens_is_the_shuffled_attention():
    attention, tokens = make_attention(8, 2), make_tokens(2, 9, 8)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(5))

    torch.testing.assert_close(attention(tokens[:, order]), attention(tokens)[:, order], rtol=1e-12, atol=1e-12)


def test_samples_of_a_batch_do_not_see_one_another():
    attention, tokens = make_attention(8, 2), make_tokens(3, 5, 8)
    changed = tokens.clone()
    changed[1] += 1

    before, after = attention(tokens), attention(changed)

    torch.testing.assert_close(after[[0, 2]], before[[0, 2]], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(after[1], before[1])
