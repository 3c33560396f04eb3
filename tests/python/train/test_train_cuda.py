"""The trainer on an NVIDIA GPU: it learns what it learns on the CPU."""

import json

import helpers
import pytest
import torch

from stepwell.train import attention, cli, data, measure
from stepwell.train.attention import make_attention
from stepwell.train.config import ModelConfig, TrainConfig
from stepwell.train.evaluate import held_out_bound
from stepwell.train.loop import new_run, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")

STEPS = 200


def held_out_bits(device, precision, corpus, name="stepwell"):
    """Held-out bits per byte after STEPS steps of the default model."""
    settings = TrainConfig(steps=STEPS, minutes=None, precision=precision)
    run = new_run(ModelConfig(), settings, torch.device(device))
    how = make_attention(name)
    assert train(run, corpus.train, how, save=lambda run: None, show=False)
    windows = data.even_windows(corpus.held_out, run.model_config.length, 2**16)
    return held_out_bound(run.model, windows, how, precision).bits


def test_learns_as_on_the_cpu():
    corpus = data.split(*data.standard_library(), ModelConfig().length)
    on_cpu = held_out_bits("cpu", "float32", corpus)
    on_gpu = held_out_bits("cuda", "bfloat16", corpus)
    print(f"held-out bits per byte after {STEPS} steps: CPU {on_cpu:.4f}, GPU {on_gpu:.4f}")
    assert on_cpu < 5.0
    assert abs(on_gpu - on_cpu) < 0.05


@pytest.mark.parametrize("name", ["sdpa", "flex"])
def test_attentions_agree(name):
    reason = attention.why_not(name, torch.device("cuda"), "bfloat16")
    if reason is not None:
        pytest.skip(reason)
    q, k, v = (torch.randn(2, 512, h, 32, device="cuda").bfloat16() for h in (4, 2, 2))
    ours, theirs = (make_attention(n).training(q, k, v, 4) for n in ("stepwell", name))
    torch.testing.assert_close(ours, theirs, rtol=2**-6, atol=2**-6)


def test_device_is_chosen_and_compared(tmp_path, capsys):
    text = tmp_path / "numbers.txt"
    text.write_text("".join(f"{i} plus one is {i + 1}\n" for i in range(3000)))
    small = "--block-size 4 --length 64 --layers 1 --width 32 --heads 2 --kv-heads 1 --hidden 32"
    arguments = ["--text", str(text), "--output", str(tmp_path / "run"), "--steps", "20"]
    assert cli.main([*arguments, *small.split(), "--no-table", "--sample-bytes", "16"]) == 0
    assert "cuda, " in capsys.readouterr().out
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["device"] == torch.cuda.get_device_name()
    assert report["training"]["precision"] == "bfloat16 by autocast"

    settings = TrainConfig(batch=2, steps=1, minutes=None, precision="bfloat16")
    rows = measure.measure(helpers.MODEL, settings, torch.device("cuda"), [(32, 2)], rounds=2)
    assert [row.attention for row in rows] == ["stepwell", "sdpa", "flex"]
    for row in rows:
        assert row.attention == "flex" or row.why_not is None
        assert row.why_not is not None or (row.tokens_per_second > 0 and row.peak_mib > 0)
