"""Forward and backward against dense float64 attention, within twice plain torch's error."""

import math

import dense
import pytest
import torch
from cases import BY_NAME
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import joint_cases, sequence_cases, split_cases

import stepwell
from stepwell import masks

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Plain torch makes no error at all where every row sees one key: that of a few roundings instead.
FLOOR = {torch.float32: 2**-22, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def results(case, tensors, dout, dlse, run):
    """out, lse and the gradients of the tensors; run(tensors) gives out and lse (or None)."""
    tensors = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    out, lse = run(tensors)
    sees = case.dense_mask().any(-1)
    loss = (out * dout.to(out.dtype))[sees].sum()
    if lse is not None:
        finite = lse.isfinite()
        loss = loss + (lse[finite] * dlse.to(lse.dtype)[finite]).sum()
    grads = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
    grads = [
        torch.zeros_like(x) if grad is None else grad
        for x, grad in zip(tensors.values(), grads, strict=True)
    ]
    return [out.detach(), None if lse is None else lse.detach(), *grads]


def norm(x):
    return x.double().nan_to_num(neginf=0.0).norm().item()


def assert_within_twice_plain_torch(case, tensors, scale=None, softcap=0.0, deterministic=False):
    """Norms of the errors, against the larger one of torch's eager operators and its SDPA."""
    dtype = next(iter(tensors.values())).dtype
    mask = case.dense_mask()
    q, _, v = case.join(tensors)
    dout = torch.randn(*q.shape[:3], v.shape[-1]).to(dtype)
    dlse = torch.randn(q.shape[0], q.shape[2], q.shape[1])

    def eager(tensors):
        return dense.attention(*case.join(tensors), mask, scale=scale, softcap=softcap)

    def sdpa(tensors):
        q, k, v = (x.transpose(1, 2) for x in case.join(tensors))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask[:, None], scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2), None

    def ours(tensors):
        return case.run(tensors, softmax_scale=scale, softcap=softcap, deterministic=deterministic)

    exact_tensors = {name: x.double() for name, x in tensors.items()}
    exact = results(case, exact_tensors, dout, dlse, eager)
    plain = [results(case, tensors, dout, dlse, eager)]
    if not softcap:
        no_dlse = torch.zeros_like(dlse)
        sdpa_exact = results(case, exact_tensors, dout, no_dlse, eager)
        plain.append(results(case, tensors, dout, no_dlse, sdpa))
    sees = mask.any(-1)
    names = ["out", "lse", *(f"d{name}" for name in tensors)]
    actual = results(case, tensors, dout, dlse, ours)
    for i, (name, result) in enumerate(zip(names, actual, strict=True)):
        expected = exact[i]
        assert result.shape == expected.shape
        assert result.dtype == (torch.float32 if name == "lse" else dtype)
        if name == "lse":
            assert torch.equal(result.isinf(), expected.isinf())
            assert torch.equal(result.isinf(), ~sees[:, None].expand_as(result))
        if name == "out":
            assert not result[~sees].any()
        errors = [norm(plain[0][i] - expected)]
        if len(plain) > 1 and name != "lse":
            difference = plain[1][i] - sdpa_exact[i]
            errors.append(norm(difference[sees] if name == "out" else difference))
        bound = 2 * max(errors) + FLOOR[dtype] * norm(expected)
        error = norm(result - expected)
        assert error <= bound, f"{name}: error {error}, bound {bound}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_case(case, dtype):
    assert_within_twice_plain_torch(case, case.tensors(dtype))


@given(
    joint_cases(longest=70) | split_cases(longest=80) | sequence_cases(longest=150),
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    st.sampled_from([(8, 8), (16, 40), (32, 32), (72, 64)]),
)
@settings(max_examples=80)
def test_fuzz(fuzz, heads, dims):
    torch.manual_seed(0)
    tensors = fuzz.tensors(heads_q=heads[0], heads_kv=heads[1], dim=dims[0], dim_v=dims[1])
    q, _, v = fuzz.join(tensors)
    dout = torch.randn(*q.shape[:3], v.shape[-1])
    dlse = torch.randn(q.shape[0], q.shape[2], q.shape[1])
    mask = fuzz.dense_mask()
    exact = results(
        fuzz,
        {name: x.double() for name, x in tensors.items()},
        dout,
        dlse,
        lambda tensors: dense.attention(*fuzz.join(tensors), mask),
    )
    actual = results(fuzz, tensors, dout, dlse, fuzz.run)
    for i, (result, expected) in enumerate(zip(actual, exact, strict=True)):
        tolerance = 5e-6 if i < 2 else 5e-5
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("scale", [15, 150, 1500])
def test_large_scores(scale):
    case = BY_NAME["batch"]
    tensors = case.tensors()
    tensors["q"] = tensors["q"] * scale
    assert_within_twice_plain_torch(case, tensors)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_one_key_have_no_gradient(dtype):
    q, k, v, dout = (torch.randn(2, 40, 3, 64, dtype=dtype) for _ in range(4))
    out, lse = stepwell.attention(q, k, v, masks.Window(0, 0), return_lse=True)
    dq, dk, dv = stepwell.attention_backward(dout, q, k, v, out, lse, masks.Window(0, 0))
    assert not dq.any()
    assert not dk.any()
    assert torch.equal(dv, dout)


def test_backward_of_a_shard_of_the_keys():
    """out and lse of all keys, backward over some of them: the terms of the whole gradient."""
    q, k, v, dout = (torch.randn(1, 48, 2, 32) for _ in range(4))
    out, lse = stepwell.attention(q, k, v, return_lse=True)
    dq, dk, dv = stepwell.attention_backward(dout, q, k, v, out, lse)
    shards = [(0, 5), (5, 47), (47, 48)]
    parts = [
        stepwell.attention_backward(dout, q, k[:, a:b], v[:, a:b], out, lse) for a, b in shards
    ]
    torch.testing.assert_close(sum(part[0] for part in parts), dq)
    torch.testing.assert_close(torch.cat([part[1] for part in parts], 1), dk)
    torch.testing.assert_close(torch.cat([part[2] for part in parts], 1), dv)


@pytest.mark.parametrize(("weight", "others"), [(10, 5e-6), (60, 3e-5), (300, 1e-4), (20, 1e-2)])
def test_backward_of_a_shard_with_nearly_all_the_mass(weight, others):
    q, k, v, dout = (torch.randn(1, 128, 2, 8) for _ in range(4))
    q[..., 0], k[..., 0] = 8**0.5, weight
    k[:, 64:, :, 0] += math.log(others)
    v[:, 64:] *= 100
    args = [x.double().requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad(
        dense.attention(*args, torch.ones(1, 128, 128, dtype=torch.bool))[0], args, dout.double()
    )
    out, lse = stepwell.attention(q, k, v, return_lse=True)
    parts = [
        stepwell.attention_backward(dout, q, k[:, a:b], v[:, a:b], out, lse)
        for a, b in [(0, 64), (64, 128)]
    ]
    dq = sum(part[0].double() for part in parts)
    # What rounding lse costs any code that starts from it.
    assert norm(dq - expected[0]) <= 2**-22 * lse.abs().max() * norm(k) / 8**0.5


@pytest.mark.parametrize("keys", [100, 1000, 4000, 20000])
def test_uniform_rows(keys):
    q, k, v, dout = (torch.randn(1, n, 2, 16) for n in (8, keys, keys, 8))
    for scale in (0.0, 1.0):
        exact, plain, ours = [], [], []
        for kind, dtype in ((exact, torch.float64), (plain, torch.float32), (ours, None)):
            args = [x.to(dtype or torch.float32).requires_grad_() for x in (q * scale, k, v)]
            if dtype is None:
                out = stepwell.attention(*args)
            else:
                mask = torch.ones(1, 8, keys, dtype=torch.bool)
                out = dense.attention(*args, mask)[0]
            kind += [out, *torch.autograd.grad(out, args, dout.to(out.dtype))]
        for result, plain_result, expected in zip(ours, plain, exact, strict=True):
            bound = 2 * norm(plain_result - expected) + FLOOR[torch.float32] * norm(expected)
            assert norm(result - expected) <= bound


@pytest.mark.parametrize("scale", [1e8, 1e9, 1e10, 1e12])
def test_large_finite_scores_have_finite_gradients(scale):
    q, k, v = (torch.randn(1, 20, 2, 8) for _ in range(3))
    args = [q.requires_grad_(), (k * scale).requires_grad_(), v.requires_grad_()]
    grads = torch.autograd.grad(stepwell.attention(*args, "causal").sum(), args)
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("name", ["batch", "interleaved_views", "split_shard", "window_2_1"])
@pytest.mark.parametrize(
    "options", [{"softcap": 1.5}, {"scale": 0.7}, {"scale": -0.3, "softcap": 2.0}]
)
def test_scale_and_softcap(name, options):
    case = BY_NAME[name]
    assert_within_twice_plain_torch(case, case.tensors(), **options)


@pytest.mark.parametrize(("heads_q", "heads_kv"), [(1, 1), (6, 6), (5, 1), (6, 2), (14, 2)])
def test_head_ratios(heads_q, heads_kv):
    case = BY_NAME["split_packed"]
    assert_within_twice_plain_torch(case, case.tensors(heads_q=heads_q, heads_kv=heads_kv))


@pytest.mark.parametrize(("dim", "dim_v"), [(8, 8), (64, 64), (72, 40), (128, 128), (256, 256)])
def test_head_dims(dim, dim_v):
    case = BY_NAME["long"]
    tensors = case.tensors(dim=dim, dim_v=dim_v, heads_q=2, heads_kv=1)
    assert_within_twice_plain_torch(case, tensors)


def test_against_sdpa():
    q, k, v = (torch.randn(2, 4, 60, 32, requires_grad=True) for _ in range(3))
    mask = stepwell.diffusion_mask(60, 7, batch=2, clean="causal")
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
    inputs = [x.transpose(1, 2) for x in (q, k, v)]
    out = stepwell.diffusion_attn_func(*inputs, 7, clean="causal").transpose(1, 2)
    torch.testing.assert_close(out, expected, rtol=0, atol=3e-6)
    dout = torch.randn_like(out)
    grads = torch.autograd.grad(out, (q, k, v), dout)
    expected_grads = torch.autograd.grad(expected, (q, k, v), dout)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=0, atol=1e-5)


def test_attention_is_the_named_functions():
    case = BY_NAME["batch"]
    tensors, mask, options = case.tensors(), case.mask, case.options()
    expected, lse = case.run(tensors)
    out, out_lse = stepwell.attention(**tensors, mask=mask, **options, return_lse=True)
    assert torch.equal(out, expected)
    assert torch.equal(out_lse, lse)
    assert torch.equal(stepwell.attention(**tensors, mask=mask, **options), expected)
    packed = BY_NAME["interleaved"]
    tensors = packed.tensors()
    out = stepwell.attention(**tensors, mask=packed.mask, **packed.options())
    assert torch.equal(out[None], packed.run(tensors)[0])
    halves = BY_NAME["halves_tail"]
    tensors = halves.tensors()
    out = stepwell.attention(**tensors, mask=halves.mask, layout="halves", **halves.options())
    assert torch.equal(out[None], halves.run(tensors)[0])
    x = torch.randn(1, 9, 2, 8)
    assert torch.equal(
        stepwell.attention(x, x, x, "causal"), stepwell.block_causal_attn_func(x, x, x, 1)
    )
    assert torch.equal(stepwell.attention(x, x, x), stepwell.attention(x, x, x, masks.Full()))


@pytest.mark.parametrize(
    "name", ["batch", "views3_clean_first", "interleaved", "halves_tail", "causal_offset"]
)
def test_explicit_backward(name):
    case = BY_NAME[name]
    tensors = {n: x.requires_grad_() for n, x in case.tensors().items()}
    options = case.options()
    layout = {} if case.layout.startswith("sequence") else {"layout": case.layout}
    out, lse = stepwell.attention(**tensors, mask=case.mask, **layout, **options, return_lse=True)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    expected = torch.autograd.grad((out, lse), list(tensors.values()), (dout, dlse))
    args = [dout, *tensors.values(), out.detach(), lse.detach()]
    with torch.no_grad():
        results = stepwell.attention_backward(*args, case.mask, dlse=dlse, **layout, **options)
        assert all(map(torch.equal, results, expected))
        if isinstance(case.mask, masks.Diffusion):
            results = stepwell.diffusion_attn_backward(
                *args, dlse=dlse, **vars(case.mask), **layout, **options
            )
            assert all(map(torch.equal, results, expected))


@pytest.mark.parametrize("name", ["split_shard", "split_no_clean_queries", "split_packed"])
def test_explicit_split_backward(name):
    case = BY_NAME[name]
    tensors = {n: x.requires_grad_() for n, x in case.tensors().items()}
    options = {"clean": case.mask.clean, "block_size": case.mask.block_size, **case.options()}
    out, out_clean, lse, lse_clean = stepwell.diffusion_attn_split_func(
        **tensors, **options, return_lse=True
    )
    results = [x for x in (out, lse, out_clean, lse_clean) if x is not None]
    douts = [torch.randn_like(x) for x in results]
    expected = torch.autograd.grad(results, list(tensors.values()), douts)
    names = ["dout_noisy", "dlse_noisy", "dout_clean", "dlse_clean"]
    with torch.no_grad():
        gradients = stepwell.diffusion_attn_split_backward(
            **tensors,
            out_noisy=out,
            lse_noisy=lse,
            **({} if out_clean is None else {"out_clean": out_clean, "lse_clean": lse_clean}),
            **dict(zip(names, douts, strict=False)),
            **options,
        )
    names = ["q_noisy", "k_noisy", "v_noisy", "k_clean", "v_clean", "q_clean"]
    by_name = dict(zip(names, gradients, strict=True))
    assert (by_name["q_clean"] is not None) == case.has_clean_queries
    for name, grad in zip(tensors, expected, strict=True):
        assert torch.equal(by_name[name], grad)
