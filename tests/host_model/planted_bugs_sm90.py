"""Bugs of attention_forward_sm90, for planted_bugs.py: name, file, text and what it becomes."""

from __future__ import annotations

KERNEL = "cuda/attention/forward_sm90.cuh"
PRODUCERS = "cuda/attention/forward_sm90_producers.cuh"
ITEMS = "cuda/attention/forward_sm90_items.cuh"
RUNNING = "cuda/tile/running_softmax.cuh"

# Cases of the operator table: several strips, every way in which tiles are combined, samples that
# end inside of a tile.
CASES = [
    "long",
    "frames",
    "length64",
    "length65",
    "length129",
    "heads7_1",
    "dim128_128",
    "n5_b1_block",
    "n33_b1_both_causal",
    "batched_seqused",
    "strips_b4_block",
    "strips_b64_both_causal",
    "strips_b100_clean_causal",
    "strips_of_one_block",
    "strips_seqused",
    "strips_seqused_any_block",
    "strips_dim128",
    "strips_dim128_any_block",
    "strips_large_logits",
]

STEP_WAITS = "ptx::wgmma_wait_group<1>(s); release_k(); const bool moved ="
STEP_ENDS = "ptx::wgmma_wait_group<0>(o, in_flight); release_v(); if (moved) rescale_output(); };"

BUGS = [
    # ---- mbarriers
    {
        "name": "wrong parity: the consumers' wait for K",
        "path": KERNEL,
        "old": "ptx::mbarrier_wait_parity(barriers.k_full(k.slot()), k.parity());",
        "new": "ptx::mbarrier_wait_parity(barriers.k_full(k.slot()), k.parity() ^ 1);",
        "quick": True,
    },
    {
        "name": "wrong parity: the producer's wait for a slot of K",
        "path": PRODUCERS,
        "old": "wait_together(barriers.k_empty(k.slot()), k.parity() ^ 1);",
        "new": "wait_together(barriers.k_empty(k.slot()), k.parity());",
    },
    {
        "name": "slot of V used again without a wait",
        "path": PRODUCERS,
        "old": "wait_together(barriers.v_empty(v.slot()), v.parity() ^ 1);",
        "new": "",
        "quick": True,
    },
    {
        "name": "slot of Q used again without a wait",
        "path": PRODUCERS,
        "old": "wait_together(barriers.q_empty(q.slot()), q.parity() ^ 1);",
        "new": "",
    },
    {
        "name": "no wait for V",
        "path": KERNEL,
        "old": "issue_scores(s); wait_v(); issue_output(in_flight);",
        "new": "issue_scores(s); issue_output(in_flight);",
    },
    {
        "name": "K released while it is read",
        "path": KERNEL,
        "old": STEP_WAITS,
        "new": "release_k(); ptx::wgmma_wait_group<1>(s); const bool moved =",
    },
    {
        "name": "V released while it is read",
        "path": KERNEL,
        "old": STEP_ENDS,
        "new": "release_v(); ptx::wgmma_wait_group<0>(o, in_flight);"
        " if (moved) rescale_output(); };",
    },
    {
        "name": "an arrival of V's release too few",
        "path": PRODUCERS,
        "old": "ptx::mbarrier_init(v_empty(i), 8);",
        "new": "ptx::mbarrier_init(v_empty(i), 7);",
    },
    {
        "name": "half of a tile's bytes expected",
        "path": PRODUCERS,
        "old": "ptx::mbarrier_arrive_expect_tx(barrier, bytes);",
        "new": "ptx::mbarrier_arrive_expect_tx(barrier, bytes / 2);",
    },
    {
        "name": "no fence after mbarrier.init",
        "path": PRODUCERS,
        "old": "ptx::fence_mbarrier_init();",
        "new": "",
    },
    {
        "name": "no barrier after mbarrier.init",
        "path": KERNEL,
        "old": "ptx::bar_sync(0, C.threads());",
        "new": "",
    },
    {
        "name": "item's place released before it is read",
        "path": KERNEL,
        "old": "const StripItem item = load_item(shared + kPlan.items + 32 * slot);"
        " ptx::syncwarp(); if (lane == 0) ptx::mbarrier_arrive(barriers.q_empty(slot));",
        "new": "if (lane == 0) ptx::mbarrier_arrive(barriers.q_empty(slot));"
        " const StripItem item = load_item(shared + kPlan.items + 32 * slot); ptx::syncwarp();",
    },
    {
        "name": "tiles passed over in another order than they are loaded",
        "path": KERNEL,
        "old": "if (!C.small_blocks && passed > 1 && i > 0) pass_v();",
        "new": "",
    },
    {
        "name": "nobody has the first turn",
        "path": KERNEL,
        "old": "if (group == 1) ptx::bar_arrive(1, 256);",
        "new": "",
    },
    # ---- wgmma
    {
        "name": "no wait for S",
        "path": KERNEL,
        "old": STEP_WAITS,
        "new": "release_k(); const bool moved =",
        "quick": True,
    },
    {
        "name": "no wait for O",
        "path": KERNEL,
        "old": STEP_ENDS,
        "new": "release_v(); if (moved) rescale_output(); };",
    },
    {
        "name": "P of the product in flight overwritten",
        "path": KERNEL,
        "old": "softmax_ahead<C.element>(next, s,",
        "new": "softmax_ahead<C.element>(in_flight, s,",
    },
    {
        "name": "no wgmma.fence before S",
        "path": KERNEL,
        "old": "const u64 a = ptx::matrix_descriptor(q_strip, 16, 1024, Swizzle::k128);"
        " ptx::wgmma_fence();",
        "new": "const u64 a = ptx::matrix_descriptor(q_strip, 16, 1024, Swizzle::k128);",
    },
    {
        "name": "wrong stride in the descriptor of Q",
        "path": KERNEL,
        "old": "ptx::matrix_descriptor(q_strip, 16, 1024, Swizzle::k128);",
        "new": "ptx::matrix_descriptor(q_strip, 16, 512, Swizzle::k128);",
    },
    {
        "name": "wrong swizzle in the descriptor of V",
        "path": KERNEL,
        "old": "kSlabBytes, 1024, Swizzle::k128);",
        "new": "kSlabBytes, 1024, Swizzle::k64);",
    },
    {
        "name": "wrong distance of V's slabs",
        "path": KERNEL,
        "old": "kSlabBytes, 1024, Swizzle::k128);",
        "new": "kStripSlabBytes, 1024, Swizzle::k128);",
    },
    {
        "name": "V taken for K-major",
        "path": KERNEL,
        "old": "ptx::wgmma_rs<C.element, true>(",
        "new": "ptx::wgmma_rs<C.element, false>(",
        "quick": True,
    },
    {
        "name": "second half of a first tile left out",
        "path": KERNEL,
        "old": "issue_first_output(p0, narrow);",
        "new": "issue_first_output(p0, true);",
    },
    # ---- results
    {
        "name": "no proxy fence before the output is stored",
        "path": KERNEL,
        "old": "ptx::fence_proxy_async(); ptx::bar_sync(3 + half, 128);",
        "new": "ptx::bar_sync(3 + half, 128);",
        "quick": True,
    },
    {
        "name": "no barrier before the output is stored",
        "path": KERNEL,
        "old": "ptx::fence_proxy_async(); ptx::bar_sync(3 + half, 128);",
        "new": "ptx::fence_proxy_async();",
    },
    {
        "name": "staged output overwritten while it is read",
        "path": KERNEL,
        "old": "if (thread == 0) ptx::bulk_wait_group_read<0>(); ptx::bar_sync(3 + half, 128);",
        "new": "ptx::bar_sync(3 + half, 128);",
    },
    {
        "name": "the kernel ends while the output is read",
        "path": KERNEL,
        "old": "if (leads_group()) ptx::bulk_wait_group_read<0>();",
        "new": "",
    },
    {
        "name": "output swizzled by the wrong row",
        "path": KERNEL,
        "old": "thread % 32 / 16) ^ (row % 8);",
        "new": "thread % 32 / 16) ^ (row % 4);",
    },
    {
        "name": "rows without a token not zeroed",
        "path": KERNEL,
        "old": "if (at + 8 * r < last_len) continue;",
        "new": "continue;",
    },
    {
        "name": "strips without a token not written",
        "path": PRODUCERS,
        "old": "write_empty_strip(p, item); item.valid = 0;",
        "new": "item.valid = 0;",
    },
    {
        "name": "the output of the item at hand stored for the last one",
        "path": KERNEL,
        "old": "last_head = uniform(item.head);",
        "new": "last_head = 0;",
    },
    # ---- rows of V without a token
    {
        "name": "rows of V without a token not cleared",
        "path": PRODUCERS,
        "old": "clear_ragged_rows<C>(to, last);",
        "new": "",
        "quick": True,
    },
    {
        "name": "a row of V cleared too few",
        "path": PRODUCERS,
        "old": "int i = valid * kPieces + lane",
        "new": "int i = (valid + 1) * kPieces + lane",
    },
    {
        "name": "no proxy fence after rows of V are cleared",
        "path": PRODUCERS,
        "old": "ptx::fence_proxy_async(); ptx::syncwarp();",
        "new": "ptx::syncwarp();",
    },
    {
        "name": "no syncwarp after rows of V are cleared",
        "path": PRODUCERS,
        "old": "ptx::fence_proxy_async(); ptx::syncwarp();",
        "new": "ptx::fence_proxy_async();",
    },
    {
        "name": "no wait for V before rows are cleared",
        "path": PRODUCERS,
        "old": "wait_together(barriers.ragged(), ragged_parity);",
        "new": "",
    },
    # ---- masks and tiles
    {
        "name": "noisy rows see the clean keys of their own block",
        "path": KERNEL,
        "old": "if (group == 1) end = p.clean_causal",
        "new": "end = p.clean_causal",
    },
    {
        "name": "clean rows see one key too few",
        "path": KERNEL,
        "old": "end = p.clean_causal ? row(r) + 1 : end + p.block_size;",
        "new": "end = p.clean_causal ? row(r) : end + p.block_size;",
    },
    {
        "name": "noisy rows see one key too many of their block",
        "path": KERNEL,
        "old": "begin + p.block_size; spans.begin[r] = begin - first;",
        "new": "begin + p.block_size + 1; spans.begin[r] = begin - first;",
    },
    {
        "name": "second tile of odd strips without a mask",
        "path": KERNEL,
        "old": "return strip % 2 == 1 || strip == 0 ? 2 : 1;",
        "new": "return strip < 2 ? 2 : 1;",
    },
    {
        "name": "a tile of any block without its mask",
        "path": KERNEL,
        "old": "return tiles.count - geometry::min_of(full, tiles.clean);",
        "new": "return tiles.count - geometry::min_of(full, tiles.clean) - 1;",
    },
    {
        "name": "keys past the sample's end are seen",
        "path": KERNEL,
        "old": "spans.end[r] = geometry::min_of(len, end) - first;",
        "new": "spans.end[r] = end - first;",
        "times": 2,
    },
    {
        "name": "diagonals of a merged tile in the wrong order",
        "path": PRODUCERS,
        "old": "ptx::tensor_load_5d(at + kPartBytes, part[0],",
        "new": "ptx::tensor_load_5d(at + kPartBytes, part[1],",
    },
    {
        "name": "an item left out in rounds that go backwards",
        "path": ITEMS,
        "old": "ctas - 1 - cta",
        "new": "ctas - cta",
    },
    # ---- softmax
    {
        "name": "O not rescaled where references move",
        "path": KERNEL,
        "old": STEP_ENDS,
        "new": "ptx::wgmma_wait_group<0>(o, in_flight); release_v(); };",
    },
    {
        "name": "sums not rescaled where references move",
        "path": RUNNING,
        "old": "kFirst ? 0.0f : rows[r].sum * rescale[r];",
        "new": "kFirst ? 0.0f : rows[r].sum;",
    },
    {
        "name": "a shuffle of the tile's maximum left out",
        "path": RUNNING,
        "old": "top = ptx::max_f32(top, ptx::shfl_xor_f32(top, 1));",
        "new": "",
    },
    {
        "name": "references never move",
        "path": RUNNING,
        "old": "if (moved || ptx::ballot(!fits) == 0) break;",
        "new": "if (moved || ptx::ballot(!fits) != 77) break;",
    },
]
