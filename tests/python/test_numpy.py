"""NumPy arrays: the same results as torch, and no need of torch."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from cases import BY_NAME, CASES

import stepwell
from stepwell import masks


def to_numpy(values):
    return {n: x.numpy() if isinstance(x, torch.Tensor) else x for n, x in values.items()}


def call(case, tensors, **options):
    """(function's results, arguments) for torch or NumPy arrays."""
    function, arguments = case.function()
    if isinstance(next(iter(tensors.values())), np.ndarray):
        arguments = to_numpy(arguments)
    return function(**tensors, **arguments, **options, return_lse=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_forward_is_that_of_torch(case, dtype):
    tensors = case.tensors(dtype)
    expected = call(case, tensors, dropout_p=0.2, dropout_seed=3)
    results = call(case, to_numpy(tensors), dropout_p=0.2, dropout_seed=3)
    for result, tensor in zip(results, expected, strict=True):
        if tensor is None:
            assert result is None
        else:
            assert isinstance(result, np.ndarray)
            assert np.array_equal(result, tensor.numpy())


@pytest.mark.parametrize("name", [case.name for case in CASES if not case.split])
def test_backward_is_that_of_torch(name):
    case = BY_NAME[name]
    tensors = {n: x.requires_grad_() for n, x in case.tensors().items()}
    out, lse = call(case, tensors)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    expected = torch.autograd.grad((out, lse), list(tensors.values()), (dout, dlse))
    arrays = to_numpy({n: x.detach() for n, x in tensors.items()})
    out, lse = call(case, arrays)
    options = to_numpy(case.options())
    diffusion = isinstance(case.mask, masks.Diffusion)
    results = stepwell.attention_backward(
        dout.numpy(),
        *arrays.values(),
        out,
        lse,
        case.mask,
        dlse=dlse.numpy(),
        **({"layout": case.layout} if diffusion else {}),
        **options,
    )
    for result, grad in zip(results, expected, strict=True):
        assert np.array_equal(result, grad.numpy())


@pytest.mark.parametrize("name", ["split_shard", "split_no_clean_queries", "split_packed"])
def test_split_backward_is_that_of_torch(name):
    case = BY_NAME[name]
    tensors = {n: x.requires_grad_() for n, x in case.tensors().items()}
    out, out_clean, lse, lse_clean = call(case, tensors)
    outs = [x for x in (out, out_clean) if x is not None]
    douts = [torch.randn_like(x) for x in outs]
    expected = torch.autograd.grad(outs, list(tensors.values()), douts)
    arrays = to_numpy({n: x.detach() for n, x in tensors.items()})
    clean = {}
    if out_clean is not None:
        clean = {"dout_clean": douts[1], "out_clean": out_clean, "lse_clean": lse_clean}
    results = stepwell.diffusion_attn_split_backward(
        douts[0].numpy(),
        **arrays,
        out_noisy=out.detach().numpy(),
        lse_noisy=lse.detach().numpy(),
        **to_numpy({n: x.detach() for n, x in clean.items()}),
        block_size=case.mask.block_size,
        clean=case.mask.clean,
        **to_numpy(case.options()),
    )
    names = ["q_noisy", "k_noisy", "v_noisy", "k_clean", "v_clean", "q_clean"]
    by_name = dict(zip(names, results, strict=True))
    for name, grad in zip(tensors, expected, strict=True):
        assert np.array_equal(by_name[name], grad.numpy())


class TestArrays:
    x = np.random.default_rng(0).standard_normal((1, 24, 2, 8)).astype(np.float32)

    def expected(self):
        return stepwell.diffusion_attn_func(self.x, self.x, self.x, 4)

    def test_read_only(self):
        x = self.x.copy()
        x.flags.writeable = False
        assert np.array_equal(stepwell.diffusion_attn_func(x, x, x, 4), self.expected())
        assert not x.flags.writeable

    def test_views(self):
        qkv = np.stack([self.x] * 3, axis=2)
        q, k, v = (qkv[:, :, i] for i in range(3))
        assert np.array_equal(stepwell.diffusion_attn_func(q, k, v, 4), self.expected())
        k = np.broadcast_to(self.x[:, :, :1], self.x.shape)
        out = stepwell.diffusion_attn_func(self.x, k, k, 4)
        assert np.array_equal(out, stepwell.diffusion_attn_func(self.x, k.copy(), k.copy(), 4))

    def test_integer_arrays(self):
        x = self.x[0]
        expected = stepwell.diffusion_attn_varlen_func(x, x, x, [0, 10, 24], 7, 4)
        for dtype in (np.int32, np.int64):
            cu_seqlens = np.array([0, 10, 24], dtype)
            cu_seqlens.flags.writeable = False
            out = stepwell.diffusion_attn_varlen_func(x, x, x, cu_seqlens, np.int64(7), np.int32(4))
            assert np.array_equal(out, expected)

    def test_dropout_state(self):
        options = {"dropout_p": 0.3}
        by_seed = stepwell.diffusion_attn_func(*[self.x] * 3, 4, dropout_seed=5, **options)
        state = np.array([5, 0])
        out = stepwell.diffusion_attn_func(*[self.x] * 3, 4, dropout_seed=state, **options)
        assert np.array_equal(out, by_seed)
        with pytest.raises(ValueError, match="dropout_seed is None and dropout_p is not 0"):
            stepwell.diffusion_attn_func(*[self.x] * 3, 4, **options)

    @pytest.mark.parametrize(
        ("make", "error", "message"),
        [
            (lambda x: x.astype(np.float64), TypeError, "q is float64"),
            (lambda x: x.astype(">f4"), TypeError, "q has dtype >f4"),
            (lambda x: x.astype(complex), TypeError, "q has dtype complex128"),
            (lambda x: x.astype(object), TypeError, "q has dtype object"),
            (lambda x: x.swapaxes(2, 3), ValueError, "q has stride"),
            (lambda x: x[0], TypeError, "q has rank 3"),
            (lambda x: x[0, 0], TypeError, r"q has shape \[2, 8\]"),
            (lambda x: x[..., ::-1], ValueError, "q has stride -1"),
        ],
    )
    def test_bad_arrays(self, make, error, message):
        with pytest.raises(error, match=message):
            stepwell.diffusion_attn_func(make(self.x), self.x, self.x, 4)

    def test_masked_arrays_are_refused(self):
        x, masked = self.x, np.ma.masked_array(self.x)
        ints = np.ma.masked_array([0, 10, 24])
        out, lse = stepwell.diffusion_attn_func(x, x, x, 4, return_lse=True)
        for name, call in (
            ("q", lambda: stepwell.diffusion_attn_func(masked, x, x, 4)),
            ("v", lambda: stepwell.diffusion_attn_func(x, x, masked, 4)),
            ("q_noisy", lambda: stepwell.diffusion_attn_split_func(masked, x, x, x, x, 4)),
            ("dlse", lambda: stepwell.diffusion_attn_backward(
                x, x, x, x, out, lse, 4, dlse=np.ma.masked_array(lse))),
            ("cu_seqlens", lambda: stepwell.diffusion_attn_varlen_func(
                x[0], x[0], x[0], ints, None, 4)),
            ("q_offset", lambda: stepwell.attention(x, x, x, "causal", q_offset=ints)),
            ("dropout_seed", lambda: stepwell.attention(
                x, x, x, dropout_p=0.5, dropout_seed=ints[:2])),
            ("seqused", lambda: stepwell.diffusion_mask(24, 4, seqused=ints)),
            ("position_ids", lambda: stepwell.cu_seqlens_from_position_ids(ints)),
        ):  # fmt: skip
            message = f"^{name} is a numpy.ma.MaskedArray, .* accepted: numpy.ndarray"
            with pytest.raises(TypeError, match=message):
                call()
        with pytest.raises(TypeError, match="block_size must be an integer"):
            stepwell.diffusion_attn_func(x, x, x, np.ma.masked_array(4))

    def test_seeds_and_flags_of_numpy(self):
        def run(seed, flag):
            return stepwell.diffusion_attn_func(
                *[self.x] * 3, 4, dropout_p=0.5, dropout_seed=seed, deterministic=flag
            )

        for seed in (3, 2**63 + 5):
            assert np.array_equal(run(np.uint64(seed), np.True_), run(seed, True))

    def test_bad_integer_arrays(self):
        x = self.x[0]
        for cu_seqlens, error, message in (
            (np.array([0, 2**40]), ValueError, f"cu_seqlens holds {2**40}"),
            (np.array([0.0, 24.0]), TypeError, "cu_seqlens has dtype float64"),
            (torch.tensor([0, 24]), TypeError, "cu_seqlens is of type Tensor"),
        ):
            with pytest.raises(error, match=message):
                stepwell.diffusion_attn_varlen_func(x, x, x, cu_seqlens, None, 4)


WITHOUT_TORCH = """
    import sys
    sys.modules["torch"] = None  # importing torch raises ModuleNotFoundError
    import numpy as np
    import stepwell

    rng = np.random.default_rng(0)
    n, b = 12, 4
    q, k, v, dout = rng.standard_normal((4, 1, 2 * n, 2, 8)).astype(np.float32)
    mask = stepwell.diffusion_mask(2 * n, b)
    assert isinstance(mask, np.ndarray) and mask.sum() == n * n + 3 * b * b
    out, lse = stepwell.diffusion_attn_func(q, k, v, b, return_lse=True)

    def exact(q, k, v):
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5
        scores = np.where(mask[:, None], scores, -np.inf)
        lse = np.log(np.exp(scores).sum(-1))
        return np.einsum("bhqk,bkhd->bqhd", np.exp(scores - lse[..., None]), v), lse

    inputs = [x.astype(np.float64) for x in (q, k, v)]
    expected, expected_lse = exact(*inputs)
    assert np.abs(out - expected).max() < 2e-6
    assert np.abs(lse - expected_lse).max() < 2e-6
    grads = stepwell.diffusion_attn_backward(dout, q, k, v, out, lse, b)
    for i, grad in enumerate(grads):
        step = 1e-6 * rng.standard_normal(inputs[i].shape)
        losses = []
        for sign in (1, -1):
            moved = list(inputs)
            moved[i] = moved[i] + sign * step
            losses.append((exact(*moved)[0] * dout).sum())
        slope = (losses[0] - losses[1]) / 2
        assert abs((grad * step).sum() - slope) < 1e-4 * np.linalg.norm(grad) * 1e-6 + 1e-11
    half = stepwell.diffusion_attn_func(*[x.astype(np.float16) for x in (q, k, v)], b)
    assert half.dtype == np.float16 and np.abs(half - expected).max() < 1e-2
    assert stepwell.cu_seqlens_from_position_ids(np.array([0, 1, 0])).tolist() == [0, 2, 3]
    try:
        stepwell.diffusion_attn_func([1.0], k, v, b)
    except TypeError as error:
        assert "q is of type list" in str(error)
    else:
        raise AssertionError("a list was accepted")
    print("done")
"""


def test_without_torch():
    path = os.pathsep.join([os.path.dirname(os.path.dirname(stepwell.__file__)), *sys.path])
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_TORCH)],
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "done"


def test_package_metadata():
    assert stepwell.__version__.count(".") >= 1
    for name in stepwell.__all__:
        assert getattr(stepwell, name) is not None
    public = {name for name in stepwell.__all__ if name not in ("masks", "__version__")}
    for name in public:
        assert getattr(stepwell, name).__doc__
