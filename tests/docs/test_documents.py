"""What the documents show must work: code runs, pictures match their commands, links lead on."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md"))


def blocks(document, language):
    """The fenced code blocks of a language."""
    text = document.read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


README = ROOT / "README.md"
PYTHON_BLOCKS = blocks(README, "python")
BUILD = pathlib.Path(os.environ.get("STEPWELL_BUILD_DIR", ROOT / "build" / "cpu"))
PROGRAM = os.environ.get("STEPWELL_CLI", BUILD / "bin" / "stepwell")


def test_readme_has_its_examples():
    assert len(PYTHON_BLOCKS) >= 3
    assert len(blocks(README, "cpp")) == len(blocks(README, "cmake")) == 1


@pytest.mark.parametrize(
    "code", PYTHON_BLOCKS, ids=[f"block{i}" for i in range(len(PYTHON_BLOCKS))]
)
def test_python_example_of_the_readme_runs(code, tmp_path):
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path, timeout=120
    )


def test_cpp_example_of_the_readme_builds_against_an_install(tmp_path):
    """The library is installed from a build folder (STEPWELL_BUILD_DIR or build/cpu)."""
    assert (BUILD / "CMakeCache.txt").exists(), f"no build in {BUILD}: cmake --preset cpu"
    prefix, source, build = tmp_path / "prefix", tmp_path / "source", tmp_path / "build"
    source.mkdir()
    (source / "example.cpp").write_text(blocks(README, "cpp")[0])
    (source / "CMakeLists.txt").write_text(blocks(README, "cmake")[0])
    for command in (
        ["cmake", "--install", BUILD, "--prefix", prefix],
        ["cmake", "-G", "Ninja", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}"],
        ["cmake", "--build", build],
    ):
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert result.returncode == 0, result.stdout + result.stderr
    output = subprocess.run([build / "example"], capture_output=True, text=True, check=True).stdout
    n, b = 100, 8
    pairs = n * n + (n // b) * b * b + (n % b) ** 2
    assert output == f"{pairs} visible pairs, out[0] = 0.1\n"


def mask_commands():
    for document in DOCUMENTS:
        for block in blocks(document, "sh"):
            for line in block.splitlines():
                if line.startswith("stepwell mask "):
                    yield pytest.param(line, id=f"{document.stem}: {line}")


@pytest.mark.parametrize("line", list(mask_commands()))
def test_pictures_are_those_of_the_commands_beside_them(line, tmp_path):
    (tmp_path / "docs" / "images").mkdir(parents=True)
    argv = [PROGRAM, *shlex.split(line)[1:]]
    subprocess.run(argv, check=True, cwd=tmp_path, capture_output=True, timeout=60)
    drawn = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert drawn
    for path in drawn:
        kept = ROOT / path.relative_to(tmp_path)
        if kept.parent != ROOT:
            assert path.read_text() == kept.read_text(), f"{kept} is not what the command draws"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_inside_the_repository_lead_somewhere(document):
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not target.startswith(("http://", "https://")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_documents_that_sources_name_exist():
    folders = ("include", "src", "cli", "cmake", "python", "scripts", "tests", "benchmarks")
    named = 0
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".cpp", ".hpp", ".py", ".sh", ".txt", ".cmake", ".in"}:
                for document in re.findall(r"\bdocs/[\w-]+\.md\b", path.read_text()):
                    named += 1
                    assert (ROOT / document).exists(), f"{path} names {document}"
    assert named


def test_counts_are_printed_up_to_the_tiles_that_the_document_states():
    assert "at most 2²⁸" in (ROOT / "docs" / "masks.md").read_text()
    rows = 2 * 2**13 * 2**7  # both halves, in the largest automatic tiles: 2^14 tiles a side
    command = [PROGRAM, "mask", "--block-size", "4", "--length"]
    subprocess.run([*command, str(rows // 2)], check=True, capture_output=True, timeout=60)
    refused = subprocess.run(
        [*command, str(rows // 2 + 1)], check=False, capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 2
    assert "at most 268,435,456 are counted" in refused.stderr


def test_scripts_of_the_readme_exist():
    commands = [line for block in blocks(README, "sh") for line in block.splitlines()]
    scripts = [line.split()[0] for line in commands if line.startswith("scripts/")]
    assert len(scripts) == 2
    for script in scripts:
        assert shutil.which(ROOT / script), f"{script} cannot be executed"


def test_documents_name_all_packages():
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    needed = set(re.search(r"build_packages=\((.*?)\)", setup, re.DOTALL)[1].split())
    lines = [line for block in blocks(README, "sh") for line in block.splitlines()]
    (install,) = [line for line in lines if line.startswith("sudo apt-get install ")]
    assert set(install.split()[3:]) == needed - {"python3", "python3-venv"}
    assert "`libgtest-dev`" in (ROOT / "CONTRIBUTING.md").read_text()
    assert "`pip install '.[train]'`" in README.read_text()
