"""Bad input: the exception's type, and a message that names the argument and what was given."""

import decimal
import re

import numpy as np
import pytest
import torch

import stepwell
from stepwell import masks

N = 12


def tensors(dtype=torch.float32, rows=2 * N, heads_q=4, heads_kv=2, dim=16):
    q = torch.randn(2, rows, heads_q, dim).to(dtype)
    k, v = (torch.randn(2, rows, heads_kv, dim).to(dtype) for _ in range(2))
    return {"q": q, "k": k, "v": v}


def batched(block_size=4, **options):
    given = tensors()
    arrays = {name: options.pop(name, x) for name, x in given.items()}
    return stepwell.diffusion_attn_func(*arrays.values(), block_size, **options)


def packed(cu_seqlens=(0, 10, 24), max_seqlen=None, block_size=4, **options):
    arrays = [options.pop(name, x[0]) for name, x in tensors().items()]
    return stepwell.diffusion_attn_varlen_func(
        *arrays, cu_seqlens, max_seqlen, block_size, **options
    )


def split(block_size=4, **options):
    given = {f"{name}_noisy": x for name, x in tensors().items()}
    given |= {f"{name}_clean": x for name, x in tensors(rows=16).items() if name != "q"}
    return stepwell.diffusion_attn_split_func(**{**given, **options}, block_size=block_size)


def split_packed(**options):
    given = {f"{name}_noisy": x[0] for name, x in tensors().items()}
    given |= {f"{name}_clean": x[0] for name, x in tensors(rows=16).items() if name != "q"}
    options = {"cu_seqlens_noisy": [0, 24], "cu_seqlens_clean": [0, 16], **options}
    return stepwell.diffusion_attn_split_func(**{**given, **options}, block_size=4)


def sequence(mask="full", **options):
    given = tensors()
    arrays = {name: options.pop(name, x) for name, x in given.items()}
    return stepwell.attention(*arrays.values(), mask, **options)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def joint_operator(layout="batched", order="noisy_clean", clean="block", noisy="bidirectional"):
    choices = layout, 4, order, clean, noisy
    return torch.ops.stepwell.diffusion_attention(
        *tensors().values(), *[None] * 4, *choices, 0, 1, -1, None, 0.0, 0.0, 0, False
    )


def sequence_operator(mask):
    return torch.ops.stepwell.sequence_attention(
        *tensors().values(), *[None] * 7, mask, 1, -1, -1, 0, -1, None, 0.0, 0.0, 0, False
    )


def mask_operator(layout="batched", kind="diffusion", window_left=-1, num_views=1):
    rules = "noisy_clean", "block", "bidirectional", 0, num_views
    counts = 1, 8, 8, 8, 8, 0, 0, 0
    return torch.ops.stepwell.attention_mask(
        *[None] * 14, layout, *counts, kind, 1, window_left, -1, *rules
    )


def without(name):
    given = tensors()
    del given[name]
    return stepwell.diffusion_attn_func(**given, block_size=4)


T = torch.randn
CASES = [
    # block sizes
    (lambda: stepwell.diffusion_attn_func(**tensors()), TypeError, "missing .* 'block_size'"),
    (lambda: batched(None), TypeError, "block_size must be an integer, got None"),
    (lambda: batched(0), ValueError, "block_size is 0"),
    (lambda: batched(-4), ValueError, "block_size is -4"),
    (lambda: batched(2.5), TypeError, "block_size must be an integer, got 2.5"),
    (lambda: batched(4.0), TypeError, "block_size must be an integer, got 4.0"),
    (lambda: batched(True), TypeError, "block_size must be an integer, got True"),
    (lambda: batched(np.array(2.5)), TypeError, r"block_size must be an integer, got array\(2.5\)"),
    (lambda: batched(np.array("4")), TypeError, r"block_size must be an integer, got array\('4'"),
    (lambda: batched("4"), TypeError, "block_size must be an integer, got '4'"),
    (lambda: batched(torch.tensor(4)), TypeError, "block_size must be an integer"),
    (lambda: batched(2**40), ValueError, f"block_size is {2**40}"),
    (lambda: batched(2**70), ValueError, f"block_size is {2**70}"),
    (lambda: packed(block_size=0), ValueError, "block_size is 0"),
    (lambda: split(0), ValueError, "block_size is 0"),
    (lambda: split(2.5), TypeError, "block_size must be an integer, got 2.5"),
    (lambda: masks.BlockCausal(0), ValueError, "block_size is 0; it must be an integer in "),
    (lambda: masks.BlockCausal(-4), ValueError, "block_size is -4"),
    (lambda: masks.BlockCausal(2**28 + 1), ValueError, f"block_size is {2**28 + 1}"),
    (lambda: masks.BlockCausal(True), TypeError, "block_size must be an integer, got True"),
    (lambda: masks.Diffusion(0), ValueError, "block_size is 0"),
    (lambda: masks.Diffusion(-4), ValueError, "block_size is -4"),
    (lambda: masks.Diffusion(2**70), ValueError, f"block_size is {2**70}"),
    (lambda: masks.Diffusion(False), TypeError, "block_size must be an integer, got False"),
    (lambda: masks.Diffusion(4, num_views=0), ValueError, "num_views is 0"),
    (lambda: masks.Diffusion(4, num_views=-1), ValueError, "num_views is -1"),
    (lambda: masks.Diffusion(4, num_views=1.5), TypeError, "num_views must be an integer, got 1.5"),
    (lambda: masks.Diffusion(4, num_views=True), TypeError, "num_views must be an integer"),
    (lambda: masks.Diffusion(4, clean_window=0), ValueError, "clean_window is 0"),
    (lambda: masks.Diffusion(4, clean_window=2**30), ValueError, f"clean_window is {2**30}"),
    (lambda: masks.BlockCausal(1.5), TypeError, "block_size must be an integer, got 1.5"),
    (lambda: masks.Diffusion(1.5), TypeError, "block_size must be an integer, got 1.5"),
    # lengths
    (lambda: batched(**tensors(rows=25)), ValueError, "q has 25 rows"),
    (lambda: batched(num_views=3, **tensors(rows=26)), ValueError, "num_views = 3"),
    (lambda: split(num_views=5), ValueError, "q_noisy has 24 rows; with num_views = 5"),
    (lambda: packed([0, 12], layout="halves", q=T(25, 4, 16), k=T(25, 2, 16), v=T(25, 2, 16)),
     ValueError, "q has 25 rows"),
    (lambda: batched(num_views=0), ValueError, "num_views is 0"),
    (lambda: batched(num_views=1.0), TypeError, "num_views must be an integer, got 1.0"),
    # cu_seqlens
    (lambda: packed(None), TypeError, "cu_seqlens is None"),
    (lambda: packed([2, 10, 24]), ValueError, r"cu_seqlens\[0\] is 2"),
    (lambda: packed([0, 10, 8]), ValueError, r"cu_seqlens\[2\] is 8 but cu_seqlens\[1\] is 10"),
    (lambda: packed([0, 10, 26]), ValueError, r"cu_seqlens\[2\] is 26; q has 24 rows"),
    (lambda: packed([0, 9, 24]), ValueError, r"cu_seqlens\[1\] - cu_seqlens\[0\] is 9"),
    (lambda: packed([0, 10, 24], num_views=2), ValueError, r"is 10; with num_views = 2"),
    (lambda: packed([0, 14], layout="halves"), ValueError, r"cu_seqlens\[1\] is 14; each half"),
    (lambda: packed([]), ValueError, "cu_seqlens has no elements"),
    (lambda: packed([[0, 24]]), TypeError, "cu_seqlens has rank 2"),
    (lambda: packed([0, 24.0]), TypeError, "cu_seqlens must be an integer, got 24.0"),
    (lambda: packed([0, 2**31]), ValueError, f"cu_seqlens holds {2**31}"),
    (lambda: packed(torch.tensor([0, 2**40])), ValueError, f"cu_seqlens holds {2**40}"),
    (lambda: packed(torch.tensor([0.0, 24.0])), TypeError, "cu_seqlens has dtype torch.float32"),
    (lambda: packed("0,24"), TypeError, "cu_seqlens is of type str"),
    (lambda: packed(max_seqlen=6), ValueError, "sample 1 a length of 7 tokens; max_seqlen is 6"),
    (lambda: packed(max_seqlen=-1), ValueError, "max_seqlen is -1"),
    (lambda: packed(max_seqlen=7.0), TypeError, "max_seqlen must be an integer, got 7.0"),
    (lambda: split_packed(cu_seqlens_clean=[0, 17]), ValueError, r"cu_seqlens_clean\[1\] is 17"),
    (lambda: split_packed(cu_seqlens_clean=None), ValueError, "cu_seqlens_clean is missing"),
    (lambda: split_packed(cu_seqlens_noisy=None), ValueError, "cu_seqlens_noisy is missing"),
    (lambda: split_packed(cu_seqlens_noisy=[0, 7, 24], cu_seqlens_clean=[0, 8, 16], num_views=2),
     ValueError, r"cu_seqlens_noisy\[1\] - cu_seqlens_noisy\[0\] is 7"),
    (lambda: split_packed(cu_seqlens_clean_q=[0, 16]), ValueError, "cu_seqlens_clean_q is given"),
    (lambda: split(cu_seqlens_noisy=[0, 24]), ValueError, "cu_seqlens_noisy is given, but"),
    (lambda: sequence(cu_seqlens=[0, 24]), ValueError, "cu_seqlens is given, but the tensors are"),
    # dtypes
    (lambda: batched(**tensors(torch.float64)), TypeError, "q is float64"),
    (lambda: batched(**tensors(torch.int32)), TypeError, "q is int32"),
    (lambda: batched(k=T(2, 24, 2, 16).half()), TypeError, "k is float16; q is float32"),
    (lambda: batched(v=T(2, 24, 2, 16).bfloat16()), TypeError, "v is bfloat16; q is float32"),
    (lambda: split(k_clean=T(2, 16, 2, 16).half()), TypeError, "k_clean is float16; q_noisy is"),
    (lambda: batched(seqused=ints(3, 4).short()), TypeError, "seqused has dtype torch.int16"),
    # devices
    (lambda: batched(k=T(2, 24, 2, 16).to("meta")), TypeError, "k is on meta; q is on cpu"),
    # ranks and shapes
    (lambda: batched(q=T(24, 4, 16)), TypeError, "q has rank 3"),
    (lambda: batched(q=T(16)), TypeError, r"q has shape \[16\]"),
    (lambda: batched(v=T(16)), TypeError, "v has rank 1"),
    (lambda: batched(k=T(2, 24, 16)), TypeError, "k has rank 3"),
    (lambda: packed(q=T(1, 24, 4, 16)), TypeError, "q has rank 4"),
    (lambda: batched(k=T(2, 22, 2, 16)), ValueError, "v has rows 24; k has 22"),
    (lambda: batched(k=T(3, 24, 2, 16)), ValueError, "k has batch size 3"),
    (lambda: batched(v=T(2, 24, 1, 16)), ValueError, "v has heads 1"),
    (lambda: batched(**tensors(heads_q=3, heads_kv=2)), ValueError, "q has 3 heads and k has 2"),
    (lambda: batched(k=T(2, 24, 2, 8)), ValueError, "k has head dim 8"),
    (lambda: batched(**tensors(dim=12)), ValueError, "q has head dim 12"),
    (lambda: batched(**tensors(dim=264)), ValueError, "q has head dim 264"),
    (lambda: batched(v=T(2, 24, 2, 20)), ValueError, "v has head dim 20"),
    (lambda: batched(**tensors(dim=0)), ValueError, "q has head dim 0"),
    (lambda: split(v_clean=T(2, 15, 2, 16)), ValueError, "v_clean has rows 15"),
    (lambda: split(q_clean=T(2, 16, 2, 16)), ValueError, "q_clean has heads 2"),
    # strides
    (lambda: batched(q=T(2, 24, 16, 4).mT), ValueError, "q has stride 4 in its last dimension"),
    (lambda: batched(v=T(2, 24, 2, 32)[..., ::2]), ValueError, "v has stride 2 in its last dim"),
    (lambda: split(k_clean=T(2, 16, 16, 2).mT), ValueError, "k_clean has stride 2"),
    # per-sample arrays
    (lambda: batched(prefix_lens=ints(1, 2, 3)), ValueError, r"prefix_lens has shape \[3\]"),
    (lambda: batched(prefix_lens=ints(1, -2)), ValueError, r"prefix_lens\[1\] is -2"),
    (lambda: batched(prefix_lens=4), TypeError, "prefix_lens is of type int"),
    (lambda: batched(prefix_lens=np.array([1, 2])), TypeError, "prefix_lens is of type ndarray"),
    (lambda: batched(seqused=ints(3, 13)), ValueError, r"seqused\[1\] is 13"),
    (lambda: split(seqused_clean=ints(16, 17)), ValueError, r"seqused_clean\[1\] is 17"),
    (lambda: split(noisy_offset=-1), ValueError, "noisy_offset is -1"),
    (lambda: split(noisy_offset=ints(0, -1)), ValueError, r"noisy_offset\[1\] is -1"),
    (lambda: split(noisy_offset=0.5), TypeError, "noisy_offset must be an integer, got 0.5"),
    (lambda: split(clean_q_offset=1), ValueError, "clean_q_offset is 1, but q_clean is not"),
    (lambda: sequence("causal", q_offset=ints(1)), ValueError, r"q_offset has shape \[1\]"),
    (lambda: split(block_ranges=[[0, 3]]), ValueError, "block_ranges has 1 blocks"),
    (lambda: split(block_ranges=[[0, 17]] * 6), ValueError, r"block_ranges .* \[0, 17\)"),
    (lambda: split(block_ranges=[[5, 3]] * 6), ValueError, r"block_ranges .* \[5, 3\)"),
    (lambda: split(block_ranges=[[0, 3]] * 6, clean_window=3), ValueError, "clean_window = 3"),
    # choices
    (lambda: batched(order="clean"), ValueError, 'order is "clean"; accepted: "noisy_clean", "'),
    (lambda: batched(clean="full"), ValueError, 'clean is "full"; accepted: "block", "causal"'),
    (lambda: batched(noisy="block"), ValueError, 'noisy is "block"; accepted: "bidirectional"'),
    (lambda: batched(noisy=True), TypeError, "noisy is of type bool"),
    (lambda: packed(layout="batched"), ValueError, 'layout is "batched"; accepted: "interleaved"'),
    (lambda: sequence("window"), ValueError, 'mask is "window"'),
    (lambda: sequence(torch.ones(2, 2)), TypeError, "mask is of type Tensor"),
    (lambda: sequence(layout="batched"), ValueError, 'layout is "batched" with the mask Full'),
    (lambda: sequence(masks.Diffusion(4), layout="split"), ValueError, 'layout is "split"'),
    (lambda: masks.Window(-1, 0), ValueError, "left is -1"),
    (lambda: masks.Window(0, 1.5), TypeError, "right must be an integer, got 1.5"),
    (lambda: masks.Diffusion(4, order="x"), ValueError, 'order is "x"'),
    # flags
    (lambda: batched(deterministic="x"), TypeError, "deterministic must be True or False, got 'x'"),
    (lambda: packed(deterministic=1), TypeError, "deterministic must be True or False, got 1"),
    (lambda: split(deterministic=None), TypeError, "deterministic must be True or False, got None"),
    (lambda: sequence(deterministic=torch.tensor(True)), TypeError, "deterministic must be True"),
    (lambda: batched(return_lse=1), TypeError, "return_lse must be True or False, got 1"),
    (lambda: packed(return_lse="no"), TypeError, "return_lse must be True or False, got 'no'"),
    (lambda: split(return_lse=None), TypeError, "return_lse must be True or False, got None"),
    (lambda: sequence(return_lse=0), TypeError, "return_lse must be True or False, got 0"),
    (lambda: stepwell.diffusion_mask(24, 4, as_numpy=1), TypeError, "as_numpy must be True or"),
    # options that a mask does not take
    (lambda: sequence(masks.Diffusion(4), q_offset=1), ValueError, "q_offset is given"),
    (lambda: sequence(masks.Diffusion(4), q_offset=ints(0, 0)), ValueError, "q_offset is given"),
    (lambda: sequence(masks.Diffusion(4), q_offset=[0, 0]), ValueError, "q_offset is given"),
    (lambda: sequence(masks.Diffusion(4), q_offset=np.int64(1)), ValueError, "q_offset is given"),
    (lambda: sequence(masks.Diffusion(4), q_offset=0.5), TypeError, "q_offset must be an integer"),
    (lambda: sequence(masks.Diffusion(4), seqused_kv=ints(1)), ValueError, "seqused_kv is given"),
    (lambda: sequence("causal", prefix_lens=ints(1, 1)), ValueError, "prefix_lens is given"),
    # numbers
    (lambda: batched(dropout_p=1.0), ValueError, "dropout_p is 1"),
    (lambda: batched(dropout_p=-0.1), ValueError, "dropout_p is -0.1"),
    (lambda: batched(dropout_p=float("nan")), ValueError, "dropout_p is nan"),
    (lambda: batched(dropout_p="0.1"), TypeError, "dropout_p must be a number, got '0.1'"),
    (lambda: batched(dropout_p=0.1, dropout_seed=1.5), TypeError, "dropout_seed must be an int"),
    (lambda: batched(dropout_p=0.1, dropout_seed=2**64), ValueError, "dropout_seed is 1844674"),
    (lambda: batched(dropout_p=0.1, dropout_seed=ints(1, 2)), TypeError, "dropout_seed is int32"),
    (lambda: batched(dropout_p=0.1, dropout_seed=torch.tensor([1])), ValueError,
     r"dropout_seed has shape \[1\]"),
    (lambda: batched(dropout_p=0.1, dropout_seed=[3, 4]), TypeError,
     r"dropout_seed must be an integer, an int64 array .* or None, got \[3, 4\]"),
    (lambda: batched(dropout_p=0.1, dropout_seed=torch.empty(2, dtype=torch.int64, device="meta")),
     TypeError, "dropout_seed is on meta; q is on cpu"),
    (lambda: batched(dropout_p=10**400), ValueError, "dropout_p is an integer of 1329 bits"),
    (lambda: batched(dropout_p=np.True_), TypeError, "dropout_p must be a number"),
    (lambda: batched(softcap=np.True_), TypeError, "softcap must be a number"),
    (lambda: batched(softcap=np.array("0.1")), TypeError, "softcap must be a number"),
    (lambda: batched(softcap=np.complex64(1)), TypeError, "softcap must be a number"),
    (lambda: batched(softcap=np.timedelta64(1)), TypeError, "softcap must be a number"),
    (lambda: batched(softcap=np.datetime64("2020")), TypeError, "softcap must be a number"),
    (lambda: batched(softcap=decimal.Decimal("sNaN")), ValueError, "softcap is sNaN; accepted"),
    (lambda: batched(softmax_scale=10**5000), ValueError, "softmax_scale is an integer of 16610"),
    (lambda: batched(num_views=10**5000), ValueError, "num_views is an integer of 16610 bits"),
    (lambda: batched(softcap=-1.0), ValueError, "softcap is -1"),
    (lambda: batched(softcap=float("inf")), ValueError, "softcap is inf"),
    (lambda: batched(softmax_scale=float("nan")), ValueError, "softmax_scale is nan"),
    (lambda: batched(softmax_scale=torch.tensor(0.5)), TypeError, "softmax_scale must be a number"),
    (lambda: batched(clean_window=0), ValueError, "clean_window is 0"),
    (lambda: batched(clean_window=-3), ValueError, "clean_window is -3"),
    (lambda: batched(clean_window=1.5), TypeError, "clean_window must be an integer, got 1.5"),
    # types of arrays
    (lambda: without("q"), TypeError, "'q'"),
    (lambda: batched(q=None), TypeError, "q is of type NoneType"),
    (lambda: batched(q=[[1.0]]), TypeError, "q is of type list"),
    (lambda: batched(k=None), TypeError, "k is of type NoneType"),
    (lambda: batched(k=np.zeros((2, 24, 2, 16), np.float32)), TypeError, "k is of type ndarray"),
    (lambda: batched(q=np.zeros((2, 24, 4, 16), np.float32)), TypeError, "k is of type Tensor"),
    (lambda: split(q_clean=np.zeros((2, 16, 4, 16), np.float32)), TypeError, "q_clean is of type"),
    # masks for inspection
    (lambda: stepwell.diffusion_mask(25, 4), ValueError, "q has 25 rows"),
    (lambda: stepwell.diffusion_mask(-2, 4), ValueError, "rows is -2"),
    (lambda: stepwell.diffusion_mask(24, 0), ValueError, "block_size is 0"),
    (lambda: stepwell.diffusion_mask(24, 4, rows_kv=3), ValueError, "rows_kv is given, but the"),
    (lambda: stepwell.diffusion_mask(24, 4, layout="sequence"), ValueError, 'layout is "sequence"'),
    (lambda: stepwell.diffusion_mask(24, 4, layout="split", seqused=[1]), ValueError,
     "seqused is given, but the layout is split"),
    (lambda: stepwell.visible_pairs(24, "full", rows_clean=3), ValueError, "rows_clean is given"),
    (lambda: stepwell.visible_pairs(24, 4, device="cpu"), TypeError,
     r"^visible_pairs\(\) got an unexpected keyword argument 'device'; accepted: batch, layout, "),
    (lambda: stepwell.diffusion_mask(24, 4, seq_used=[1]), TypeError,
     r"^diffusion_mask\(\) got an unexpected keyword argument 'seq_used'"),
    (lambda: stepwell.attention_mask(24, 4, cu_seqlen=[1]), TypeError,
     r"^attention_mask\(\) got an unexpected keyword argument 'cu_seqlen'"),
    (lambda: stepwell.attention_mask(24, 4, clean_q_offset=np.int64(1)), ValueError,
     "clean_q_offset is given, but the layout is batched"),
    (lambda: stepwell.attention_mask(8, 2, cu_seqlens=[0, 4, 8], batch=5), ValueError,
     "batch is given, but so is cu_seqlens, which"),
    (lambda: stepwell.visible_pairs(8, "full", cu_seqlens=[0, 4, 8], batch=2), ValueError,
     "batch is given, but so is cu_seqlens, which"),
    (lambda: stepwell.diffusion_mask(
        8, 2, layout="split", cu_seqlens_noisy=[0, 8], cu_seqlens_clean=[0, 8], batch=1),
     ValueError, "batch is given, but so is cu_seqlens_noisy"),
    (lambda: stepwell.attention_mask(8, masks.Diffusion(2, "clean_noisy"), layout="split"),
     ValueError, "order is 'clean_noisy', but layout is \"split\""),
    (lambda: stepwell.diffusion_mask(8, 2, layout="batched", cu_seqlens=[0, 4, 8]), ValueError,
     'cu_seqlens is given, but layout is "batched"'),
    (lambda: stepwell.diffusion_mask(8, 2, layout="interleaved"), ValueError, "cu_seqlens is None"),
    (lambda: stepwell.visible_pairs(8, 2, layout="halves"), ValueError, "cu_seqlens is None"),
    # sizes
    (lambda: stepwell.visible_pairs(2**28, "full", batch=1000), ValueError,
     f"batch size 1000, and the visible pairs .* more than {2**63 - 1}"),
    (lambda: stepwell.visible_pairs(8, "full", batch=2**31), ValueError, f"batch is {2**31}"),
    (lambda: stepwell.visible_pairs(2**28 + 1, "full"), ValueError, f"rows is {2**28 + 1}"),
    (lambda: stepwell.attention_mask(2**28, "full", rows_kv=2**40), ValueError, "rows_kv is 1099"),
    (lambda: stepwell.attention_mask(2**28, "full", batch=256), ValueError,
     r"batch and rows make a mask of shape \[256, 268435456, 268435456\]"),
    # ragged lists
    (lambda: split(block_ranges=[[0, 1], [0]]), ValueError,
     r"block_ranges is a ragged list: its parts 0 and 1 have shapes \[2\] and \[1\]"),
    (lambda: split(block_ranges=[[[0, 1]], [[0, 1], [1, 2]]]), ValueError, "block_ranges is a rag"),
    (lambda: packed([0, [24]]), ValueError, r"cu_seqlens is a ragged list: .* \[\] and \[1\]"),
    (lambda: split(noisy_offset=[[0], 1]), ValueError, "noisy_offset is a ragged list"),
    (lambda: stepwell.diffusion_mask(8, 2, prefix_lens=[[0], 1], as_numpy=True), ValueError,
     "prefix_lens is a ragged list"),
    # strings of the operators
    (lambda: joint_operator(layout="foo"), ValueError, 'layout is "foo"; accepted: "batched", '),
    (lambda: joint_operator(order="foo"), ValueError, 'order is "foo"; accepted: "noisy_clean", '),
    (lambda: joint_operator(clean="foo"), ValueError, 'clean is "foo"; accepted: "block", '),
    (lambda: joint_operator(noisy="foo"), ValueError, 'noisy is "foo"; accepted: "bidirectional'),
    (lambda: sequence_operator("foo"), ValueError, 'mask is "foo"; accepted: '),
    (lambda: mask_operator(layout="foo"), ValueError, 'layout is "foo"; accepted: "batched", '),
    (lambda: mask_operator(kind="causal"), ValueError, 'layout is "batched", but mask is "causal"'),
    (lambda: mask_operator(layout="sequence"), ValueError, 'layout is "sequence", but mask'),
    (lambda: mask_operator(layout="sequence", kind="foo"), ValueError, 'mask is "foo"'),
    (lambda: mask_operator(window_left=3), ValueError, "window_left is 3, but layout is"),
    (lambda: mask_operator(layout="sequence", kind="full", num_views=2), ValueError,
     "num_views is 2, but layout is"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), CASES, ids=[case[2] for case in CASES])
def test_raises(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error
    assert re.search(message, str(raised.value)), str(raised.value)


@pytest.mark.parametrize("number", [0, -1, 2**28 + 1])
@pytest.mark.parametrize("name", ["block_size", "num_views"])
def test_masks_and_functions_refuse_alike(name, number):
    messages = []
    for call in (masks.Diffusion, batched):
        with pytest.raises(ValueError, match=f"{name} is {number}; ") as raised:
            call(**{"block_size": 4, name: number})
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_good_input_passes():
    batched()
    packed()
    split()
    split_packed()
    sequence()
    joint_operator()
    sequence_operator("full")
    mask_operator()


def test_bad_gradients():
    given = tensors()
    out, lse = stepwell.diffusion_attn_func(**given, block_size=4, return_lse=True)

    def backward(dout=out, out=out, lse=lse, **options):
        return stepwell.diffusion_attn_backward(dout, *given.values(), out, lse, 4, **options)

    backward()
    with pytest.raises(ValueError, match=r"dout has shape \[2, 23, 4, 16\]"):
        backward(dout=out[:, 1:])
    with pytest.raises(TypeError, match="lse is float16"):
        backward(lse=lse.half())
    with pytest.raises(ValueError, match=r"dlse has shape \[2, 4, 23\]"):
        backward(dlse=lse[..., 1:])
    with pytest.raises(TypeError, match="out is of type NoneType"):
        backward(out=None)
    with pytest.raises(ValueError, match=r"dropout_seed is None and dropout_p is 0\.5"):
        backward(dropout_p=0.5)
    for p, error, message in (
        ("0", TypeError, "dropout_p must be a number, got '0'"),
        (None, TypeError, "dropout_p must be a number, got None"),
        (float("nan"), ValueError, "dropout_p is nan"),
        (1.0, ValueError, "dropout_p is 1"),
        (np.array([0.1, 0.2]), TypeError, "dropout_p must be a number, got an array"),
        (torch.tensor([0.1, 0.2]), TypeError, "dropout_p must be a number, got an array"),
    ):
        with pytest.raises(error, match=message):
            backward(dropout_p=p)
    noisy = {f"{name}_noisy": x for name, x in given.items()}
    with pytest.raises(ValueError, match="out_clean is given; accepted: with q_clean only"):
        stepwell.diffusion_attn_split_backward(
            out,
            **noisy,
            k_clean=given["k"],
            v_clean=given["v"],
            out_noisy=out,
            lse_noisy=lse,
            block_size=4,
            out_clean=out,
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("softcap", 1e-46),
        ("softcap", 2.4e38),
        ("softcap", -1.0),
        ("softcap", float("nan")),
        ("softmax_scale", 1e-46),
        ("softmax_scale", -1e39),
        ("softmax_scale", float("inf")),
    ],
)
def test_scales_that_float32_cannot_hold(name, value):
    q = torch.zeros(1, 16, 2, 8)
    with pytest.raises(ValueError, match=f"{name} is .*; it must be"):
        stepwell.diffusion_attn_func(q, q, q, 4, **{name: value})
