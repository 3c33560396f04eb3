"""benchmarks/attention_cpu.py: its options reach the processes that it starts."""

import importlib.util
import pathlib

import torch

PATH = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "attention_cpu.py"


def test_threads_reach_the_measurement_of_memory():
    spec = importlib.util.spec_from_file_location("attention_cpu", PATH)
    attention_cpu = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(attention_cpu)
    threads = torch.get_num_threads() + 1
    result = attention_cpu.memory_case(256, 16, threads)
    assert result["threads"] == threads
    assert result["extra_over_results"] > 0
