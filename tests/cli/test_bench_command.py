"""`stepwell bench`: which Python it runs, and what it says where there is none."""

import os
import shutil
import subprocess
import sys

import pytest
from program import find_program

# Of the package it is asked with -c; with -m it says who it is and what it got.
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then exit {without}; fi
echo "{name}"
for argument in "$@"; do echo "<$argument>"; done
exit 7
"""


def python(folder, file, name, without=0):
    folder.mkdir(exist_ok=True)
    path = folder / file
    path.write_text(PYTHON.format(name=name, without=without))
    path.chmod(0o755)


@pytest.fixture
def bench(tmp_path):
    """Runs a copy of the program, in a folder of its own, with one folder on PATH."""
    assert find_program(), "no stepwell program: build it or name it in STEPWELL_CLI"
    (tmp_path / "bin").mkdir()
    (tmp_path / "path").mkdir()
    program = shutil.copy(find_program(), tmp_path / "bin" / "stepwell")

    def run(*args, status=7, **variables):
        result = subprocess.run(
            [program, "bench", *args], capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "PATH": str(tmp_path / "path"), **variables},
        )  # fmt: skip
        assert result.returncode == status, result.stdout + result.stderr
        return result

    return run


def test_python_beside_the_program_comes_first(bench, tmp_path):
    python(tmp_path / "path", "python3", "of PATH")
    assert bench().stdout.splitlines() == ["of PATH", "<-m>", "<stepwell.bench>"]
    python(tmp_path / "bin", "python", "beside")
    assert bench().stdout.splitlines()[0] == "beside"


def test_python_of_path_where_the_one_beside_lacks_the_package(bench, tmp_path):
    python(tmp_path / "bin", "python3", "beside", without=1)
    python(tmp_path / "path", "python3", "of PATH")
    assert bench().stdout.splitlines()[0] == "of PATH"


@pytest.mark.parametrize(
    "args", [["--help"], ["--quick", "--case", "a b*"], ["mask", "--length", "8"], ["--version"]]
)
def test_arguments_are_passed_on(bench, tmp_path, args):
    python(tmp_path / "path", "python3", "of PATH")
    expected = ["of PATH", "<-m>", "<stepwell.bench>", *(f"<{arg}>" for arg in args)]
    assert bench(*args).stdout.splitlines() == expected


def test_what_is_missing_is_named(bench, tmp_path):
    nothing = bench("--list", status=1).stderr
    assert "python3: No such file or directory" in nothing
    assert "pip install '.[bench]'" in nothing
    python(tmp_path / "bin", "python", "beside", without=1)
    python(tmp_path / "path", "python3", "of PATH", without=1)
    lacks = bench("--list", status=1).stderr
    assert f"{tmp_path}/bin/python: does not have the Python package stepwell" in lacks
    assert "python3: does not have the Python package stepwell" in lacks


def test_with_the_python_that_runs_this(bench, tmp_path):
    pytest.importorskip("stepwell")
    pytest.importorskip("torch")
    (tmp_path / "path" / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "path" / "python3").chmod(0o755)
    listed = bench("--list", "--device", "cpu", status=0).stdout.splitlines()
    assert len(listed) > 5
    refused = bench("--rounds", "none", status=2).stderr
    assert "--rounds: 'none'; accepted: an integer >= 1" in refused
