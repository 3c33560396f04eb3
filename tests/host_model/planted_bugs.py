#!/usr/bin/env python3
"""Plants one bug at a time in copies of the kernels; the host model must notice each.

The kernels carry no hooks: a bug is a piece of text and what it becomes. White space does not
count, and the text must occur exactly as often as the bug says.

  planted_bugs.py --build build/cpu            every bug, checked
  planted_bugs.py --build build/cpu --quick    the few that CI runs
  planted_bugs.py --build build/cpu --matrix   every bug in every mode, as a table
  planted_bugs.py --build build/cpu --delete   each synchronising statement removed in turn
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import planted_bugs_sm90 as sm90

ROOT = Path(__file__).resolve().parent.parent.parent
FORWARD = "cuda/attention/forward_sm80.cuh"
BACKWARD = "cuda/attention/backward_sm80.cuh"
DQ = "cuda/attention/backward_dq_sm80.cuh"
KEY_WALK = "cuda/attention/key_walk.cuh"
QUERY_ROWS = "cuda/attention/query_rows.cuh"
SCORES = "cuda/attention/backward_scores.cuh"
WALK = "cuda/attention/backward_walk.cuh"
ROWS = "cuda/attention/backward_rows.cuh"
ROW_VALUES = "cuda/attention/row_values.cuh"
SUMS = "cuda/attention/query_sums.hpp"
FORWARD_F32 = "cuda/attention/forward_f32.cuh"
BACKWARD_F32 = "cuda/attention/backward_f32.cuh"
DQ_F32 = "cuda/attention/backward_dq_f32.cuh"
DKV_F32 = "cuda/attention/backward_dkv_f32.cuh"
KEY_WALK_F32 = "cuda/attention/key_walk_f32.cuh"
MULTIPLY_F32 = "cuda/tile/multiply_f32.cuh"
MATH_F32 = "cuda/tile/math_f32.cuh"
TRANSPOSE = "cuda/tile/transpose.cuh"
DROPOUT_F32 = "cuda/tile/dropout_f32.cuh"
COPY = "cuda/tile/copy.cuh"
MULTIPLY = "cuda/tile/multiply.cuh"
SOFTMAX = "cuda/tile/softmax.cuh"
DROPOUT = "cuda/tile/dropout.cuh"
MASK = "geometry/mask.hpp"
TILES = "geometry/tiles.hpp"

# Cases of the operator table: several tiles each way, every kind of mask, sizes around tiles.
CASES = [
    "long",
    "frames",
    "length64",
    "length65",
    "length129",
    "sequence_short_of_a_tile",
    "blocks_short_of_tiles",
    "interleaved_long",
    "halves_seqused_views",
    "split_packed_prefix_lens_seqused_views",
    "clean_window_long",
    "clean_window6_block",
    "sequence_window_long",
    "sequence_window_self",
    "sequence_block_causal_long_offset",
    "sequence_packed_empty",
    "many_anchors",
    "unsorted_ranges",
    "ranges_with_gaps",
    "noisy_past_clean",
    "sequence_no_key",
    "heads7_1",
    "dim128_128",
    "dropout_softcap_gqa",
    "dropout_softcap_gqa_sequence",
    "scale_negative",
]


@dataclass
class Bug:
    """`old` of a source becomes `new` in `times` places."""

    name: str
    family: str  # whose kernels are compiled
    path: str = ""
    old: str = ""
    new: str = ""
    times: int = 1
    quick: bool = False
    span: tuple[int, int] | None = None  # instead of `old`
    device: str = "cuda-model"


def forward(name: str, path: str, old: str, new: str, **rest: object) -> Bug:
    return Bug(name, "forward", path, old, new, device=MMA, **rest)


def backward(name: str, path: str, old: str, new: str, **rest: object) -> Bug:
    return Bug(name, "backward", path, old, new, **{"device": MMA, **rest})


def deterministic(name: str, path: str, old: str, new: str, **rest: object) -> Bug:
    return Bug(name, "deterministic", path, old, new, **rest)


def f32(name: str, path: str, old: str, new: str, **rest: object) -> Bug:
    return Bug(name, "f32", path, old, new, **rest)


# Each has kernels of its own; how the names of its cases end.
FAMILIES = {
    "forward": "bf16",
    "forward_sm90": "bf16",
    "forward_walk_sm90": "bf16",
    "backward_sm90": "bf16",
    "backward": "bf16",
    "deterministic": "deterministic_bf16",
    "f32": "f32",
}
MMA = "cuda-model:mma"  # where the kernels for sm_90a take no problem from the others
ON_MMA = ("forward", "backward")
SMALL = "cuda-model:8.6"
CONTROLS = [
    Bug("none", family, quick=True, device=MMA if family in ON_MMA else "cuda-model")
    for family in FAMILIES
]

BAR = "ptx::bar_sync(0, C.threads());"
TAIL_OUT = "write_zero_rows<C.threads()>(p.out[h], batch, head, first, count, p.head_dim_v);"
TILE_HERE = "ptx::bar_sync(0, C.threads());  // this tile is here"
BUGS = [
    forward(
        "wait for K and V removed",
        FORWARD,
        "ptx::cp_async_wait_group<0>(); " + TILE_HERE,
        TILE_HERE,
        quick=True,
    ),
    forward(
        "wait leaves the newest group in flight",
        FORWARD,
        "ptx::cp_async_wait_group<0>(); " + TILE_HERE,
        "ptx::cp_async_wait_group<1>(); " + TILE_HERE,
    ),
    forward("barrier of the loop removed", FORWARD, TILE_HERE, "//", quick=True),
    forward("barrier skipped by one warp", FORWARD, TILE_HERE, "if (warp != 3) " + TILE_HERE),
    forward(
        "barrier after the rows' intervals removed",
        FORWARD,
        "ptx::bar_sync(0, C.threads());  // the rows' intervals",
        "//",
    ),
    forward(
        "last barrier removed",
        FORWARD,
        "ptx::bar_sync(0, C.threads());  // Q is here",
        "//",
    ),
    forward("syncwarp before the output is read removed", COPY, "ptx::syncwarp();", ""),
    forward(
        "wait for Q before it is negated removed",
        FORWARD,
        "ptx::cp_async_wait_group<0>(); negate",
        "negate",
    ),
    forward("Q not negated", FORWARD, "if (p.negate_q != 0)", "if (p.negate_q > 1)"),
    forward(
        "next tile requested into the stage in use",
        FORWARD,
        "stage ^= 1; if (more) walk.request(stage);",
        "if (more) walk.request(stage); stage ^= 1;",
        quick=True,
    ),
    forward(
        "tile requested from the other half",
        KEY_WALK,
        "const u32 at = shared + kPlan.phases + phase * kKeyPhaseBytes;",
        "const u32 at = shared + kPlan.phases + (1 - phase) * kKeyPhaseBytes;",
    ),
    forward(
        "O not rescaled",
        FORWARD,
        "state.o[m][i][j] *= factors[j / 2];",
        ";",
        quick=True,
    ),
    forward("row sum not rescaled", SOFTMAX, "state.row_sum[r] *= rescale[r];", "", times=2),
    forward(
        "shuffle step dropped in the row sum",
        SOFTMAX,
        "return sum + ptx::shfl_xor_f32(sum, 2);",
        "return sum;",
        quick=True,
    ),
    forward(
        "shuffle in a divergent branch",
        SOFTMAX,
        "sum += ptx::shfl_xor_f32(sum, 1);",
        "if (sum > 1.0f) sum += ptx::shfl_xor_f32(sum, 1);",
    ),
    forward("lse in units of log 2", SOFTMAX, "* 0.6931471805599453f", ""),
    forward(
        "mask off by one: end",
        SOFTMAX,
        "key < begin || key >= end",
        "key < begin || key > end",
        quick=True,
    ),
    forward(
        "mask off by one: begin",
        SOFTMAX,
        "key < begin || key >= end",
        "key <= begin || key >= end",
    ),
    forward(
        "partial tile taken for full",
        KEY_WALK,
        "static_cast<i32>(bounds.w) >= first_key() + C.tile_kv",
        "static_cast<i32>(bounds.w) >= first_key() + C.tile_kv - 1",
    ),
    forward(
        "last piece of a masked tile left out",
        KEY_WALK,
        "- first_key() + 15, C.tile_kv) / 16",
        "- first_key(), C.tile_kv) / 16",
    ),
    forward(
        "first piece of a masked tile left out",
        FORWARD,
        "keys.first_piece & ~1",
        "(keys.first_piece + 1) & ~1",
    ),
    forward(
        "noisy rows see their own clean block",
        MASK,
        "rule.end = {Anchor::kBlockStart, 0};",
        "rule.end = {Anchor::kBlockStart, mask.block_size};",
    ),
    forward(
        "padding differs between copy and ldmatrix",
        COPY,
        "constexpr int kRowBytes = padded_row_bytes(kDim);",
        "constexpr int kRowBytes = kDim * 2;",
        times=2,
        quick=True,
    ),
    forward(
        "V without .trans",
        FORWARD,
        "multiply_step<C.element, true>(state.o",
        "multiply_step<C.element, false>(state.o",
    ),
    forward(
        "matrices of K swapped",
        FORWARD,
        "k += (piece * 16 + lane / 16 * 8 + lane % 8) * kKRowBytes + lane / 8 % 2 * 16;",
        "k += (piece * 16 + lane / 8 % 2 * 8 + lane % 8) * kKRowBytes + lane / 16 * 16;",
    ),
    forward(
        "a row past the end read", COPY, "r + row < len - first &&", "r + row <= len - first &&"
    ),
    forward(
        "a row past the end written",
        COPY,
        "r + row < count && column",
        "r + row <= count && column",
    ),
    forward(
        "dropout: bits of the other row",
        DROPOUT,
        "return dropout_bit(8 * i + j % 2, j / 2 * 8);",
        "return dropout_bit(8 * i + j % 2, 8 - j / 2 * 8);",
        quick=True,
    ),
    forward(
        "dropout: keys of the block's other half",
        DROPOUT,
        "return dropped[0] >> (first_key / 8 % 8);",
        "return dropped[0] >> (first_key / 8 % 8 ^ 4);",
    ),
    forward(
        "dropout: tiles of 96 keys begin with a block",
        DROPOUT,
        "Tiles % 8 == 0 ? 8 : 4;",
        "Tiles % 8 == 0 ? 8 : 4; first_key = first_key / 64 * 64;",
    ),
    forward(
        "dropout: every number's high bits are its low ones",
        DROPOUT,
        "2 * segment_pair + i % 2",
        "2 * segment_pair",
    ),
    forward("dropout: rows swapped", DROPOUT, "/ 2 + lane / 4;", "/ 2 + 7 - lane / 4;"),
    forward(
        "dropout: clean keys take the noisy keys' numbers",
        FORWARD,
        "dropout.clean_keys = walk.phase;",
        "dropout.clean_keys = 0;",
    ),
    forward(
        "cap without its scale",
        FORWARD,
        "cap_scores(s[m], p.softcap_scale)",
        "cap_scores(s[m], 1.0f)",
    ),
    backward(
        "wait for Q and dO removed",
        BACKWARD,
        "ptx::cp_async_wait_group<0>(); ptx::bar_sync(0, C.threads());  // A",
        "ptx::bar_sync(0, C.threads());",
        quick=True,
    ),
    backward("barrier A removed", BACKWARD, "ptx::bar_sync(0, C.threads());  // A", "//"),
    backward(
        "barrier B removed",
        BACKWARD,
        "ptx::bar_sync(0, C.threads());  // B",
        "//",
        times=2,
        quick=True,
    ),
    backward(
        "barrier C removed",
        BACKWARD,
        "ptx::bar_sync(0, C.threads());  // C",
        "//",
        quick=True,
        device=SMALL,  # where one stage fits
    ),
    backward(
        "barrier C skipped by one warp",
        BACKWARD,
        "ptx::bar_sync(0, C.threads());  // C",
        "if (here().warp() != 1) ptx::bar_sync(0, C.threads());  // C",
        device=SMALL,  # where one stage fits
    ),
    backward(
        "barrier before dK and dV are stored removed",
        BACKWARD,
        "ptx::bar_sync(0, C.threads());  // K and V",
        "//",
    ),
    backward(
        "barrier after dK and dV are stored removed",
        BACKWARD,
        "ptx::bar_sync(0, C.threads()); KeyTileWalk",
        "KeyTileWalk",
    ),
    backward(
        "next tile requested before barrier C",
        BACKWARD,
        "ptx::bar_sync(0, C.threads());  // C request_next();",
        "request_next(); ptx::bar_sync(0, C.threads());",
        device=SMALL,  # where one stage fits
    ),
    backward(
        "next tile requested into the stage in use",
        BACKWARD,
        "request(C.stages == 2 ? stage ^ 1 : 0)",
        "request(C.stages == 2 ? stage : 0)",
        quick=True,
    ),
    backward(
        "by key: next tile requested before barrier B",
        BACKWARD,
        "ptx::bar_sync(0, C.threads());  // B request_next();",
        "request_next(); ptx::bar_sync(0, C.threads());",
        quick=True,
    ),
    backward(
        "mask off by one",
        SCORES,
        "seen.contains(key + i * 8 + j)",
        "seen.contains(key + i * 8 + j - 1)",
        quick=True,
    ),
    backward(
        "mask off by one, by key",
        SCORES,
        "seen.contains(key))",
        "seen.contains(key - 1))",
        quick=True,
    ),
    backward(
        "by key: second half of the rows masked as the first",
        BACKWARD,
        "first * 8; const int key",
        "(first - row) * 8; const int key",
    ),
    backward(
        "by key: pieces of P and dS in the wrong order",
        MULTIPLY,
        "a[m][2 * step + i / 2][i % 2]",
        "a[m][2 * step + i % 2][i / 2]",
    ),
    backward(
        "partial tile taken for full",
        WALK,
        "geometry::ceil_div(geometry::max_of(begin, 0), tile_q)",
        "geometry::max_of(begin, 0) / tile_q",
    ),
    backward(
        "visible piece asked of another warp",
        BACKWARD,
        "kPlan.visible + from * 4",
        "kPlan.visible + (from + 1) % C.warps * 4",
    ),
    backward(
        "last row's interval not written",
        BACKWARD,
        "if (!next_full && thread < C.tile_q)",
        "if (!next_full && thread < C.tile_q - 1)",
    ),
    backward(
        "query walk ends a tile early",
        BACKWARD,
        "ptx::ld_shared_v2(queries_at, next_tile, next_end);",
        "ptx::ld_shared_v2(queries_at, next_tile, next_end); --next_end;",
    ),
    backward(
        "only the first query head of the group",
        BACKWARD,
        "if (++next_run == p.group() * walk.segments) return;",
        "if (++next_run == walk.segments) return;",
    ),
    backward("delta left out", SCORES, "(x - delta(i, j))", "x"),
    backward("dK not scaled", BACKWARD, "grad_dim(), p.softmax_scale)", "grad_dim(), 1.0f)"),
    backward(
        "P and dS without .trans",
        MULTIPLY,
        "ptx::ldmatrix_x4<true>(ra[m], a",
        "ptx::ldmatrix_x4(ra[m], a",
    ),
    backward(
        "cap's slope left out",
        SCORES,
        "x * slope[i][2 * r], y * slope[i][2 * r + 1]",
        "x, y",
    ),
    backward(
        "dropped pairs stay in P",
        SCORES,
        "(dropped >> dropped_bit(i, 2 * r) & 1) != 0 ? 0.0f : x",
        "(dropped >> dropped_bit(i, 2 * r) & 1) != 0 ? x : x",
    ),
    backward(
        "dropped pairs stay in dP",
        SCORES,
        "(dropped >> dropped_bit(i, j) & 1) != 0 ? 0.0f : x",
        "(dropped >> dropped_bit(i, j) & 1) != 0 ? x : x",
    ),
    backward(
        "segments share padded rows",
        SUMS,
        "(first + (kSumRows - 1) * (rank + 1)) / kSumRows * kSumRows",
        "first / kSumRows * kSumRows",
    ),
    backward("sums of dQ not cleared", ROWS, "ptx::st_global_v4(sums + i, {0, 0, 0, 0});", ""),
    backward(
        "shuffle step dropped in delta",
        ROW_VALUES,
        "step < kLanes; step *= 2",
        "step < kLanes / 2; step *= 2",
    ),
    backward(
        "words of dQ's rows in the wrong order",
        TRANSPOSE,
        "upper ? word[j] : word[j + step]",
        "upper ? word[j + step] : word[j]",
    ),
    backward("dlse added instead of subtracted", ROWS, "sum[0] -= *p.dlse", "sum[0] += *p.dlse"),
    backward("dQ not scaled", ROWS, "ptx::float_of(x) * p.softmax_scale", "ptx::float_of(x)"),
    backward(
        "query hull a row short",
        TILES,
        "return {reaching.begin - query_position, reaching.end - query_position};",
        "return {reaching.begin - query_position, reaching.end - 1 - query_position};",
    ),
    f32(
        "wait for K leaves it in flight",
        FORWARD_F32,
        "ptx::cp_async_wait_group<1>(); ptx::bar_sync(0, C.threads());  // K is here",
        "ptx::cp_async_wait_group<2>(); ptx::bar_sync(0, C.threads());  // K is here",
        quick=True,
    ),
    f32("barrier before K is read removed", FORWARD_F32, f"{BAR}  // K is here", "//"),
    f32("next K requested while K is read", FORWARD_F32, f"{BAR}  // all are done with K", "//"),
    f32("next V requested while V is read", FORWARD_F32, f"{BAR}  // all are done with V", "//"),
    f32("barrier before V is read removed", FORWARD_F32, f"{BAR}  // V is here, and P", "//"),
    f32(
        "output not rescaled",
        FORWARD_F32,
        "row_sum[i] = ptx::fma_f32(row_sum[i], rescale[i], sum);",
        "row_sum[i] = ptx::fma_f32(row_sum[i], rescale[i], sum); rescale[i] = 1.0f;",
        quick=True,
    ),
    f32(
        "mask off by one",
        FORWARD_F32,
        "!seen.contains(first_key + j * 8 + lane % 8)",
        "!seen.contains(first_key + j * 8 + lane % 8 - 1)",
    ),
    f32(
        "dropped pairs leave the sum",
        FORWARD_F32,
        "if ((dropped >> (i * kColumns + j) & 1) != 0) s[i][j] = 0.0f;",
        "if ((dropped >> (i * kColumns + j) & 1) != 0) row_sum[i] -= s[i][j], s[i][j] = 0.0f;",
    ),
    f32(
        "warps take part by the rows of the next",
        FORWARD_F32,
        "walk.meets(warp_row + lane)",
        "walk.meets((warp_row + C.warp_rows()) % C.tile_rows() + lane)",
    ),
    f32(
        "lse in units of log 2",
        FORWARD_F32,
        "top * 0.69314718055994530942 + log_f64(sum)",
        "top + log_f64(sum)",
    ),
    f32("tail rows of out left as they are", FORWARD_F32, TAIL_OUT, "(void)count;"),
    f32(
        "walk stops at the first gap",
        KEY_WALK_F32,
        "for (; tile < end; ++tile) {",
        "if (tile < end) {",
    ),
    f32(
        "clean keys start at the own view's first row",
        KEY_WALK_F32,
        "thread == 0 ? query.first : query.sample.clean_kv.first",
        "query.first",
    ),
    f32(
        "row sums of one lane too few",
        MULTIPLY_F32,
        "for (u32 step = 1; step < 8; step *= 2) x += ",
        "for (u32 step = 1; step < 4; step *= 2) x += ",
    ),
    f32(
        "columns past the last group of 32 written",
        MULTIPLY_F32,
        "if (g * 32 + column >= dim) continue;",
        "",
    ),
    f32("rows past the end written", MULTIPLY_F32, "if (i * 4 >= rows_left) continue;", ""),
    f32(
        "dot products stop at a slice",
        MULTIPLY_F32,
        "for (int first = 0; first < dim; first += kChain)",
        "for (int first = 0; first < kChain; first += kChain)",
    ),
    f32(
        "logarithm without its last terms",
        MATH_F32,
        "double p = 1.0 / 15;",
        "double p = 1.0 / 15; return exponent * 0.69314718055994530942 + 2.0 * t;",
    ),
    f32(
        "dropout of the next key's pairs",
        DROPOUT_F32,
        ": dropout_bit(key + 8 * b, query + 8 * a);",
        ": dropout_bit(key + 1 + 8 * b, query + 8 * a);",
    ),
    f32(
        "dropout of the other row of a group",
        DROPOUT_F32,
        ": dropout_bit(key + 8 * b, query + 8 * a);",
        ": dropout_bit(key + 8 * a, query + 8 * b);",
    ),
    f32(
        "log-sum-exp not mended",
        DQ_F32,
        "values.factor = 1.0f / (1.0f + excess);",
        "",
    ),
    f32("delta not mended", DQ_F32, "values.delta += correction;", ""),
    f32("next V requested while V is read (dQ)", DQ_F32, f"{BAR}  // all are done with V", "//"),
    f32("next K requested while K is read (dQ)", DQ_F32, f"{BAR}  // all are done with K", "//"),
    f32("barrier before K is read removed (dQ)", DQ_F32, f"{BAR}  // K is here", "//"),
    f32("syncwarp before dS is read removed", DQ_F32, "ptx::syncwarp();", ""),
    f32("hidden pairs stay in dS", DQ_F32, "seen[i].contains(j * 8) ? ds * x.slope : 0.0f", "ds"),
    f32(
        "row values of another row kept",
        DQ_F32,
        "rows.valid.begin + first_row + i * 4;",
        "rows.valid.begin + first_row + (i ^ 1) * 4;",
    ),
    f32(
        "slope of the cap forgotten",
        BACKWARD_F32,
        "slope = ptx::fma_f32(-s, s, 1.0f);",
        "",
    ),
    f32(
        "next dO requested while dO is read",
        DKV_F32,
        f"{BAR}  // all are done with dO, and dS is here",
        "//",
        quick=True,
    ),
    f32(
        "next Q requested while Q is read",
        DKV_F32,
        f"{BAR}  // all are done with Q, row values and intervals",
        "//",
    ),
    f32(
        "wait for Q and row values removed",
        DKV_F32,
        f"ptx::cp_async_wait_group<0>(); {BAR}  // Q and the row values are here",
        f"{BAR}  //",
    ),
    f32(
        "dS written while P is read",
        DKV_F32,
        "ptx::syncwarp(); store_scores_f32(p_row + lane % 8 * 4, C.score_bytes(), dp);",
        "store_scores_f32(p_row + lane % 8 * 4, C.score_bytes(), dp);",
    ),
    f32(
        "query heads of the group left out",
        DKV_F32,
        "p.group() * own.segments,",
        "own.segments,",
    ),
    f32(
        "dlse forgotten in dK",
        DKV_F32,
        "((dp[i][j] - row.delta) + row.dlse)",
        "(dp[i][j] - row.delta)",
    ),
    f32(
        "dropout takes clean keys for noisy ones",
        DKV_F32,
        "walk.segment(), 0); dropout.clean_keys = kh;",
        "walk.segment(), 0); dropout.clean_keys = 1 - kh;",
    ),
    deterministic(
        "wait for K and V removed",
        DQ,
        "ptx::cp_async_wait_group<0>(); " + TILE_HERE,
        TILE_HERE,
        quick=True,
    ),
    deterministic("barrier of the loop removed", DQ, TILE_HERE, "//"),
    deterministic(
        "barrier after the rows' intervals removed",
        DQ,
        "ptx::bar_sync(0, C.threads());  // the rows' intervals",
        "//",
    ),
    deterministic("last barrier removed", DQ, "ptx::bar_sync(0, C.threads());  // Q is here", "//"),
    deterministic(
        "next tile requested into the stage in use",
        DQ,
        "stage ^= 1; if (more) walk.request(stage);",
        "if (more) walk.request(stage); stage ^= 1;",
    ),
    deterministic(
        "first piece of a masked tile left out",
        DQ,
        "keys.first_piece * 16 / kStep",
        "(keys.first_piece + 1) * 16 / kStep",
    ),
    deterministic(
        "last piece of a masked tile left out",
        DQ,
        "key < keys.last_piece * 16",
        "key < keys.last_piece * 16 - 16",
        quick=True,
    ),
    deterministic(
        "mask off by one",
        SCORES,
        "seen.contains(key + i * 8 + j)",
        "seen.contains(key + i * 8 + j - 1)",
    ),
    deterministic(
        "16 rows masked as those before them",
        DQ,
        "bounds + (m * 16 + lane / 4) * 8",
        "bounds + lane / 4 * 8",
    ),
    deterministic(
        "log-sum-exp and delta of the segment's first rows",
        DQ,
        "(padded + rows.valid.begin) * 2",
        "padded * 2",
    ),
    deterministic(
        "second row's log-sum-exp and delta not copied", DQ, "left > 1   ? 16", "left > 1 ? 8"
    ),
    deterministic("delta of the row before", DQ, "values + m * 128 + 68", "values + m * 128 + 4"),
    deterministic("dQ not scaled", DQ, "return x * p.softmax_scale;", "return x;"),
    deterministic(
        "K without .trans",
        MULTIPLY,
        "multiply_step<kElement, true>(c, ra, b + step * 16 * b_bytes, 32);",
        "multiply_step<kElement, false>(c, ra, b + step * 16 * b_bytes, 32);",
        times=2,
    ),
    deterministic(
        "dropout: clean keys take the noisy keys' numbers",
        DQ,
        "dropout.clean_keys = walk.phase;",
        "dropout.clean_keys = 0;",
    ),
    deterministic(
        "dropout: second 16 rows take the first ones' numbers",
        DQ,
        "dropped_bits<kTiles>(dropout, m * 16,",
        "dropped_bits<kTiles>(dropout, 0,",
    ),
    deterministic(
        "padding keeps what it held",
        QUERY_ROWS,
        "!padding.empty()",
        "padding.size() > 99",
    ),
    deterministic(
        "tail of a packed tensor begins a row late",
        QUERY_ROWS,
        "tail.first + row,",
        "tail.first + row + 1,",
    ),
    deterministic(
        "head of another group", QUERY_ROWS, "item.head_kv * p.grid.query_heads", "item.head_kv"
    ),
    deterministic(
        "barrier B of dK and dV alone removed",
        BACKWARD,
        "ptx::bar_sync(0, C.threads());  // B",
        "//",
        times=2,
    ),
]

SYNCHRONISING = (
    r"ptx::(?:bar_sync|bar_arrive|syncwarp|cp_async_commit_group|cp_async_wait_group)\b[^;]*;"
)


BUGS += [Bug(family="forward_sm90", **bug) for bug in sm90.BUGS]
BUGS += [Bug(family="forward_walk_sm90", **bug) for bug in sm90.WALK_BUGS]
BUGS += [Bug(family="backward_sm90", **bug) for bug in sm90.BACKWARD_BUGS]


def cases_of(family: str) -> list[str]:
    cases = {
        "forward_sm90": sm90.CASES,
        "forward_walk_sm90": sm90.WALK_CASES,
        "backward_sm90": sm90.BACKWARD_CASES,
    }
    return cases.get(family, CASES)


def deletions() -> list[Bug]:
    """One bug for each synchronising statement of the kernels: it is removed."""
    bugs = []
    sources = [("forward", FORWARD), ("forward", KEY_WALK), ("backward", BACKWARD)]
    sources += [("deterministic", DQ)]
    sources += [("f32", path) for path in (FORWARD_F32, DQ_F32, DKV_F32)]
    for family, path in sources:
        text = (ROOT / "src" / path).read_text()
        for match in re.finditer(SYNCHRONISING, text):
            line = text.count("\n", 0, match.start()) + 1
            statement = " ".join(match.group().split()).replace("ptx::", "")
            device = MMA if family in ON_MMA else "cuda-model"
            bugs.append(
                Bug(
                    f"line {line}: {statement}",
                    family,
                    path,
                    new=";",
                    span=match.span(),
                    device=device,
                )
            )
    return bugs


def patched(bug: Bug) -> str:
    """The bug's source with the bug in it."""
    text = (ROOT / "src" / bug.path).read_text()
    if bug.span:
        return text[: bug.span[0]] + bug.new + text[bug.span[1] :]
    pattern = r"\s*".join(re.escape(c) for c in bug.old if not c.isspace())
    text, found = re.subn(pattern, lambda _: bug.new, text)
    if found != bug.times:
        raise SystemExit(
            f"{bug.name}: the text occurs {found} times in {bug.path}, not {bug.times}"
        )
    return text


class Prober:
    """Compiles kernels with a bug and runs cases on them."""

    def __init__(self, build: Path, compiler: str, work: Path) -> None:
        self.build, self.compiler, self.work = build, compiler, work
        self.generated = {}
        for family in FAMILIES:
            folder = work / family
            folder.mkdir()
            generator = build / "tests" / "host_model" / "generate_model_kernels"
            subprocess.run([generator, folder, "1", family], check=True)
            self.generated[family] = [folder / "kernels_0.cpp", folder / "registry.cpp"]

    def compile(self, bug: Bug) -> Path:
        sources = self.work / "src"
        shutil.rmtree(sources, ignore_errors=True)
        for pattern in ("*.cuh", "*.hpp"):
            for path in (ROOT / "src").rglob(pattern):
                target = sources / path.relative_to(ROOT / "src")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        if bug.path:
            (sources / bug.path).write_text(patched(bug))
        library = self.work / "kernels.so"
        # Hidden: the program has functions of the same names.
        flags = (
            "-std=c++20 -O1 -w -Wno-psabi -fPIC -shared"
            " -fvisibility=hidden -fvisibility-inlines-hidden"
        )
        defines = "-DSTEPWELL_HOST_MODEL -DFMT_HEADER_ONLY"
        includes = [f"-I{folder}" for folder in (sources, ROOT / "tests", ROOT / "include")]
        files = self.generated[bug.family]
        command = [
            self.compiler,
            *flags.split(),
            *defines.split(),
            *includes,
            *files,
            "-o",
            library,
        ]
        if subprocess.run(command, check=False).returncode != 0:
            raise SystemExit(f"{bug.name}: the kernels do not compile with it")
        return library

    def run(self, library: Path, mode: str, bug: Bug) -> tuple[str, str]:
        """How the bug shows ("-": not at all), and the message."""
        cases = cases_of(bug.family)
        names = ":".join(f"*/{case}_{FAMILIES[bug.family]}" for case in cases)
        command = [
            self.build / "tests" / "test_operators",
            f"--device={bug.device}",
            f"--mode={mode}",
            f"--kernels={library}",
            f"--gtest_filter={names}",
            "--gtest_brief=1",
            "--gtest_fail_fast",
        ]
        try:
            run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            return "endless", "it does not end"
        output = run.stdout + run.stderr
        ran = re.search(r"(\d+) tests? from", output)
        if run.returncode == 0:
            if not ran or int(ran[1]) != len(cases):
                raise SystemExit(f"{len(cases)} cases expected:\n{output}")
            return "-", ""
        if error := re.search(r'description "(.*?), (\w+): (.*)" thrown', output, re.DOTALL):
            return error[2], error[3].replace("\n", " ")
        if wrong := re.search(r"(\w+)\[.*? is (\S+), expected [^\n]*", output):
            return ("NaN" if "nan" in wrong[2] else "numbers"), wrong[0]
        if "gaps_intact" in output:
            return "gaps", "memory between rows or heads changed"
        return "crash", f"exit code {run.returncode}: {output[-300:]}"


MODES = {
    "checked": "forward-late-checked",
    "late": "forward-late",
    "late, reversed": "reverse-late",
    "late, random": "random-late",
    "early": "forward-early",
    "early, reversed": "reverse-early",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "cpu")
    parser.add_argument("--compiler", default=os.environ.get("CXX", "g++"))
    parser.add_argument("--only", default="", help="part of the bugs' names")
    parser.add_argument("--family", choices=list(FAMILIES))
    parser.add_argument("--quick", action="store_true", help="the few bugs that CI runs")
    parser.add_argument("--matrix", action="store_true", help="every mode, not only checked")
    parser.add_argument("--delete", action="store_true", help="remove synchronising statements")
    args = parser.parse_args()
    bugs = CONTROLS + (deletions() if args.delete else BUGS)
    for bug in bugs:  # every text must match, of bugs that are not asked for too
        if bug.path:
            patched(bug)
    bugs = [b for b in bugs if args.only in b.name and (b.quick or not args.quick)]
    bugs = [b for b in bugs if args.family in (None, b.family)]
    modes = MODES if args.matrix else {"checked": MODES["checked"]}
    print(f"| kernels | bug | {' | '.join(modes)} |\n|---|---|{'---|' * len(modes)}")
    missed, false_alarms = [], []
    with tempfile.TemporaryDirectory() as work:
        prober = Prober(args.build.resolve(), args.compiler, Path(work))
        for bug in bugs:
            library = prober.compile(bug)
            found = {name: prober.run(library, mode, bug) for name, mode in modes.items()}
            cells = " | ".join(how for how, _ in found.values())
            print(f"| {bug.family} | {bug.name} | {cells} |", flush=True)
            how, message = found["checked"]
            if message:
                print(f"  {message[:300]}", file=sys.stderr)
            if bug.path and how == "-":
                missed.append(bug.name)
            if not bug.path and any(how != "-" for how, _ in found.values()):
                false_alarms.append(bug.family)
    print(
        f"\n{len(bugs)} planted; missed: {missed or 'none'}; false alarms: {false_alarms or 'none'}"
    )
    if args.delete:  # a statement may be one too many: who reads the list decides
        return int(bool(false_alarms))
    return int(bool(missed or false_alarms))


if __name__ == "__main__":
    sys.exit(main())
