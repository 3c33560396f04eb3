"""Calls that leave torch's dispatcher out, and those that must not."""

import contextlib
from unittest import mock

import pytest
import torch
from cases import BY_NAME
from torch.fx.experimental.proxy_tensor import make_fx

import stepwell
from stepwell import _eager


class Mode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


def through_dispatcher():
    """Every operator goes through the dispatcher."""
    return mock.patch.object(_eager, "_PLAIN_STATES", frozenset())


def test_plain_tensors_need_no_dispatcher():
    x = torch.randn(4, 4)
    with torch.inference_mode():
        inference = torch.randn(3)
        assert _eager.device_of([inference, None, x]) == "cpu"
    assert _eager.device_of([x, x[1:, ::2], x.expand(2, 4, 4), x.int(), inference]) == "cpu"
    assert _eager.device_of([x.clone().requires_grad_() * 2]) == "cpu"
    for enabled in (False, True):
        with torch.autocast("cpu", enabled=enabled), torch.set_grad_enabled(enabled):
            assert _eager.device_of([x]) == "cpu"
    assert _eager.device_of([None]) is None


def test_devices_are_told_apart():
    """No GPU is needed to know what the keys of its tensors are."""
    assert set(_eager._PLAIN_TENSORS.values()) == {"cpu", "cuda"}
    keys = torch._C._dispatch_keys
    for x in (torch.zeros(2), torch.zeros(2, device="meta")):
        assert (keys(x).raw_repr() in _eager._PLAIN_TENSORS) == (x.device.type == "cpu")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3).as_subclass(Subclass),
        torch.nn.Parameter(torch.randn(3)),
        torch._neg_view(torch.randn(3)),
        torch.randn(3).to_sparse(),
        torch.empty(3, device="meta"),
        torch._efficientzerotensor((3,)),
        torch.nested.nested_tensor([torch.randn(3)], layout=torch.jagged),
        torch._to_functional_tensor(torch.randn(3)),
    ],
    ids=["subclass", "parameter", "neg", "sparse", "meta", "zero", "nested", "functional"],
)
def test_other_tensors_need_it(tensor):
    assert _eager.device_of([tensor]) is None
    assert _eager.device_of([torch.zeros(3), tensor]) is None


@pytest.mark.parametrize(
    "context",
    [
        Mode,
        torch._subclasses.FakeTensorMode,
        torch.overrides.TorchFunctionMode,
        lambda: torch.device("cpu"),
        torch.profiler.profile,
        torch.autograd.profiler.profile,
        torch.autograd.forward_ad.dual_level,
        torch._C._AutoDispatchBelowAutograd,
    ],
)
def test_modes_need_it(context):
    x = torch.zeros(3)
    with context():
        assert _eager.device_of([x]) is None
    assert _eager.device_of([x]) == "cpu"


def test_transforms_and_tracers_need_it():
    found = []

    def function(x):
        found.append(_eager.device_of([x]))
        return x * 2

    x = torch.randn(3)
    torch.func.vmap(function)(x)
    torch.func.grad(lambda x: function(x).sum())(x)
    torch.func.functionalize(function)(x)
    make_fx(function)(x)
    torch.jit.trace(function, x, check_trace=False)
    assert found == [None] * 5


@pytest.mark.parametrize("name", ["batch", "split_packed", "split_no_clean_queries", "window_2_1"])
@pytest.mark.parametrize("autocast", [False, True])
def test_results_are_those_of_the_dispatcher(name, autocast):
    case = BY_NAME[name]
    tensors = {n: x.requires_grad_() for n, x in case.tensors().items()}
    results = []
    for context in (contextlib.nullcontext, through_dispatcher):
        with context():
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                out, lse = case.run(tensors)
                with torch.no_grad():
                    plain, _ = case.run(tensors)
            torch.manual_seed(3)
            douts = torch.randn_like(out), torch.randn_like(lse)
            gradients = torch.autograd.grad((out, lse), list(tensors.values()), douts)
            results.append((out, lse, plain, *gradients))
    assert results[0][0].dtype == (torch.bfloat16 if autocast else torch.float32)
    for direct, dispatched in zip(*results, strict=True):
        assert torch.equal(direct, dispatched)


def test_out_without_lse():
    q = torch.randn(1, 40, 2, 16)
    out, _ = stepwell.diffusion_attn_func(q, q, q, 4, return_lse=True)
    assert torch.equal(stepwell.diffusion_attn_func(q, q, q, 4), out)
    narrow = torch.randn(1, 40, 2, 24)
    assert stepwell.diffusion_attn_func(q, q, narrow, 4).shape == narrow.shape


def test_profiles_show_the_operators():
    q = torch.randn(1, 40, 2, 16, requires_grad=True)
    with torch.profiler.profile() as profile:
        stepwell.diffusion_attn_func(q, q, q, 4).sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {"stepwell::diffusion_attention", "stepwell::diffusion_attention_backward"} <= names


def test_second_derivatives_are_refused_by_name():
    q = torch.randn(1, 8, 2, 16, requires_grad=True)
    for context in (contextlib.nullcontext, through_dispatcher):
        with context():
            out = stepwell.diffusion_attn_func(q, q, q, 4)
            (dq,) = torch.autograd.grad(out.sum(), q, create_graph=True)
            with pytest.raises(NotImplementedError, match="cannot be differentiated twice"):
                dq.sum().backward()


def test_backward_function_is_differentiated_by_name():
    q = torch.randn(1, 8, 2, 16, requires_grad=True)
    out, lse = stepwell.diffusion_attn_func(q, q, q, 4, return_lse=True)
    dout = torch.ones_like(out)
    gradients = stepwell.diffusion_attn_backward(dout, q, q, q, out, lse, 4)
    with pytest.raises(NotImplementedError, match="cannot be differentiated twice"):
        gradients[0].sum().backward()
