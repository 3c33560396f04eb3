import os
import pathlib
import shutil


def find_program():
    """STEPWELL_CLI, else the program of a CMake build, else the installed one."""
    if "STEPWELL_CLI" in os.environ:
        return os.environ["STEPWELL_CLI"]
    root = pathlib.Path(__file__).resolve().parents[2]
    built = root / "build" / "cpu" / "bin" / "stepwell"
    if built.exists():
        return str(built)
    return shutil.which("stepwell")
