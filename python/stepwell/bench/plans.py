"""Which kernels a case runs: what the library's plans say of themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from stepwell import _binding

from .cases import Case
from .peers import Problem, random_tensors, stepwell_problem


@contextlib.contextmanager
def plans_only() -> Iterator[list[str]]:
    """Inside, no attention of this process computes anything, and outputs are undefined.

    What each call would have run, ``AttentionPlan::describe()``, is appended to the list instead.
    On CUDA that compiles and loads the kernels.
    """
    described: list[str] = []
    functions = _binding.attention_forward, _binding.attention_backward

    def forward(*args):
        described.append(_binding.attention_forward_plan(*args))

    def backward(*args):
        described.append(_binding.attention_backward_plan(*args))

    _binding.attention_forward, _binding.attention_backward = forward, backward
    try:
        yield described
    finally:
        _binding.attention_forward, _binding.attention_backward = functions


def plans(case: Case, device: str) -> dict[str, str]:
    """The plans of a case on "cuda" or "cpu": backend, kernel, tiles."""
    return plans_of(stepwell_problem(case, random_tensors(case, device)))


def plans_of(problem: Problem) -> dict[str, str]:
    """The plans of Stepwell's forward and backward pass of a problem."""
    tensors = problem.tensors
    inputs = [x.detach().requires_grad_() for x in (tensors.q, tensors.k, tensors.v)]
    with plans_only() as described:
        torch.autograd.grad(problem.attention(*inputs), inputs, tensors.dout)
    forward, backward = described
    return {"forward": forward, "backward": backward}
