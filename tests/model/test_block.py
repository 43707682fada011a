import pytest
import torch

from hyperslab.model.attention import Dense, Linear
from hyperslab.model.block import Attention, Block, Place, SwiGLU
from hyperslab.model.config import hidden_width
from hyperslab.model.positions import rotary_angles


def place_of(count: int, head_width: int, valid: torch.Tensor | None = None) -> Place:
    """Tokens along one axis, at uneven places."""
    coordinates = torch.arange(count, dtype=torch.float64)[:, None] ** 1.5
    angles = rotary_angles(coordinates, [float(count)], [False], head_width)
    return Place(cosine=angles.cos(), sine=angles.sin(), count=angles.shape[-2], valid=valid)


def make_attention(width: int, heads: int) -> Attention:
    torch.manual_seed(3)
    attention = Attention(width, heads, Dense()).double()
    with torch.no_grad():  # norms that differ from one, so that leaving them out is noticed
        attention.query_norm.weight.uniform_(0.5, 1.5)
        attention.key_norm.weight.uniform_(0.5, 1.5)
    return attention


def make_block(width: int, heads: int, recompute: str = "none") -> Block:
    torch.manual_seed(11)
    block = Block(width, heads, Dense(), recompute).double()  # type: ignore[arg-type]
    with torch.no_grad():
        block.attention_norm.weight.uniform_(0.5, 1.5)
        block.feed_forward_norm.weight.uniform_(0.5, 1.5)
    return block


def make_tokens(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(12))


def normalised(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def turned(x: torch.Tensor, place: Place) -> torch.Tensor:
    """Pairs of one feature of the first half and one of the second, as complex numbers, times e^(i angle)."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half], x[..., half:]) * torch.complex(place.cosine, place.sine)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def attention_by_formula(attention: Attention, tokens: torch.Tensor, place: Place) -> torch.Tensor:
    """softmax(q k^T / sqrt(d)) v, head by head and sample by sample (Vaswani et al. 2017, equation 1)."""
    size = attention.head_width
    samples = []
    for number, sample in enumerate(tokens):
        projected = sample @ attention.query_key_value.weight.T
        heads = []
        for head in range(tokens.shape[-1] // size):
            own = projected[:, 3 * head * size : 3 * (head + 1) * size]
            query = turned(normalised(own[:, :size], attention.query_norm.weight), place)
            key = turned(normalised(own[:, size : 2 * size], attention.key_norm.weight), place)
            value = own[:, 2 * size :]
            scores = (query @ key.T / size**0.5).exp()
            if place.valid is not None:
                scores = scores * place.valid[number]
            heads.append(scores / scores.sum(-1, keepdim=True) @ value)
        samples.append(torch.cat(heads, dim=-1) @ attention.output.weight.T)
    return torch.stack(samples)


def test_the_feed_forward_layer_is_gate_times_value():
    torch.manual_seed(13)
    layer, tokens = SwiGLU(6).double(), make_tokens(2, 3, 6)

    # Shazeer 2020, equation 6: (Swish(x W) * x V) W2, with Swish(a) = a / (1 + e^-a).
    gate, value = tokens @ layer.gate.weight.T, tokens @ layer.value.weight.T
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
    assert hidden_width(width) == hidden
    assert SwiGLU(width).output.weight.shape == (width, hidden)


@pytest.mark.parametrize("gaps", [False, True])
def test_attention_is_softmax_of_scaled_products_of_turned_queries_and_keys_times_values(gaps):
    attention, tokens = make_attention(12, 3), make_tokens(2, 7, 12)
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[0, [1, 6]], valid[1, 0] = False, False
    place = place_of(7, 4, valid if gaps else None)

    found = attention(tokens, place, ())

    torch.testing.assert_close(found, attention_by_formula(attention, tokens, place), rtol=1e-11, atol=1e-12)


def test_samples_may_have_angles_of_their_own():
    attention, tokens = make_attention(12, 3), make_tokens(2, 7, 12)
    angles = torch.randn(2, 1, 7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(6))

    together = attention(tokens, Place(cosine=angles.cos(), sine=angles.sin(), count=angles.shape[-2]), ())

    for row in range(2):
        own = Place(cosine=angles[row, 0].cos(), sine=angles[row, 0].sin(), count=angles.shape[-2])
        torch.testing.assert_close(together[row : row + 1], attention(tokens[row : row + 1], own, ()))


def test_gradients_of_attention_fit_finite_differences():
    attention, tokens = make_attention(4, 2), make_tokens(1, 3, 4).requires_grad_()
    names, weights = zip(*attention.named_parameters(), strict=True)

    def forward(tokens: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        named = dict(zip(names, weights, strict=True))
        output: torch.Tensor = torch.func.functional_call(attention, named, (tokens, place_of(3, 2), ()))
        return output

    assert torch.autograd.gradcheck(forward, (tokens, *weights))


def test_attention_of_shuffled_tokens_is_the_shuffled_attention():
    attention, tokens, place = make_attention(8, 2), make_tokens(2, 9, 8), place_of(9, 4)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(5))
    shuffled = Place(cosine=place.cosine[order], sine=place.sine[order], count=place.count)

    found = attention(tokens[:, order], shuffled, ())

    torch.testing.assert_close(found, attention(tokens, place, ())[:, order], rtol=1e-12, atol=1e-12)


def test_attention_knows_where_tokens_lie():
    attention, tokens, place = make_attention(8, 2), make_tokens(1, 9, 8), place_of(9, 4)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(5))

    # Tokens that change places are not the same tokens.
    assert not torch.allclose(attention(tokens[:, order], place, ()), attention(tokens, place, ())[:, order], atol=1e-3)


def test_samples_of_a_batch_do_not_see_one_another():
    attention, tokens, place = make_attention(8, 2), make_tokens(3, 5, 8), place_of(5, 4)
    changed = tokens.clone()
    changed[1] += 1

    before, after = attention(tokens, place, ()), attention(changed, place, ())

    torch.testing.assert_close(after[[0, 2]], before[[0, 2]], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(after[1], before[1])


def test_a_block_adds_attention_then_feed_forward_of_normalised_tokens():
    block, tokens, place = make_block(8, 2), make_tokens(2, 5, 8), place_of(5, 4)

    middle = tokens + block.attention(normalised(tokens, block.attention_norm.weight), place, ())
    expected = middle + block.feed_forward(normalised(middle, block.feed_forward_norm.weight))

    torch.testing.assert_close(block(tokens, place, ()), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_block_adds_the_share_of_each_sample(recompute):
    # Shares 0, 1 and 2: of both of its parts.
    block, tokens, place = make_block(8, 2, recompute), make_tokens(3, 5, 8), place_of(5, 4)
    share = torch.tensor([0.0, 1.0, 2.0])

    found = block(tokens, place, (), share)

    scaled = share.double()[:, None, None]
    middle = tokens + scaled * block.attention(normalised(tokens, block.attention_norm.weight), place, ())
    expected = middle + scaled * block.feed_forward(normalised(middle, block.feed_forward_norm.weight))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(found[0], tokens[0])
    torch.testing.assert_close(found[1], block(tokens[1:2], place, ())[0], rtol=1e-12, atol=1e-12)


def test_a_sample_that_leaves_a_block_out_sends_its_weights_no_gradient():
    block, tokens, place = make_block(8, 2), make_tokens(2, 5, 8), place_of(5, 4)

    def gradients(kept: list[float], rows: slice) -> list[torch.Tensor]:
        output = block(tokens[rows], place, (), torch.tensor(kept))
        return list(torch.autograd.grad(output.square().sum(), list(block.parameters())))

    assert not any(gradient.any() for gradient in gradients([0.0, 0.0], slice(0, 2)))
    for both, alone in zip(gradients([0.0, 1.0], slice(0, 2)), gradients([1.0], slice(1, 2)), strict=True):
        torch.testing.assert_close(both, alone, rtol=1e-10, atol=1e-10)


def test_a_block_without_output_weights_passes_its_tokens_on():
    block, tokens = make_block(8, 2), make_tokens(1, 4, 8)
    torch.nn.init.zeros_(block.attention.output.weight)
    torch.nn.init.zeros_(block.feed_forward.output.weight)

    assert torch.equal(block(tokens, place_of(4, 4), ()), tokens)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_gradients_of_a_block_fit_finite_differences(recompute):
    block, tokens = make_block(4, 2, recompute), make_tokens(1, 3, 4).requires_grad_()
    names, weights = zip(*block.named_parameters(), strict=True)

    def forward(tokens: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.func.functional_call(
            block, dict(zip(names, weights, strict=True)), (tokens, place_of(3, 2), (), torch.tensor([1.5]))
        )
        return output

    assert torch.autograd.gradcheck(forward, (tokens, *weights), fast_mode=True)


def test_a_token_sees_all_others():
    # The gradient of one token's output by every other token's input is not zero.
    block, tokens = make_block(8, 2), make_tokens(1, 5, 8).requires_grad_()

    (gradient,) = torch.autograd.grad(block(tokens, place_of(5, 4), ())[0, 2].sum(), tokens)

    assert (gradient[0].abs().amax(-1) > 0).all()


def saved_bytes(recompute: str) -> int:
    """What the backward pass of a block keeps."""
    block, tokens = make_block(16, 2, recompute), make_tokens(2, 64, 16).requires_grad_()
    own = {parameter.data_ptr() for parameter in block.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = block(tokens, place_of(64, 8), ())
    assert output.requires_grad
    return sum(kept.values())


def test_what_is_computed_again_is_not_kept():
    none, selective, full = (saved_bytes(recompute) for recompute in ("none", "selective", "full"))

    # Of 2 x 64 tokens of float64 and width 16, 16 384 bytes: `selective` keeps nothing of the feed-forward layer's
    # gate, value and their product, 48 features each, of width 16: 9 times as much. `full` keeps the tokens alone.
    assert none - selective > 9 * 16_384
    assert full <= 2 * 16_384


def test_a_block_mixes_as_its_mixer_does():
    torch.manual_seed(20)
    mixer = Linear(4, 16, learned=False)
    block, tokens, place = Block(8, 2, mixer), torch.randn(2, 6, 8), place_of(6, 4)

    query, key, value = block.attention.project(tokens, place)
    mixed = mixer(query, key, value, None, ())

    assert query.shape == key.shape == value.shape == (2, 2, 6, 4)
    expected = mixed.transpose(1, 2).flatten(2) @ block.attention.output.weight.T
    torch.testing.assert_close(block.attention(tokens, place, ()), expected)
