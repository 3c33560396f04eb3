import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepwell.train import cli

SMALL = "--block-size 4 --length 32 --layers 1 --width 32 --heads 2 --kv-heads 1 --hidden 32"
SMALL = [*SMALL.split(), "--batch", "8", "--threads", "1"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "numbers.txt"
    path.write_text("".join(f"{i} plus one is {i + 1}\n" for i in range(3000)))
    return str(path)


def start(*arguments):
    command = [sys.executable, "-m", "stepwell.train", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*arguments):
    process = start(*arguments)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out, err


def test_a_run_learns_reports_and_can_be_continued(text, tmp_path):
    folder = tmp_path / "run"
    out, err = run("--text", text, "--output", folder, "--steps", 60, "--no-table", *SMALL)
    assert "bits/byte" in err  # the progress bar
    assert "tokens/s" in err
    report = json.loads((folder / "report.json").read_text())
    assert out.endswith("checkpoints/\n")
    assert (folder / "report.md").read_text() in out

    held_out = report["held_out"]
    assert 0 < held_out["standard_error"] < 0.2
    assert held_out["bits"] < 0.75 * held_out["unigram"]
    assert held_out["bigram"] < held_out["unigram"]
    assert 0 < held_out["gzip"] < 8
    assert held_out["bytes"] == 32 * held_out["windows"]
    assert report["training"]["steps"] == 60
    assert report["training"]["tokens"] == 60 * 8 * 32
    sample = report["sample"]["text"]
    assert sample.startswith("def ")
    assert (folder / "sample.txt").read_text() == sample

    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")

    run("--resume", folder, "--steps", 80, "--no-table", "--prompt", "7 plus ", "--threads", 1)
    again = json.loads((folder / "report.json").read_text())
    assert again["training"]["steps"] == 80
    assert again["measurements"] == []
    assert again["sample"]["text"].startswith("7 plus ")
    assert again["text"] == report["text"]
    assert again["held_out"]["bigram"] == held_out["bigram"]


def test_relative_names_of_text_resume_from_anywhere(tmp_path, monkeypatch, capsys):
    folder, text = tmp_path / "run", tmp_path / "text"
    text.mkdir()
    names = [f"{i}.txt" for i in range(12)]
    for i, name in enumerate(names):
        (text / name).write_text("".join(f"{i} times {j} is {i * j}\n" for j in range(40 + i)))
    common = ["--steps", "2", "--no-table", "--threads", "1", "--eval-bytes", "64"]
    monkeypatch.chdir(text)
    arguments = ["--text", *names, "--output", str(folder), *common, *SMALL]
    assert cli.main(arguments) == 0
    first = json.loads((folder / "report.json").read_text())["text"]
    assert first["held_out_files"] > 0
    assert cli.main(["--resume", str(folder), *common]) == 0
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--resume", str(folder), *common]) == 0
    given = [f"./text/{name}" for name in names]
    assert cli.main(["--resume", str(folder), "--text", *given, *common]) == 0
    assert json.loads((folder / "report.json").read_text())["text"] == first
    with pytest.raises(SystemExit):
        cli.main(["--text", "text/0.txt", "./text/0.txt", *common, *SMALL])
    assert "0.txt is given twice" in capsys.readouterr().err


def test_signal_saves_and_the_run_continues(text, tmp_path):
    folder = tmp_path / "run"
    process = start("--text", text, "--output", folder, "--minutes", 2, *SMALL,
                    "--checkpoint-every", 0.01)  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(folder.glob("checkpoints/step-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"python -m stepwell.train --resume {folder}" in out

    changed = tmp_path / "other.txt"
    changed.write_text(Path(text).read_text() + "and so on\n")
    refused = start("--resume", folder, "--text", changed)
    _, err = refused.communicate(timeout=60)
    assert refused.returncode == 2
    assert "--resume: the text" in err
    assert "accepted: the same files, unchanged" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--block-size 0", "--block-size: '0'; accepted: an integer >= 1"),
        ("--block-size 2.5", "--block-size: '2.5'; accepted: an integer >= 1"),
        ("--length 0", "--length: '0'; accepted: an integer >= 1"),
        ("--length 250", "--length: 250; accepted: a multiple of --block-size, 4"),
        ("--width 100", "--width: 100; accepted: 8 to 256 times --heads, 4"),
        ("--width 2048", "--width: 2048; accepted: 8 to 256 times --heads, 4"),
        ("--kv-heads 3", "--kv-heads: 3; accepted: a divisor of --heads, 4"),
        ("--lr -1", "--lr: '-1'; accepted: a number > 0"),
        ("--lr nan", "--lr: 'nan'; accepted: a number > 0"),
        ("--minutes 0", "--minutes: '0'; accepted: a number > 0"),
        ("--minutes 1 --steps 1", "--steps: not allowed with argument --minutes"),
        ("--warmup 2", "--warmup: '2'; accepted: a number in [0, 1]"),
        ("--clip 0.2 0.1 --noise time", "--clip: 0.2 0.1; accepted: 0 <= LOW < HIGH <= 1"),
        ("--clip 0.2 0.5", "--clip: 0.2 0.5; accepted: only with --noise time"),
        ("--top-p 0", "--top-p: '0'; accepted: a number in (0, 1]"),
        ("--attention none", "--attention: invalid choice: 'none'"),
        ("--resume somewhere --lr 1", "--lr: 1.0 given with --resume"),
        ("--resume somewhere --output b", "--output: b given with --resume"),
        ("--resume somewhere", "--resume: somewhere holds no checkpoint"),
        ("--sample-steps 5 --text TEXT", "--sample-steps: 5; accepted: 1 to --block-size, 4"),
        ("--sample-bytes 300 --text TEXT", "--sample-bytes: 300 after a prompt of 4"),
        ("--text nowhere.txt", "--text: cannot read nowhere.txt"),
        ("--text .", "--text: cannot read . (Is a directory)"),
        ("--output FILE/x --text TEXT", "--output: cannot make"),
    ],
)
def test_bad_arguments_are_named(arguments, message, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = [text if word == "TEXT" else word.replace("FILE", text) for word in arguments.split()]
    with pytest.raises(SystemExit) as end:
        cli.main([*given, "--threads", str(os.cpu_count())])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_needs_no_packages(tmp_path):
    root = Path(__file__).resolve().parents[3]
    python = tmp_path / "python3"
    # A Python without packages, and a PATH without apt-get: nothing could be installed.
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    for tool in ("bash", "dirname"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    environment = {"PATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    for arguments in (["--help"], ["--steps", "3", "-h"]):
        shown = subprocess.run(
            ["bash", root / "scripts" / "train.sh", *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        assert shown.startswith("usage: scripts/train.sh ")
        assert "--block-size N" in shown
    out, _ = run("--help")
    rest = [text[text.index("Trains a small") :] for text in (shown, out)]
    assert rest[0] == rest[1]


def test_folder_with_a_run_is_not_overwritten(text, tmp_path, capsys):
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    with pytest.raises(SystemExit):
        cli.main(["--text", text, "--output", str(tmp_path)])
    assert f"--output: {tmp_path} holds a run; accepted: another folder" in capsys.readouterr().err


def test_gpu_without_a_backend_is_left_alone_and_said_so(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    reasons = {"cuda": "this build has no CUDA backend", "cpu": None}
    tried = []
    monkeypatch.setattr(
        cli,
        "why_not",
        lambda name, device, precision: tried.append(precision) or reasons[device.type],
    )
    assert cli._device("auto", "stepwell", None)[0].type == "cpu"
    assert "does not run on it (this build has no CUDA backend): using the CPU" in (
        capsys.readouterr().out
    )
    assert tried == ["bfloat16", "float32"]
    with pytest.raises(ValueError, match="--device: attention stepwell does not run on cuda: this"):
        cli._device("cuda", "stepwell", None)
    reasons["cuda"] = None
    assert cli._device("auto", "stepwell", None)[0].type == "cuda"
    assert cli._device("cpu", "stepwell", None)[0].type == "cpu"
    del tried[:]
    assert cli._device("auto", "stepwell", "float32")[0].type == "cuda"
    assert tried == ["float32"]


def test_missing_gpu_is_named(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        cli.main(["--text", text, "--output", str(tmp_path / "run"), "--device", "cuda"])
    assert (
        "--device: cuda is not available to torch; accepted: auto, cpu" in capsys.readouterr().err
    )
