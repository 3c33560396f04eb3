import helpers
import pytest
import torch

import stepwell
from stepwell.train import attention
from stepwell.train.attention import make_attention
from stepwell.train.data import seeded
from stepwell.train.objective import draw_noise, noisy_clean

SDPA = make_attention("sdpa")


def all_logits(model, noisy, clean, how=SDPA):
    everywhere = torch.ones_like(noisy, dtype=torch.bool)
    with torch.no_grad():
        logits = model.masked_logits(torch.cat((noisy, clean), 1), everywhere, how)
    return logits.view(*noisy.shape, -1)


@pytest.mark.parametrize(("n", "block_size"), [(16, 4), (15, 4), (10, 3), (8, 16), (6, 1)])
def test_dense_mask_is_the_librarys(n, block_size):
    mask = attention._dense_training_mask(n, block_size, helpers.CPU)
    assert torch.equal(mask, stepwell.diffusion_mask(2 * n, block_size, as_numpy=False)[0])


def test_dense_mask_has_the_pairs_of_block_diffusion():
    assert attention._dense_training_mask(16, 4, helpers.CPU).sum() == 320
    assert attention._dense_training_mask(15, 4, helpers.CPU).sum() == 282


def test_attentions_agree():
    model = helpers.random_model()
    tokens = helpers.random_tokens(3, 32)
    noise = draw_noise(3, 32, 4, seeded(0))
    found, gradients = {}, {}
    for name in ("stepwell", "sdpa"):
        model.zero_grad()
        logits = model.masked_logits(
            noisy_clean(tokens, noise.masked), noise.masked, make_attention(name)
        )
        logits.square().sum().backward()
        found[name] = logits.detach()
        gradients[name] = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(found["stepwell"], found["sdpa"], rtol=1e-4, atol=1e-4)
    scale = gradients["sdpa"].norm()
    assert (gradients["stepwell"] - gradients["sdpa"]).norm() < 1e-5 * scale


@pytest.mark.parametrize("name", ["stepwell", "sdpa"])
def test_predictions_of_a_block_see_it_and_the_clean_text_before_it(name):
    model, how = helpers.random_model(), make_attention(name)
    clean = helpers.random_tokens(1, 32)
    noisy = noisy_clean(clean, draw_noise(1, 32, 4, seeded(0)).masked)[:, :32]
    before = all_logits(model, noisy, clean, how)
    block = slice(12, 16)  # the fourth

    other_noisy = noisy.clone()
    other_noisy[:, :12], other_noisy[:, 16:] = 1, 2
    later_clean = clean.clone()
    later_clean[:, 12:] = 3
    after = all_logits(model, other_noisy, later_clean, how)
    torch.testing.assert_close(after[:, block], before[:, block], rtol=0, atol=1e-5)

    for seen in (0, 11):
        changed = clean.clone()
        changed[:, seen] += 1
        assert (all_logits(model, noisy, changed % 256, how)[:, block] != before[:, block]).any()
    own = noisy.clone()
    own[:, 15] = (own[:, 15] + 1) % 257
    assert (all_logits(model, own, clean, how)[:, 12] != before[:, 12]).any()


def test_positions_count_from_0_in_both_halves():
    """A noisy token and the clean token at its place have the same rotation."""
    model = helpers.random_model()
    x = torch.randn(1, 1, 1, 8).expand(1, 64, 1, 8)
    rotated = model.rotary(x, torch.arange(32).repeat(2))
    torch.testing.assert_close(rotated[:, :32], rotated[:, 32:], rtol=0, atol=0)


def test_rotation_keeps_lengths_and_depends_on_distance_alone():
    model = helpers.random_model()
    q, k = torch.randn(2, 1, 32, 1, 8).unbind(0)
    q, k = q[:, :1].expand_as(q), k[:, :1].expand_as(k)
    positions = torch.arange(32)
    rq, rk = model.rotary(q, positions), model.rotary(k, positions)
    torch.testing.assert_close(rq.norm(dim=-1), q.norm(dim=-1))
    scores = torch.einsum("bqhd,bkhd->qk", rq, rk)
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1], rtol=1e-4, atol=1e-5)
    assert (scores[0, 0] - scores[0, 7]).abs() > 1e-3


def test_rows_that_are_not_wanted_do_not_change_the_others():
    model = helpers.random_model()
    tokens = helpers.random_tokens(2, 64)
    positions = torch.arange(32).repeat(2)

    def attend(layer, q, k, v):
        return SDPA.training(q, k, v, 4)

    with torch.no_grad():
        everything = model(tokens, positions, attend)
        some = model(tokens, positions, attend, keep=32)
    assert everything.shape == (2, 64, 32)
    torch.testing.assert_close(some, everything[:, :32])


def test_flex_agrees_or_says_why_not():
    reason = attention.why_not("flex", helpers.CPU, "float32")
    if reason is not None:
        assert "CPU" in reason
        return
    q, k, v = (torch.randn(1, 64, h, 16) for h in (4, 2, 2))
    torch.testing.assert_close(
        make_attention("flex").training(q, k, v, 4), SDPA.training(q, k, v, 4), rtol=1e-4, atol=1e-5
    )


def test_initial_weights_depend_on_the_seed():
    first, same, other = (helpers.random_model(seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.embedding.weight, same.embedding.weight)
    assert not torch.equal(first.embedding.weight, other.embedding.weight)
