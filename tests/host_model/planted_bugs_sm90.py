"""Bugs of the kernels for sm_90a, for planted_bugs.py: name, file, text and what it becomes."""

from __future__ import annotations

KERNEL = "cuda/attention/forward_sm90.cuh"
PRODUCERS = "cuda/attention/forward_sm90_producers.cuh"
ITEMS = "cuda/attention/forward_sm90_items.cuh"
SEQUENCE = "cuda/attention/items_sm90.cuh"
WARPS = "cuda/attention/warps_sm90.cuh"
RUNNING = "cuda/tile/running_softmax.cuh"

WALK = "cuda/attention/forward_walk_sm90.cuh"
WALK_PRODUCERS = "cuda/attention/forward_walk_sm90_producers.cuh"

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
    "strips_dim96",
    "strips_dim96_any_block",
    "strips_packed",
    "strips_packed_seqused",
    "strips_packed_any_block",
    "strips_packed_dim96",
    "strips_of_many_samples",
    "strips_large_logits",
]

TURN_WAITS = "end_turn(); ptx::wgmma_wait_group<1>(s); release_k(); }"
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
        "old": "issue_scores(s); wait_v(); issue_output(a);",
        "new": "issue_scores(s); issue_output(a);",
    },
    {
        "name": "K released while it is read",
        "path": KERNEL,
        "old": TURN_WAITS,
        "new": "end_turn(); release_k(); ptx::wgmma_wait_group<1>(s); }",
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
        "old": "const StripItem item = load_item<StripItem>(shared + kPlan.items + 32 * slot);"
        " ptx::syncwarp(); if (lane == 0) ptx::mbarrier_arrive(barriers.q_empty(slot));",
        "new": "if (lane == 0) ptx::mbarrier_arrive(barriers.q_empty(slot));"
        " const StripItem item = load_item<StripItem>(shared + kPlan.items + 32 * slot);"
        " ptx::syncwarp();",
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
        "old": TURN_WAITS,
        "new": "end_turn(); release_k(); }",
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
        "old": "if (first_strip_row() + 8 * r < last_valid) continue;",
        "new": "continue;",
    },
    {
        "name": "strips without a token not written",
        "path": PRODUCERS,
        "old": "if (kStripRows * item.strip >= item.len) write_empty_strip<C>(p, item);",
        "new": "",
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
        "path": WARPS,
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
        "name": "second slab: the dims of the first",
        "path": WARPS,
        "old": "map, barrier, 64 * slab, row, 0,",
        "new": "map, barrier, 0 * slab, row, 0,",
    },
    {
        "name": "second slab of a part: the dims of the first",
        "path": PRODUCERS,
        "old": "const int dim = by_slab ? 64 * slab : 0;",
        "new": "const int dim = 0;",
    },
    {
        "name": "second slab of the output not stored",
        "path": KERNEL,
        "old": "if (C.slabs() > 1 && p.v_by_slab) {",
        "new": "if (false) {",
    },
    {
        "name": "an item left out in rounds that go backwards",
        "path": SEQUENCE,
        "old": "const u32 item = done_ + (backwards_ ? ctas_ - 1 - place_ : place_);",
        "new": "const u32 item = done_ + (backwards_ ? ctas_ - place_ : place_);",
    },
    # ---- packed samples
    {
        "name": "packed: an item left out in rounds that go backwards",
        "path": ITEMS,
        "old": "{ item = done_ + (backwards_ ? ctas_ - 1 - place_ : place_);",
        "new": "{ item = done_ + (backwards_ ? ctas_ - place_ : place_);",
    },
    {
        "name": "packed: a group begins where the one before it did",
        "path": ITEMS,
        "old": "place_ = place_ >= last_round ? place_ - last_round : place_ + ctas_ - last_round;",
        "new": "place_ = place_ >= last_round ? place_ - last_round"
        " : place_ + ctas_ - last_round - 1;",
    },
    {
        "name": "packed: the 33rd sample is the first again",
        "path": ITEMS,
        "old": "if (sample_ % 32 == 0) read_samples();",
        "new": "if (sample_ == 0) read_samples();",
    },
    {
        "name": "packed: numbers of the sample before",
        "path": ITEMS,
        "old": "static_cast<u32>(sample_) % 32));",
        "new": "static_cast<u32>(sample_ > 0 ? sample_ - 1 : 0) % 32));",
    },
    {
        "name": "packed: all heads have the first KV head",
        "path": ITEMS,
        "old": "item.head_kv = static_cast<i32>(head / query_heads_);",
        "new": "item.head_kv = 0;",
    },
    {
        "name": "packed: a part of a strip stored over the next sample's rows",
        "path": KERNEL,
        "old": "if (C.packed && last_rows < kStripRows) {",
        "new": "if (false) {",
    },
    {
        "name": "packed: lse stored over the next sample's",
        "path": KERNEL,
        "old": "if (C.packed ? in_strip < last_rows : last_row + in_strip < p.rows) {",
        "new": "if (last_row + in_strip < (C.packed ? 1 << 30 : p.rows)) {",
    },
    {
        "name": "packed: rows of a strip stored without the swizzle",
        "path": KERNEL,
        "old": "(piece % 8 ^ row % 8) * 16;",
        "new": "piece % 8 * 16;",
    },
    {
        "name": "packed: second slab of a part of a strip is the first",
        "path": KERNEL,
        "old": "from + piece / 8 * kStripSlabBytes",
        "new": "from + 0 * kStripSlabBytes",
    },
    {
        "name": "packed: rows of V of the next sample not cleared",
        "path": PRODUCERS,
        "old": "(C.packed || len < p.rows) && len < last.key + rows;",
        "new": "!C.packed && len < p.rows && len < last.key + rows;",
    },
    {
        "name": "packed: clean keys from the noisy half",
        "path": PRODUCERS,
        "old": "load.first_row = item.first_row<C>(load.noisy ? 0 : 1);",
        "new": "load.first_row = item.first_row<C>(0);",
    },
    {
        "name": "packed: rows behind the last sample not written",
        "path": PRODUCERS,
        "old": "write_packed_tail(p);",
        "new": "",
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
        "old": "if (moved || ptx::ballot(moves[0] || moves[1]) == 0) break;",
        "new": "if (moved || ptx::ballot(moves[0] || moves[1]) != 77) break;",
    },
]

# ---- attention_backward_sm90

BACKWARD_KERNEL = "cuda/attention/backward_sm90.cuh"
BACKWARD_PRODUCER = "cuda/attention/backward_sm90_producer.cuh"
BACKWARD_PRODUCTS = "cuda/attention/backward_products_sm90.cuh"
BACKWARD_ITEMS = "cuda/attention/backward_sm90_items.cuh"
BACKWARD_ROWS = "cuda/attention/backward_rows_sm90.cuh"

BACKWARD_CASES = [
    "dim64_64",
    "dim128_128",
    "keys_seqused",
    "keys_b72_both_causal",
    "keys_of_one_block",
    "strips_dim128",
    "strips_dim128_any_block",
    "strips_dim96",
    "strips_dim96_any_block",
    "strips_seqused_any_block",
]

FREE_DOUT = "ptx::mbarrier_arrive(barriers.dout_empty(dout_stage));"
FREE_Q = "ptx::mbarrier_arrive(barriers.q_empty(q_stage));"
FREE_DS = "if constexpr (!kFirst) ptx::mbarrier_arrive(barriers.ds_empty((step - 1) % kDsStages));"
BACKWARD_STEP_ENDS = (
    "ptx::wgmma_wait_group<0>(dv); ptx::pin_registers(dk);"
    " if constexpr (!kFirst) ptx::pin_registers(dq);"
    " if constexpr (!kLast) {"
    " ptx::mbarrier_wait_parity(barriers.q_full(q.stage), q.parity); issue_scores(); }"
)
LEADER = "ptx::syncwarp(); if (lane == 0) {"
LAST_DQ = (
    "issue_dq(step - 1); ptx::wgmma_wait_group<0>(dq); ptx::pin_registers(dk);"
    " const u32 stage = (step - 1) % kDsStages; ptx::syncwarp();"
)
FREE_LAST_DS = "if (lane == 0) { ptx::mbarrier_arrive(barriers.ds_empty(stage));"
FREE_KEYS = "ptx::mbarrier_arrive(barriers.kv_empty());"

BACKWARD_BUGS = [
    {
        "name": "second slab: the dims of the first",
        "path": WARPS,
        "old": "map, barrier, 64 * slab, row, 0,",
        "new": "map, barrier, 0 * slab, row, 0,",
    },
    {
        "name": "slabs of V as those of K have them",
        "path": BACKWARD_PRODUCER,
        "old": "p.v[1 - item.noisy], p.v_by_slab,",
        "new": "p.v[1 - item.noisy], false,",
    },
    # ---- mbarriers
    {
        "name": "wrong parity: the wait for Q",
        "path": BACKWARD_KERNEL,
        "old": "ptx::mbarrier_wait_parity(barriers.q_full(q.stage), q.parity); issue_scores(); }",
        "new": "ptx::mbarrier_wait_parity(barriers.q_full(q.stage), q.parity ^ 1);"
        " issue_scores(); }",
        "quick": True,
    },
    {
        "name": "no wait for dO",
        "path": BACKWARD_KERNEL,
        "old": "ptx::mbarrier_wait_parity(barriers.dout_full(dout_stage), step / kDoutStages % 2);",
        "new": "",
    },
    {
        "name": "no wait for K",
        "path": BACKWARD_KERNEL,
        "old": "ptx::mbarrier_wait_parity(barriers.k_full(), kv_parity);",
        "new": "",
    },
    {
        "name": "no wait for V",
        "path": BACKWARD_KERNEL,
        "old": "ptx::mbarrier_wait_parity(barriers.v_full(), kv_parity);",
        "new": "",
    },
    {
        "name": "wrong parity: the wait for dS of both warpgroups",
        "path": BACKWARD_KERNEL,
        "old": "ptx::mbarrier_wait_parity(barriers.ds_full(stage), index / kDsStages % 2);",
        "new": "ptx::mbarrier_wait_parity(barriers.ds_full(stage), index / kDsStages % 2 ^ 1);",
    },
    {
        "name": "dS written over while it is read",
        "path": BACKWARD_KERNEL,
        "old": "ptx::mbarrier_wait_parity(barriers.ds_empty(stage), step / kDsStages % 2 ^ 1);",
        "new": "",
    },
    {
        "name": "results staged over dS while it is read",
        "path": BACKWARD_KERNEL,
        "old": "ptx::mbarrier_wait_parity(barriers.ds_empty(stage), (step - 1) / kDsStages % 2);",
        "new": "",
    },
    {
        "name": "dS released while it is read",
        "path": BACKWARD_KERNEL,
        "old": BACKWARD_STEP_ENDS + LEADER + FREE_DOUT + FREE_Q + FREE_DS + "}",
        "new": LEADER + FREE_DS + "}" + BACKWARD_STEP_ENDS + LEADER + FREE_DOUT + FREE_Q + "}",
    },
    {
        "name": "stage of dO used again without a wait",
        "path": BACKWARD_PRODUCER,
        "old": "wait_together(barriers.dout_empty(stage), steps / kDoutStages % 2 ^ 1);",
        "new": "",
    },
    {
        "name": "K and V of the next item without a wait",
        "path": BACKWARD_PRODUCER,
        "old": "wait_together(barriers.kv_empty(), items % 2 ^ 1);",
        "new": "",
    },
    {
        "name": "item's place used again without a wait",
        "path": BACKWARD_PRODUCER,
        "old": "wait_together(barriers.item_empty(place), items / kItemStages % 2 ^ 1);",
        "new": "",
    },
    {
        "name": "Q and dO released while they are read",
        "path": BACKWARD_KERNEL,
        "old": BACKWARD_STEP_ENDS + LEADER + FREE_DOUT + FREE_Q,
        "new": LEADER + FREE_DOUT + FREE_Q + "}" + BACKWARD_STEP_ENDS + LEADER,
    },
    {
        "name": "K released before the last dQ",
        "path": BACKWARD_KERNEL,
        "old": LAST_DQ + FREE_LAST_DS + FREE_KEYS,
        "new": "if (lane == 0) {" + FREE_KEYS + "}" + LAST_DQ + FREE_LAST_DS,
    },
    {
        "name": "bytes of row values not expected",
        "path": BACKWARD_PRODUCER,
        "old": "ptx::mbarrier_arrive_expect_tx(barrier, kBytes + extra);",
        "new": "ptx::mbarrier_arrive_expect_tx(barrier, kBytes);",
    },
    {
        "name": "no fence after mbarrier.init",
        "path": BACKWARD_PRODUCER,
        "old": "ptx::fence_mbarrier_init();",
        "new": "",
    },
    {
        "name": "no barrier after mbarrier.init",
        "path": BACKWARD_KERNEL,
        "old": "ptx::bar_sync(0, C.threads());",
        "new": "",
    },
    {
        "name": "no syncwarp before a release",
        "path": BACKWARD_KERNEL,
        "old": "ptx::syncwarp(); if (lane == 0) ptx::mbarrier_arrive(barrier);",
        "new": "if (lane == 0) ptx::mbarrier_arrive(barrier);",
    },
    # ---- wgmma
    {
        "name": "no wait for S",
        "path": BACKWARD_KERNEL,
        "old": "ptx::wgmma_wait_group<0>(s);",
        "new": "",
    },
    {
        "name": "no wait for dP",
        "path": BACKWARD_KERNEL,
        "old": "ptx::wgmma_wait_group<1>(dp);",
        "new": "ptx::wgmma_wait_group<2>(dp);",
    },
    {
        "name": "no wait for dQ",
        "path": BACKWARD_KERNEL,
        "old": "ptx::wgmma_wait_group<0>(dv); ptx::pin_registers(dk);",
        "new": "ptx::wgmma_wait_group<2>(dv); ptx::pin_registers(dk);",
    },
    {
        "name": "no wait for an item's last dQ",
        "path": BACKWARD_KERNEL,
        "old": "ptx::wgmma_wait_group<0>(dq);",
        "new": "",
    },
    {
        "name": "no wgmma.fence before dV",
        "path": BACKWARD_KERNEL,
        "old": "ptx::pin_registers(packed_p); ptx::wgmma_fence();",
        "new": "ptx::wgmma_wait_group<0>(dp); ptx::pin_registers(packed_p);",
    },
    {
        "name": "dQ of the step at hand",
        "path": BACKWARD_KERNEL,
        "old": "if constexpr (!kFirst) issue_dq(step - 1);",
        "new": "if constexpr (!kFirst) issue_dq(step);",
    },
    {
        "name": "dK of an item not begun anew",
        "path": BACKWARD_KERNEL,
        "old": "multiply_keys_sm90<C.element, kFirst>(dk,",
        "new": "multiply_keys_sm90<C.element, false>(dk,",
    },
    {
        "name": "dV begun anew in each step",
        "path": BACKWARD_KERNEL,
        "old": "multiply_keys_sm90<C.element, kFirst>(dv,",
        "new": "multiply_keys_sm90<C.element, true>(dv,",
    },
    {
        "name": "S not begun anew",
        "path": BACKWARD_PRODUCTS,
        "old": "ptx::wgmma_ss_init<kElement, false>(d, a_i, b_i);",
        "new": "ptx::wgmma_ss<kElement, false>(d, a_i, b_i, true);",
    },
    {
        "name": "dS taken for K-major",
        "path": BACKWARD_PRODUCTS,
        "old": "ptx::wgmma_ss<kElement, true, true>(d,",
        "new": "ptx::wgmma_ss<kElement, true, false>(d,",
    },
    {
        "name": "wrong stride in descriptors of K-major operands",
        "path": BACKWARD_PRODUCTS,
        "old": "ptx::matrix_descriptor(at, 16, 1024, Swizzle::k128);",
        "new": "ptx::matrix_descriptor(at, 16, 512, Swizzle::k128);",
    },
    {
        "name": "wrong swizzle in descriptors of MN-major operands",
        "path": BACKWARD_PRODUCTS,
        "old": "ptx::matrix_descriptor(at, slab_bytes, 1024, Swizzle::k128);",
        "new": "ptx::matrix_descriptor(at, slab_bytes, 1024, Swizzle::k64);",
    },
    {
        "name": "wrong distance of slabs of Q",
        "path": BACKWARD_KERNEL,
        "old": "q_columns(mn_major_sm90(base + kPlan.q, kRowsSlabBytes))",
        "new": "q_columns(mn_major_sm90(base + kPlan.q, kKeysSlabBytes))",
    },
    {
        "name": "both warpgroups sum the same columns of dQ",
        "path": BACKWARD_KERNEL,
        "old": "mn_major_sm90(base + kPlan.k + wg * kKeysSlabBytes, kKeysSlabBytes)",
        "new": "mn_major_sm90(base + kPlan.k, kKeysSlabBytes)",
    },
    {
        "name": "both warpgroups sum the same columns of dQ, head dim 64",
        "path": BACKWARD_KERNEL,
        "old": "mn_major_half_sm90(base + kPlan.k_columns + wg * (kKeysSlabBytes / 2))",
        "new": "mn_major_half_sm90(base + kPlan.k_columns)",
    },
    {
        "name": "wrong stride in the descriptor of 64-byte rows",
        "path": BACKWARD_PRODUCTS,
        "old": "ptx::matrix_descriptor(at, 16, 512, Swizzle::k64);",
        "new": "ptx::matrix_descriptor(at, 16, 1024, Swizzle::k64);",
    },
    {
        "name": "64-byte rows of K without a token not cleared",
        "path": BACKWARD_PRODUCER,
        "old": "clear_rows<64>(shared + kPlan.k_columns + i * kPart, valid, kSm90BackwardKeys);",
        "new": "",
    },
    # ---- dS
    {
        "name": "no proxy fence after dS is stored",
        "path": BACKWARD_KERNEL,
        "old": "ptx::fence_proxy_async(); arrive(barriers.ds_full(stage));",
        "new": "arrive(barriers.ds_full(stage));",
        "quick": True,
    },
    {
        "name": "dS swizzled by the wrong row",
        "path": BACKWARD_PRODUCTS,
        "old": "swizzle(lane % 8)",
        "new": "swizzle(lane % 4)",
    },
    {
        "name": "hidden P not zeroed",
        "path": BACKWARD_KERNEL,
        "old": "if ((flags & kPartialStep << group) != 0) hide(s, flags);",
        "new": "",
    },
    {
        "name": "delta of the wrong rows",
        "path": BACKWARD_KERNEL,
        "old": "load_row_values(of_rows, row_values + kRowValuesBytes / 2);",
        "new": "load_row_values(of_rows, row_values + kRowValuesBytes / 2 - 32);",
    },
    # ---- rows and keys without a token
    {
        "name": "rows without a token not cleared",
        "path": BACKWARD_PRODUCER,
        "old": "clear_rows(to + slab * kRows * 128, valid, kRows);",
        "new": ";",
        "quick": True,
    },
    {
        "name": "a row cleared too few",
        "path": WARPS,
        "old": "int i = valid * kPieces + lane",
        "new": "int i = (valid + 1) * kPieces + lane",
    },
    {
        "name": "no proxy fence after rows are cleared",
        "path": BACKWARD_PRODUCER,
        "old": "ptx::fence_proxy_async(); ptx::syncwarp();",
        "new": "ptx::syncwarp();",
    },
    {
        "name": "no syncwarp after rows are cleared",
        "path": BACKWARD_PRODUCER,
        "old": "ptx::fence_proxy_async(); ptx::syncwarp();",
        "new": "ptx::fence_proxy_async();",
    },
    {
        "name": "no wait before rows are cleared",
        "path": BACKWARD_PRODUCER,
        "old": "wait_together(barrier, ragged_parity);",
        "new": "",
    },
    {
        "name": "items without a token not written",
        "path": BACKWARD_PRODUCER,
        "old": "write_zero_rows<kThreads>(p.dk, item.sample, item.head_kv, row, end - first,"
        " p.head_dim, thread);",
        "new": "",
    },
    {
        "name": "keys past the tensor written",
        "path": BACKWARD_PRODUCTS,
        "old": "if (key < p.rows && ",
        "new": "if (key <= p.rows && ",
    },
    # ---- masks, items, results
    {
        "name": "noisy rows see the clean keys of their own block",
        "path": BACKWARD_ITEMS,
        "old": "span.begin = start + p.block_size; } else if (p.clean_causal)",
        "new": "span.begin = start; } else if (p.clean_causal)",
    },
    {
        "name": "clean rows of a causal half do not see themselves",
        "path": BACKWARD_ITEMS,
        "old": "else if (p.clean_causal) { span.begin = key; }",
        "new": "else if (p.clean_causal) { span.begin = key + 1; }",
    },
    {
        "name": "noisy rows see one block too many",
        "path": BACKWARD_ITEMS,
        "old": "span.end = start + p.block_size;",
        "new": "span.end = start + p.block_size + 1;",
    },
    {
        "name": "a partial step without its mask",
        "path": BACKWARD_ITEMS,
        "old": "if (end < item.first_key + 64) flags |= kPartialStep;",
        "new": "if (end < item.first_key) flags |= kPartialStep;",
    },
    {
        "name": "the first tile of noisy rows left out",
        "path": BACKWARD_ITEMS,
        "old": "begin = start + p.block_size;  // noisy rows",
        "new": "begin = start + p.block_size + 64;  // noisy rows",
    },
    {
        "name": "the last tile of rows left out",
        "path": BACKWARD_ITEMS,
        "old": "geometry::ceil_div(end, kSm90BackwardRows)",
        "new": "end / kSm90BackwardRows",
    },
    {
        "name": "query heads of another KV head",
        "path": BACKWARD_PRODUCER,
        "old": "const StepRows rows{item.head_kv * p.group() + group_head, half,",
        "new": "const StepRows rows{item.head_kv + group_head, half,",
    },
    {
        "name": "dQ added to the sums of the step at hand",
        "path": BACKWARD_KERNEL,
        "old": "add_dq(last_tile); last_tile = info.tile;",
        "new": "add_dq(info.tile); last_tile = info.tile;",
    },
    {
        "name": "dK not scaled",
        "path": BACKWARD_KERNEL,
        "old": "write<C.element>(dk, p.softmax_scale,",
        "new": "write<C.element>(dk, 1.0f,",
    },
    {
        "name": "sums of dQ not cleared",
        "path": BACKWARD_ROWS,
        "old": "ptx::st_global_v4(to + (i + static_cast<int>(thread)) * 4, {0, 0, 0, 0});",
        "new": "",
    },
    {
        "name": "the gradient of log-sum-exp left out",
        "path": BACKWARD_ROWS,
        "old": "sums[i] -= *p.dlse.at(keys.sample, head, first_at + at);",
        "new": "",
    },
    {
        "name": "the work counter not cleared",
        "path": BACKWARD_ROWS,
        "old": "*p.next_item = 0;",
        "new": "*p.next_item = 1;",
    },
    # ---- row values and the noisy diagonal
    {
        "name": "row values of rows without a token not written",
        "path": BACKWARD_ROWS,
        "old": "if (own_row < kRows) keep(own_row, lse);",
        "new": "if (own_row < geometry::min_of(kRows, valid)) keep(own_row, lse);",
    },
    {
        "name": "diagonal: no wait for the tiles",
        "path": BACKWARD_ROWS,
        "old": "ptx::mbarrier_wait_parity(barrier(), parity);",
        "new": "",
    },
    {
        "name": "diagonal: the second head's tiles waited for with the first one's parity",
        "path": BACKWARD_ROWS,
        "old": "parity ^= 1;",
        "new": "",
    },
    {
        "name": "diagonal: bytes of K and V not expected",
        "path": BACKWARD_ROWS,
        "old": "(with_keys ? 4 : 2) * C.tile_bytes()",
        "new": "2 * C.tile_bytes()",
    },
    {
        "name": "diagonal: rows without a token not cleared",
        "path": BACKWARD_ROWS,
        "old": "if (valid < kRows && keys.len < p.rows)",
        "new": "if (false)",
    },
    {
        "name": "diagonal: keys without a token not cleared",
        "path": BACKWARD_ROWS,
        "old": "if (warp < 2 || with_keys) {",
        "new": "if (warp < 2) {",
    },
    {
        "name": "diagonal: no proxy fence after rows are cleared",
        "path": BACKWARD_ROWS,
        "old": "valid, kRows); } } ptx::fence_proxy_async(); }",
        "new": "valid, kRows); } } }",
    },
    {
        "name": "diagonal: no proxy fence after dS is stored",
        "path": BACKWARD_ROWS,
        "old": "packed_ds[i]); ptx::fence_proxy_async();",
        "new": "packed_ds[i]);",
        "quick": True,
    },
    {
        "name": "diagonal: no barrier after dS is stored",
        "path": BACKWARD_ROWS,
        "old": "packed_ds[i]); ptx::fence_proxy_async(); ptx::bar_sync(0, C.threads());",
        "new": "packed_ds[i]); ptx::fence_proxy_async();",
    },
    {
        "name": "diagonal: no wait for dV",
        "path": BACKWARD_ROWS,
        "old": "ptx::wgmma_wait_group<0>(sum, packed_p);",
        "new": "",
    },
    {
        "name": "diagonal: no wait for S and dP",
        "path": BACKWARD_ROWS,
        "old": "ptx::wgmma_wait_group<0>(s);",
        "new": "",
    },
    {
        "name": "diagonal: hidden P not zeroed",
        "path": BACKWARD_ROWS,
        "old": "hide_sm90(s, p, key, keys.len, row, kDiagonalFlags);",
        "new": "",
        "quick": True,
    },
    {
        "name": "diagonal: rows see the next key",
        "path": BACKWARD_ROWS,
        "old": "hide_sm90(s, p, key, keys.len, row, kDiagonalFlags);",
        "new": "hide_sm90(s, p, key - 1, keys.len, row, kDiagonalFlags);",
    },
    {
        "name": "diagonal: dK of each head begun anew",
        "path": BACKWARD_ROWS,
        "old": "add_keys<false>(dk,",
        "new": "add_keys<true>(dk,",
    },
    {
        "name": "diagonal: dK not scaled",
        "path": BACKWARD_ROWS,
        "old": "write<C.element>(sum, p.softmax_scale,",
        "new": "write<C.element>(sum, 1.0f,",
    },
    {
        "name": "diagonal: dQ of warps in each other's place",
        "path": BACKWARD_ROWS,
        "old": "thread / 32 * (kDimPieces * 128)",
        "new": "(thread / 32 ^ 1) * (kDimPieces * 128)",
    },
    {
        "name": "wrong swizzle of staged results",
        "path": BACKWARD_PRODUCTS,
        "old": "((column % 8 ^ i % 8) << 4)",
        "new": "((column % 8 ^ i % 4) << 4)",
    },
    {
        "name": "diagonal: tiles without a token not written",
        "path": BACKWARD_ROWS,
        "old": "write_zero_keys<C.threads()>(p, keys, first, end);",
        "new": "",
    },
]


# The walk over any mask: several items, tiles and phases, rows that see nothing, samples that end
# inside of an item.
WALK_CASES = [
    "long",
    "walk_views",
    "walk_clean_window",
    "walk_full",
    "walk_causal",
    "walk_window",
    "walk_packed",
    "walk_split",
    "walk_rows_without_keys",
    "walk_softcap",
    "walk_softcap_window",
    "walk_softcap_blocks",
    "walk_dropout",
    "walk_dropout_dim192",
    "walk_large_logits",
    "walk_dim256",
    "walk_narrow",
    "dim128_128",
]

# Of a step.
WALK_STEP_WAITS = (
    "ptx::wgmma_wait_group<1>(s); release_k(); if (last) release_queries();"
    " prepare_scores(s, at); const bool moved ="
)
WALK_BUGS = [
    {
        "name": "wrong parity: the consumers' wait for K",
        "path": WALK,
        "old": "ptx::mbarrier_wait_parity(barriers.k_full(k.slot()), k.parity());",
        "new": "ptx::mbarrier_wait_parity(barriers.k_full(k.slot()), k.parity() ^ 1);",
        "quick": True,
    },
    {
        "name": "slot of K used again without a wait",
        "path": WALK_PRODUCERS,
        "old": "wait_together(barriers.k_empty(k.slot()), k.parity() ^ 1);",
        "new": "",
    },
    {
        "name": "slot of V used again without a wait",
        "path": WALK_PRODUCERS,
        "old": "wait_together(barriers.v_empty(v.slot()), v.parity() ^ 1);",
        "new": "",
        "quick": True,
    },
    {
        "name": "slot of Q used again without a wait",
        "path": WALK_PRODUCERS,
        "old": "wait_together(barriers.q_empty(q.slot()), q.parity() ^ 1);",
        "new": "",
    },
    {
        "name": "item's place used again without a wait",
        "path": WALK_PRODUCERS,
        "old": "wait_together(barriers.item_empty(slot.slot()), slot.parity() ^ 1);",
        "new": "",
    },
    {
        "name": "no wait for V",
        "path": WALK,
        "old": "issue_scores(s); wait_v(); issue_output(in_flight);",
        "new": "issue_scores(s); issue_output(in_flight);",
    },
    {
        "name": "no wait for S",
        "path": WALK,
        "old": WALK_STEP_WAITS,
        "new": "release_k(); if (last) release_queries();"
        " prepare_scores(s, at); const bool moved =",
    },
    {
        "name": "K released while it is read",
        "path": WALK,
        "old": WALK_STEP_WAITS,
        "new": "release_k(); ptx::wgmma_wait_group<1>(s); if (last) release_queries();"
        " prepare_scores(s, at); const bool moved =",
    },
    {
        "name": "queries released while they are read",
        "path": WALK,
        "old": WALK_STEP_WAITS,
        "new": "if (last) release_queries(); ptx::wgmma_wait_group<1>(s); release_k();"
        " prepare_scores(s, at); const bool moved =",
    },
    {
        "name": "no wait for O",
        "path": WALK,
        "old": "ptx::wgmma_wait_group<0>(o, in_flight); release_v();",
        "new": "release_v();",
    },
    {
        "name": "V released while it is read",
        "path": WALK,
        "old": "ptx::wgmma_wait_group<0>(o, in_flight); release_v();",
        "new": "release_v(); ptx::wgmma_wait_group<0>(o, in_flight);",
    },
    {
        "name": "no barrier after mbarrier.init",
        "path": WALK,
        "old": "ptx::bar_sync(0, C.threads());",
        "new": "",
    },
    {
        "name": "tile's numbers released before all lanes have read them",
        "path": WALK,
        "old": "ptx::syncwarp();  // before one lane releases it for all",
        "new": "",
    },
    {
        "name": "item's numbers released before all lanes have read them",
        "path": WALK,
        "old": "ptx::syncwarp(); if (lane == 0) ptx::mbarrier_arrive(barriers.item_empty(slot));",
        "new": "if (lane == 0) ptx::mbarrier_arrive(barriers.item_empty(slot));",
    },
    {
        "name": "item published before all its rows are there",
        "path": WALK_PRODUCERS,
        "old": "ptx::syncwarp(); if (leader) ptx::mbarrier_arrive(barriers.item(slot.slot()));",
        "new": "if (leader) ptx::mbarrier_arrive(barriers.item(slot.slot()));",
    },
    {
        "name": "the last V is not loaded where the next item sees nothing",
        "path": WALK_PRODUCERS,
        "old": "if (!more && pending) {",
        "new": "if (false) {",
    },
    {
        "name": "clean keys left out",
        "path": WALK_PRODUCERS,
        "old": "if (phase == 1) return false;",
        "new": "if (true) return false;",
    },
    {
        "name": "lower rows of queries are the upper ones",
        "path": WALK_PRODUCERS,
        "old": "row + 64 * strip,",
        "new": "row,",
    },
    {
        "name": "rows of V past the end not cleared",
        "path": WALK_PRODUCERS,
        "old": "clear_rows(to + slab * kSlabBytes, last.keys, C.tile_keys());",
        "new": "",
        "quick": True,
    },
    {
        "name": "no proxy fence after rows of V are cleared",
        "path": WALK_PRODUCERS,
        "old": "ptx::fence_proxy_async(); ptx::syncwarp();",
        "new": "ptx::syncwarp();",
    },
    {
        "name": "no syncwarp after rows of V are cleared",
        "path": WALK_PRODUCERS,
        "old": "ptx::fence_proxy_async(); ptx::syncwarp();",
        "new": "ptx::fence_proxy_async();",
    },
    {
        "name": "tiles whose end is hidden have no mask",
        "path": WALK_PRODUCERS,
        "old": "static_cast<i32>(end) < first_key + C.tile_keys();",
        "new": "false;",
    },
    {
        "name": "tiles whose beginning is hidden have no mask",
        "path": WALK_PRODUCERS,
        "old": "return static_cast<i32>(begin) > first_key ||",
        "new": "return",
    },
    {
        "name": "a row sees one key too many",
        "path": WALK,
        "old": "spans.end[r] -= first;",
        "new": "spans.end[r] -= first - 1;",
    },
    {
        "name": "a row sees one key too few",
        "path": WALK,
        "old": "spans.begin[r] -= first;",
        "new": "spans.begin[r] -= first - 1;",
    },
    {
        "name": "lower rows see what the upper ones do",
        "path": WALK,
        "old": "at.phase * kWalkRows + 64 * group + first_strip_row()",
        "new": "at.phase * kWalkRows + first_strip_row()",
    },
    {
        "name": "clean keys are seen as noisy ones are",
        "path": WALK,
        "old": "static_cast<u32>(at.phase * kWalkRows + 64",
        "new": "static_cast<u32>(0 * kWalkRows + 64",
    },
    {
        "name": "hull without its last row",
        "path": WALK_PRODUCERS,
        "old": "row < 64 * group + 64; row += 32)",
        "new": "row < 64 * group + 63; row += 32)",
    },
    {
        "name": "wrong distance of V's slabs",
        "path": WALK,
        "old": "kSlabBytes, 1024, Swizzle::k128);",
        "new": "kSlabBytes / 2, 1024, Swizzle::k128);",
    },
    {
        "name": "output stored over rows of others",
        "path": WALK,
        "old": "if (in_strip < count && 8 * (i + in_quad)",
        "new": "if (8 * (i + in_quad)",
    },
    {
        "name": "output stored past the head dim",
        "path": WALK,
        "old": "in_strip < count && 8 * (i + in_quad) < params.call.head_dim_v",
        "new": "in_strip < count",
    },
    {
        "name": "pieces of the output not traded",
        "path": WALK,
        "old": "transpose_quad<1>(packed);",
        "new": "",
    },
    {
        "name": "pieces of the output traded the wrong way",
        "path": "cuda/tile/transpose.cuh",
        "old": "upper ? word[j] : word[j + step]",
        "new": "upper ? word[j + step] : word[j]",
    },
    {
        "name": "output to the place of the next item",
        "path": WALK,
        "old": "store(done, slot); pack<C.element>(p0, s);",
        "new": "store(done, slot ^ 1); pack<C.element>(p0, s);",
    },
    {
        "name": "O not cleared for the next item",
        "path": WALK,
        "old": "clear_output(); continue;",
        "new": "continue;",
    },
    {
        "name": "P of the next item written under the last product",
        "path": WALK,
        "old": "ptx::wgmma_wait_group<0>(o, p0); release_v(); store(done, slot);"
        " pack<C.element>(p0, s);",
        "new": "pack<C.element>(p0, s); ptx::wgmma_wait_group<0>(o, p0); release_v();"
        " store(done, slot);",
    },
    {
        "name": "rows without a token not written",
        "path": WALK,
        "old": "write_unused_rows(p);",
        "new": "",
    },
    {
        "name": "P not rescaled to what is kept",
        "path": WALK,
        "old": "inverse[r] *= params.call.dropout.keep_scale;",
        "new": "inverse[r] *= 1.0f;",
    },
    {
        "name": "numbers of noisy keys for clean ones",
        "path": WALK_PRODUCERS,
        "old": "tile.clean_keys = walk.phase;",
        "new": "tile.clean_keys = 0;",
    },
    {
        "name": "dropped pairs of the other row",
        "path": WALK_PRODUCERS,
        "old": "p[step][2 * piece] &= ~ptx::prmt_b32(signs, 0, 0xaa88u);",
        "new": "p[step][2 * piece] &= ~ptx::prmt_b32(signs, 0, 0xbb99u);",
    },
    {
        "name": "tiles of 96 keys begin with a block",
        "path": WALK_PRODUCERS,
        "old": "if (first_key % 64 != 0) {",
        "new": "if (false) {",
    },
    {
        "name": "dropped pairs read before they are drawn",
        "path": WALK,
        "old": "ptx::mbarrier_wait_parity(barriers.dropped(numbers.slot()), numbers.parity());",
        "new": "",
    },
    {
        "name": "dropped pairs drawn over those in use",
        "path": WALK_PRODUCERS,
        "old": "wait_together(barriers.dropped_empty(ring.slot()), ring.parity() ^ 1);",
        "new": "",
    },
    {
        "name": "dropped pairs given back before all lanes have read them",
        "path": WALK,
        "old": "low, high); ptx::syncwarp();",
        "new": "low, high);",
    },
    {
        "name": "dropped pairs published before all lanes have drawn",
        "path": WALK_PRODUCERS,
        "old": "ptx::syncwarp(); if (leader) ptx::mbarrier_arrive(barriers.dropped(ring.slot()));",
        "new": "if (leader) ptx::mbarrier_arrive(barriers.dropped(ring.slot()));",
    },
    {
        "name": "scores not capped",
        "path": WALK,
        "old": "cap_scores_by_half(s, ptx::max_f32(-ptx::max_f32(-factor, -kLargestFloat),"
        " -kLargestFloat));",
        "new": "(void)factor;",
    },
    {
        "name": "log-sum-exp of 1 + tanh",
        "path": WALK,
        "old": "done[r].reference -= params.call.scale_log2;",
        "new": ";",
    },
    {
        "name": "log-sum-exp without the sum's exponent",
        "path": RUNNING,
        "old": "rows[r].reference + exponent + ptx::lg2_approx(mantissa)",
        "new": "rows[r].reference + ptx::lg2_approx(mantissa)",
    },
    {
        "name": "O not rescaled where references move",
        "path": WALK,
        "old": "if (moved) rescale_output();",
        "new": "",
    },
    {
        "name": "references of the item before",
        "path": WALK,
        "old": "rows[0] = rows[1] = {minus_infinity(), 0.0f};",
        "new": "",
    },
    {
        "name": "O of the item before",
        "path": WALK,
        "old": "o[i][j] = 0.0f;",
        "new": "o[i][j] *= 1.0f;",
    },
]
