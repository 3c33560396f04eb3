"""`stepwell compile` and `stepwell doctor`, with stand-ins for NVRTC and the CUDA driver."""

import json
import os
import pathlib
import subprocess

import pytest
from program import find_program

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("STEPWELL_BUILD_DIR", ROOT / "build" / "cpu"))
STAND_INS = BUILD / "tests" / "runtime" / "stand_ins"
SPILLS = (
    "ptxas . 64 bytes stack frame, 40 bytes spill stores, 48 bytes spill loads\n"
    "ptxas info : Used 255 registers, used 1 barriers\n"
)


@pytest.fixture
def cli(tmp_path):
    """Runs the program with a cache of its own."""
    assert (STAND_INS / "libnvrtc.so.13").exists(), f"no stand-ins in {STAND_INS}"

    def run(*args, status=0, **variables):
        environment = {
            **os.environ,
            "STEPWELL_LIBRARY_DIRS": str(STAND_INS),
            "STEPWELL_CACHE_DIR": str(tmp_path / "cache"),
            "STEPWELL_PACKAGED_CUBINS": "",
            **variables,
        }
        result = subprocess.run(
            [find_program(), *map(str, args)],
            capture_output=True, text=True, timeout=60, env=environment, check=False,
        )  # fmt: skip
        assert result.returncode == status, result.stdout + result.stderr
        return result

    return run


def rows_of(result):
    return [line for line in result.stdout.splitlines() if line.startswith("attention_")]


def test_compile_fills_a_folder(cli, tmp_path):
    args = ("compile", "--arch", "sm_80,sm_90a", "--only", "head_dim=64,128", "--output")
    first = cli(*args, tmp_path / "cubins")
    rows = rows_of(first)
    # Forward, backward and its two passes over rows; two head dims; two architectures. And Hopper's
    # own: forward, for blocks that divide its strips and for any, batched and packed, and for any
    # mask; backward; what comes before it, for any block, for those that divide its tiles, and for
    # the latter with grouped heads.
    assert len(rows) == 34
    assert len(set(rows)) == 34
    assert sum("sm_90a" in row for row in rows) == 26
    assert "34 compiled, 0 kept" in first.stdout
    files = sorted(path.name for path in (tmp_path / "cubins").iterdir())
    assert len(files) == 34
    assert not (tmp_path / "cache").exists()

    second = cli(*args, tmp_path / "cubins")
    assert "0 compiled, 34 kept" in second.stdout
    assert len(rows_of(second)) == 34
    assert sorted(path.name for path in (tmp_path / "cubins").iterdir()) == files


def test_compile_without_output_fills_the_cache_for_the_gpus_at_hand(cli, tmp_path):
    result = cli("compile", "--only", "kernel=forward", "--only", "head_dim=64")
    assert [row.split()[5] for row in rows_of(result)] == ["sm_89", "sm_90a"]
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_presets(cli, tmp_path):
    def rows(*args):
        file = tmp_path / "rows.json"
        cli("compile", "--arch", "sm_80", "--output", tmp_path / "cubins", "--json", file, *args)
        return json.loads(file.read_text())

    everything = rows("--preset", "all")
    pairwise = rows("--preset", "pairwise")
    training = rows()
    names = {row["kernel"] for row in everything}
    assert {row["kernel"] for row in pairwise} < names
    assert {row["kernel"] for row in training} < names
    for row in training:
        assert row["factors"]["element"] == "bf16"
        assert row["factors"].get("dropout", "off") == "off"
    assert {row["factors"]["head_dim"] for row in training} == {"64", "96", "128", "192", "256"}

    def pairs(table):
        return {
            (row["factors"]["kernel"], *sorted([first, second]))
            for row in table
            for first in row["factors"].items()
            for second in row["factors"].items()
        }

    assert pairs(pairwise) == pairs(everything)


def test_json_has_the_report(cli, tmp_path):
    args = ("--arch", "sm_80", "--only", "kernel=forward", "--only", "head_dim=64")
    cli("compile", *args, "--json", tmp_path / "rows.json", STAND_IN_NVRTC_SAYS=SPILLS)
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["arch"] == "sm_80"
    assert row["registers"] == 255
    assert row["spill_store_bytes"] == 40
    assert row["spill_load_bytes"] == 48
    assert row["stack_bytes"] == 64
    assert row["shared_bytes"] > 0
    assert row["nvrtc"] == "13.0"
    assert row["factors"]["head_dim"] == "64"
    assert len(row["problems"]) == 1


def test_check_fails_on_spills(cli):
    args = ("compile", "--arch", "sm_80", "--only", "kernel=forward", "--only", "head_dim=64")
    cli(*args, "--check")
    # Kept kernels are checked again: their reports are kept too.
    spilling = cli(*args, "--arch", "sm_89", STAND_IN_NVRTC_SAYS=SPILLS)
    assert "problem: 40 bytes stored and 48 loaded by spills" in spilling.stdout
    failed = cli(*args, "--arch", "sm_89", "--check", status=1)
    assert "problem: 40 bytes stored and 48 loaded by spills" in failed.stdout
    assert "1 kernels have problems" in failed.stderr


def test_check_fails_on_notes(cli):
    note = "ptxas info : (C7510) Potential Performance Loss: wgmma instructions are serialized"
    failed = cli(
        "compile", "--arch", "sm_90a", "--only", "kernel=forward", "--only", "head_dim=64",
        "--check", status=1, STAND_IN_NVRTC_SAYS=note,
    )  # fmt: skip
    assert f"problem: {note}" in failed.stdout


def test_kernels_that_do_not_compile(cli):
    failed = cli(
        "compile", "--arch", "sm_80", "--only", "head_dim=64",
        status=1, STAND_IN_NVRTC_RESULT="6",
    )  # fmt: skip
    assert failed.stdout.count("does not compile\n") == 4
    assert "4 kernels do not compile" in failed.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--arch", "sm_75"), "sm_75 is not an architecture from sm_80 on"),
        (("--arch", "hopper"), "hopper is not an architecture from sm_80 on"),
        (("--arch", "sm_80", "--preset", "none"), "none"),
        (("--arch", "sm_80", "--only", "head_dim"), "head_dim is not NAME=VALUE"),
        (("--arch", "sm_80", "--only", "head_dim=65"), "leaves no kernel"),
    ],
)
def test_arguments_that_are_not_accepted(cli, args, message):
    assert message in cli("compile", *args, status=2).stderr


def test_doctor_runs_a_kernel_on_every_gpu(cli, tmp_path):
    result = cli("doctor", STAND_IN_DRIVER_INCREMENTS="1")
    lines = result.stdout.splitlines()
    assert lines[-1] == "ready"
    assert f"driver    CUDA 13.0, {STAND_INS}/libcuda.so.1" in lines
    assert f"NVRTC     13.0, {STAND_INS}/libnvrtc.so.13" in lines
    assert any(line.startswith(f"cache     {tmp_path}/cache: 0 kernels") for line in lines)
    for device, arch in enumerate(["sm_89", "sm_90a"]):
        (line,) = (line for line in lines if line.startswith(f"GPU {device}"))
        assert f"Stand-in, {arch}," in line
        assert "ran a kernel" in line
    assert "PROBLEM" not in result.stdout


def test_doctor_notices_wrong_results(cli):
    result = cli("doctor", status=1)
    assert result.stdout.count("a kernel that adds 1 made 41 of 41") == 2
    assert "not ready for a GPU" in result.stderr


def test_doctor_names_what_is_missing(cli, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    result = cli("doctor", status=1, STEPWELL_LIBRARY_DIRS=str(tmp_path))
    problems = {line.split()[0]: line for line in result.stdout.splitlines() if "PROBLEM" in line}
    assert "chmod go-w" in problems["cache"]
    # A machine may have these two elsewhere.
    for subject, cure in (("driver", "GPU driver"), ("NVRTC", "pip install nvidia-cuda-nvrtc")):
        if subject in problems:
            assert cure in problems[subject]
