"""The CUDA backend against dense float64 attention on the CPU, and what only a GPU has: streams,
graphs, devices, compiled kernels."""

import concurrent.futures
import logging
import os
import subprocess
import sys
import threading
import unittest.mock

import dense
import pytest
import torch
from cases import BY_NAME, CASES, Case
from test_accuracy import assert_within_twice_plain_torch
from test_probes import INF, NAN, gradients, row_kinds, scatter

import stepwell
from stepwell import _eager, masks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = [BF16, F16, F32]
every_kernel = pytest.mark.parametrize("dtype", [BF16, F32], ids=str)  # of 16 bits, of float32


class CudaCase(Case):
    """A case whose function runs on the GPU; tensors stay on the CPU."""

    def __init__(self, case):
        super().__init__(**vars(case))

    def function(self):
        function, arguments = super().function()
        return function, {
            name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in arguments.items()
        }

    def run(self, tensors, **extra):
        extra = {n: x.cuda() if isinstance(x, torch.Tensor) else x for n, x in extra.items()}
        out, lse = super().run({name: x.cuda() for name, x in tensors.items()}, **extra)
        return out.cpu(), lse.cpu()


every_case = pytest.mark.parametrize(
    "gpu_case", [CudaCase(case) for case in CASES], ids=[case.name for case in CASES]
)


def on_cuda(name):
    return CudaCase(BY_NAME[name])


# Tiles have 64 keys and 128 rows: lengths around them, blocks that straddle them.
D = masks.Diffusion
LONG = [
    Case("n64_b16", "batched", [64, 64], D(16)),
    Case("n128_b32", "batched", [128], D(32)),
    Case("n129_b24", "batched", [129, 129], D(24, clean="causal"), prefix_lens=[0, 7]),
    Case("n300_b100", "batched", [300], D(100, noisy="causal"), seqused=[277]),
    Case("n257_b1", "batched", [257], D(1)),
    Case("window_gaps", "batched", [700], D(8, clean_window=9)),
    Case("views", "batched", [140, 140], D(12, num_views=3, order="clean_noisy"), seqused=[140, 3]),
    Case("interleaved_long", "interleaved", [200, 0, 1, 333], D(20), tail=150),
    Case("halves_long", "halves", [200, 64, 1, 333], D(64, clean="causal"), tail=70),
    Case("split_long", "split", [(130, 420, 150)], D(10), noisy_offset=290, clean_q_offset=270),
    Case(
        "split_table_gaps",
        "split",
        [(96, 900, 0)],
        D(32),
        block_ranges=[[0, 1], [850, 900], [300, 310]],
    ),
    Case("full_long", "sequence", [(190, 450), (190, 450)], masks.Full(), seqused_kv=[450, 65]),
    Case("window_long", "sequence", [(500, 500)], masks.Window(70, 3)),
    Case("causal_packed_long", "sequence_packed", [(129, 300), (0, 5), (260, 260)], masks.Causal()),
]


def test_native_kernels_are_found():
    q = torch.randn(1, 32, 2, 64, dtype=BF16, device="cuda")
    assert stepwell.diffusion_attn_func(q, q, q, 4).is_cuda


@every_case
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_case(gpu_case, dtype):
    assert_within_twice_plain_torch(gpu_case, gpu_case.tensors(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("long", LONG, ids=lambda case: case.name)
def test_long_cases(long, dtype):
    assert_within_twice_plain_torch(CudaCase(long), long.tensors(dtype, dim=64, dim_v=64))


@pytest.mark.parametrize("name", ["batch", "interleaved_views", "split_shard", "window_2_1"])
@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 1.5},
        {"scale": 0.7},
        {"scale": 0.0},
        {"scale": -0.3},
        {"scale": -0.3, "deterministic": True},
        {"scale": -0.3, "softcap": 2.0},
    ],
    ids=str,
)
def test_scale_and_softcap(name, options):
    case = on_cuda(name)
    assert_within_twice_plain_torch(case, case.tensors(BF16), **options)


@pytest.mark.parametrize(("heads_q", "heads_kv"), [(1, 1), (6, 6), (5, 1), (6, 2), (14, 2)])
@every_kernel
def test_head_ratios(heads_q, heads_kv, dtype):
    case = on_cuda("split_packed")
    assert_within_twice_plain_torch(case, case.tensors(dtype, heads_q=heads_q, heads_kv=heads_kv))


HEAD_DIMS = [8, 64, 72, 96, 128, 136, 192, 200, 256]


@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize(
    ("dim", "dim_v"), [*zip(HEAD_DIMS, HEAD_DIMS, strict=True), (192, 128), (64, 256), (256, 64)]
)
@every_kernel
def test_head_dims(dim, dim_v, softcap, dtype):
    case = CudaCase(Case("head_dims", "batched", [150], D(20, clean="causal"), prefix_lens=[3]))
    tensors = case.tensors(dtype, dim=dim, dim_v=dim_v, heads_q=4, heads_kv=2)
    assert_within_twice_plain_torch(case, tensors, softcap=softcap)


@every_kernel
def test_large_scores(dtype):
    case = CudaCase(Case("large", "batched", [200], D(16)))
    tensors = case.tensors(dtype, dim=64, dim_v=64)
    tensors = {name: x * 10 if name in ("q", "k") else x for name, x in tensors.items()}
    assert_within_twice_plain_torch(case, tensors)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_errors_have_no_bias(dtype):
    """Errors, and errors away from zero, average out over many draws: nothing is truncated."""
    case = Case("bias", "batched", [80], D(16))
    mask = case.dense_mask().cuda()
    draws = 64
    means = {name: [] for name in ("out", "dq", "dk", "dv")}
    for _ in range(draws):
        q, k, v, dout = torch.randn(4, 1, 160, 2, 64, device="cuda").to(dtype).unbind()
        exact = [x.double().requires_grad_() for x in (q, k, v)]
        exact_out, _ = dense.attention(*exact, mask)
        expected = (exact_out, *torch.autograd.grad(exact_out, exact, dout.double()))
        tensors = [x.requires_grad_() for x in (q, k, v)]
        out = stepwell.diffusion_attn_func(*tensors, 16)
        results = (out, *torch.autograd.grad(out, tensors, dout))
        for name, result, correct in zip(means, results, expected, strict=True):
            error = (result.double() - correct).detach()
            mean = torch.stack([error.mean(), (error * correct.sign()).mean()])
            means[name].append(torch.cat([mean, correct.detach().abs().mean()[None]]))
    for name, values in means.items():
        values = torch.stack(values)
        bias = values[:, :2].mean(0).abs()
        standard_error = values[:, :2].std(0) / draws**0.5
        # Past four standard errors without a bias: once in 6000, and the draws are fixed. In
        # float32 the exponential's polynomial shows: half an ulp at most.
        allowed = 2**-24 * values[:, 2].mean() if dtype == torch.float32 else 0.0
        assert (bias < 4 * standard_error + allowed).all(), (name, bias, standard_error)


# ------------------------------------------------------------------------------------- probes


def one_hot_tensors(case, dtype, heads_q=2, heads_kv=1):
    """Equal scores, and values that say which key they belong to."""
    keys = case.dense_mask().shape[-1]
    assert keys <= 256
    tensors = case.tensors(
        dtype, dim_v=-(-keys // 8) * 8, dim=8, heads_q=heads_q, heads_kv=heads_kv
    )
    q, _, v = case.join(tensors)
    scatter(case, tensors, "q", torch.zeros_like(q))
    one_hot = torch.zeros_like(v)
    one_hot[:, torch.arange(keys), :, torch.arange(keys)] = 1.0
    scatter(case, tensors, "v", one_hot)
    return tensors


@every_case
@every_kernel
def test_one_hot_values_show_the_visible_set(gpu_case, dtype):
    mask = gpu_case.dense_mask()
    out, lse = gpu_case.run(one_hot_tensors(gpu_case, dtype))
    seen = mask[:, :, None].expand(-1, -1, out.shape[2], -1)
    assert torch.equal(out[..., : mask.shape[-1]] > 0, seen)
    count = mask.sum(-1)[:, None]
    torch.testing.assert_close(lse, count.log().float().expand_as(lse), rtol=4e-6, atol=4e-6)
    assert out.isfinite().all()


def assert_same(before, after, names):
    """Equal bits; dq is a sum in any order."""
    for name, a, b in zip(names, before, after, strict=True):
        if name == "dq":
            torch.testing.assert_close(a, b, rtol=2**-7, atol=1e-5)
        else:
            assert torch.equal(a, b), name


RESULTS = ("out", "lse", "dq", "dk", "dv")


@every_case
@every_kernel
def test_poisoned_padding_changes_nothing(gpu_case, dtype):
    q_sample, _, k_sample, _ = row_kinds(gpu_case)
    tensors = gpu_case.tensors(dtype)
    q, k, v = gpu_case.join(tensors)
    dout = torch.randn(*q.shape[:3], v.shape[-1]).to(dtype)
    dlse = torch.randn(q.shape[0], q.shape[2], q.shape[1])
    clean = gradients(gpu_case, tensors, dout, dlse)
    poisoned = dict(tensors)
    for letter, x, sample in (("q", q, q_sample), ("k", k, k_sample), ("v", v, k_sample)):
        x = x.clone()
        x[sample < 0] = torch.tensor([NAN, INF, -INF, 1e30], dtype=dtype).repeat(x.shape[-1] // 4)
        scatter(gpu_case, poisoned, letter, x)
    dout[q_sample < 0] = NAN
    dlse.movedim(1, 2)[q_sample < 0] = INF
    results = gradients(gpu_case, poisoned, dout, dlse)
    assert_same(clean, results, RESULTS)
    out, lse, dq, dk, dv = results
    assert not out[q_sample < 0].any()
    assert not dq[q_sample < 0].any()
    assert torch.all(lse.movedim(1, 2)[q_sample < 0] == -INF)
    assert not dk[k_sample < 0].any()
    assert not dv[k_sample < 0].any()


@every_case
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unseen_keys_change_nothing(gpu_case, dtype):
    huge = 6e4 if dtype == F16 else 1e30
    mask = gpu_case.dense_mask()
    tensors = gpu_case.tensors(dtype)
    q, k, v = gpu_case.join(tensors)
    rows = mask.shape[1]
    for row in {0, rows // 3, rows // 2, rows - 1} if rows else ():
        dout = torch.zeros(*q.shape[:3], v.shape[-1], dtype=dtype)
        dout[:, row] = torch.randn(dout[:, row].shape).to(dtype)
        out, lse, dq, dk, dv = gradients(gpu_case, tensors, dout)
        changed = dict(tensors)
        for letter, x in (("k", k), ("v", v)):
            x = x.clone()
            x[~mask[:, row]] = huge
            scatter(gpu_case, changed, letter, x)
        out2, lse2, dq2, dk2, dv2 = gradients(gpu_case, changed, dout)
        seen = mask[:, row]
        before = (out[:, row], lse[:, :, row], dq[:, row], dk[seen], dv[seen])
        after = (out2[:, row], lse2[:, :, row], dq2[:, row], dk2[seen], dv2[seen])
        assert_same(before, after, RESULTS)


@every_case
def test_memory_from_before_changes_nothing(gpu_case):
    """Outputs and workspaces are full of NaN when kernels start, and every element is written."""
    tensors = gpu_case.tensors(BF16)
    q, _, v = gpu_case.join(tensors)
    dout = torch.randn(*q.shape[:3], v.shape[-1]).to(BF16)
    dlse = torch.randn(q.shape[0], q.shape[2], q.shape[1])
    expected = gradients(gpu_case, tensors, dout, dlse)
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty writes NaN, bytes 255
    try:
        assert torch.empty(4, device="cuda").isnan().all()
        results = gradients(gpu_case, tensors, dout, dlse)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same(expected, results, RESULTS)


# ---------------------------------------------------------------------------- deterministic


@every_case
def test_every_case_deterministic(gpu_case):
    assert_within_twice_plain_torch(gpu_case, gpu_case.tensors(BF16), deterministic=True)


@pytest.mark.parametrize("long", LONG, ids=lambda case: case.name)
def test_long_cases_deterministic(long):
    tensors = long.tensors(BF16, dim=64, dim_v=64)
    assert_within_twice_plain_torch(CudaCase(long), tensors, deterministic=True)


@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize(
    ("dim", "dim_v"), [(72, 96), (128, 128), (192, 128), (64, 256), (256, 256)]
)
def test_head_dims_deterministic(dim, dim_v, softcap):
    case = CudaCase(Case("head_dims", "batched", [150], D(20, clean="causal"), prefix_lens=[3]))
    tensors = case.tensors(BF16, dim=dim, dim_v=dim_v, heads_q=4, heads_kv=2)
    assert_within_twice_plain_torch(case, tensors, softcap=softcap, deterministic=True)


@pytest.mark.parametrize("dropout_p", [0.0, 0.2])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("group", [4, 7])
def test_deterministic_gradients_have_the_same_bits(group, dim, dropout_p):
    """100 times, while another stream takes now more, now less of the GPU."""
    q, dout = torch.randn(2, 2, 1400, 2 * group, dim, dtype=BF16, device="cuda").unbind()
    k, v = torch.randn(2, 2, 1400, 2, dim, dtype=BF16, device="cuda").unbind()
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    load = torch.randn(2048, 2048, dtype=BF16, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    def run():
        out = stepwell.diffusion_attn_func(
            q, k, v, 24, dropout_p=dropout_p, dropout_seed=5, deterministic=True
        )
        return torch.autograd.grad(out, (q, k, v), dout)

    expected = run()
    for repeat in range(100):
        with torch.cuda.stream(stream):
            for _ in range(repeat % 5):
                load @ load
        for name, a, b in zip(("dq", "dk", "dv"), expected, run(), strict=True):
            assert torch.equal(a, b), (name, repeat)


# ------------------------------------------------------------------------------------ dropout


@pytest.mark.parametrize(
    "name", ["batch", "views3_clean_first", "interleaved", "split_packed", "block_causal_replay"]
)
@every_kernel
def test_dropout_is_that_of_the_cpu(name, dtype):
    case, cpu = on_cuda(name), BY_NAME[name]
    options = {"dropout_p": 0.25, "dropout_seed": 11}
    tensors = one_hot_tensors(case, dtype)
    out, _ = case.run(tensors, **options)
    expected, _ = cpu.run(tensors, **options)
    assert torch.equal(out > 0, expected > 0)
    assert not torch.equal(out > 0, case.run(tensors)[0] > 0)

    tensors = case.tensors(dtype)
    q, _, v = case.join(tensors)
    dout = torch.randn(*q.shape[:3], v.shape[-1]).to(dtype)
    results = gradients(case, tensors, dout, **options)
    from_tensor = gradients(case, tensors, dout, dropout_p=0.25, dropout_seed=torch.tensor([11, 0]))
    assert_same(results, from_tensor, RESULTS)
    exact = gradients(
        cpu, {name: x.float() for name, x in tensors.items()}, dout.float(), **options
    )
    for result, expected in zip(results, exact, strict=True):
        torch.testing.assert_close(result.float(), expected, rtol=2**-5, atol=2**-5)


def test_drawn_seeds_follow_the_generator():
    q = torch.randn(1, 64, 2, 64, dtype=BF16, device="cuda")

    def run(seed):
        torch.manual_seed(seed)
        return stepwell.diffusion_attn_func(q, q, q, 4, dropout_p=0.5)

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


# ------------------------------------------------------------------- streams, graphs, devices


def packed_inputs(rows=512, heads=4, dim=64):
    q, k, v, dout = torch.randn(4, rows, heads, dim, dtype=BF16, device="cuda").unbind()
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), dout


def step(q, k, v, dout, cu_seqlens, **options):
    out, lse = stepwell.diffusion_attn_varlen_func(
        q, k, v, cu_seqlens, 256, 16, return_lse=True, **options
    )
    return out, lse, *torch.autograd.grad(out, (q, k, v), dout)


def test_graph_replays_with_new_values_and_lengths():
    q, k, v, dout = packed_inputs()
    cu_seqlens = torch.tensor([0, 256, 384], dtype=torch.int32, device="cuda")
    state = torch.tensor([1, 2], device="cuda")
    options = {"dropout_p": 0.25, "dropout_seed": state}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles
        step(q, k, v, dout, cu_seqlens, **options)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(q, k, v, dout, cu_seqlens, **options)
    for seed, lengths in enumerate([[0, 256, 384], [0, 0, 512], [0, 512, 512], [0, 32, 64]]):
        torch.manual_seed(seed)
        with torch.no_grad():
            for x in (q, k, v, dout):
                x.copy_(torch.randn_like(x))
            for x in captured:
                x.fill_(NAN)
        cu_seqlens.copy_(torch.tensor(lengths, dtype=torch.int32))
        state.copy_(torch.tensor([seed, 7]))
        graph.replay()
        expected = step(q, k, v, dout, cu_seqlens, **options)
        assert_same(expected, captured, RESULTS)


def test_capture_loads_kernels():
    """The first use of a kernel may be inside a capture."""
    q = torch.randn(1, 64, 2, 40, dtype=F16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = stepwell.diffusion_attn_func(q, q, q, 4, softcap=2.0)
    graph.replay()
    assert torch.equal(out, stepwell.diffusion_attn_func(q, q, q, 4, softcap=2.0))


def test_runs_on_the_current_stream():
    q, k, v, dout = packed_inputs(rows=4096)
    cu_seqlens = torch.arange(0, 4097, 512, dtype=torch.int32, device="cuda")
    expected = step(q, k, v, dout, cu_seqlens)
    late = torch.zeros_like(q)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        with torch.no_grad():
            late.copy_(q)
        results = step(late.requires_grad_(), k, v, dout, cu_seqlens)
        ended = torch.cuda.Event()
        ended.record()
    assert not ended.query()  # the host did not wait
    stream.synchronize()
    assert_same(expected, results, RESULTS)


def test_never_waits_for_the_device():
    q, k, v, dout = packed_inputs()
    cu_seqlens = torch.tensor([0, 256, 384], dtype=torch.int32, device="cuda")
    step(q, k, v, dout, cu_seqlens)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(q, k, v, dout, cu_seqlens)
        step(q, k, v, dout, [0, 256, 384], prefix_lens=[3, 4])
        step(q, k, v, dout, cu_seqlens.long(), dropout_p=0.25)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_streams_share_nothing():
    inputs = [packed_inputs(rows=2048) for _ in range(8)]
    cu_seqlens = torch.arange(0, 2049, 256, dtype=torch.int32, device="cuda")
    expected = [step(*x, cu_seqlens) for x in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    results = []
    for stream, x in zip(streams, inputs, strict=True):
        with torch.cuda.stream(stream):
            results.append(step(*x, cu_seqlens))
    torch.cuda.synchronize()
    for before, after in zip(expected, results, strict=True):
        assert_same(before, after, RESULTS)


def test_threads_share_nothing():
    """Threads with streams of their own, all at once; some use a kernel that is not loaded yet."""
    count, rounds = 16, 8
    dims = [64, 64, 128, 104]
    cu_seqlens = torch.arange(0, 1025, 256, dtype=torch.int32, device="cuda")
    inputs = [packed_inputs(rows=1024, dim=dims[i % len(dims)]) for i in range(count)]
    torch.cuda.synchronize()
    barrier = threading.Barrier(count)

    def work(i):
        barrier.wait(timeout=60)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            results = [step(*inputs[i], cu_seqlens, softcap=5.0) for _ in range(rounds)]
        stream.synchronize()
        return results

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        results = list(pool.map(work, range(count)))
    for x, rounds_of_thread in zip(inputs, results, strict=True):
        expected = step(*x, cu_seqlens, softcap=5.0)
        for result in rounds_of_thread:
            assert_same(expected, result, RESULTS)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_another_device_than_the_current_one():
    q = torch.randn(1, 64, 2, 64, dtype=BF16, device="cuda:0")
    expected = stepwell.diffusion_attn_func(q, q, q, 4)
    x = q.to("cuda:1").requires_grad_()
    out = stepwell.diffusion_attn_func(x, x, x, 4)
    out.sum().backward()
    assert out.device == x.device
    assert torch.equal(out.to("cuda:0"), expected)
    assert torch.cuda.current_device() == 0


# -------------------------------------------------------------------------------- torch's ways


def test_compiled_without_graph_breaks():
    torch._dynamo.reset()
    q, k, v, dout = packed_inputs()
    cu_seqlens = torch.tensor([0, 256, 384], dtype=torch.int32, device="cuda")

    @torch.compile(fullgraph=True)
    def forward(q, k, v):
        out, lse = stepwell.diffusion_attn_varlen_func(
            q, k, v, cu_seqlens, 256, 16, return_lse=True
        )
        return out * 2, lse

    out, lse = forward(q, k, v)
    grads = torch.autograd.grad(out, (q, k, v), dout / 2)
    eager = step(q, k, v, dout, cu_seqlens)
    assert_same(eager, (out / 2, lse, *grads), RESULTS)


def test_calls_need_no_dispatcher():
    """The dispatch keys that eager calls know are those of this torch's CUDA tensors."""
    x = torch.randn(8, device="cuda")
    assert _eager.device_of([x, x.to(BF16), x.int(), x[::2]]) == "cuda"
    with torch.inference_mode():
        assert _eager.device_of([torch.randn(8, device="cuda")]) == "cuda"
    with torch.autocast("cuda"):
        assert _eager.device_of([x]) == "cuda"
    assert _eager.device_of([x, x.cpu()]) is None


@pytest.mark.parametrize("autocast", [False, True])
def test_results_are_those_of_the_dispatcher(autocast):
    cu_seqlens = torch.tensor([0, 256, 384], dtype=torch.int32, device="cuda")
    q, k, v, dout = packed_inputs()
    with torch.autocast("cuda", BF16, enabled=autocast):
        if autocast:
            q, k, v = (x.detach().float().requires_grad_() for x in (q, k, v))
        direct = step(q, k, v, dout, cu_seqlens)
        with unittest.mock.patch.object(_eager, "_PLAIN_STATES", frozenset()):
            dispatched = step(q, k, v, dout, cu_seqlens)
    assert_same(direct, dispatched, RESULTS)


def test_autocast():
    q = torch.randn(1, 64, 2, 64, device="cuda")
    with torch.autocast("cuda", dtype=BF16):
        out = stepwell.diffusion_attn_func(q, q, q, 4)
    half = q.to(BF16)
    assert torch.equal(out, stepwell.diffusion_attn_func(half, half, half, 4))


def strided_views(kind, dtype):
    """q, k, v as views: values at random, of head dim 64."""
    if kind == "fused":
        qkv = torch.randn(2, 96, 3, 4, 64, dtype=dtype, device="cuda")
        return qkv.unbind(2)
    if kind == "heads_first":
        return tuple(torch.randn(3, 2, 4, 96, 64, dtype=dtype, device="cuda").transpose(2, 3))
    if kind == "expanded":
        # q apart from k: of rows that see themselves alone, gradients would be all rounding.
        q, x = torch.randn(2, 2, 96, 4, 64, dtype=dtype, device="cuda")
        return q, *(x[:, :, :1].expand(-1, -1, 4, -1) for _ in range(2))
    padded = torch.randn(3, 2, 96, 4, 73, dtype=dtype, device="cuda")
    return tuple(padded[..., 3:67])  # "unaligned"


def assert_close_in_norm(x, y):
    """As results of two kernels are, which round at different places."""
    assert (x - y).float().norm() <= 2**-6 * y.float().norm()


@pytest.mark.parametrize("kind", ["fused", "heads_first", "expanded", "unaligned"])
@every_kernel
def test_strides(kind, dtype):
    views = [x.detach() for x in strided_views(kind, dtype)]
    dense_tensors = [x.contiguous().requires_grad_() for x in views]
    views = [x.requires_grad_() for x in views]
    out = stepwell.diffusion_attn_func(*views, 8)
    expected = stepwell.diffusion_attn_func(*dense_tensors, 8)
    # No tensor map has a stride of 0: kernels for sm_90a leave expanded tensors to others.
    hopper = torch.cuda.get_device_capability() == (9, 0)
    hopper = hopper and os.environ.get("STEPWELL_SM90_KERNELS") != "0"
    same_kernel = kind != "expanded" or not hopper
    if same_kernel:
        assert torch.equal(out, expected)
    else:
        assert_close_in_norm(out, expected)
    # dout: expanded, and a slice whose rows start anywhere.
    wide = torch.randn(2, 96, 4, 67, dtype=dtype, device="cuda")
    for dout in (torch.ones((), dtype=dtype, device="cuda").expand_as(out), wide[..., 1:65]):
        grads = torch.autograd.grad(out, views, dout, retain_graph=True)
        expected_grads = torch.autograd.grad(
            expected, dense_tensors, dout.contiguous(), retain_graph=True
        )
        if same_kernel and (dout.stride(0) != 0 or not hopper):
            assert_same(expected_grads, grads, ("dq", "dk", "dv"))
        else:
            for x, y in zip(grads, expected_grads, strict=True):
                assert_close_in_norm(x, y)


# ------------------------------------------------------------------------------------ float32


@pytest.mark.parametrize("name", ["views3_clean_first", "split_packed"])
def test_float32_gives_the_same_bits_each_time(name):
    case = on_cuda(name)
    tensors = case.tensors(F32, heads_q=4, heads_kv=2)
    q, _, v = case.join(tensors)
    dout = torch.randn(*q.shape[:3], v.shape[-1])
    first = gradients(case, tensors, dout, deterministic=True)
    for _ in range(20):
        for a, b in zip(first, gradients(case, tensors, dout), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("scale", [-0.3, 0.0, 0.7])
def test_float32_scales(scale):
    case = on_cuda("split_packed")
    assert_within_twice_plain_torch(case, case.tensors(F32), scale=scale)


@pytest.mark.parametrize("factor", [2.0**12, 2.0**15])
def test_float32_scores_past_its_precision(factor):
    """Scores of 2^24 and more: one key has all the weight, and lse is rounded to more than 1."""
    case = Case("huge", "batched", [150], D(16))
    tensors = case.tensors(F32, dim=64, dim_v=64)
    tensors = {name: x * factor if name in ("q", "k") else x for name, x in tensors.items()}
    q, _, v = case.join(tensors)
    dout = torch.randn(*q.shape[:3], v.shape[-1])
    expected = gradients(case, tensors, dout)
    results = gradients(CudaCase(case), tensors, dout)
    for name, a, b in zip(RESULTS, results, expected, strict=True):
        # dP - delta is what rounding leaves of it.
        atol = 1e-4 * (factor if name in ("dq", "dk") else 1.0)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=atol)


# ----------------------------------------------------------------------------------- refusals


def test_refusals():
    q = torch.randn(1, 64, 2, 64, dtype=BF16, device="cuda", requires_grad=True)
    with pytest.raises(TypeError, match="k is on cpu; q is on cuda:0"):
        stepwell.diffusion_attn_func(q, q.cpu(), q, 4)
    with pytest.raises(TypeError, match="seqused is on cpu; q is on cuda:0"):
        stepwell.diffusion_attn_func(q, q, q, 4, seqused=torch.tensor([3]))
    with pytest.raises(TypeError, match="dropout_seed is on cpu; q is on cuda:0"):
        stepwell.diffusion_attn_func(q, q, q, 4, dropout_p=0.5, dropout_seed=torch.tensor([3, 4]))


@pytest.mark.parametrize(
    "cu_seqlens",
    [[0, 1 << 30, 1 << 30], [-(1 << 31), 50, 40], [5, 3, 700], [0, (1 << 31) - 1, -1]],
    ids=str,
)
def test_lengths_out_of_bounds_stay_inside(cu_seqlens):
    """Values on the device are not checked, and must not make kernels leave the tensors."""
    q, k, v, dout = packed_inputs()
    cu_seqlens = torch.tensor(cu_seqlens, dtype=torch.int32, device="cuda")
    step(q, k, v, dout, cu_seqlens)
    wild = torch.tensor([-7, 1 << 30], dtype=torch.int32, device="cuda")
    x = torch.randn(2, 64, 2, 64, dtype=BF16, device="cuda", requires_grad=True)
    out = stepwell.diffusion_attn_func(x, x, x, 4, seqused=wild, prefix_lens=wild)
    out.sum().backward()
    ranges = torch.tensor([[-5, 99], [40, 3], [1 << 30, 7]], dtype=torch.int32, device="cuda")
    stepwell.diffusion_attn_split_func(x, x, x, x, x, 32, block_ranges=ranges, noisy_offset=wild)[
        0
    ].sum().backward()
    torch.cuda.synchronize()


# -------------------------------------------------------------------------------------- sizes


@every_kernel
def test_offsets_past_32_bits(dtype):
    """The last sample of tensors with more than 2^31 elements."""
    batch, rows, heads, dim = 66, 512, 256, 256
    assert batch * rows * heads * dim > 2**31
    if torch.cuda.mem_get_info()[0] < 60 * 2**30:
        pytest.skip("less than 60 GiB of GPU memory")
    q = torch.empty(batch, rows, heads, dim, dtype=dtype, device="cuda").normal_()
    k = torch.empty(batch, rows, 1, dim, dtype=dtype, device="cuda").normal_()
    q.requires_grad_()
    k.requires_grad_()
    out = stepwell.diffusion_attn_func(q, k, k, 16)
    dout = torch.empty_like(out).normal_()
    dq, dk = torch.autograd.grad(out, (q, k), dout)
    small_q, small_k = (x.detach()[-1:].clone().requires_grad_() for x in (q, k))
    expected = stepwell.diffusion_attn_func(small_q, small_k, small_k, 16)
    assert torch.equal(out[-1:], expected)
    expected_dq, expected_dk = torch.autograd.grad(expected, (small_q, small_k), dout[-1:])
    assert_same((expected_dq, expected_dk), (dq[-1:], dk[-1:]), ("dq", "dk"))


def test_one_sample_past_32_bits():
    """One sample of 2n = 65,538 rows and 2^31 elements: the last head against dense attention."""
    n, heads, dim, block = 32769, 256, 128, 32
    assert 2 * n * heads * dim > 2**31
    if torch.cuda.mem_get_info()[0] < 70 * 2**30:
        pytest.skip("less than 70 GiB of GPU memory")
    q, k, v = (
        torch.empty(1, 2 * n, heads, dim, dtype=BF16, device="cuda").normal_().requires_grad_()
        for _ in range(3)
    )
    out, lse = stepwell.diffusion_attn_func(q, k, v, block, return_lse=True)
    rows = torch.tensor([0, n - 1, n, 2 * n - 33, 2 * n - 1])
    dout = torch.zeros_like(out)
    dout[:, rows.cuda()] = torch.randn(1, len(rows), heads, dim, dtype=BF16, device="cuda")
    grads = torch.autograd.grad(out, (q, k, v), dout)
    mask = block_diffusion_rows(rows, n, block)
    for head in (0, heads - 1):
        exact = [x[:, :, head : head + 1].detach().cpu().double() for x in (q, k, v)]
        exact = [x.requires_grad_() for x in exact]
        expected, expected_lse = dense.attention(exact[0][:, rows], exact[1], exact[2], mask[None])
        ours = out[:, rows.cuda(), head : head + 1].cpu().double()
        torch.testing.assert_close(ours, expected, rtol=2**-7, atol=2**-9)
        our_lse = lse[:, head : head + 1][:, :, rows.cuda()].cpu().double()
        torch.testing.assert_close(our_lse, expected_lse, rtol=1e-5, atol=1e-4)
        expected_grads = torch.autograd.grad(
            expected, exact, dout[:, rows.cuda(), head : head + 1].cpu().double()
        )
        for grad, expected_grad in zip(grads, expected_grads, strict=True):
            grad = grad[:, :, head : head + 1].cpu().double()
            torch.testing.assert_close(grad, expected_grad, rtol=2**-5, atol=2**-8)


def block_diffusion_rows(rows, n, block_size):
    """bool (rows, 2n): what some rows see of [noisy | clean] keys."""
    positions = torch.arange(n)
    block_q, block_k = (rows % n // block_size)[:, None], (positions // block_size)[None]
    noisy = (rows < n)[:, None]
    return torch.cat(
        [noisy & (block_q == block_k), torch.where(noisy, block_k < block_q, block_k <= block_q)],
        dim=1,
    )


def test_long_sequence():
    """2n = 65,538: rows at the end against dense attention of these rows."""
    n, dim = 32769, 64
    q, k, v = torch.randn(3, 1, 2 * n, 1, dim, dtype=BF16, device="cuda").unbind()
    q.requires_grad_()
    k.requires_grad_()
    v.requires_grad_()
    out = stepwell.diffusion_attn_func(q, k, v, 32)
    rows = torch.tensor([0, 31, 32, n - 2, n - 1, n, n + 31, n + 32, 2 * n - 1])
    dout = torch.zeros_like(out)
    dout[:, rows] = torch.randn(1, len(rows), 1, dim, dtype=BF16, device="cuda")
    grads = torch.autograd.grad(out, (q, k, v), dout)

    mask = block_diffusion_rows(rows, n, 32)
    exact = [x.detach().cpu().double().requires_grad_() for x in (q, k, v)]
    expected, _ = dense.attention(exact[0][:, rows], exact[1], exact[2], mask[None])
    torch.testing.assert_close(out[:, rows].cpu().double(), expected, rtol=2**-7, atol=2**-9)
    expected_grads = torch.autograd.grad(expected, exact, dout[:, rows].cpu().double())
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad.cpu().double(), expected_grad, rtol=2**-5, atol=2**-8)


# ------------------------------------------------------------------------------ compilation

PROGRAM = """
import logging, sys, torch, stepwell
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s: %(message)s")
torch.manual_seed(0)
x = torch.randn(1, 64, 2, 64, device="cuda").to(torch.bfloat16).requires_grad_()
out = stepwell.diffusion_attn_func(x, x, x, 4)
out.sum().backward()
print("result", out.float().sum().item())
"""


def start(directory):
    environment = {**os.environ, "STEPWELL_CACHE_DIR": str(directory)}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_processes_compile_at_the_same_time(tmp_path):
    directory = tmp_path / "cache"
    processes = [start(directory) for _ in range(4)]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    results = {line for output in outputs for line in output.splitlines() if "result" in line}
    assert len(results) == 1
    lines = [line for output in outputs for line in output.splitlines() if "compiled" in line]
    names = sorted(line.split(" for ")[0] for line in lines)
    # Four kernels, and each is compiled once.
    assert len(names) == len(set(names)) == 4, lines
    assert directory.stat().st_mode & 0o777 == 0o700

    process = start(directory)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "compiled" not in output
    assert results == {line for line in output.splitlines() if "result" in line}


def test_compiling_is_logged(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path / "cache"))
    q = torch.randn(1, 64, 2, 176, dtype=F16, device="cuda")
    with caplog.at_level(logging.INFO, logger="stepwell"):
        stepwell.diffusion_attn_func(q, q, q, 4, softcap=3.0, dropout_p=0.5)
        stepwell.diffusion_attn_func(q, q, q, 4, softcap=3.0, dropout_p=0.5)
    lines = [record.message for record in caplog.records if record.name == "stepwell"]
    assert len(lines) == 1
    assert "attention_forward" in lines[0]


def test_debug_sync_checks_values():
    program = """
import torch, stepwell
x = torch.zeros(64, 2, 64, dtype=torch.bfloat16, device="cuda")
cu_seqlens = torch.tensor([0, 32, 9999], dtype=torch.int32, device="cuda")
try:
    stepwell.diffusion_attn_varlen_func(x, x, x, cu_seqlens, None, 4)
except ValueError as error:
    print(error)
"""
    environment = {**os.environ, "STEPWELL_DEBUG_SYNC": "1"}
    output = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "cu_seqlens[2] is 9999; q has 64 rows" in output
