"""One list of cases: every layout and variant, small and awkward.

A case knows the arguments of the public function, and describes its rows for ``dense.visible``.
"""

from __future__ import annotations

import dataclasses
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from dense import CLEAN, NOISY, Rows, visible

import stepwell
from stepwell import masks


@dataclasses.dataclass
class Case:
    name: str
    layout: str  # batched, interleaved, halves, split, split_packed, sequence, sequence_packed
    lengths: (
        list  # per sample: n; split: (view length, clean keys, clean queries); sequence: (q, k)
    )
    mask: masks.Mask
    pairs: int | None = None  # visible pairs, where docs list them
    tail: int = 0  # padding rows at the end of packed tensors (halves: of each part)
    prefix_lens: list | None = None
    seqused: list | None = None
    seqused_clean: list | None = None
    seqused_kv: list | None = None
    noisy_offset: Any = 0
    clean_q_offset: Any = 0
    q_offset: Any = 0
    block_ranges: list | None = None
    cu_seqlens_clean_q: bool = False

    @property
    def views(self) -> int:
        return getattr(self.mask, "num_views", 1)

    @property
    def split(self) -> bool:
        return self.layout.startswith("split")

    @property
    def packed(self) -> bool:
        return self.layout in ("interleaved", "halves", "split_packed", "sequence_packed")

    @property
    def has_clean_queries(self) -> bool:
        return self.split and any(length[2] for length in self.lengths)

    def _at(self, values: Any, sample: int) -> Any:
        return values[sample] if isinstance(values, list) else values

    # ------------------------------------------------------------------ rows

    def _joint_rows(self) -> list[Rows]:
        """Rows of the tensor: one entry per batch entry, or one for all when packed."""
        views, clean_first = self.views, self.mask.order == "clean_noisy"
        used = self.seqused

        def parts(sample: int) -> list[Rows]:
            n = self.lengths[sample]
            valid = None if used is None else used[sample]
            noisy = [Rows.segment(sample, NOISY, view, n, valid) for view in range(views)]
            clean = [Rows.segment(sample, CLEAN, 0, n, valid)]
            return clean + noisy if clean_first else noisy + clean

        samples = [parts(sample) for sample in range(len(self.lengths))]
        if self.layout == "batched":
            return [Rows.concatenate(sample) for sample in samples]
        if self.layout == "interleaved":
            every = [part for sample in samples for part in sample]
            return [Rows.concatenate([*every, Rows.padding(self.tail)])]
        halves = []
        for part in range(views + 1):
            halves += [sample[part] for sample in samples] + [Rows.padding(self.tail)]
        return [Rows.concatenate(halves)]

    def _split_rows(self, half: int, query: bool) -> list[Rows]:
        entries = []
        for sample, (noisy, clean_kv, clean_q) in enumerate(self.lengths):
            if half == NOISY:
                used = None if self.seqused is None else self.seqused[sample]
                offset = self._at(self.noisy_offset, sample)
                entries.append(
                    Rows.concatenate(
                        [
                            Rows.segment(sample, NOISY, view, noisy, used, offset)
                            for view in range(self.views)
                        ]
                    )
                )
                continue
            used = None if self.seqused_clean is None else self.seqused_clean[sample]
            if query:
                offset = self._at(self.clean_q_offset, sample)
                used = None if used is None else used - offset
                entries.append(Rows.segment(sample, CLEAN, 0, clean_q, used, offset))
            else:
                entries.append(Rows.segment(sample, CLEAN, 0, clean_kv, used))
        if self.packed:
            return [Rows.concatenate([*entries, Rows.padding(self.tail)])]
        return entries

    def _sequence_rows(self, query: bool) -> list[Rows]:
        entries = []
        for sample, (len_q, len_kv) in enumerate(self.lengths):
            if query:
                used = None if self.seqused is None else self.seqused[sample]
                offset = self._at(self.q_offset, sample)
                entries.append(Rows.segment(sample, CLEAN, 0, len_q, used, offset))
            else:
                used = None if self.seqused_kv is None else self.seqused_kv[sample]
                entries.append(Rows.segment(sample, CLEAN, 0, len_kv, used))
        if self.packed:
            return [Rows.concatenate([*entries, Rows.padding(self.tail)])]
        return entries

    def rows(self) -> list[tuple[Rows, Rows]]:
        """(query rows, key rows) of each batch entry; split: noisy rows, then clean ones."""
        if self.split:
            parts = [
                [self._split_rows(half, query) for half in (NOISY, CLEAN)]
                for query in (True, False)
            ]
            if not self.has_clean_queries:
                parts[0][1] = [Rows.padding(0) for _ in parts[0][1]]
            return [
                (Rows.concatenate([qn, qc]), Rows.concatenate([kn, kc]))
                for qn, qc, kn, kc in zip(*parts[0], *parts[1], strict=True)
            ]
        if self.layout.startswith("sequence"):
            return list(zip(self._sequence_rows(True), self._sequence_rows(False), strict=True))
        return [(rows, rows) for rows in self._joint_rows()]

    def dense_mask(self) -> torch.Tensor:
        """bool (batch, query rows, key rows), from the visibility table."""
        mask = self.mask
        options: dict[str, Any] = {"origins": self.prefix_lens}
        if isinstance(mask, masks.Diffusion):
            options |= {
                "kind": "diffusion",
                "block_size": mask.block_size,
                "clean": mask.clean,
                "noisy": mask.noisy,
                "clean_window": mask.clean_window,
            }
            if self.block_ranges is not None:
                per_sample = isinstance(self.block_ranges[0][0], (list, tuple))
                ranges = self.block_ranges
                options["block_ranges"] = ranges if per_sample else [ranges] * len(self.lengths)
        elif isinstance(mask, masks.BlockCausal):
            options |= {"kind": "block_causal", "block_size": mask.block_size}
        elif isinstance(mask, masks.Window):
            unbounded = float("inf")
            options |= {
                "kind": "window",
                "window": (
                    unbounded if mask.left is None else mask.left,
                    unbounded if mask.right is None else mask.right,
                ),
            }
        else:
            options |= {"kind": type(mask).__name__.lower()}
        return torch.from_numpy(np.stack([visible(q, k, **options) for q, k in self.rows()]))

    # --------------------------------------------------------------- tensors

    def row_counts(self) -> dict[str, int]:
        if self.split:
            counts = {
                "noisy": len(self._split_rows(NOISY, True)[0]),
                "clean_q": len(self._split_rows(CLEAN, True)[0]),
                "clean": len(self._split_rows(CLEAN, False)[0]),
            }
            return counts
        q, k = self.rows()[0]
        return {"q": len(q), "k": len(k)}

    def tensors(
        self, dtype=torch.float32, heads_q=4, heads_kv=2, dim=16, dim_v=24, seed=0
    ) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        counts = self.row_counts()

        def random(rows: int, heads: int, last: int) -> torch.Tensor:
            shape = (rows, heads, last) if self.packed else (len(self.lengths), rows, heads, last)
            return torch.randn(shape, generator=generator).to(dtype)

        if not self.split:
            return {
                "q": random(counts["q"], heads_q, dim),
                "k": random(counts["k"], heads_kv, dim),
                "v": random(counts["k"], heads_kv, dim_v),
            }
        tensors = {
            "q_noisy": random(counts["noisy"], heads_q, dim),
            "k_noisy": random(counts["noisy"], heads_kv, dim),
            "v_noisy": random(counts["noisy"], heads_kv, dim_v),
            "k_clean": random(counts["clean"], heads_kv, dim),
            "v_clean": random(counts["clean"], heads_kv, dim_v),
        }
        if self.has_clean_queries:
            tensors["q_clean"] = random(counts["clean_q"], heads_q, dim)
        return tensors

    def join(self, tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """q, k, v as (batch, rows, heads, dim), rows in the order of rows()."""

        def with_batch(*names: str) -> torch.Tensor:
            parts = [tensors[name] for name in names if name in tensors]
            parts = [part[None] if self.packed else part for part in parts]
            return torch.cat(parts, dim=1)

        if not self.split:
            return with_batch("q"), with_batch("k"), with_batch("v")
        return tuple(with_batch(f"{x}_noisy", f"{x}_clean") for x in "qkv")

    # ------------------------------------------------------------- arguments

    def _running(self, lengths: list[int]) -> list[int]:
        return [0, *accumulate(lengths)]

    def _ints(self, value: Any) -> Any:
        return torch.tensor(value, dtype=torch.int32) if isinstance(value, list) else value

    def options(self) -> dict[str, Any]:
        """Keyword arguments of the attention function, and of the mask functions by their names."""
        options: dict[str, Any] = {"prefix_lens": self.prefix_lens}
        if self.split:
            options |= {
                "seqused_noisy": self.seqused,
                "seqused_clean": self.seqused_clean,
                "noisy_offset": self.noisy_offset,
                "block_ranges": self.block_ranges,
            }
            if self.has_clean_queries:
                options["clean_q_offset"] = self.clean_q_offset
            if self.packed:
                noisy, clean_kv, clean_q = zip(*self.lengths, strict=True)
                options["cu_seqlens_noisy"] = self._running([self.views * n for n in noisy])
                options["cu_seqlens_clean"] = self._running(list(clean_kv))
                if self.cu_seqlens_clean_q:
                    options["cu_seqlens_clean_q"] = self._running(list(clean_q))
        elif self.layout.startswith("sequence"):
            options |= {
                "seqused": self.seqused,
                "seqused_kv": self.seqused_kv,
                "q_offset": self.q_offset,
            }
            if self.packed:
                len_q, len_kv = zip(*self.lengths, strict=True)
                options["cu_seqlens"] = self._running(list(len_q))
                if len_q != len_kv:
                    options["cu_seqlens_kv"] = self._running(list(len_kv))
        else:
            options["seqused"] = self.seqused
            if self.layout == "interleaved":
                options["cu_seqlens"] = self._running([(self.views + 1) * n for n in self.lengths])
            elif self.layout == "halves":
                options["cu_seqlens"] = self._running(list(self.lengths))
        return {name: self._ints(value) for name, value in options.items() if value is not None}

    def mask_options(self) -> dict[str, Any]:
        """Arguments of attention_mask and visible_pairs, `rows` and `mask` aside."""
        options = self.options()
        counts = self.row_counts()
        if self.split:
            options |= {"layout": "split", "rows_clean": counts["clean"]}
            options["rows_clean_q"] = counts["clean_q"] if self.has_clean_queries else 0
        elif self.layout.startswith("sequence"):
            options["rows_kv"] = counts["k"]
        else:
            options["layout"] = self.layout
        if not self.packed:
            options["batch"] = len(self.lengths)
        return options

    @property
    def mask_rows(self) -> int:
        return next(iter(self.row_counts().values()))

    def function(self):
        """The public function for the layout, and its arguments beside the tensors."""
        mask, options = self.mask, self.options()
        diffusion = dataclasses.asdict(mask) if isinstance(mask, masks.Diffusion) else {}
        if self.split:
            del diffusion["order"]
            return stepwell.diffusion_attn_split_func, {**diffusion, **options}
        if self.layout == "batched":
            return stepwell.diffusion_attn_func, {**diffusion, **options}
        if self.layout in ("interleaved", "halves"):
            longest = max(self.lengths, default=0)
            return stepwell.diffusion_attn_varlen_func, {
                **diffusion,
                **options,
                "max_seqlen": longest,
                "layout": self.layout,
            }
        if isinstance(mask, masks.BlockCausal):
            return stepwell.block_causal_attn_func, {"block_size": mask.block_size, **options}
        return stepwell.attention, {"mask": mask, **options}

    def run(self, tensors: dict[str, torch.Tensor], **extra: Any):
        """out (batch, rows, heads, dim) and lse (batch, heads, rows), rows as in rows()."""
        function, arguments = self.function()
        results = function(**tensors, **arguments, **extra, return_lse=True)
        if self.split:
            out, out_clean, lse, lse_clean = results
            assert (out_clean is not None) == self.has_clean_queries
            outs, lses = [out, out_clean], [lse, lse_clean]
        else:
            outs, lses = [results[0]], [results[1]]
        outs = [x for x in outs if x is not None]
        lses = [x for x in lses if x is not None]
        if self.packed:
            outs, lses = [x[None] for x in outs], [x[None] for x in lses]
        return torch.cat(outs, dim=1), torch.cat(lses, dim=2)


D = masks.Diffusion
_ANCHORS = [[0, 3], [0, 7]]

# Cases with the counts of docs/masks.md.
CHECK_VALUES = [
    Case("n16_b4", "batched", [16], D(4), 320),
    Case("n16_b4_clean_causal", "batched", [16], D(4, clean="causal"), 296),
    Case("n16_b4_both_causal", "batched", [16], D(4, clean="causal", noisy="causal"), 272),
    Case("n15_b4", "batched", [15], D(4), 282),
    Case("n7_b4", "batched", [7], D(4), 74),
    Case("n10_b3", "batched", [10], D(3), 128),
    Case("n10_b3_both_causal", "batched", [10], D(3, clean="causal", noisy="causal"), 110),
    Case("n8_b16", "batched", [8], D(16), 128),
    Case("n8_b16_origin3", "batched", [8], D(16), 98, prefix_lens=[3]),
    Case("n30_b32", "batched", [30], D(32), 1800),
    Case("packed_7_5_6_b4", "interleaved", [7, 5, 6], D(4), 172),
    Case("halves_7_5_6_b4", "halves", [7, 5, 6], D(4), 172),
    Case(
        "prompt6_clean9_noisy9", "split", [(9, 15, 15)], D(4), 250, prefix_lens=[6], noisy_offset=6
    ),
    Case(
        "noisy10_clean16_at6",
        "split",
        [(10, 16, 16)],
        D(4, clean="causal"),
        264,
        prefix_lens=[6],
        noisy_offset=6,
    ),
    Case("n16_b4_origin6", "batched", [16], D(4), 312, prefix_lens=[6]),
    Case("table", "split", [(8, 12, 0)], D(4), 72, block_ranges=_ANCHORS),
    Case("two_views", "batched", [16], D(4, num_views=2), 480),
    Case("window6", "batched", [16], D(4, clean_window=6), 280),
]

CASES = [
    *CHECK_VALUES,
    Case("batch", "batched", [13, 13, 13], D(4), prefix_lens=[0, 5, 13], seqused=[13, 7, 0]),
    Case("clean_noisy", "batched", [11, 11], D(3, order="clean_noisy"), seqused=[11, 4]),
    Case("noisy_causal", "batched", [33], D(7, noisy="causal")),
    Case("b1", "batched", [9], D(1)),
    Case("b1_window1", "batched", [9], D(1, clean_window=1)),
    Case(
        "views3_clean_first",
        "batched",
        [10, 10],
        D(4, order="clean_noisy", num_views=3, clean_window=5),
        seqused=[10, 6],
        prefix_lens=[2, 0],
    ),
    Case("long", "batched", [120], D(32, clean="causal"), prefix_lens=[13]),
    Case("interleaved", "interleaved", [5, 0, 12, 1, 0], D(4), tail=7, prefix_lens=[0, 3, 2, 9, 0]),
    Case(
        "interleaved_views",
        "interleaved",
        [6, 9],
        D(4, order="clean_noisy", num_views=2, noisy="causal"),
        seqused=[6, 5],
        tail=1,
    ),
    Case("halves_tail", "halves", [5, 0, 12, 3], D(4, clean="causal"), tail=3),
    Case(
        "halves_views_clean_first",
        "halves",
        [8, 3],
        D(3, order="clean_noisy", num_views=2),
        tail=2,
        seqused=[7, 3],
    ),
    Case("split_no_clean_queries", "split", [(12, 10, 0), (12, 10, 0)], D(5), noisy_offset=[2, 9]),
    Case("split_no_clean_keys", "split", [(12, 0, 0)], D(5, noisy="causal")),
    Case(
        "split_shard",
        "split",
        [(8, 24, 8), (8, 24, 8)],
        D(4, clean="causal"),
        noisy_offset=[8, 16],
        clean_q_offset=[8, 3],
        seqused=[8, 5],
        seqused_clean=[24, 9],
    ),
    Case("split_views", "split", [(6, 11, 11)], D(4, num_views=2, clean_window=4), noisy_offset=4),
    Case(
        "split_tables",
        "split",
        [(10, 12, 12), (10, 12, 12)],
        D(4, noisy="causal"),
        block_ranges=[[[2, 9], [0, 3], [5, 5]], [[0, 12], [4, 8], [1, 2]]],
        prefix_lens=[1, 2],
    ),
    Case(
        "split_packed",
        "split_packed",
        [(7, 9, 9), (0, 4, 4), (5, 0, 0), (6, 13, 13)],
        D(4),
        tail=3,
        prefix_lens=[2, 0, 1, 6],
        noisy_offset=[2, 0, 0, 6],
    ),
    Case(
        "split_packed_queries",
        "split_packed",
        [(8, 9, 3), (4, 6, 6), (6, 5, 0)],
        D(3, clean="causal", num_views=2),
        clean_q_offset=[6, 0, 0],
        seqused_clean=[9, 5, 5],
        cu_seqlens_clean_q=True,
        tail=2,
    ),
    Case(
        "split_packed_table",
        "split_packed",
        [(6, 9, 0), (4, 5, 0)],
        D(3),
        block_ranges=[[[0, 4], [3, 9]], [[1, 5], [2, 3]]],
    ),
    Case("full", "sequence", [(9, 14), (9, 14)], masks.Full(), seqused_kv=[14, 5]),
    Case("causal", "sequence", [(17, 17)], masks.Causal()),
    Case("causal_offset", "sequence", [(5, 12), (5, 12)], masks.Causal(), q_offset=[7, 2]),
    Case("window_2_1", "sequence", [(15, 15)], masks.Window(2, 1)),
    Case("window_left", "sequence", [(15, 12)], masks.Window(3, None), q_offset=2),
    Case("window_past_keys", "sequence", [(9, 6)], masks.Window(1, 0)),
    Case("block_causal", "sequence", [(19, 19)], masks.BlockCausal(4), prefix_lens=[6]),
    Case(
        "block_causal_replay",
        "sequence",
        [(6, 20), (6, 20)],
        masks.BlockCausal(8),
        q_offset=[10, 3],
        prefix_lens=[5, 0],
        seqused=[6, 4],
        seqused_kv=[16, 20],
    ),
    Case("full_packed", "sequence_packed", [(5, 5), (0, 0), (8, 8)], masks.Full(), tail=2),
    Case(
        "block_causal_packed",
        "sequence_packed",
        [(5, 9), (3, 0), (0, 4), (8, 8)],
        masks.BlockCausal(3),
        q_offset=[4, 0, 0, 0],
        tail=4,
    ),
]

BY_NAME = {case.name: case for case in CASES}
