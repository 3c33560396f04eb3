import dataclasses

import helpers
import pytest
import torch

from stepwell.train import measure, report
from stepwell.train.attention import make_attention
from stepwell.train.config import TrainConfig

SETTINGS = TrainConfig(batch=2, steps=1, minutes=None)


@pytest.fixture(scope="module")
def rows():
    torch.set_num_threads(1)
    return measure.measure(helpers.MODEL, SETTINGS, helpers.CPU, [(32, 2)], rounds=2)


def test_every_attention_has_a_row(rows):
    assert [(row.attention, row.length, row.batch) for row in rows] == [
        ("stepwell", 32, 2),
        ("sdpa", 32, 2),
        ("flex", 32, 2),
    ]
    for row in rows:
        if row.why_not is None:
            assert row.step_ms > 0
            assert row.peak_mib > 0
            assert row.tokens_per_second == pytest.approx(2 * 32 / (row.step_ms / 1e3))
        else:
            assert row.attention == "flex"
            assert row.step_ms is None


def test_table_shows_times_or_reasons(rows):
    lines = report._measurements([dataclasses.asdict(row) for row in rows])
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(rows)
    assert len({len(line) for line in table}) == 1
    for row, line in zip(rows, table[2:], strict=True):
        assert (f"{row.step_ms:.1f} ms" if row.why_not is None else "does not run") in line
        assert row.why_not is None or any(row.why_not in line for line in lines)


def test_flex_that_fails_at_a_shape_says_so(monkeypatch):
    """The trial before may run where the real shape does not."""
    monkeypatch.setattr(measure, "why_not", lambda *arguments: None)
    monkeypatch.setattr(measure, "_peak_memory", lambda *arguments: 2.0**20)
    step = measure._random_step

    def failing(run, device, name):
        if name == "flex":
            raise RuntimeError("out of shared memory\nand more")
        step(run, device, "sdpa")

    monkeypatch.setattr(measure, "_random_step", failing)
    rows = measure.measure(helpers.MODEL, SETTINGS, helpers.CPU, [(32, 2)], rounds=1)
    assert [row.why_not for row in rows] == [None, None, "RuntimeError: out of shared memory"]
    monkeypatch.setattr(
        measure, "_random_step", lambda run, device, name: failing(run, device, "flex")
    )
    with pytest.raises(RuntimeError, match="out of shared memory"):
        measure.measure(helpers.MODEL, SETTINGS, helpers.CPU, [(32, 2)], rounds=1)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_steps_of_the_attentions_agree(precision):
    """The same update from the same weights: what is compared is the same work."""
    tokens = helpers.random_tokens(2, 32)
    losses = {}
    for name in ("stepwell", "sdpa"):
        settings = dataclasses.replace(SETTINGS, precision=precision)
        run = measure.new_run(helpers.MODEL, settings, helpers.CPU)
        losses[name] = [
            measure.train_step(run, tokens, measure.noise_of_step(run, 0), make_attention(name))
            for _ in range(3)
        ]
    assert losses["stepwell"] == pytest.approx(losses["sdpa"], abs=2e-2)
    assert losses["sdpa"][2] < losses["sdpa"][0]


@pytest.mark.skipif(not measure._CLEAR_REFS.exists(), reason="resident memory is read from Linux")
def test_peak_memory_sees_a_tensor_that_is_gone(monkeypatch):
    """The peak counts what a step holds in between, not what is left of it."""
    size = 64 * 2**20

    def step_with_a_big_tensor(run, device, name):
        torch.ones(size // 4).sum()

    settings = {
        "model": dataclasses.asdict(helpers.MODEL),
        "train": dataclasses.asdict(SETTINGS),
        "attention": "sdpa",
        "threads": 1,
    }
    quiet = measure._peak_of_this_process(settings)
    monkeypatch.setattr(measure, "_random_step", step_with_a_big_tensor)
    peak = measure._peak_of_this_process(settings)
    assert size * 0.9 < peak < size + 2 * max(quiet, 2**23)
