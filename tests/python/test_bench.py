"""`stepwell bench`: its table, its arithmetic, its errors, and a run; the timing on a model GPU."""

import argparse
import dataclasses
import importlib
import json
import math
import types

import numpy as np
import pytest
import torch
from PIL import Image

import stepwell
from stepwell import _binding
from stepwell.bench import cli, measure, options, peers, plans, plot, process, report, timing
from stepwell.bench.cases import Case, cpu_cases, cuda_cases, log_uniform_lengths, select
from stepwell.masks import BlockCausal, Causal, Diffusion, Full, Window

TABLES = {"cuda": cuda_cases(), "cpu": cpu_cases()}
EVERY_CASE = [
    pytest.param(device, case, id=f"{device}-{case.name}")
    for device, table in TABLES.items()
    for case in table
]


def small(mask=None, lengths=(24, 24), packed=False, heads=(2, 2), dim=16, names=()):
    return Case(mask or Diffusion(4), lengths, packed, *heads, dim, names)


def main(*argv):
    return cli.main(options.make_parser().parse_args([str(x) for x in argv]))


# ---------------------------------------------------------------------------- the table


@pytest.mark.parametrize("device", TABLES)
def test_names_are_unique_and_quick_leaves_some(device):
    names = [case.name for case in TABLES[device]]
    assert len(set(names)) == len(names)
    assert 0 < len(select(TABLES[device], None, quick=True)) < len(names)


@pytest.mark.parametrize(("device", "entry"), EVERY_CASE)
def test_every_case_has_a_peer_that_can_do_it(device, entry, monkeypatch):
    monkeypatch.setattr(peers, "fa4_version", lambda: "4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert entry.peers
    for name in entry.peers:
        assert peers.peers_of(device)[name].why_not(entry) is None


@pytest.mark.parametrize(("device", "entry"), EVERY_CASE)
def test_visible_pairs(device, entry):
    """Of the table's own lengths by the formulas of docs/benchmarking.md."""

    def diffusion(n):
        b = entry.mask.block_size
        return n * n + sum(min(b, n - start) ** 2 for start in range(0, n, b))

    def window(n):
        return sum(min(i, entry.mask.left) + 1 for i in range(n))

    rules = {
        Diffusion: diffusion,
        Full: lambda n: n * n,
        Causal: lambda n: n * (n + 1) // 2,
        Window: window,
        BlockCausal: lambda n: diffusion(n) // 2,
    }
    assert entry.pairs() == sum(map(rules[type(entry.mask)], entry.lengths))
    causal = sum(stepwell.visible_pairs(n, "causal") for n in entry.sequences)
    assert entry.causal_pairs() == causal
    if entry.block_size is not None:
        assert 0 <= entry.pairs() - causal <= sum(n * entry.block_size for n in entry.lengths)


def test_pairs_are_those_of_the_mask():
    for case in (small(), small(lengths=(23, 5, 1), packed=True), small(Window(3, 2))):
        arguments = {"batch": len(case.lengths)}
        if case.packed:
            arguments = {"cu_seqlens": np.array(case.cu_seqlens, np.int32)}
        rows = sum(case.rows) if case.packed else case.rows[0]
        assert case.pairs() == stepwell.attention_mask(rows, case.mask, **arguments).sum()


MASKS = [Diffusion(4), Diffusion(5), Causal(), Window(7, 0), Window(3, 2), BlockCausal(32)]


@pytest.mark.parametrize("mask", [*MASKS, BlockCausal(7)], ids=str)
def test_mask_function_of_peers_is_the_mask(mask):
    case = small(mask, (46, 46))
    rows = torch.arange(case.rows[0])
    visible = peers.visible(case, rows[:, None], rows[None])
    assert torch.equal(visible, stepwell.attention_mask(case.rows[0], mask)[0])


def test_packed_lengths_are_log_uniform():
    lengths = log_uniform_lengths(64, 128, 4096)
    assert len(lengths) == 64
    assert 128 <= min(lengths) < 256
    assert 2048 < max(lengths) <= 4096
    middle = math.exp(sum(map(math.log, lengths)) / 64)
    assert 512 < middle < 1024  # the geometric mean of the bounds is 724


def test_select():
    table = TABLES["cuda"]
    (case,) = select(table, ["diffusion-h16-16-d128-n2048-b4"], quick=False)
    assert (case.mask, case.lengths) == (Diffusion(4), (2048,) * 8)
    chosen = select(table, ["window-*", "diffusion-h8-8-d256-*"], quick=False)
    assert {case.head_dim for case in chosen} == {128, 256}
    assert chosen == [case for case in table if case in chosen]
    with pytest.raises(ValueError, match=r"--case is 'nothing'.*accepted: .*--list"):
        select(table, ["window-*", "nothing"], quick=False)


# ------------------------------------------------------------------------------- peers


@pytest.mark.parametrize(
    ("name", "problem", "reason"),
    [
        ("fa2", small(lengths=(9, 5), packed=True), "no packed samples"),
        ("cudnn", small(Window(3, 0)), "no windows"),
        ("dense", small(lengths=(9, 5), packed=True), "all pairs of all samples"),
        ("flex", small(Full()), "needs no mask function"),
        ("flex", small(lengths=(9, 5), packed=True), "no mask function of packed samples"),
        ("fa4", small(), "flash-attn-4 is not installed"),
        ("fa4_mask", small(), "flash-attn-4 is not installed"),
    ],
)
def test_reasons(name, problem, reason, monkeypatch):
    monkeypatch.setattr(peers, "fa4_version", lambda: None)
    device = "cpu" if name in options.PEERS["cpu"] else "cuda"
    assert reason in peers.peers_of(device)[name].why_not(problem)


def test_reasons_of_fa4_where_it_is_installed(monkeypatch):
    monkeypatch.setattr(peers, "fa4_version", lambda: "4.0.0")
    fa4, fa4_mask = (peers.peers_of("cuda")[name] for name in ("fa4", "fa4_mask"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert "compute capability 9.0" in fa4.why_not(small())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert fa4.why_not(small()) is None
    assert fa4_mask.why_not(small()) is None
    assert "head dim 192" in fa4_mask.why_not(small(dim=192))


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("mask", [Diffusion(1), Diffusion(4), Causal(), Full(), BlockCausal(5)])
def test_peers_of_a_cpu_compute_what_is_counted(mask, heads):
    case = small(mask, heads=heads)
    tensors = peers.random_tensors(case, "cpu")
    ours = peers.stepwell_problem(case, tensors)
    expected = measure._output(ours)
    dense = peers.peers_of("cpu")["dense"].prepare(case, tensors)
    assert dense.pairs == case.pairs()
    assert dense.same_mask
    measure._check_output(dense, expected, "cpu")
    halves = peers.peers_of("cpu")["causal_halves"].prepare(case, tensors)
    assert halves.pairs == (case.pairs() if isinstance(mask, Full) else case.causal_pairs())
    assert halves.tensors.q.shape == (len(case.sequences), heads[0], 24, 16)
    # With blocks of one token the yardstick's pairs are the mask's; its output is not.
    assert halves.same_mask == isinstance(mask, (Full, Causal))
    measure._check_output(halves, expected, "cpu")


class StandInFlashAttention4:
    """flash_attn.cute's two functions, by the dense masks that their arguments say."""

    class BlockSparseTensorsTorch(types.SimpleNamespace):
        _fields = ("block_size",)

        def __init__(self, counts, indices, full_counts, full_indices, block_size):
            super().__init__(counts=counts, full_counts=full_counts, block_size=block_size)

    def flash_attn_func(
        self, q, k, v, causal=False, window_size=(None, None), mask_mod=None,
        block_sparse_tensors=None, block_sparse_tensors_bwd=None,
    ):  # fmt: skip
        rows, keys = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])[None]
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
        if causal:
            mask &= keys <= rows
        if window_size != (None, None):
            mask &= (keys >= rows - window_size[0]) & (keys <= rows + window_size[1])
        if mask_mod is not None:
            mask &= mask_mod(None, None, rows, keys, None, None)
            for tiles in (block_sparse_tensors, block_sparse_tensors_bwd):
                assert tiles.block_size == (128, 128)
                assert (tiles.counts + tiles.full_counts).sum() > 0
        return stepwell_dense(q, k, v, mask), None

    def flash_attn_varlen_func(self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                               max_seqlen_k, **options):  # fmt: skip
        assert torch.equal(cu_seqlens_q, cu_seqlens_k)
        assert max_seqlen_q == max_seqlen_k == cu_seqlens_q.diff().max()
        parts = [x.split(cu_seqlens_q.diff().tolist()) for x in (q, k, v)]
        outs = [self.flash_attn_func(*(x[None] for x in part), **options)[0][0]
                for part in zip(*parts, strict=True)]  # fmt: skip
        return torch.cat(outs), None

    def install(self, monkeypatch):
        def module(name, **members):
            stand_in = types.ModuleType(name)
            vars(stand_in).update(members)
            monkeypatch.setitem(importlib.sys.modules, name, stand_in)
            return stand_in

        module("flash_attn")
        utils = module("flash_attn.cute.utils", scalar_to_ssa=lambda x, dtype: dtype(x))
        module("flash_attn.cute", flash_attn_func=self.flash_attn_func, utils=utils,
               flash_attn_varlen_func=self.flash_attn_varlen_func)  # fmt: skip
        module("flash_attn.cute.block_sparsity",
               BlockSparseTensorsTorch=self.BlockSparseTensorsTorch)  # fmt: skip
        module("cutlass", Int32=int, cute=module("cutlass.cute", jit=lambda function: function))


def stepwell_dense(q, k, v, mask):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)


@pytest.mark.parametrize(
    ("name", "mask"),
    [("fa4", Full()), *((name, mask) for name in ("fa4", "fa4_mask") for mask in MASKS)],
    ids=str,
)
def test_calls_of_flash_attention_4(name, mask, monkeypatch):
    StandInFlashAttention4().install(monkeypatch)
    case = small(mask, (200, 200))
    tensors = peers.random_tensors(case, "cpu")
    ours = peers.stepwell_problem(case, tensors)
    problem = peers.peers_of("cuda")[name].prepare(case, tensors)
    own_mask = name == "fa4_mask" or isinstance(mask, (Full, Causal, Window))
    assert problem.pairs == (case.pairs() if own_mask else case.causal_pairs())
    out = measure._output(problem)
    assert out.numel() == tensors.q.numel()
    assert problem.same_mask == own_mask
    measure._check_output(problem, measure._output(ours), "cpu")


def test_packed_calls_of_flash_attention_4(monkeypatch):
    StandInFlashAttention4().install(monkeypatch)
    case = small(lengths=(20, 7), packed=True)
    tensors = peers.random_tensors(case, "cpu")
    problem = peers.peers_of("cuda")["fa4"].prepare(case, tensors)
    out, start = measure._output(problem), 0
    for n in (20, 20, 7, 7):
        part = slice(start, start + n)
        q, k, v = (x[None, part] for x in (tensors.q, tensors.k, tensors.v))
        torch.testing.assert_close(out[None, part], stepwell.attention(q, k, v, "causal"))
        start += n


# ------------------------------------------------------------------------- measurements


def test_a_peer_that_fails_or_differs_is_skipped_with_the_reason(monkeypatch):
    def fails(case, tensors):
        raise RuntimeError("no kernel\nfor this")

    def wrong(case, tensors):
        problem = peers.stepwell_problem(case, tensors)
        return dataclasses.replace(problem, attention=lambda q, k, v: q + 0 * (k + v))

    table = {"dense": peers.Peer(lambda case: None, fails),
             "causal_halves": peers.Peer(lambda case: None, wrong)}  # fmt: skip
    monkeypatch.setattr(peers, "_PEERS", {**peers._PEERS, **table})
    entry = measure.measure_case(small(), "cpu", 1, ("dense", "causal_halves"))
    assert entry["skipped"]["dense"] == "RuntimeError: no kernel"
    assert "its output differs from Stepwell's by" in entry["skipped"]["causal_halves"]
    assert entry["forward"]["ratio"] == {}
    assert entry["step"]["ms"]["ours"] > 0
    assert report.line(entry, "cpu").endswith("(without dense, causal_halves)")
    assert report.skipped_lines([entry])[0] == (
        f"without dense in {small().name}: RuntimeError: no kernel"
    )
    assert (
        report.skipped_lines([entry] * 4)[0] == "without dense in 4 cases: RuntimeError: no kernel"
    )


def test_rates_and_ratios():
    case = small(names=("dense", "causal_halves"))
    entry = measure.measure_case(case, "cpu", 2, None)
    for kind, factor in (("forward", 4), ("step", 14)):
        figures = entry[kind]
        for name in ("ours", "dense", "causal_halves"):
            flops = factor * entry["pairs"][name] * 16 * 2
            rate = flops / (figures["ms"][name] / 1e3) / 1e12
            assert figures["tflops"][name] == pytest.approx(rate)
        for name, ratio in figures["ratio"].items():
            assert ratio == pytest.approx(figures["tflops"]["ours"] / figures["tflops"][name])
    assert entry["pairs"] == {"ours": 1344, "dense": 1344, "causal_halves": 1200}


def test_summary():
    def entry(group, forward, step):
        return {"group": group, "forward": {"ratio": forward}, "step": {"ratio": step}}

    averages = report.summary([
        entry("a", {"fa2": 0.5, "cudnn": 3.0}, {"fa2": 1.0}),
        entry("a", {"fa2": 2.0}, {"fa2": 4.0}),
        entry("b", {}, {}),
    ])  # fmt: skip
    assert set(averages) == {"a"}
    assert averages["a"]["fa2"]["forward"] == {"geometric_mean": 1.0, "least": 0.5, "cases": 2}
    assert averages["a"]["fa2"]["step"] == {"geometric_mean": 2.0, "least": 1.0, "cases": 2}
    assert averages["a"]["cudnn"]["forward"]["cases"] == 1
    assert len(report.summary_lines(averages)) == 3


def test_rounds_are_interleaved_and_begin_with_another_each_time():
    order, times = [], {"a": [5, 1, 3], "b": [2, 9, 2], "c": [7, 7, 7]}

    def measured(name):
        order.append(name)
        return times[name].pop(0)

    assert timing._interleaved(measured, ["a", "b", "c"], 3) == {"a": 3, "b": 2, "c": 7}
    assert "".join(order) == "abcbcacab"


class ModelGpu:
    """torch.cuda's events and sleep, and calls that take `host` to queue and `gpu` to run (ms)."""

    CYCLES_PER_MS = 1e6

    def __init__(self, monkeypatch):
        self.host = self.gpu = 0.0
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: ModelEvent(self))

    def queue(self, gpu):
        self.gpu = max(self.gpu, self.host) + gpu

    def sleep(self, cycles):
        self.queue(cycles / self.CYCLES_PER_MS)

    def synchronize(self):
        self.host = max(self.host, self.gpu)

    def call(self, host, gpu):
        def run():
            self.host += host
            self.queue(gpu)

        return run


class ModelEvent:
    def __init__(self, machine):
        self.machine = machine

    def record(self):
        self.machine.queue(0.0)
        self.time = self.machine.gpu

    def query(self):
        return self.time <= self.machine.host

    def synchronize(self):
        self.machine.host = max(self.machine.host, self.time)

    def elapsed_time(self, end):
        return end.time - self.time


def test_gpu_time_has_none_of_the_host(monkeypatch):
    machine = ModelGpu(monkeypatch)
    assert timing._sleep_cycles_per_ms() == pytest.approx(machine.CYCLES_PER_MS)
    for host in (0.01, 0.9, 4.0):  # the last needs a longer sleep
        taken = timing.gpu_time(machine.call(host, 0.5), 5, machine.CYCLES_PER_MS)
        assert taken.ms == pytest.approx(0.5)
        assert not taken.late
    late = timing.gpu_time(machine.call(100.0, 0.5), 5, machine.CYCLES_PER_MS)
    assert late.late
    assert late.ms > 0.5


def test_late_calls_are_named(monkeypatch):
    machine = ModelGpu(monkeypatch)
    calls = {"quick": machine.call(0.02, 0.2), "late": machine.call(200.0, 0.2)}
    medians, late = timing.gpu_medians(calls, 3)
    assert medians["quick"] == pytest.approx(0.2)
    assert late == ["late"]


def test_plans_compute_nothing_and_leave_the_functions():
    functions = _binding.attention_forward, _binding.attention_backward
    described = plans.plans(small(lengths=(2**14,), heads=(8, 8)), "cpu")
    assert described["forward"].startswith("cpu ")
    assert "backward" in described["backward"]
    assert (_binding.attention_forward, _binding.attention_backward) == functions
    with pytest.raises(KeyError), plans.plans_only():
        raise KeyError
    assert (_binding.attention_forward, _binding.attention_backward) == functions


def test_threads_reach_the_measurement_of_memory():
    threads = torch.get_num_threads() + 1
    result = process.memory(256, 2, 16, threads)
    assert result["threads"] == threads
    assert result["extra_over_results"] > 0


# ------------------------------------------------------------------------------ the run


@pytest.fixture
def tiny_table(monkeypatch):
    table = [
        small(names=("dense",)),
        small(Diffusion(8), (48,), names=("dense", "causal_halves")),
        small(lengths=(5, 9), packed=True, names=("dense",)),
    ]
    monkeypatch.setattr(cli, "cpu_cases", lambda: table)
    return table


def test_a_run_writes_json_and_plots(tiny_table, tmp_path, capsys):
    file, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    argv = ["--device", "cpu", "--rounds", 2, "--parts", "cases", "--output", file]
    assert main(*argv, "--plot", picture) == 0
    result = json.loads(file.read_text())
    assert result["format"] == 2
    assert result["device"] == "cpu"
    assert result["rounds"] == 2
    assert result["threads"] == torch.get_num_threads()
    assert result["torch"] == torch.__version__
    assert result["stepwell"] == stepwell.__version__
    assert all(result[key] for key in ("date", "cpu", "dtype", "python"))
    assert [entry["name"] for entry in result["cases"]] == [case.name for case in tiny_table]
    first, second, packed = result["cases"]
    assert first["group"] == second["group"] != packed["group"]
    assert (second["n"], second["batch"], second["block_size"]) == (48, 1, 8)
    assert (second["heads"], second["dim"]) == ([2, 2], 16)
    assert packed["lengths"] == [5, 9]
    assert set(packed["skipped"]) == {"dense"}
    for entry in result["cases"]:
        sides = {"ours", *entry["step"]["ratio"]}
        assert set(entry["pairs"]) == sides
        for kind in ("forward", "step"):
            assert set(entry[kind]["ms"]) == set(entry[kind]["tflops"]) == sides
        assert set(entry["plan"]) == {"forward", "backward"}
    means = result["summary"][first["group"]]
    assert means["dense"]["forward"]["cases"] == 2
    assert means["causal_halves"]["step"]["cases"] == 1
    with Image.open(picture) as image:
        assert min(image.size) > 400
        assert len(image.convert("RGB").getcolors(2**20)) > 20
    printed = capsys.readouterr().out
    for case in tiny_table:
        assert case.name in printed
    assert f"without dense in {tiny_table[2].name}: the dense mask" in printed
    assert "geometric mean" in printed
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["bench.json", "bench.png"]


def test_what_ends_a_run_leaves_the_figures_before_it(tiny_table, tmp_path, monkeypatch):
    def measured(case, *options):
        if case.packed:
            raise MemoryError
        return measure.measure_case(case, *options)

    monkeypatch.setattr(cli, "measure_case", measured)
    file = tmp_path / "bench.json"
    with pytest.raises(MemoryError):
        main("--device", "cpu", "--rounds", 1, "--parts", "cases", "--output", file)
    assert len(json.loads(file.read_text())["cases"]) == 2


def test_list_and_explain_measure_nothing(tiny_table, capsys, monkeypatch):
    monkeypatch.setattr(cli, "measure_case", None)
    assert main("--device", "cpu", "--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [case.name for case in tiny_table]
    assert main("--device", "cpu", "--explain", "--case", tiny_table[1].name) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tiny_table[1].name}: 2,688 visible pairs a head"
    assert [line.split()[:2] for line in lines[1:]] == [["forward", "cpu"], ["backward", "cpu"]]


def test_named_peers_are_measured_on_all_cases(tiny_table, tmp_path):
    file = tmp_path / "bench.json"
    main("--device", "cpu", "--rounds", 1, "--parts", "cases", "--output", file,
         "--peers", "causal_halves")  # fmt: skip
    first, second, packed = json.loads(file.read_text())["cases"]
    assert set(first["step"]["ratio"]) == set(second["step"]["ratio"]) == {"causal_halves"}
    assert "no packed samples" in packed["skipped"]["causal_halves"]


def test_a_plot_of_nothing_is_an_error(tiny_table, tmp_path, capsys):
    argv = ["--device", "cpu", "--rounds", 1, "--parts", "cases", "--case", tiny_table[2].name]
    assert main(*argv, "--plot", tmp_path / "bench.png") == 1
    assert "nothing to draw" in capsys.readouterr().err
    assert not (tmp_path / "bench.png").exists()


def test_plot_of_the_gpu_table_as_svg(tmp_path):
    def entry(case):
        ratio = dict.fromkeys(case.peers, 0.9)
        where = {"lengths": case.lengths} if case.packed else {"n": case.lengths[0]}
        return {"group": case.group, "block_size": case.block_size, **where,
                "forward": {"ratio": ratio}, "step": {"ratio": ratio}}  # fmt: skip

    plot.plot(tmp_path / "bench.svg", [entry(case) for case in TABLES["cuda"]])
    text = (tmp_path / "bench.svg").read_text()
    assert text.rstrip().endswith("</svg>")
    assert len(text) > 10_000


# ------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--rounds", "0"], ["--rounds", "'0'", "an integer >= 1"]),
        (["--threads", "two"], ["--threads", "'two'", "an integer >= 1"]),
        (["--peers", "fa2,fa9"], ["--peers", "'fa9'", "fa2, cudnn"]),
        (["--parts", "all"], ["--parts", "'all'", "cases, host"]),
        (["--device", "tpu"], ["--device", "'tpu'", "cuda"]),
        (["--output", "result.txt"], ["--output", "'result.txt'", ".json"]),
        (["--output", "none/x.json"], ["--output", "'none/x.json'", "folder that exists"]),
        (["--plot", "result.pdf"], ["--plot", "'result.pdf'", ".png or .svg"]),
        (["--quik"], ["--quik"]),
    ],
)  # fmt: skip
def test_arguments_that_are_not_accepted(argv, words, capsys):
    with pytest.raises(SystemExit) as error:
        options.make_parser().parse_args(argv)
    assert error.value.code == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--peers", "fa2"], ["--peers is fa2", "device cpu", "dense, causal_halves"]),
        (["--parts", "host"], ["--parts is host", "device cpu", "cases, memory"]),
        (["--case", "nothing"], ["--case is 'nothing'", "--list"]),
        (["--parts", "memory", "--plot", "x.png"], ["--plot", "--parts leaves out"]),
        (["--parts", "memory", "--peers", "dense"], ["--case and --peers", "--parts leaves out"]),
        (["--list", "--explain"], ["--explain has no effect beside --list"]),
        (["--list", "--peers", "dense"], ["--peers has no effect beside --list"]),
        (["--explain", "--output", "x.json"], ["--output has no effect beside --explain"]),
    ],
)
def test_arguments_that_do_not_fit(argv, words, capsys):
    assert main("--device", "cpu", *argv) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words), message


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_no_gpu(capsys):
    assert main("--device", "cuda") == 2
    assert "--device is cuda, but torch has no GPU here; accepted: cpu, auto" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("missing", "plot", "words"),
    [
        ("torch", None, ["needs torch 2.11", "pip install"]),
        ("matplotlib", "x.png", ["--plot is x.png", "matplotlib", "leave --plot out"]),
        ("matplotlib", None, None),
    ],
)
def test_missing_packages(missing, plot, words, monkeypatch):
    command = importlib.import_module("stepwell.bench.__main__")
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == missing else name)
    arguments = argparse.Namespace(plot=plot)
    if words is None:
        command._check_packages(arguments)
        return
    with pytest.raises(SystemExit) as error:
        command._check_packages(arguments)
    assert all(word in error.value.code for word in words)


# ------------------------------------------------------------------------------ on a GPU

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")


@needs_gpu
@pytest.mark.parametrize("mask", [Full(), *MASKS], ids=str)
def test_peers_on_a_gpu(mask):
    """Every peer of torch's that says that it does a case does it, with the same output."""
    names = ("fa2", "cudnn", "varlen", "flex")
    case = small(mask, (512, 512), heads=(4, 4), dim=64)
    entry = measure.measure_case(case, "cuda", 1, names)
    for name in names:
        reason = peers.peers_of("cuda")[name].why_not(case)
        assert entry["skipped"].get(name) == reason
    assert "host_late" not in entry
    assert all(x > 0 for x in entry["step"]["ratio"].values())


@needs_gpu
def test_packed_peers_on_a_gpu():
    case = small(lengths=(200, 31, 500), packed=True, heads=(4, 4), dim=64)
    entry = measure.measure_case(case, "cuda", 1, ("varlen",))
    assert entry["skipped"] == {}
    assert set(entry["forward"]["ratio"]) == {"varlen"}


@needs_gpu
def test_gpu_time_is_that_of_the_gpu():
    cycles_per_ms = timing._sleep_cycles_per_ms()
    cycles = round(0.5 * cycles_per_ms)
    taken = timing.gpu_time(lambda: torch.cuda._sleep(cycles), 4, cycles_per_ms)
    assert not taken.late
    assert taken.ms == pytest.approx(0.5, rel=0.5)  # clocks move


@needs_gpu
def test_first_use():
    (entry,) = process.first_use([64])
    for kind in ("forward", "backward"):
        assert 0 < entry[f"{kind}_warm_seconds"] < entry[f"{kind}_cold_seconds"]
    assert timing.host_microseconds(lambda: torch.zeros(1, device="cuda")) > 0
    assert report.environment("cuda", 1)["driver"]
