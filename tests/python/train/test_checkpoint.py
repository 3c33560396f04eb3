import dataclasses

import helpers
import pytest
import torch

from stepwell.train import checkpoint
from stepwell.train.attention import make_attention
from stepwell.train.config import TrainConfig
from stepwell.train.loop import lr_factor, new_run, train

TEXT = torch.randint(97, 110, (3000,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
CONFIG = TrainConfig(batch=4, steps=8, minutes=None)
HOW = make_attention("stepwell")


def tensors(run):
    return dict(run.model.state_dict()) | checkpoint._optimizer_tensors(run)


def test_resumed_run_equals_an_uninterrupted_one(tmp_path):
    whole = new_run(helpers.MODEL, CONFIG, helpers.CPU)
    assert train(whole, TEXT, HOW, save=lambda run: None, show=False)

    class PowerCutError(Exception):
        pass

    def save_and_fail(run):
        checkpoint.save(tmp_path, run, {"note": run.step})
        if run.step == 3:
            raise PowerCutError

    part = new_run(helpers.MODEL, CONFIG, helpers.CPU)
    with pytest.raises(PowerCutError):
        train(part, TEXT, HOW, save=save_and_fail, save_every=0, show=False)
    resumed, extra = checkpoint.load(tmp_path, helpers.CPU)
    assert (resumed.step, extra) == (3, {"note": 3})
    assert resumed.train_config == CONFIG
    assert resumed.model_config == helpers.MODEL
    train(resumed, TEXT, HOW, save=lambda run: None, show=False)

    assert resumed.step == whole.step == 8
    assert [bits for _, bits in resumed.history] == [bits for _, bits in whole.history]
    expected = tensors(whole)
    assert tensors(resumed).keys() == expected.keys()
    for name, tensor in tensors(resumed).items():
        assert torch.equal(tensor, expected[name]), name


def test_newest_whole_checkpoint_counts_and_older_ones_go(tmp_path):
    run = new_run(helpers.MODEL, CONFIG, helpers.CPU)
    for run.step in (1, 2):
        checkpoint.save(tmp_path, run, {})
    half = tmp_path / "checkpoints" / ".step-00000003.1"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half of")
    assert checkpoint.load(tmp_path, helpers.CPU)[0].step == 2
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [half.name, "step-00000002"]


def test_settings_can_change_on_resuming(tmp_path):
    checkpoint.save(tmp_path, new_run(helpers.MODEL, CONFIG, helpers.CPU), {})
    run, _ = checkpoint.load(tmp_path, helpers.CPU, steps=None, minutes=2.0)
    assert run.train_config == dataclasses.replace(CONFIG, steps=None, minutes=2.0)


def test_unreadable_checkpoints_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"--resume: .* holds no checkpoint; accepted"):
        checkpoint.load(tmp_path, helpers.CPU)
    folder = checkpoint.save(tmp_path, new_run(helpers.MODEL, CONFIG, helpers.CPU), {})
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"--resume: cannot read .*step-00000000"):
        checkpoint.load(tmp_path, helpers.CPU)


def test_training_ends_with_the_time():
    config = TrainConfig(batch=2, steps=None, minutes=1 / 60)
    run = new_run(helpers.MODEL, config, helpers.CPU)
    saved = []
    assert train(run, TEXT, HOW, save=lambda run: saved.append(run.step), show=False)
    assert run.elapsed >= 1
    assert all(seconds <= 1 for seconds, _ in run.history[:-1])  # rounded to milliseconds
    assert saved == [run.step]
    assert len(run.history) == run.step > 1


def test_learning_rate_rises_stays_and_falls():
    factors = [lr_factor(i / 1000, 0.1, 0.4) for i in range(1000)]
    assert 0 < factors[0] < 0.02
    assert factors[150] == factors[500] == 1
    assert factors[800] == pytest.approx(0.5)
    assert 0 < factors[999] < 0.01
    assert lr_factor(0.0, 0.0, 0.0) == lr_factor(0.999, 0.0, 0.0) == 1


def test_loss_that_is_not_finite_ends_the_run():
    run = new_run(helpers.MODEL, CONFIG, helpers.CPU)
    with torch.no_grad():
        run.model.embedding.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match=r"loss is nan at step 0; try a smaller --lr"):
        train(run, TEXT, HOW, save=lambda run: None, show=False)
