import hypothesis
import pytest
import torch
from cases import CASES

hypothesis.settings.register_profile(
    "stepwell", deadline=None, derandomize=True, max_examples=60, print_blob=True
)
hypothesis.settings.load_profile("stepwell")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=[case.name for case in CASES])
