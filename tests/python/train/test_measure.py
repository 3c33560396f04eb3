import dataclasses

import helpers
import pytest
import torch

from stepwell.train import measure, report
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
        else:
            assert row.attention == "flex"
            assert row.step_ms is None


def test_table_shows_times_or_reasons(rows):
    lines = report._measurements([dataclasses.asdict(row) for row in rows])
    assert len(lines) == 2 + len(rows)
    assert len({len(line) for line in lines}) == 1
    for row, line in zip(rows, lines[2:], strict=True):
        assert (f"{row.step_ms:.1f} ms" if row.why_not is None else row.why_not) in line


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
