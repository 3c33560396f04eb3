"""Dropout: which pairs drop, how many, and that backward drops the same."""

import dense
import pytest
import torch
from cases import BY_NAME

import stepwell

P = 0.25
CASES_WITH_DROPOUT = [
    "batch",
    "views3_clean_first",
    "interleaved",
    "halves_tail",
    "split_shard",
    "split_packed",
    "block_causal_replay",
    "long",
]


def kept_pairs(case, seed, heads_q=4, heads_kv=2, p=P):
    """bool (batch, heads, rows, keys), read from one-hot values and equal weights."""
    mask = case.dense_mask()
    keys = mask.shape[-1]
    tensors = case.tensors(dim=8, dim_v=-(-keys // 8) * 8, heads_q=heads_q, heads_kv=heads_kv)
    for name in tensors:
        if name.startswith("q"):
            tensors[name].zero_()
    first = 0
    for name in ("v_noisy", "v_clean") if case.split else ("v",):
        rows = tensors[name].shape[-3]
        tensors[name].zero_()
        tensors[name][..., torch.arange(rows), :, first + torch.arange(rows)] = 1.0
        first += rows
    out, _ = case.run(tensors, dropout_p=p, dropout_seed=seed)
    out = out[..., :keys].transpose(1, 2)
    kept = out > 0
    weight = mask[:, None] / (
        mask.sum(-1)[:, None, :, None] * (1 - dense.rounded_dropout(p))
    ).clamp(min=1e-9)
    torch.testing.assert_close(out, torch.where(kept, weight, 0.0).float(), rtol=1e-5, atol=0)
    return kept


@pytest.mark.parametrize("name", CASES_WITH_DROPOUT)
def test_forward_and_backward_drop_the_same_pairs(name):
    case = BY_NAME[name]
    keep = kept_pairs(case, seed=11)
    assert torch.equal(keep, kept_pairs(case, seed=11))
    tensors = {n: x.requires_grad_() for n, x in case.tensors().items()}
    out, lse = case.run(tensors, dropout_p=P, dropout_seed=11)
    dout = torch.randn_like(out)
    grads = torch.autograd.grad(out, list(tensors.values()), dout)
    exact = {n: x.detach().double().requires_grad_() for n, x in tensors.items()}
    expected, expected_lse = dense.attention(
        *case.join(exact), case.dense_mask(), keep=keep, dropout_p=P
    )
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-6, atol=1e-6)
    expected_grads = torch.autograd.grad(expected, list(exact.values()), dout.double())
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad.double(), expected_grad, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_statistics(p):
    case = BY_NAME["long"]
    mask = case.dense_mask()[:, None]
    seeds = range(8)
    kept = torch.stack([kept_pairs(case, seed, p=p) for seed in seeds]).double()
    visible = int(mask.sum())
    count = len(seeds) * 4 * visible
    p = dense.rounded_dropout(p)
    deviation = (p * (1 - p) / count) ** 0.5
    assert abs(kept.sum().item() / count - (1 - p)) < 5 * deviation
    # Neighbours (seeds, heads, rows, keys) drop independently, and so do pairs 8 apart, which have
    # their numbers from one counter.
    seen = mask[None].expand(kept.shape)
    for axis, distance in ((0, 1), (2, 1), (3, 1), (3, 8), (4, 1), (4, 8)):
        length = kept.shape[axis] - distance
        first, second = (kept.narrow(axis, at, length) for at in (0, distance))
        both = seen.narrow(axis, 0, length) & seen.narrow(axis, distance, length)
        pairs = int(both.sum())
        joint = (first * second)[both].sum().item() / pairs
        assert abs(joint - (1 - p) ** 2) < 6 * (0.25 / pairs) ** 0.5


def test_layouts_drop_the_same_pairs():
    n, heads = 12, 4
    q, k, v = torch.randn(3, 1, 2 * n, heads, 8).unbind()
    options = {"dropout_p": P, "dropout_seed": 5}
    expected = stepwell.diffusion_attn_func(q, k, v, 4, **options)[0]
    q, k, v = q[0], k[0], v[0]
    packed = stepwell.diffusion_attn_varlen_func(q, k, v, [0, 2 * n], n, 4, **options)
    assert torch.equal(packed, expected)
    halves = stepwell.diffusion_attn_varlen_func(q, k, v, [0, n], n, 4, layout="halves", **options)
    assert torch.equal(halves, expected)
    split = stepwell.diffusion_attn_split_func(
        *(x[None, :n] for x in (q, k, v)),
        *(x[None, n:] for x in (k, v)),
        4,
        q_clean=q[None, n:],
        **options,
    )
    assert torch.equal(torch.cat(split, dim=1)[0], expected)


def attend(**options):
    x = torch.linspace(-1, 1, 24 * 2 * 8).view(1, 24, 2, 8)
    return stepwell.diffusion_attn_func(x, x, x, 4, dropout_p=P, **options)


def test_seeds():
    by_seed = [attend(dropout_seed=seed) for seed in (0, 1, -1, 2**64 - 1, 2**63)]
    assert torch.equal(by_seed[2], by_seed[3])
    for i, j in ((0, 1), (1, 2), (0, 4)):
        assert not torch.equal(by_seed[i], by_seed[j])
    assert torch.equal(attend(dropout_seed=torch.tensor([1, 0])), by_seed[1])
    assert not torch.equal(attend(dropout_seed=torch.tensor([1, 1])), by_seed[1])


def test_seed_from_torch_generator():
    torch.manual_seed(7)
    first, second = attend(), attend()
    torch.manual_seed(7)
    assert torch.equal(attend(), first)
    assert torch.equal(attend(), second)
    assert not torch.equal(first, second)


def test_no_dropout_leaves_the_generator_alone():
    x = torch.randn(1, 8, 1, 8)
    state = torch.get_rng_state()
    stepwell.diffusion_attn_func(x, x, x, 4)
    assert torch.equal(torch.get_rng_state(), state)


def test_compiled():
    function = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.manual_seed(7)
    expected = attend()
    torch.manual_seed(7)
    assert torch.equal(function(), expected)
    assert torch.equal(function(dropout_seed=3), attend(dropout_seed=3))
    state = torch.tensor([3, 4])
    assert torch.equal(function(dropout_seed=state), attend(dropout_seed=state))


def test_state_changes_between_calls():
    state = torch.tensor([3, 0])
    first = attend(dropout_seed=state)
    state[1] += 1
    assert not torch.equal(attend(dropout_seed=state), first)
