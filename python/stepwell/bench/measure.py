"""One case of the table against its peers."""

from __future__ import annotations

from typing import Any

import torch

from . import timing
from .cases import Case
from .peers import Problem, peers_of, random_tensors, stepwell_problem
from .plans import plans_of

OURS = "ours"
# Floating-point operations of a pair, head and dimension: two products forward, five backward.
PASSES = {"forward": 4.0, "step": 14.0}

# ||difference|| / ||out|| of two implementations in the dtype of a device: five roundings to
# bfloat16; float32 on a CPU differed by 6e-7. One key more in each of 2,048 rows makes 0.2.
_AGREEMENT = {"cuda": 2e-2, "cpu": 1e-5}
_LONGEST_REASON = 300  # characters


def measure_case(
    case: Case, device: str, rounds: int, peers: tuple[str, ...] | None
) -> dict[str, Any]:
    """Times, visible-pair throughputs and ratios of a case.

    Args:
        case: of the table.
        device: "cuda" or "cpu".
        rounds: of which the medians are taken.
        peers: what to compare with; None: the peers of the case.

    Returns:
        An entry of ``cases`` in the JSON. Peers that do not run are in ``skipped``, with the
        reason.
    """
    tensors = random_tensors(case, device)
    problems = {OURS: stepwell_problem(case, tensors)}
    calls = dict(_passes(OURS, problems[OURS]))
    plan = plans_of(problems[OURS])
    expected = _output(problems[OURS])
    for call in calls.values():
        call()
    skipped: dict[str, str] = {}
    for name, peer in peers_of(device).items():
        if name not in (case.peers if peers is None else peers):
            continue
        reason = peer.why_not(case)
        if reason is None:
            try:
                problem = peer.prepare(case, tensors)
                _check_output(problem, expected, device)
                passes = _passes(name, problem)
                for call in passes.values():
                    call()
                    call()
                if device == "cuda":
                    torch.cuda.synchronize()
            except Exception as error:  # another package's; the other peers are measured still
                reason = f"{type(error).__name__}: {_first_line(error)}"
            else:
                problems[name] = problem
                calls |= passes
        if reason is not None:
            skipped[name] = reason
    del expected
    medians = timing.gpu_medians if device == "cuda" else timing.cpu_medians
    times, late = medians(calls, rounds)

    result: dict[str, Any] = {"name": case.name, "group": case.group, "mask": case.mask_name}
    if case.packed:
        result["lengths"] = list(case.lengths)
    else:
        result |= {"n": case.lengths[0], "batch": len(case.lengths)}
    result |= {
        "block_size": case.block_size,
        "heads": [case.heads_q, case.heads_kv],
        "dim": case.head_dim,
        "pairs": {name: problem.pairs for name, problem in problems.items()},
        "plan": plan,
    }
    for kind, factor in PASSES.items():
        ms = {name: times[f"{name}_{kind}"] for name in problems}
        work = factor * case.head_dim * case.heads_q
        rate = {name: work * problems[name].pairs / ms[name] / 1e9 for name in problems}
        ratio = {name: rate[OURS] / rate[name] for name in problems if name != OURS}
        result[kind] = {"ms": ms, "tflops": rate, "ratio": ratio}
    result["skipped"] = skipped
    if late:
        result["host_late"] = late
    return result


def _passes(name: str, problem: Problem) -> dict[str, timing.Call]:
    """The forward pass without autograd, and forward plus backward."""
    tensors, dout = problem.tensors, problem.tensors.dout
    inputs = [x.detach().requires_grad_() for x in (tensors.q, tensors.k, tensors.v)]

    def forward():
        with torch.no_grad():
            return problem.attention(*inputs)

    def step():
        return torch.autograd.grad(problem.attention(*inputs), inputs, dout)

    return {f"{name}_forward": forward, f"{name}_step": step}


def _output(problem: Problem) -> torch.Tensor:
    tensors = problem.tensors
    with torch.no_grad():
        out = problem.attention(tensors.q, tensors.k, tensors.v)
    return out.transpose(1, 2) if problem.is_transposed else out


def _check_output(problem: Problem, expected: torch.Tensor, device: str) -> None:
    """A peer whose output is another one computes another mask than is counted."""
    if not problem.same_mask:
        return
    out = _output(problem).reshape(expected.shape).float()
    difference = ((out - expected.float()).norm() / expected.float().norm()).item()
    if not difference <= _AGREEMENT[device]:
        raise ArithmeticError(f"its output differs from Stepwell's by {difference:.2g} of its norm")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:_LONGEST_REASON] if lines else "no message"
