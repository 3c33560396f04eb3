import itertools
import math

import helpers
import pytest
import torch

from stepwell.train.attention import make_attention
from stepwell.train.config import TrainConfig
from stepwell.train.data import seeded
from stepwell.train.evaluate import held_out_bound
from stepwell.train.loop import new_run
from stepwell.train.model import uniform_bits
from stepwell.train.objective import draw_noise, noisy_clean, weighted_nll


def estimates(loss_of_pattern, block_size, kind, windows, blocks):
    """The estimate of each window, per block, of a bound whose losses depend on the mask alone."""
    noise = draw_noise(windows, blocks * block_size, block_size, seeded(5), kind=kind)
    masked = noise.masked.view(-1, block_size)
    weight = noise.weight.view(-1, block_size)
    place = 2 ** torch.arange(block_size)
    losses = loss_of_pattern[(masked * place).sum(1)]
    return (losses * masked * weight).sum(1).view(windows, blocks).mean(1)


@pytest.mark.parametrize("kind", ["count", "time"])
@pytest.mark.parametrize(("block_size", "blocks"), [(1, 8), (3, 4), (4, 6), (4, 16), (5, 3)])
def test_estimate_is_the_integral_over_noise_levels(kind, block_size, blocks):
    """Against int_0^1 1/t t^k (1-t)^(b-k) dt = B(k, b-k+1), for losses of every mask."""
    generator = torch.Generator().manual_seed(block_size)
    losses = torch.rand(2**block_size, block_size, generator=generator).double()
    expected = 0.0
    for pattern in itertools.product((0, 1), repeat=block_size):
        k = sum(pattern)
        if k:
            beta = math.gamma(k) * math.gamma(block_size - k + 1) / math.gamma(block_size + 1)
            index = sum(bit << i for i, bit in enumerate(pattern))
            expected += beta * sum(losses[index, i] for i in range(block_size) if pattern[i])
    found = estimates(losses, block_size, kind, windows=20_000, blocks=blocks)
    error = found.std() / math.sqrt(len(found))
    # Levels below 1e-3 are clamped in kind "time": a bias below 1e-3 per token.
    allowed = 1e-9 + (1e-3 * block_size if kind == "time" else 0)
    assert abs(found.mean() - expected) < 4.5 * error + allowed


def test_counts_have_less_variance_than_levels():
    losses = torch.ones(16, 4)
    by_count = estimates(losses, 4, "count", 2000, 16)
    by_time = estimates(losses, 4, "time", 2000, 16)
    assert by_count.std() < 1e-6  # b/k times k tokens: exactly b
    assert by_time.std() > 0.1


def test_levels_of_a_window_are_spread_evenly():
    noise = draw_noise(50, 64, 4, seeded(1), kind="count")
    counts = noise.masked.view(50, 16, 4).sum(2)
    for k in range(1, 5):
        assert ((counts == k).sum(1) == 4).all()
    levels = 1 / draw_noise(50, 64, 4, seeded(1), kind="time").weight.view(50, 16, 4)[..., 0]
    strata = (levels.sort(1).values * 16).floor()
    assert (strata == torch.arange(16)).all()


def test_clip_is_the_range_of_the_levels():
    noise = draw_noise(100, 64, 4, seeded(2), kind="time", clip=(0.3, 0.8))
    levels = 1 / noise.weight
    assert 0.3 <= levels.min() < 0.31
    assert 0.79 < levels.max() <= 0.8


def test_kind_is_checked():
    with pytest.raises(ValueError, match=r"kind is 'none'; accepted: count, time"):
        draw_noise(1, 8, 4, seeded(0), kind="none")


def test_noise_is_the_same_for_a_seed():
    first, second = (draw_noise(3, 32, 4, seeded(7, 2, 5)) for _ in range(2))
    assert torch.equal(first.masked, second.masked)
    assert not torch.equal(first.masked, draw_noise(3, 32, 4, seeded(7, 2, 6)).masked)


def test_noisy_half_hides_masked_tokens_only():
    tokens = helpers.random_tokens(2, 8)
    masked = torch.rand(2, 8) < 0.5
    joined = noisy_clean(tokens, masked)
    assert torch.equal(joined[:, 8:], tokens)
    assert (joined[:, :8][masked] == 256).all()
    assert torch.equal(joined[:, :8][~masked], tokens[~masked])


def test_untrained_model_has_the_bound_of_uniform_predictions():
    """8 bits per byte, for any text and any mask: the mask token is never predicted."""
    run = new_run(helpers.MODEL, TrainConfig(steps=1), helpers.CPU)
    tokens = helpers.random_tokens(6, 32)
    bound = held_out_bound(run.model, tokens, make_attention("sdpa"))
    assert bound.bits == pytest.approx(uniform_bits(), abs=1e-5)
    assert bound.bits == pytest.approx(8, abs=1e-5)
    assert bound.standard_error < 1e-5
    assert bound.windows == 6


def test_gradients_of_masked_tokens_carry_their_weight():
    tokens = helpers.random_tokens(2, 8)
    noise = draw_noise(2, 8, 4, seeded(3))
    logits = torch.zeros(int(noise.masked.sum()), 256, requires_grad=True)
    terms = weighted_nll(logits, tokens, noise)
    torch.testing.assert_close(terms, math.log(256) * noise.weight[noise.masked])
    terms.sum().backward()
    wrong_byte = (tokens[noise.masked] + 1) % 256
    found = logits.grad.gather(1, wrong_byte[:, None])[:, 0]
    torch.testing.assert_close(found, noise.weight[noise.masked] / 256)
