"""What random data cannot show: exact visibility, leaks, halves of gradients, poisoned padding."""

import dense
import pytest
import torch
from cases import BY_NAME

import stepwell
from stepwell import masks

INF, NAN = float("inf"), float("nan")


def row_kinds(case):
    """Of the query rows and of the key rows, (batch, rows): sample (-1: padding) and half."""
    q, k = zip(*case.rows(), strict=True)
    return [
        torch.stack([torch.from_numpy(getattr(rows, name)) for rows in side])
        for side in (q, k)
        for name in ("sample", "half")
    ]


def scatter(case, tensors, letter, joined):
    """Writes (batch, rows, heads, dim) back to the tensors q, k or v of a case."""
    first = 0
    for name in (f"{letter}_noisy", f"{letter}_clean") if case.split else (letter,):
        if name in tensors:
            rows = tensors[name].shape[-3]
            part = joined[:, first : first + rows]
            tensors[name] = (part[0] if case.packed else part).clone()
            first += rows


def gradients(case, tensors, dout, dlse=None, **options):
    """out, lse and the gradients of q, k and v, all (batch, rows, ...)."""
    tensors = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    out, lse = case.run(tensors, **options)
    seeds = (out,) if dlse is None else (out, lse)
    douts = (dout,) if dlse is None else (dout, dlse)
    grads = torch.autograd.grad(seeds, list(tensors.values()), douts)
    joined = case.join(dict(zip(tensors, grads, strict=True)))
    return out.detach(), lse.detach(), *joined


def test_one_hot_values_show_the_visible_set(case):
    mask = case.dense_mask()
    keys = mask.shape[-1]
    assert keys <= 256
    tensors = case.tensors(dim_v=-(-keys // 8) * 8, dim=8, heads_q=2, heads_kv=1)
    q, _, v = case.join(tensors)
    scatter(case, tensors, "q", torch.zeros_like(q))
    one_hot = torch.zeros_like(v)
    one_hot[:, torch.arange(keys), :, torch.arange(keys)] = 1.0
    scatter(case, tensors, "v", one_hot)
    out, lse = case.run(tensors)
    seen = mask[:, :, None].expand(-1, -1, out.shape[2], -1)
    assert torch.equal(out[..., :keys] > 0, seen)
    count = mask.sum(-1)[:, None]
    torch.testing.assert_close(lse, count.log().float().expand_as(lse), rtol=1e-6, atol=1e-6)
    assert torch.equal(out.isfinite(), torch.ones_like(out, dtype=torch.bool))


def test_poisoned_padding_changes_nothing(case):
    q_sample, _, k_sample, _ = row_kinds(case)
    tensors = case.tensors()
    q, k, v = case.join(tensors)
    dout = torch.randn(*q.shape[:3], v.shape[-1])
    dlse = torch.randn(q.shape[0], q.shape[2], q.shape[1])
    clean = gradients(case, tensors, dout, dlse)
    poisoned = dict(tensors)
    for letter, x, sample in (("q", q, q_sample), ("k", k, k_sample), ("v", v, k_sample)):
        x = x.clone()
        x[sample < 0] = torch.tensor([NAN, INF, -INF, 1e30]).repeat(x.shape[-1] // 4)
        scatter(case, poisoned, letter, x)
    dout[q_sample < 0] = NAN
    dlse.movedim(1, 2)[q_sample < 0] = INF
    results = gradients(case, poisoned, dout, dlse)
    for name, before, after in zip(("out", "lse", "dq", "dk", "dv"), clean, results, strict=True):
        assert torch.equal(before, after), name
    out, lse, dq, dk, dv = results
    assert not out[q_sample < 0].any()
    assert not dq[q_sample < 0].any()
    assert torch.all(lse.movedim(1, 2)[q_sample < 0] == -INF)
    assert not dk[k_sample < 0].any()
    assert not dv[k_sample < 0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_unseen_keys_change_nothing(case, dtype):
    huge = 1e30 if dtype == torch.float32 else 6e4
    mask = case.dense_mask()
    tensors = case.tensors(dtype)
    q, k, v = case.join(tensors)
    rows = mask.shape[1]
    for row in {0, rows // 3, rows // 2, rows - 1} if rows else ():
        dout = torch.zeros(*q.shape[:3], v.shape[-1], dtype=dtype)
        dout[:, row] = torch.randn(dout[:, row].shape).to(dtype)
        out, lse, dq, dk, dv = gradients(case, tensors, dout)
        changed = dict(tensors)
        for letter, x in (("k", k), ("v", v)):
            x = x.clone()
            x[~mask[:, row]] = huge
            scatter(case, changed, letter, x)
        out2, lse2, dq2, dk2, dv2 = gradients(case, changed, dout)
        assert torch.equal(out[:, row], out2[:, row])
        assert torch.equal(lse[:, :, row], lse2[:, :, row])
        assert torch.equal(dq[:, row], dq2[:, row])
        seen = mask[:, row]
        assert torch.equal(dk[seen], dk2[seen])
        assert torch.equal(dv[seen], dv2[seen])


EQUAL_HALVES = [
    "n16_b4",
    "n16_b4_clean_causal",
    "n16_b4_both_causal",
    "n10_b3",
    "n16_b4_origin6",
    "clean_noisy",
    "packed_7_5_6_b4",
    "halves_7_5_6_b4",
    "halves_views_clean_first",
    "interleaved_views",
    "window6",
    "two_views",
]


@pytest.mark.parametrize("name", EQUAL_HALVES)
def test_no_leak(name):
    case = BY_NAME[name]
    rows = case.rows()
    tensors = case.tensors()
    out, lse = case.run(tensors)
    origins = case.prefix_lens or [0] * len(case.lengths)

    def perturbed(half, view, sample, block):
        """Results after a change of one block of one half's keys and values."""
        changed = dict(tensors)
        for letter in "kv":
            x = case.join(tensors)["qkv".index(letter)].clone()
            for entry, (_, k) in enumerate(rows):
                hit = (k.sample == sample) & (k.half == half) & (k.view == view)
                hit &= (k.position - origins[sample]) // case.mask.block_size == block
                x[entry, torch.from_numpy(hit)] += 1.0
            scatter(case, changed, letter, x)
        return case.run(changed)

    for sample, n in enumerate(case.lengths):
        if case.layout == "batched" and case.seqused is not None:
            n = case.seqused[sample]
        blocks = {(p - origins[sample]) // case.mask.block_size for p in range(n)}
        for block in blocks:
            results = {
                dense.CLEAN: [perturbed(dense.CLEAN, 0, sample, block)],
                dense.NOISY: [
                    perturbed(dense.NOISY, view, sample, block) for view in range(case.views)
                ],
            }
            for entry, (q, _) in enumerate(rows):
                own = (q.position - origins[sample]) // case.mask.block_size == block
                own &= q.sample == sample
                noisy = q.half == dense.NOISY
                for out2, lse2 in results[dense.CLEAN]:
                    same = torch.from_numpy(own & noisy)
                    assert torch.equal(out[entry, same], out2[entry, same])
                    assert torch.equal(lse[entry][:, same], lse2[entry][:, same])
                for view, (out2, lse2) in enumerate(results[dense.NOISY]):
                    same = torch.from_numpy(~(own & noisy & (q.view == view)))
                    assert torch.equal(out[entry, same], out2[entry, same])
                    assert torch.equal(lse[entry][:, same], lse2[entry][:, same])


def test_gradient_halves(case):
    if not isinstance(case.mask, masks.Diffusion):
        pytest.skip("one sequence has no halves")
    _, q_half, _, k_half = row_kinds(case)
    tensors = case.tensors()
    q, _, v = case.join(tensors)
    dout = torch.randn(*q.shape[:3], v.shape[-1])
    on_noisy = torch.where((q_half == dense.NOISY)[..., None, None], dout, 0.0)
    _, _, dq, dk, dv = gradients(case, tensors, on_noisy)
    assert not dq[q_half == dense.CLEAN].any()
    unseen = ~(case.dense_mask() & (q_half == dense.NOISY)[..., None]).any(1)
    assert not dk[unseen].any()
    assert not dv[unseen].any()
    _, _, dq, dk, dv = gradients(case, tensors, dout - on_noisy)
    assert not dq[q_half == dense.NOISY].any()
    assert not dk[k_half == dense.NOISY].any()
    assert not dv[k_half == dense.NOISY].any()


def test_last_clean_block_has_no_gradient_from_noisy_rows():
    q, k, v = (torch.randn(1, 32, 2, 8, requires_grad=True) for _ in range(3))
    out = stepwell.diffusion_attn_func(q, k, v, 4)
    _, dk, dv = torch.autograd.grad(out[:, :16].sum(), (q, k, v))
    assert not dk[:, 28:].any()
    assert not dv[:, 28:].any()
    assert dk[:, 16:28].any()
    assert dv[:, 16:28].any(-1).all()
