"""torch operators: definitions, fake implementations, autograd and autocast.

Three families (joint, split, sequence), each a forward and a backward operator in the namespace
``stepwell``. Autograd lies outside the operators, so compilers see two opaque functions; the
backward operators cannot be differentiated again. ``torch.library.register_autograd`` would do the
same, but it fills in defaults argument by argument in Python: 93 us a call against 19 us for the
functions below (20 arguments, one core of an EPYC 9005). What the package calls leaves the
dispatcher out where it would do nothing (_eager.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import _C
from torch.autograd import forward_ad

from . import _binding, _eager, _host_masks
from ._arguments import (
    INT32_MAX,
    INT32_MIN,
    check_int32_list,
    check_integer,
    check_number,
    check_seed,
)

_TORCH_VERSION = tuple(int(number) for number in torch.__version__.split(".")[:2])
if _TORCH_VERSION < (2, 11):
    raise ImportError(f"torch is {torch.__version__}; stepwell accepts 2.11 or later, or none")

Array = torch.Tensor
ARRAY_NAME = "torch.Tensor"

_library = torch.library.Library("stepwell", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)


def _gradient_like(x: torch.Tensor) -> torch.Tensor:
    """Memory for the gradient of ``x``; empty_like may copy the strides of an overlapping view."""
    like = torch.empty_like(x)
    if like.stride(-1) != 1 and x.numel():
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    return like


def _has_tangent(x: object) -> bool:
    """Whether ``x`` is a dual tensor of forward-mode differentiation."""
    return isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None


def int_array(name: str, value: Any, q: torch.Tensor | None = None) -> torch.Tensor | None:
    """A contiguous int32 tensor for a tensor, list or tuple of integers, which go where q is."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        if value.dtype == torch.int32:
            return value.contiguous()
        if value.dtype != torch.int64:
            raise TypeError(f"{name} has dtype {value.dtype}; accepted: torch.int32, torch.int64")
        # Where the values cannot be read they become a bound, which kernels treat as out of range.
        narrow = value.clamp(INT32_MIN, INT32_MAX).to(torch.int32).contiguous()
        if value.device.type == "cpu" and not torch.compiler.is_compiling():
            wrong = value[value != narrow]
            if wrong.numel():
                raise ValueError(f"{name} holds {wrong[0].item()}; accepted: integers of 32 bits")
        return narrow
    if isinstance(value, (list, tuple)):
        check_int32_list(name, value)
        device = None if q is None else q.device
        if device is None or device.type != "cuda" or torch.compiler.is_compiling():
            return torch.tensor(value, dtype=torch.int32, device=device)
        # Pinned, so that the host does not wait for the device.
        array = torch.tensor(value, dtype=torch.int32, pin_memory=True)
        return array.to(device, non_blocking=True)
    raise TypeError(
        f"{name} is of type {type(value).__name__}; accepted with tensors: torch.Tensor of int32 "
        "or int64, or a list of integers"
    )


def offset(name: str, value: Any, q: torch.Tensor | None = None) -> tuple[int, torch.Tensor | None]:
    """A number for all samples, or an array with one for each."""
    if isinstance(value, (torch.Tensor, list, tuple)):
        return 0, int_array(name, value, q)
    return check_integer(name, value), None


def dropout(p: Any, seed: Any, q: torch.Tensor) -> tuple[float, int, torch.Tensor | None]:
    """Probability, seed, and the tensor (seed, offset) that replaces the seed."""
    p = check_number("dropout_p", p)
    if isinstance(seed, torch.Tensor):
        return p, 0, seed
    if seed is not None:
        return p, check_seed(seed), None
    if p == 0.0:
        return p, 0, None
    return p, 0, torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=q.device)


def _last_dim_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    # Autograd's gradients may be expanded or transposed.
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _is_aligned(tensor: torch.Tensor) -> bool:
    """Whether the CUDA kernels, which move 16 bytes at a time, can read the rows of a tensor."""
    if tensor.data_ptr() & 15:
        return False
    if tensor.is_contiguous():
        return True  # head dims are multiples of 8
    strides = tensor.stride()
    elements = 16 // tensor.element_size()  # a power of two
    return strides[-1] == 1 and all(
        stride & (elements - 1) == 0 or extent == 1
        for stride, extent in zip(strides[:-1], tensor.shape[:-1], strict=True)
    )


# Of each operator: the arguments whose rows kernels read.
ALIGNED_ROWS: dict[str, tuple[int, ...]] = {}


def _with_aligned_rows(kernel: Callable, rows: tuple[int, ...]) -> Callable:
    """`kernel` with copies of those arguments at `rows` that it could not read."""

    def aligned(*args, **options):
        for i in rows:
            tensor = args[i]
            if tensor is not None and not _is_aligned(tensor) and tensor.ndim > 1:
                # The strides of a clone are those that a gradient like the tensor has.
                args = (*args[:i], tensor.clone(), *args[i + 1 :])
        return kernel(*args, **options)

    return aligned


def _outputs(
    q: torch.Tensor, v: torch.Tensor, lse: bool = True, fake: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Memory for out and, if it is wanted, lse; `fake` leaves strides that may be symbols alone."""
    shape = q.shape
    if len(shape) == 4:
        batch, rows, heads, dim = shape
        lse_shape = (batch, heads, rows)
    elif len(shape) == 3:
        rows, heads, dim = shape
        lse_shape = (heads, rows)
    else:
        raise TypeError(
            f"q has shape {list(shape)}; accepted: rank 4 (batch, rows, heads, head_dim), or rank "
            "3 (rows, heads, head_dim) where samples are packed"
        )
    if not fake and v.ndim and v.shape[-1] == dim and q.is_contiguous():
        out = torch.empty_like(q)  # half the time of the general form
    else:
        out = torch.empty(*shape[:-1], *v.shape[-1:], dtype=q.dtype, device=q.device)
    return out, torch.empty(*lse_shape, dtype=torch.float32, device=q.device) if lse else None


def _no_outputs(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty((0,)), q.new_empty((0,), dtype=torch.float32)


# ------------------------------------------------------------------------- joint and sequence


def _plain_forward(prefix: Callable) -> Callable:
    def forward(*args, lse=True):
        out, lse = _outputs(args[0], args[2], lse)
        arguments = prefix(*args, torch.get_num_threads())
        _binding.attention_forward(*arguments, out, lse, None, None)
        return out, lse

    return forward


def _plain_backward(prefix: Callable) -> Callable:
    def backward(dout, dlse, out, lse, *args):
        q, k, v = args[:3]
        dq, dk, dv = _gradient_like(q), _gradient_like(k), _gradient_like(v)
        arguments = prefix(*args, torch.get_num_threads())
        _binding.attention_backward(
            *arguments, out, lse, _last_dim_contiguous(dout), dlse, None, None, None, None,
            dq, dk, dv, None, None, None,
        )  # fmt: skip
        return dq, dk, dv

    return backward


def _plain_fake(*args):
    return _outputs(args[0], args[2], fake=True)


def _plain_backward_fake(dout, dlse, out, lse, *args):
    q, k, v = args[:3]
    return _gradient_like(q), _gradient_like(k), _gradient_like(v)


# ------------------------------------------------------------------------------------- split


def _split_forward(*args, lse=True):
    q_noisy, v_noisy, v_clean, q_clean = args[0], args[2], args[4], args[5]
    out, lse_noisy = _outputs(q_noisy, v_noisy, lse)
    prefix = _binding.split_prefix(*args, torch.get_num_threads())
    if q_clean is None:
        _binding.attention_forward(*prefix, out, lse_noisy, None, None)
        return out, lse_noisy, *_no_outputs(q_noisy)
    out_clean, lse_clean = _outputs(q_clean, v_clean, lse)
    _binding.attention_forward(*prefix, out, lse_noisy, out_clean, lse_clean)
    return out, lse_noisy, out_clean, lse_clean


def _split_gradients(q_noisy, k_noisy, v_noisy, k_clean, v_clean, q_clean):
    return (
        *(_gradient_like(x) for x in (q_noisy, k_noisy, v_noisy, k_clean, v_clean)),
        q_noisy.new_empty((0,)) if q_clean is None else _gradient_like(q_clean),
    )


def _split_backward(
    dout, dlse, out, lse, dout_clean, dlse_clean, out_clean, lse_clean, *args
):  # fmt: skip
    gradients = _split_gradients(*args[:6])
    dq, dk, dv, dk_clean, dv_clean, dq_clean = gradients
    prefix = _binding.split_prefix(*args, torch.get_num_threads())
    dout = _last_dim_contiguous(dout)
    if args[5] is None:
        clean, dq_clean = (None, None, None, None), None
    else:
        clean = (out_clean, lse_clean, _last_dim_contiguous(dout_clean), dlse_clean)
    _binding.attention_backward(
        *prefix, out, lse, dout, dlse, *clean, dq, dk, dv, dq_clean, dk_clean, dv_clean
    )
    return gradients


def _split_fake(*args):
    q_noisy, v_noisy, v_clean, q_clean = args[0], args[2], args[4], args[5]
    clean = _no_outputs(q_noisy) if q_clean is None else _outputs(q_clean, v_clean, fake=True)
    return *_outputs(q_noisy, v_noisy, fake=True), *clean


def _split_backward_fake(
    dout, dlse, out, lse, dout_clean, dlse_clean, out_clean, lse_clean, *args
):  # fmt: skip
    return _split_gradients(*args[:6])


# ------------------------------------------------------------------------------ registration


def _on_one_device(fake: Callable, op: Any, first: int) -> Callable:
    """A fake implementation that refuses what C++ would: tensors on different devices."""
    # As callers know them: the tensor of seed and offset is given as dropout_seed.
    known_as = {"dropout_state": "dropout_seed"}
    names = [known_as.get(x.name, x.name) for x in op._schema.arguments]

    def kernel(*args):
        device = args[first].device
        for name, value in zip(names, args, strict=True):
            if isinstance(value, torch.Tensor) and value.device != device:
                raise TypeError(f"{name} is on {value.device}; {names[first]} is on {device}")
        return fake(*args)

    return kernel


def _below_autograd(op: Callable) -> Callable:
    def run(*args):
        with _C._AutoDispatchBelowAutograd():
            return op(*args)

    return run


def _define(
    name: str,
    arguments: str,
    forward: Callable,
    forward_fake: Callable,
    forward_returns: str,
    backward: Callable,
    backward_fake: Callable,
    backward_arguments: str,
    backward_returns: str,
    num_tensors: int,
    gradient_inputs: tuple[int, ...],
    cast_inputs: tuple[int, ...],
) -> tuple[Callable, Callable]:
    """Defines a family's two operators, and returns the functions that call them.

    `num_tensors` of the arguments are tensors, the first.
    """
    _library.define(f"{name}({arguments}) -> ({forward_returns})", tags=_TAGS)
    _library.define(
        f"{name}_backward({backward_arguments}, {arguments}) -> ({backward_returns})", tags=_TAGS
    )
    forward_op = getattr(torch.ops.stepwell, name).default
    backward_op = getattr(torch.ops.stepwell, f"{name}_backward").default
    num_pairs = len(forward_op._schema.returns) // 2
    num_backward_tensors = 4 * num_pairs + num_tensors
    kernels = []  # of each operator by device
    for op, kernel, fake, first in (
        (forward_op, forward, forward_fake, 0),
        (backward_op, backward, backward_fake, 4 * num_pairs),
    ):
        # Of a backward operator also dout and out, the first and third of each pair's tensors.
        rows = (*range(0, first, 2), *(first + i for i in gradient_inputs))
        ALIGNED_ROWS[op._opname] = rows
        kernels.append({"cpu": kernel, "cuda": _with_aligned_rows(kernel, rows)})
        for device, implementation in kernels[-1].items():
            _library.impl(op._opname, implementation, device.upper())
        fake = _on_one_device(fake, op, first)
        torch.library.register_fake(op._schema.name, fake, lib=_library)

    forward_kernels, backward_kernels = kernels
    forward_below, backward_below = _below_autograd(forward_op), _below_autograd(backward_op)

    # Of both functions the first argument is the device whose kernel computes, or None for the
    # operator. The second has all that are no tensors, since each argument costs time.
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, device, settings, *tensors):
            run = forward_below if device is None else forward_kernels[device]
            outputs = run(*tensors, *settings)
            ctx.device = device
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*tensors, *outputs)
            ctx.settings = settings
            absent = [x for x in outputs if x.dim() == 1]
            if absent:
                ctx.mark_non_differentiable(*absent)
            return outputs

        @staticmethod
        def backward(ctx, *douts):
            saved = ctx.saved_tensors
            outputs = saved[num_tensors:]
            inputs = []
            for pair in range(num_pairs):
                out, lse = outputs[2 * pair], outputs[2 * pair + 1]
                dout, dlse = douts[2 * pair], douts[2 * pair + 1]
                inputs += (torch.zeros_like(out) if dout is None else dout, dlse, out, lse)
            inputs += saved[:num_tensors]
            if _C.is_grad_enabled():  # create_graph=True
                run = backward_op
            elif ctx.device is not None and _eager.device_of(douts) == ctx.device:
                # The other tensors are those of the forward pass.
                run = backward_kernels[ctx.device]
            else:
                run = backward_below
            gradients = run(*inputs, *ctx.settings)
            needed = ctx.needs_input_grad
            results = [None] * (2 + num_tensors)
            for i, gradient in zip(gradient_inputs, gradients, strict=True):
                if needed[2 + i]:
                    results[2 + i] = gradient
            return tuple(results)

    class AttentionBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, device, settings, *tensors):
            run = backward_below if device is None else backward_kernels[device]
            return run(*tensors, *settings)

        @staticmethod
        def backward(ctx, *grads):
            raise NotImplementedError(
                f"stepwell::{name} cannot be differentiated twice; accepted: first derivatives "
                "(no create_graph=True)"
            )

    def with_autograd(
        function: type[torch.autograd.Function], below: Callable, tensors: int
    ) -> Callable:
        def kernel(*args):
            if forward_ad._current_level >= 0 and any(map(_has_tangent, args)):
                raise NotImplementedError(
                    f"stepwell::{name} has no forward-mode derivatives; accepted: "
                    "reverse mode, torch.autograd"
                )
            if _C.is_grad_enabled() and _C._any_requires_grad(*args):
                if _C._are_functorch_transforms_active():
                    raise NotImplementedError(
                        f"stepwell::{name} has no derivatives under the transforms of torch.func; "
                        "accepted: torch.autograd"
                    )
                return function.apply(None, args[tensors:], *args[:tensors])
            return below(*args)

        return kernel

    def cast(device_type: str, args: tuple) -> tuple:
        dtype = torch.get_autocast_dtype(device_type)
        args = list(args)
        for i in cast_inputs:
            tensor = args[i]
            if tensor is not None and tensor.is_floating_point():
                args[i] = tensor.to(dtype)
        return tuple(args)

    def with_autocast(device_type: str) -> Callable:
        def kernel(*args):
            args = cast(device_type, args)
            with _C._ExcludeDispatchKeyGuard(_eager.AUTOCAST_KEYS):
                return forward_op(*args)

        return kernel

    def forward_call(*args, lse):
        tensors = args[:num_tensors]
        device = _eager.device_of(tensors)
        if device is None:
            return forward_op(*args)
        if torch.is_autocast_enabled(device):
            args = cast(device, args)
            tensors = args[:num_tensors]
        if _C.is_grad_enabled() and _C._any_requires_grad(*tensors):
            return Attention.apply(device, args[num_tensors:], *tensors)
        return forward_kernels[device](*args, lse=lse)

    def backward_call(*args):
        tensors, settings = args[:num_backward_tensors], args[num_backward_tensors:]
        device = _eager.device_of(tensors)
        if device is None:
            return backward_op(*args)
        if _C.is_grad_enabled() and _C._any_requires_grad(*tensors):
            return AttentionBackward.apply(device, settings, *tensors)
        return backward_kernels[device](*args)

    _library.impl(name, with_autograd(Attention, forward_below, num_tensors), "Autograd")
    _library.impl(
        f"{name}_backward",
        with_autograd(AttentionBackward, backward_below, num_backward_tensors),
        "Autograd",
    )
    _library.impl(name, with_autocast("cpu"), "AutocastCPU")
    _library.impl(name, with_autocast("cuda"), "AutocastCUDA")
    return forward_call, backward_call


_NUMERICS = (
    "float? softmax_scale, float softcap, float dropout_p, SymInt dropout_seed, bool deterministic"
)
_DOUT = "Tensor dout, Tensor? dlse, Tensor out, Tensor lse"

diffusion_attention, diffusion_attention_backward = _define(
    "diffusion_attention",
    "Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens, Tensor? prefix_lens, Tensor? seqused, "
    "Tensor? dropout_state, str layout, SymInt block_size, str order, str clean, str noisy, "
    f"SymInt clean_window, SymInt num_views, SymInt max_seqlen, {_NUMERICS}",
    _plain_forward(_binding.joint_prefix),
    _plain_fake,
    "Tensor, Tensor",
    _plain_backward(_binding.joint_prefix),
    _plain_backward_fake,
    _DOUT,
    "Tensor, Tensor, Tensor",
    _binding.JOINT_TENSORS,
    (0, 1, 2),
    (0, 1, 2),
)

sequence_attention, sequence_attention_backward = _define(
    "sequence_attention",
    "Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens, Tensor? cu_seqlens_kv, "
    "Tensor? prefix_lens, Tensor? seqused, Tensor? seqused_kv, Tensor? q_offsets, "
    "Tensor? dropout_state, str mask, SymInt block_size, SymInt window_left, "
    f"SymInt window_right, SymInt q_offset, SymInt max_seqlen, {_NUMERICS}",
    _plain_forward(_binding.sequence_prefix),
    _plain_fake,
    "Tensor, Tensor",
    _plain_backward(_binding.sequence_prefix),
    _plain_backward_fake,
    _DOUT,
    "Tensor, Tensor, Tensor",
    _binding.SEQUENCE_TENSORS,
    (0, 1, 2),
    (0, 1, 2),
)

split_attention, split_attention_backward = _define(
    "split_attention",
    "Tensor q_noisy, Tensor k_noisy, Tensor v_noisy, Tensor k_clean, Tensor v_clean, "
    "Tensor? q_clean, Tensor? cu_seqlens_noisy, Tensor? cu_seqlens_clean, "
    "Tensor? cu_seqlens_clean_q, Tensor? prefix_lens, Tensor? seqused_noisy, "
    "Tensor? seqused_clean, Tensor? block_ranges, Tensor? noisy_offsets, "
    "Tensor? clean_q_offsets, Tensor? dropout_state, SymInt block_size, str clean, str noisy, "
    "SymInt clean_window, SymInt num_views, SymInt noisy_offset, SymInt clean_q_offset, "
    f"SymInt max_seqlen, {_NUMERICS}",
    _split_forward,
    _split_fake,
    "Tensor, Tensor, Tensor, Tensor",
    _split_backward,
    _split_backward_fake,
    f"{_DOUT}, Tensor dout_clean, Tensor? dlse_clean, Tensor out_clean, Tensor lse_clean",
    "Tensor, Tensor, Tensor, Tensor, Tensor, Tensor",
    _binding.SPLIT_TENSORS,
    (0, 1, 2, 3, 4, 5),
    (0, 1, 2, 3, 4, 5),
)


# ------------------------------------------------------------------------------------- masks


def _attention_mask(*args):
    """The mask on the host; arrays on a device are waited for."""
    arrays = [None if x is None else x.cpu().numpy() for x in args[: _host_masks.NUM_ARRAYS]]
    return torch.from_numpy(_host_masks.attention_mask(*arrays, *args[_host_masks.NUM_ARRAYS :]))


def _attention_mask_fake(*args):
    return torch.empty(_host_masks.mask_shape(*args), dtype=torch.bool)


_library.define(
    "attention_mask(Tensor? prefix_lens, Tensor? seqused, Tensor? seqused_kv, "
    "Tensor? seqused_noisy, Tensor? seqused_clean, Tensor? cu_seqlens, Tensor? cu_seqlens_kv, "
    "Tensor? cu_seqlens_noisy, Tensor? cu_seqlens_clean, Tensor? cu_seqlens_clean_q, "
    "Tensor? block_ranges, Tensor? q_offsets, Tensor? noisy_offsets, Tensor? clean_q_offsets, "
    "str layout, SymInt batch, SymInt rows, SymInt rows_kv, SymInt rows_clean, "
    "SymInt rows_clean_q, SymInt q_offset, SymInt noisy_offset, SymInt clean_q_offset, str kind, "
    "SymInt block_size, SymInt window_left, SymInt window_right, str order, str clean, str noisy, "
    "SymInt clean_window, SymInt num_views) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.impl("attention_mask", _attention_mask, "CompositeExplicitAutograd")
torch.library.register_fake("stepwell::attention_mask", _attention_mask_fake, lib=_library)
attention_mask = torch.ops.stepwell.attention_mask.default
