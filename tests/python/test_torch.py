"""torch operators: registration, compilation, autograd, autocast, strides."""

import numpy as np
import pytest
import torch
from cases import BY_NAME, Case
from torch._dynamo.backends.debugging import aot_eager

import stepwell
from stepwell import masks

OPCHECKED = [
    "batch",
    "interleaved_views",
    "halves_tail",
    "split_shard",
    "split_no_clean_queries",
    "split_packed",
    "window_2_1",
    "block_causal_replay",
    "block_causal_packed",
]


class Counter:
    """The backend aot_eager, counting graphs."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return aot_eager(graph, inputs)


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


def recorded_calls(case, backward):
    """(operator, arguments) of the stepwell operators that a case runs."""
    calls = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "stepwell":
                calls.append((func, args))
            return func(*args, **(kwargs or {}))

    tensors = {name: x.requires_grad_() for name, x in case.tensors(heads_q=2, dim=8).items()}
    with Recorder():
        out, _ = case.run(tensors, dropout_p=0.25, dropout_seed=torch.tensor([3, 4]))
        out.sum().backward()
    return calls[1 if backward else 0]


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", OPCHECKED)
def test_opcheck(name, backward):
    op, args = recorded_calls(BY_NAME[name], backward)
    assert op._opname.endswith("_backward") == backward
    args = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in args]
    if not backward:
        for x in args:
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                x.requires_grad_()
    torch.library.opcheck(op, tuple(args))


SMALL = [
    Case("batched", "batched", [5, 5], masks.Diffusion(2), prefix_lens=[0, 1], seqused=[5, 3]),
    Case("packed", "interleaved", [3, 0, 2], masks.Diffusion(2, clean="causal"), tail=1),
    Case("split", "split", [(4, 5, 2)], masks.Diffusion(3), noisy_offset=3, clean_q_offset=3),
    Case("sequence", "sequence", [(3, 5)], masks.BlockCausal(2), q_offset=1),
]


@pytest.mark.parametrize("small", SMALL, ids=lambda case: case.name)
def test_gradcheck(small):
    # Kernels compute in float32: steps and tolerances are wide, and results repeat bit for bit.
    case = small
    tensors = {
        name: (0.5 * x).requires_grad_()
        for name, x in case.tensors(heads_q=2, heads_kv=1, dim=8, dim_v=8).items()
    }
    names = list(tensors)

    def function(*inputs):
        out, lse = case.run(dict(zip(names, inputs, strict=True)))
        return out, lse.masked_fill(lse.isinf(), 0.0)

    with pytest.warns(UserWarning, match="not a double precision"):
        assert torch.autograd.gradcheck(
            function, tuple(tensors.values()), eps=1e-2, atol=2e-3, rtol=2e-2, fast_mode=False
        )


def test_finite_differences_of_float64_reference_agree_with_gradients():
    import dense

    case = BY_NAME["split_shard"]
    tensors = {name: x.requires_grad_() for name, x in case.tensors(dim=8, dim_v=8).items()}
    out, lse = case.run(tensors)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    finite = lse.isfinite()
    loss = (out * dout).sum() + (lse[finite] * dlse[finite]).sum()
    grads = dict(zip(tensors, torch.autograd.grad(loss, list(tensors.values())), strict=True))

    def exact_loss(tensors):
        out, lse = dense.attention(*case.join(tensors), case.dense_mask())
        return (out * dout.double()).sum() + (lse[finite] * dlse.double()[finite]).sum()

    for name, grad in grads.items():
        exact = {n: x.detach().double() for n, x in tensors.items()}
        step = 1e-5 * torch.randn_like(exact[name])
        up, down = (exact_loss({**exact, name: exact[name] + s * step}) for s in (1, -1))
        torch.testing.assert_close(
            (grad.double() * step).sum() * 1e5, (up - down) / 2e-5, rtol=1e-5, atol=1e-4
        )


class TestCompile:
    @pytest.mark.parametrize("name", OPCHECKED)
    def test_fullgraph(self, name):
        case = BY_NAME[name]
        tensors = {n: x.requires_grad_() for n, x in case.tensors().items()}
        names = list(tensors)

        def function(*inputs):
            return case.run(dict(zip(names, inputs, strict=True)))

        out, lse = function(*tensors.values())
        dout, dlse = torch.randn_like(out), torch.randn_like(lse)
        expected = torch.autograd.grad((out, lse), list(tensors.values()), (dout, dlse))
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        out2, lse2 = compiled(*tensors.values())
        assert torch.equal(out, out2)
        assert torch.equal(lse, lse2)
        results = torch.autograd.grad((out2, lse2), list(tensors.values()), (dout, dlse))
        assert all(map(torch.equal, results, expected))

    @pytest.mark.parametrize("dynamic", [True, None], ids=["dynamic", "automatic"])
    def test_lengths_change_without_recompiling(self, dynamic):
        counter = Counter()

        @torch.compile(fullgraph=True, dynamic=dynamic, backend=counter)
        def batched(q, k, v, prefix_lens):
            out, lse = stepwell.diffusion_attn_func(
                q, k, v, 4, prefix_lens=prefix_lens, return_lse=True
            )
            return out.square().sum() + lse.sum()

        @torch.compile(fullgraph=True, dynamic=dynamic, backend=counter)
        def packed(q, k, v, cu_seqlens, max_seqlen):
            return stepwell.diffusion_attn_varlen_func(q, k, v, cu_seqlens, max_seqlen, 4).square()

        def run(batch, n):
            q = torch.randn(batch, 2 * n, 12, 16, requires_grad=True)
            k, v = (torch.randn(batch, 2 * n, 6, 16, requires_grad=True) for _ in range(2))
            batched(q, k, v, torch.full((batch,), n // 2)).backward()
            q, k, v = (x.detach().flatten(0, 1).clone().requires_grad_() for x in (q, k, v))
            cu_seqlens = torch.arange(batch + 1, dtype=torch.int32) * 2 * n
            packed(q, k, v, cu_seqlens, n).sum().backward()
            assert q.grad.isfinite().all()

        run(2, 10)
        if dynamic is None:
            run(3, 17)  # what was constant becomes dynamic
        graphs = counter.graphs
        with torch._dynamo.config.patch(error_on_recompile=True):
            for batch, n in [(3, 17), (4, 12), (5, 33), (7, 20), (2, 64)]:
                run(batch, n)
        assert counter.graphs == graphs

    def test_split_lengths_change_without_recompiling(self):
        counter = Counter()

        @torch.compile(fullgraph=True, dynamic=True, backend=counter)
        def split(q, k, v, k_clean, v_clean, noisy_offset):
            return stepwell.diffusion_attn_split_func(
                q, k, v, k_clean, v_clean, 4, q_clean=k_clean, noisy_offset=noisy_offset
            )

        def run(batch, noisy, clean):
            q, k, v = (torch.randn(batch, noisy, 6, 8) for _ in range(3))
            k_clean, v_clean = (torch.randn(batch, clean, 6, 8) for _ in range(2))
            split(q, k, v, k_clean, v_clean, clean - noisy // 2)

        run(2, 9, 12)
        graphs = counter.graphs
        with torch._dynamo.config.patch(error_on_recompile=True):
            run(3, 20, 31)
            run(5, 4, 77)
        assert counter.graphs == graphs

    def test_block_size_may_change(self):
        @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
        def function(x, block_size):
            return stepwell.diffusion_attn_func(x, x, x, block_size)

        x = torch.randn(1, 48, 2, 8)
        function(x, 4)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for block_size in (4, 5, 32):
                out = function(x, block_size)
                assert torch.equal(out, stepwell.diffusion_attn_func(x, x, x, block_size))

    def test_inductor(self):
        def function(x, weight):
            q, k, v = (x @ weight).unflatten(-1, (3, 4, 16)).unbind(2)
            out, lse = stepwell.diffusion_attn_func(q, k, v, 4, dropout_p=0.0, return_lse=True)
            return (out.flatten(2) * 2.0 + lse.mean(1).unsqueeze(-1)).relu()

        x = torch.randn(2, 24, 32, requires_grad=True)
        weight = (0.1 * torch.randn(32, 192)).requires_grad_()
        expected = function(x, weight)
        out = torch.compile(function, fullgraph=True)(x, weight)
        torch.testing.assert_close(out, expected)
        grads = torch.autograd.grad(out.square().sum(), (x, weight))
        expected_grads = torch.autograd.grad(expected.square().sum(), (x, weight))
        for grad, expected_grad in zip(grads, expected_grads, strict=True):
            torch.testing.assert_close(grad, expected_grad, rtol=1e-4, atol=1e-4)

    def test_masks_as_objects(self):
        x = torch.randn(1, 24, 2, 8)
        for mask in ("causal", masks.Window(3, 0), masks.Diffusion(4), masks.BlockCausal(5)):

            @torch.compile(fullgraph=True, backend="aot_eager")
            def function(x, mask=mask):
                return stepwell.attention(x, x, x, mask)

            assert torch.equal(function(x), stepwell.attention(x, x, x, mask))

    def test_masks_made_while_compiling(self):
        counter = Counter()

        @torch.compile(fullgraph=True, dynamic=True, backend=counter)
        def function(x, block_size, num_views, left):
            out = stepwell.attention(x, x, x, masks.Diffusion(block_size, num_views=num_views))
            out = out + stepwell.block_causal_attn_func(x, x, x, block_size)
            return out + stepwell.attention(x, x, x, masks.Window(left, 0))

        x = torch.randn(1, 48, 2, 8)
        function(x, 4, 2, 6)
        graphs = counter.graphs
        with torch._dynamo.config.patch(error_on_recompile=True):
            for sizes in ((5, 3, 7), (32, 5, 3)):
                expected = stepwell.attention(
                    x, x, x, masks.Diffusion(sizes[0], num_views=sizes[1])
                )
                expected = expected + stepwell.block_causal_attn_func(x, x, x, sizes[0])
                expected = expected + stepwell.attention(x, x, x, masks.Window(sizes[2], 0))
                assert torch.equal(function(x, *sizes), expected)
        assert counter.graphs == graphs

    @pytest.mark.parametrize("name", OPCHECKED)
    def test_boolean_masks(self, name):
        case = BY_NAME[name]
        rows, mask, options = case.mask_rows, case.mask, case.mask_options()

        @torch.compile(fullgraph=True, backend="aot_eager")
        def function(x):
            return stepwell.attention_mask(rows, mask, **options), x + 1

        expected = stepwell.attention_mask(rows, mask, **options)
        assert torch.equal(function(torch.zeros(1))[0], expected)

    @pytest.mark.parametrize("dynamic", [True, None], ids=["dynamic", "automatic"])
    def test_boolean_masks_of_changing_lengths(self, dynamic):
        counter = Counter()

        @torch.compile(fullgraph=True, dynamic=dynamic, backend=counter)
        def function(x, block_size, seqused):
            mask = stepwell.diffusion_mask(
                x.shape[2], block_size, seqused=seqused, device=x.device, clean="causal"
            )
            out = torch.nn.functional.scaled_dot_product_attention(x, x, x, mask[:, None])
            return mask, out

        def run(batch, n, block_size):
            seqused = torch.arange(batch) + 2
            x = torch.randn(batch, 2, 2 * n, 8)
            mask, out = function(x, block_size, seqused)
            expected = stepwell.diffusion_mask(2 * n, block_size, seqused=seqused, clean="causal")
            assert torch.equal(mask, expected)
            assert out.shape == x.shape

        run(2, 10, 4)
        run(3, 12, 5)
        graphs = counter.graphs
        with torch._dynamo.config.patch(error_on_recompile=True):
            for sizes in ((4, 9, 3), (5, 40, 32)):
                run(*sizes)
        assert counter.graphs == graphs

    def test_boolean_masks_of_numpy_arrays(self):
        @torch.compile(fullgraph=True, backend="aot_eager")
        def function(prefix_lens, cu_seqlens):
            batched = stepwell.diffusion_mask(24, 4, prefix_lens=prefix_lens, as_numpy=False)
            return batched, stepwell.diffusion_mask(24, 4, cu_seqlens=cu_seqlens, as_numpy=False)

        for dtype in (np.int32, np.int64):
            batched, packed = function(np.array([3, 1], dtype), np.array([0, 10, 24], dtype))
            assert torch.equal(batched, stepwell.diffusion_mask(24, 4, prefix_lens=[3, 1]))
            assert torch.equal(packed, stepwell.diffusion_mask(24, 4, cu_seqlens=[0, 10, 24]))
        with pytest.raises(ValueError, match=r"prefix_lens\[1\] is -2"):
            function(np.array([3, -2]), np.array([0, 10, 24]))

    def test_boolean_mask_with_inductor(self):
        @torch.compile(fullgraph=True)
        def function(x):
            mask = stepwell.diffusion_mask(x.shape[0], 4, prefix_lens=[3])[0]
            return torch.where(mask, x, 0.0).sum(1)

        x = torch.randn(24, 24)
        mask = stepwell.diffusion_mask(24, 4, prefix_lens=[3])[0]
        torch.testing.assert_close(function(x), torch.where(mask, x, 0.0).sum(1))

    def test_errors_stay(self):
        x = torch.randn(1, 24, 2, 8)

        @torch.compile(fullgraph=True, backend="aot_eager")
        def function(x):
            return stepwell.diffusion_attn_func(x, x, x, 0)

        with pytest.raises(ValueError, match="block_size is 0"):
            function(x)

        @torch.compile(fullgraph=True, backend="aot_eager")
        def with_masks(x):
            return stepwell.attention(x, x, x, masks.Diffusion(4, num_views=0))

        with pytest.raises(ValueError, match="num_views is 0"):
            with_masks(x)


def test_mask_operator():
    arguments = [None] * 14
    arguments[1] = torch.tensor([3, 4], dtype=torch.int32)
    numbers = (2, 10, 10, 10, 10, 0, 0, 0, "diffusion", 4, -1, -1)
    arguments += ["batched", *numbers, "noisy_clean", "block", "bidirectional", 0, 1]
    torch.library.opcheck(torch.ops.stepwell.attention_mask.default, tuple(arguments))


def test_export():
    class Module(torch.nn.Module):
        def forward(self, q, k, v, cu_seqlens):
            return stepwell.diffusion_attn_varlen_func(q, k, v, cu_seqlens, None, 4)

    q, k, v = torch.randn(3, 36, 2, 8).unbind()
    cu_seqlens = torch.tensor([0, 14, 24, 36], dtype=torch.int32)
    rows, batch = torch.export.Dim("rows"), torch.export.Dim("batch")
    shapes = {"q": {0: rows}, "k": {0: rows}, "v": {0: rows}, "cu_seqlens": {0: batch}}
    program = torch.export.export(Module(), (q, k, v, cu_seqlens), dynamic_shapes=shapes)
    q, k, v = torch.randn(3, 20, 2, 8).unbind()
    cu_seqlens = torch.tensor([0, 8, 20], dtype=torch.int32)
    out = program.module()(q, k, v, cu_seqlens)
    assert torch.equal(out, Module()(q, k, v, cu_seqlens))


class TestFake:
    def test_meta_tensors(self):
        q = torch.empty(2, 32, 4, 16, device="meta", dtype=torch.bfloat16)
        v = torch.empty(2, 32, 2, 24, device="meta", dtype=torch.bfloat16)
        k = torch.empty(2, 32, 2, 16, device="meta", dtype=torch.bfloat16)
        out, lse = stepwell.diffusion_attn_func(q, k, v, 4, return_lse=True)
        assert (out.shape, out.dtype, out.device.type) == ((2, 32, 4, 24), q.dtype, "meta")
        assert (lse.shape, lse.dtype) == ((2, 4, 32), torch.float32)

    def test_meta_and_cpu_do_not_mix(self):
        q = torch.empty(2, 32, 4, 16, device="meta")
        with pytest.raises(TypeError, match="k is on cpu; q is on meta"):
            stepwell.diffusion_attn_func(q, torch.empty(2, 32, 4, 16), q, 4)


class TestAutograd:
    def test_subset_of_inputs(self):
        q, k, v = torch.randn(3, 1, 24, 2, 8).unbind()
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = stepwell.diffusion_attn_func(*leaves, 4)
        expected = torch.autograd.grad(out.square().sum(), leaves)
        for i in range(3):
            inputs = [q, k, v]
            inputs[i] = leaves[i]
            out = stepwell.diffusion_attn_func(*inputs, 4)
            (grad,) = torch.autograd.grad(out.square().sum(), [leaves[i]])
            assert torch.equal(grad, expected[i])

    def test_no_grad(self):
        x = torch.randn(1, 24, 2, 8, requires_grad=True)
        with torch.no_grad():
            assert not stepwell.diffusion_attn_func(x, x, x, 4).requires_grad
        with torch.inference_mode():
            assert stepwell.diffusion_attn_func(x, x, x, 4).is_inference()
        assert not stepwell.diffusion_attn_func(*[x.detach()] * 3, 4).requires_grad

    def test_only_lse(self):
        x = torch.randn(1, 24, 2, 8, requires_grad=True)
        _, lse = stepwell.diffusion_attn_func(x, x, x, 4, return_lse=True)
        (grad,) = torch.autograd.grad(lse.sum(), x)
        mask = stepwell.diffusion_mask(24, 4)
        scores = torch.einsum("bqhd,bkhd->bhqk", x, x) * 8**-0.5
        expected = torch.logsumexp(scores.masked_fill(~mask[:, None], -torch.inf), -1)
        (expected_grad,) = torch.autograd.grad(expected.sum(), x)
        torch.testing.assert_close(grad, expected_grad, rtol=1e-4, atol=1e-5)

    def test_output_is_the_same_without_lse(self):
        x = torch.randn(1, 24, 2, 8)
        out, _ = stepwell.diffusion_attn_func(x, x, x, 4, return_lse=True)
        assert torch.equal(out, stepwell.diffusion_attn_func(x, x, x, 4))

    def test_expanded_and_transposed_gradients(self):
        q, k, v = (torch.randn(2, 24, 4, 8, requires_grad=True) for _ in range(3))
        out = stepwell.diffusion_attn_func(q, k, v, 4)
        by_sum = torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)
        by_ones = torch.autograd.grad(out, (q, k, v), torch.ones_like(out), retain_graph=True)
        assert all(map(torch.equal, by_sum, by_ones))
        dout = torch.randn(2, 24, 8, 4).transpose(2, 3)
        by_view = torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
        by_copy = torch.autograd.grad(out, (q, k, v), dout.contiguous())
        assert all(map(torch.equal, by_view, by_copy))

    def test_double_backward_is_refused(self):
        x = torch.randn(1, 24, 2, 8, requires_grad=True)
        out = stepwell.diffusion_attn_func(x, x, x, 4)
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        with pytest.raises(NotImplementedError, match="cannot be differentiated twice"):
            grad.sum().backward()

    def test_checkpointing_repeats_dropout(self):
        x = torch.randn(1, 24, 2, 8, requires_grad=True)

        def block(x):
            return stepwell.diffusion_attn_func(x, x, x, 4, dropout_p=0.5)

        torch.manual_seed(1)
        (expected,) = torch.autograd.grad(block(x).square().sum(), x)
        torch.manual_seed(1)
        out = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        (grad,) = torch.autograd.grad(out.square().sum(), x)
        assert torch.equal(grad, expected)

    def test_transforms(self):
        x = torch.randn(3, 1, 24, 2, 8)

        def function(x):
            return stepwell.diffusion_attn_func(x, x, x, 4)

        with pytest.raises(NotImplementedError, match=r"no derivatives under .* torch\.func"):
            torch.func.grad(lambda x: function(x).sum())(x[0])
        out = torch.func.vmap(function)(x)  # one sample after the other
        assert torch.equal(out, torch.stack([function(sample) for sample in x]))


class TestAutocast:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_casts_inputs(self, dtype):
        q, k, v = (torch.randn(1, 24, 2, 8, requires_grad=True) for _ in range(3))
        with torch.autocast("cpu", dtype=dtype):
            out, lse = stepwell.diffusion_attn_func(q, k, v, 4, return_lse=True)
        assert out.dtype == dtype
        assert lse.dtype == torch.float32
        expected = stepwell.diffusion_attn_func(q.to(dtype), k.to(dtype), v.to(dtype), 4)
        assert torch.equal(out, expected)
        out.float().sum().backward()
        assert q.grad.dtype == torch.float32
        assert q.grad.any()

    def test_split_and_sequence(self):
        x = torch.randn(1, 24, 2, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, out_clean = stepwell.diffusion_attn_split_func(x, x, x, x, x, 4, q_clean=x)
            assert out.dtype == out_clean.dtype == torch.bfloat16
            assert stepwell.attention(x, x.bfloat16(), x, "causal").dtype == torch.bfloat16

    def test_compiled(self):
        x = torch.randn(1, 24, 2, 8)

        @torch.compile(fullgraph=True, backend="aot_eager")
        def function(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return stepwell.diffusion_attn_func(x, x, x, 4)

        assert torch.equal(function(x), stepwell.diffusion_attn_func(*[x.bfloat16()] * 3, 4))


class TestStrides:
    def check(self, q, k, v):
        views = [x.requires_grad_() for x in (q, k, v)]
        copies = [x.detach().clone().contiguous().requires_grad_() for x in views]
        out, lse = stepwell.diffusion_attn_func(*views, 4, return_lse=True)
        expected, expected_lse = stepwell.diffusion_attn_func(*copies, 4, return_lse=True)
        assert torch.equal(out, expected)
        assert torch.equal(lse, expected_lse)
        dout = torch.randn_like(out)
        grads = torch.autograd.grad(out, views, dout)
        assert all(map(torch.equal, grads, torch.autograd.grad(expected, copies, dout)))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_chunks_of_fused_qkv(self, dtype):
        qkv = torch.randn(2, 24, 4 + 2 + 2, 16).to(dtype)
        self.check(*qkv.split([4, 2, 2], dim=2))
        self.check(*torch.randn(2, 24, 3, 4, 16).to(dtype).unbind(2))

    def test_heads_first(self):
        self.check(*(torch.randn(2, 4, 24, 16).transpose(1, 2) for _ in range(3)))

    def test_rows_first(self):
        self.check(*(torch.randn(24, 2, 4, 16).transpose(0, 1) for _ in range(3)))

    def test_one_of_many_features(self):
        self.check(*(torch.randn(2, 24, 4, 33)[..., 1:17] for _ in range(3)))

    def test_expanded_keys(self):
        k = torch.randn(1, 24, 1, 16)
        q = torch.randn(2, 24, 4, 16)
        out = stepwell.diffusion_attn_func(q, k.expand(2, 24, 4, 16), k.expand(2, 24, 4, 16), 4)
        expected = stepwell.diffusion_attn_func(q, *[k.expand(2, 24, 4, 16).contiguous()] * 2, 4)
        assert torch.equal(out, expected)

    def test_last_dimension_must_be_contiguous(self):
        x = torch.randn(2, 24, 16, 4).transpose(2, 3)
        y = x.contiguous()
        for name, args in (("q", (x, y, y)), ("k", (y, x, y)), ("v", (y, y, x))):
            with pytest.raises(ValueError, match=f"^{name} has stride 4 in its last dimension"):
                stepwell.diffusion_attn_func(*args, 4)


@pytest.mark.parametrize("name", ["batch", "split_packed", "halves_views_clean_first", "long"])
def test_results_repeat_bitwise(name):
    case = BY_NAME[name]
    tensors = {n: x.requires_grad_() for n, x in case.tensors(heads_q=8).items()}
    threads = torch.get_num_threads()
    results = []
    try:
        for number in (1, 2, 3, 2, 1):
            torch.set_num_threads(number)
            out, lse = case.run(tensors, deterministic=True, dropout_p=0.2, dropout_seed=1)
            grads = torch.autograd.grad(out.square().sum(), list(tensors.values()))
            results.append((out, lse, *grads))
    finally:
        torch.set_num_threads(threads)
    for repeated in results[1:]:
        assert all(map(torch.equal, repeated, results[0]))


def test_integer_arrays_of_every_kind():
    x = torch.randn(36, 2, 8)
    cu_seqlens = [0, 14, 24, 36]
    expected = stepwell.diffusion_attn_varlen_func(x, x, x, cu_seqlens, 7, 4)
    strided = torch.tensor([[c, 0] for c in cu_seqlens], dtype=torch.int32)[:, 0]
    for given in (
        tuple(cu_seqlens),
        torch.tensor(cu_seqlens),
        torch.tensor(cu_seqlens, dtype=torch.int32),
        strided,
    ):
        assert torch.equal(stepwell.diffusion_attn_varlen_func(x, x, x, given, 7, 4), expected)
    assert torch.equal(stepwell.diffusion_attn_varlen_func(x, x, x, given, None, 4), expected)


def test_empty_tensors():
    x = torch.randn(2, 0, 2, 8, requires_grad=True)
    out, lse = stepwell.diffusion_attn_func(x, x, x, 4, return_lse=True)
    assert out.shape == (2, 0, 2, 8)
    assert lse.shape == (2, 2, 0)
    out.sum().backward()
    assert x.grad.shape == x.shape
    packed = torch.randn(0, 2, 8)
    assert stepwell.diffusion_attn_varlen_func(packed, packed, packed, [0], 0, 4).shape == (0, 2, 8)
    none = torch.randn(0, 8, 2, 8)
    assert stepwell.diffusion_attn_func(none, none, none, 4).shape == (0, 8, 2, 8)


def test_forward_mode_is_refused():
    q, k, v = (torch.randn(1, 12, 2, 8) for _ in range(3))

    def attention(x):
        return stepwell.diffusion_attn_func(q, k, x, 4)

    for derivative in (
        lambda: torch.func.jvp(attention, (v,), (torch.ones_like(v),)),
        lambda: torch.func.jacfwd(lambda x: attention(x).sum())(v),
    ):
        with pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
            derivative()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(v, torch.ones_like(v))
        with pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
            attention(dual)
        assert torch.isfinite(attention(v)).all()  # without a tangent it runs


def test_overlapping_views_have_gradients():
    x = torch.randn(1, 12, 9, requires_grad=True)
    k = torch.randn(1, 12, 2, 8)
    stepwell.diffusion_attn_func(x.unfold(2, 8, 1), k, k, 4).sum().backward()
    got, x.grad = x.grad, None
    stepwell.diffusion_attn_func(x.unfold(2, 8, 1).contiguous(), k, k, 4).sum().backward()
    assert torch.equal(got, x.grad)
