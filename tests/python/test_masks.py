"""Masks: the counts of docs/masks.md, and every layout against the visibility table."""

import numpy as np
import pytest
import torch
from cases import CASES, CHECK_VALUES
from hypothesis import given, settings
from strategies import joint_cases, sequence_cases, split_cases

import stepwell
from stepwell import masks


@pytest.mark.parametrize("checked", CHECK_VALUES, ids=[case.name for case in CHECK_VALUES])
def test_check_values(checked):
    assert int(checked.dense_mask().sum()) == checked.pairs
    pairs = stepwell.visible_pairs(checked.mask_rows, checked.mask, **checked.mask_options())
    assert pairs == checked.pairs


def assert_same_mask(case):
    expected = case.dense_mask()
    mask = stepwell.attention_mask(case.mask_rows, case.mask, **case.mask_options())
    assert mask.dtype == torch.bool
    assert torch.equal(mask[None] if case.packed else mask, expected)
    pairs = stepwell.visible_pairs(case.mask_rows, case.mask, **case.mask_options())
    assert pairs == int(expected.sum())


def test_every_layout(case):
    assert_same_mask(case)


@pytest.mark.parametrize(
    "joint", [c for c in CASES if isinstance(c.mask, masks.Diffusion)], ids=lambda c: c.name
)
def test_diffusion_mask_is_attention_mask(joint):
    m = joint.mask
    mask = stepwell.diffusion_mask(
        joint.mask_rows,
        m.block_size,
        order=m.order,
        clean=m.clean,
        noisy=m.noisy,
        clean_window=m.clean_window,
        num_views=m.num_views,
        **joint.mask_options(),
    )
    assert torch.equal(mask[None] if joint.packed else mask, joint.dense_mask())


def test_equal_counts_of_running_origins():
    # An origin that runs on from sample to sample hides and shows 12 pairs each: counts agree.
    local = stepwell.diffusion_mask(36, 4, cu_seqlens=[0, 14, 24, 36])
    wrong = stepwell.diffusion_mask(36, 4, cu_seqlens=[0, 14, 24, 36], prefix_lens=[0, 1, 0])
    assert int(local.sum()) == int(wrong.sum()) == 172
    assert int((local & ~wrong).sum()) == int((wrong & ~local).sum()) == 12


@given(joint_cases() | split_cases() | sequence_cases())
@settings(max_examples=200)
def test_fuzz(fuzz):
    assert_same_mask(fuzz)


def test_numpy_results():
    mask = stepwell.diffusion_mask(32, 4, as_numpy=True)
    assert isinstance(mask, np.ndarray)
    assert mask.dtype == np.bool_
    assert mask.shape == (1, 32, 32)
    assert isinstance(stepwell.diffusion_mask(32, 4, prefix_lens=np.array([2])), np.ndarray)
    assert isinstance(stepwell.diffusion_mask(32, 4, prefix_lens=torch.tensor([2])), torch.Tensor)


def test_offsets_of_zero_are_the_default():
    zero = np.int64(0)
    x = torch.randn(1, 24, 2, 8)
    mask = masks.Diffusion(4)
    out = stepwell.attention(x, x, x, mask, q_offset=zero)
    assert torch.equal(out, stepwell.attention(x, x, x, mask))
    options = {"q_offset": zero, "noisy_offset": zero, "clean_q_offset": zero}
    assert stepwell.visible_pairs(24, mask, **options) == stepwell.visible_pairs(24, mask)
    assert stepwell.visible_pairs(24, "causal", **options) == 300


@pytest.mark.parametrize("integer", [np.int64, np.int32, np.uint8])
def test_numbers_of_masks_may_be_those_of_numpy(integer):
    n = integer(4)
    pairs = [
        (masks.BlockCausal(n), masks.BlockCausal(4)),
        (masks.Window(n, n), masks.Window(4, 4)),
        (masks.Diffusion(n, clean_window=n, num_views=n), masks.Diffusion(4, "noisy_clean", "block",
         "bidirectional", 4, 4)),
    ]  # fmt: skip
    for mask, plain in pairs:
        assert mask == plain
        assert all(type(x) is not integer for x in vars(mask).values())
        assert stepwell.visible_pairs(20, mask) == stepwell.visible_pairs(20, plain)


def test_masks_from_torch_and_numpy_arrays_are_the_same():
    options = {"layout": "split", "rows_clean": 9, "rows_clean_q": 3, "clean_q_offset": 6}
    by_list = stepwell.diffusion_mask(8, 4, prefix_lens=[2], **options)
    assert isinstance(by_list, torch.Tensor)
    for array in (np.array([2]), torch.tensor([2]), torch.tensor([2], dtype=torch.int32)):
        for as_numpy in (True, False):
            mask = stepwell.diffusion_mask(8, 4, prefix_lens=array, as_numpy=as_numpy, **options)
            assert isinstance(mask, np.ndarray) == as_numpy
            assert np.array_equal(mask, by_list)


def test_masks_are_values():
    assert masks.Diffusion(4) == masks.Diffusion(4, clean="block")
    assert len({masks.Full(), masks.Full(), masks.Window(1, 2), masks.Window(1, 2)}) == 2
    with pytest.raises(AttributeError):
        masks.BlockCausal(4).block_size = 5
    assert stepwell.visible_pairs(8, "full") == 64
    assert stepwell.visible_pairs(8, "causal") == 36
    assert stepwell.visible_pairs(32, 4) == 320


class TestCuSeqlens:
    @pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
    def test_runs(self, make):
        ids = make([0, 1, 2, 0, 0, 1, 0, 1, 2, 3])
        result = stepwell.cu_seqlens_from_position_ids(ids)
        assert result.tolist() == [0, 3, 4, 6, 10]
        assert str(result.dtype).endswith("int32")
        assert isinstance(result, type(ids))

    def test_parts(self):
        ids = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0])
        assert stepwell.cu_seqlens_from_position_ids(ids, parts=2).tolist() == [0, 6, 8]
        with pytest.raises(ValueError, match="parts is 3 but position_ids has 4 runs"):
            stepwell.cu_seqlens_from_position_ids(ids, parts=3)

    def test_runs_that_start_after_a_prompt(self):
        ids = torch.tensor([0, 1, 2, 3, 2, 3, 0, 1])
        assert stepwell.cu_seqlens_from_position_ids(ids).tolist() == [0, 4, 6, 8]

    def test_rows_start_samples(self):
        ids = torch.tensor([[0, 1, 2], [3, 4, 0]])
        assert stepwell.cu_seqlens_from_position_ids(ids).tolist() == [0, 3, 5, 6]

    def test_empty(self):
        assert stepwell.cu_seqlens_from_position_ids(
            torch.zeros(0, dtype=torch.int64)
        ).tolist() == [0]

    def test_is_what_varlen_takes(self):
        lengths = [7, 5, 6]
        ids = torch.cat([torch.arange(n) for n in lengths for _ in range(2)])
        cu_seqlens = stepwell.cu_seqlens_from_position_ids(ids, parts=2)
        assert stepwell.visible_pairs(36, 4, cu_seqlens=cu_seqlens) == 172

    @pytest.mark.parametrize(
        ("value", "error"),
        [
            ([0, 1], "is of type list"),
            (torch.tensor([0.0]), "has dtype torch.float32"),
            (torch.tensor([True]), "has dtype torch.bool"),
            (torch.zeros(1, 1, 1, dtype=torch.int64), r"has shape \[1, 1, 1\]"),
        ],
    )
    def test_bad_input(self, value, error):
        with pytest.raises(TypeError, match="position_ids " + error):
            stepwell.cu_seqlens_from_position_ids(value)
