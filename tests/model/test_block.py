import pytest
import torch

from hyperslab.model.block import Block, SwiGLU


def make_block(width: int, heads: int) -> Block:
    torch.manual_seed(11)
    block = Block(width, heads).double()
    with torch.no_grad():
        block.attention_norm.weight.uniform_(0.5, 1.5)
        block.feed_forward_norm.weight.uniform_(0.5, 1.5)
    return block


def make_tokens(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(12))


def test_the_feed_forward_layer_is_gate_times_value():
    torch.manual_seed(13)
    layer, tokens = SwiGLU(6).double(), make_tokens(2, 3, 6)

    # Shazeer 2020, equation 6: (Swish(x W) * x V) W2, with Swish(a) = a / (1 + e^-a).
    gate, value = (tokens @ layer.gate_and_value.weight.T).tensor_split(2, dim=-1)
    expected = (gate / (1 + (-gate).exp()) * value) @ layer.output.weight.T

    torch.testing.assert_close(layer(tokens), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("width", "hidden"),
    [
        # 8/3 of the width, up to the next multiple of 8: 8 -> 21.3 -> 24; 12 -> 32; 128 -> 341.3 -> 344.
        (8, 24),
        (12, 32),
        (128, 344),
    ],
)
def test_the_feed_forward_layer_has_eight_thirds_of_the_width_inside(width, hidden):
    assert SwiGLU(width).output.weight.shape == (width, hidden)


def test_a_block_adds_attention_then_feed_forward_of_normalised_tokens():
    block, tokens = make_block(8, 2), make_tokens(2, 5, 8)

    def normalised(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    middle = tokens + block.attention(normalised(tokens, block.attention_norm.weight))
    expected = middle + block.feed_forward(normalised(middle, block.feed_forward_norm.weight))

    torch.testing.assert_close(block(tokens), expected, rtol=1e-12, atol=1e-12)


def test_a_block_without_output_weights_passes_its_tokens_on():
    block, tokens = make_block(8, 2), make_tokens(1, 4, 8)
    torch.nn.init.zeros_(block.attention.output.weight)
    torch.nn.init.zeros_(block.feed_forward.output.weight)

    assert torch.equal(block(tokens), tokens)


def test_gradients_of_a_block_fit_finite_differences():
    block, tokens = make_block(4, 2), make_tokens(1, 3, 4).requires_grad_()
    names, weights = zip(*block.named_parameters(), strict=True)

    def forward(tokens: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.func.functional_call(block, dict(zip(names, weights, strict=True)), (tokens,))
        return output

    assert torch.autograd.gradcheck(forward, (tokens, *weights), fast_mode=True)


def test_a_block_of_shuffled_tokens_gives_the_shuffled_tokens():
    block, tokens = make_block(8, 4), make_tokens(2, 6, 8)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(14))

    torch.testing.assert_close(block(tokens[:, order]), block(tokens)[:, order], rtol=1e-12, atol=1e-12)


def test_a_token_sees_all_others():
    # The gradient of one token's output by every other token's input is not zero.
    block, tokens = make_block(8, 2), make_tokens(1, 5, 8).requires_grad_()

    (gradient,) = torch.autograd.grad(block(tokens)[0, 2].sum(), tokens)

    assert (gradient[0].abs().amax(-1) > 0).all()
