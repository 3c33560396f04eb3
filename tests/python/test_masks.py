"""Masks: the counts of docs/masks.md, and every layout against the visibility table."""

import numpy as np
import pytest
import torch
from cases import CASES, CHECK_VALUES, Case
from hypothesis import given
from hypothesis import strategies as st

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


diffusion = st.builds(
    masks.Diffusion,
    block_size=st.integers(1, 26),
    order=st.sampled_from(["noisy_clean", "clean_noisy"]),
    clean=st.sampled_from(["block", "causal"]),
    noisy=st.sampled_from(["bidirectional", "causal"]),
    clean_window=st.none() | st.integers(1, 30),
    num_views=st.integers(1, 3),
)


@st.composite
def joint_cases(draw):
    layout = draw(st.sampled_from(["batched", "interleaved", "halves"]))
    batch = draw(st.integers(1, 3))
    if layout == "batched":
        lengths = [draw(st.integers(0, 24))] * batch
    else:
        lengths = draw(st.lists(st.integers(0, 24), min_size=batch, max_size=batch))
    per_sample = st.lists(st.integers(0, 30), min_size=batch, max_size=batch)
    used = [draw(st.integers(0, n)) for n in lengths]
    return Case(
        "fuzz",
        layout,
        lengths,
        draw(diffusion),
        tail=draw(st.integers(0, 3)) if layout == "halves" else 0,
        prefix_lens=draw(st.none() | per_sample),
        seqused=draw(st.sampled_from([None, used])),
    )


@given(joint_cases())
def test_joint_fuzz(fuzz):
    assert_same_mask(fuzz)


@st.composite
def split_cases(draw):
    packed = draw(st.booleans())
    batch = draw(st.integers(1, 3))
    mask = draw(diffusion)
    table = draw(st.booleans())
    if table:
        mask = masks.Diffusion(mask.block_size, clean=mask.clean, noisy=mask.noisy)
    else:
        mask = masks.Diffusion(
            mask.block_size,
            clean=mask.clean,
            noisy=mask.noisy,
            clean_window=mask.clean_window,
            num_views=mask.num_views,
        )
    length = st.integers(0, 16)
    lengths = [(draw(length), draw(length)) for _ in range(batch)]
    if not packed:
        lengths = [lengths[0]] * batch
    queries = draw(st.booleans())
    lengths = [(noisy, clean, clean if queries else 0) for noisy, clean in lengths]
    has_queries = any(clean for _, _, clean in lengths)
    ranges = None
    if table:
        most = max(-(-noisy // mask.block_size) for noisy, _, _ in lengths)
        ranges = [
            [
                sorted((draw(st.integers(0, clean)), draw(st.integers(0, clean))))
                for _ in range(most)
            ]
            for _, clean, _ in lengths
        ]
        if not most:
            ranges = None
    per_sample = st.lists(st.integers(0, 20), min_size=batch, max_size=batch)
    origins = draw(st.none() | per_sample)
    if ranges is not None and not (has_queries and mask.clean == "block"):
        origins = None
    return Case(
        "fuzz",
        "split_packed" if packed else "split",
        lengths,
        mask,
        tail=draw(st.integers(0, 2)) if packed else 0,
        prefix_lens=origins,
        noisy_offset=draw(st.integers(0, 20) | per_sample),
        clean_q_offset=draw(st.integers(0, 9) | per_sample) if has_queries else 0,
        seqused=draw(st.sampled_from([None, [draw(st.integers(0, n)) for n, _, _ in lengths]])),
        seqused_clean=draw(
            st.sampled_from([None, [draw(st.integers(0, n)) for _, n, _ in lengths]])
        ),
        block_ranges=ranges,
    )


@given(split_cases())
def test_split_fuzz(fuzz):
    assert_same_mask(fuzz)


@st.composite
def sequence_cases(draw):
    packed = draw(st.booleans())
    batch = draw(st.integers(1, 3))
    length = st.integers(0, 20)
    lengths = [(draw(length), draw(length)) for _ in range(batch)]
    if not packed:
        lengths = [lengths[0]] * batch
    bound = st.none() | st.integers(0, 9)
    mask = draw(
        st.just(masks.Full())
        | st.just(masks.Causal())
        | st.builds(masks.Window, bound, bound)
        | st.builds(masks.BlockCausal, st.integers(1, 9))
    )
    per_sample = st.lists(st.integers(0, 20), min_size=batch, max_size=batch)
    return Case(
        "fuzz",
        "sequence_packed" if packed else "sequence",
        lengths,
        mask,
        prefix_lens=draw(st.none() | per_sample) if isinstance(mask, masks.BlockCausal) else None,
        q_offset=draw(st.integers(0, 20) | per_sample),
        seqused=draw(st.sampled_from([None, [draw(st.integers(0, n)) for n, _ in lengths]])),
        seqused_kv=draw(st.sampled_from([None, [draw(st.integers(0, n)) for _, n in lengths]])),
    )


@given(sequence_cases())
def test_sequence_fuzz(fuzz):
    assert_same_mask(fuzz)


def test_numpy_results():
    mask = stepwell.diffusion_mask(32, 4, as_numpy=True)
    assert isinstance(mask, np.ndarray)
    assert mask.dtype == np.bool_
    assert mask.shape == (1, 32, 32)
    assert isinstance(stepwell.diffusion_mask(32, 4, prefix_lens=np.array([2])), np.ndarray)
    assert isinstance(stepwell.diffusion_mask(32, 4, prefix_lens=torch.tensor([2])), torch.Tensor)


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
