import shlex
import subprocess

import pytest
from program import find_program


@pytest.fixture(scope="session")
def stepwell():
    """Runs the program with arguments (a line or a list) and checks its exit status."""
    program = find_program()
    assert program, "no stepwell program: build it or name it in STEPWELL_CLI"

    def run(args, status=0, cwd=None):
        argv = shlex.split(args) if isinstance(args, str) else args
        result = subprocess.run(
            [program, *argv], capture_output=True, text=True, timeout=60, cwd=cwd, check=False
        )
        assert result.returncode == status, result.stderr or result.stdout
        return result

    return run
