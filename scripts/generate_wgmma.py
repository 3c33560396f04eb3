#!/usr/bin/env python3
"""Writes src/cuda/ptx/wgmma_instructions.cuh: wgmma.mma_async and the waits for it, whose operand
lists are too long to be written by hand. With --check it compares and writes nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "src/cuda/ptx/wgmma_instructions.cuh"
COLUMNS = (32, 64, 96, 128, 192, 256)  # N of m64nNk16
# Columns of an accumulator and steps of 16 of a product's A in registers that are waited for.
WITH_A = ((64, 4), (64, 8), (128, 4), (128, 8), (192, 4), (192, 6), (256, 4))

HEAD = """\
// wgmma.mma_async.m64nNk16 with f32 accumulators, and wgmma.wait_group; device builds only. Written
// by scripts/generate_wgmma.py; wgmma.cuh has what kernels call.
#pragma once

#include "cuda/ptx/types.cuh"

// clang-format off
namespace stepwell::cuda::ptx {

template <int kColumns, Element kElement>
struct WgmmaInstruction;
"""

TAIL = """
}  // namespace stepwell::cuda::ptx
// clang-format on
"""


def wrapped(items: list[str], indent: int) -> str:
    """Comma-separated, in lines of at most 100 characters."""
    lines, line = [], " " * indent
    for item in items:
        if len(line) + len(item) > 99:
            lines.append(line.rstrip())
            line = " " * indent
        line += item + ", "
    return "\n".join([*lines, line.rstrip(", ")])


def registers(kind: str, name: str, count: int) -> list[str]:
    return [f'"{kind}"({name}[{i // 4}][{i % 4}])' for i in range(count)]


def numbers(first: int, count: int, indent: int) -> str:
    """Operand numbers as string literals, a line each of 16."""
    lines = []
    for i in range(first, first + count, 16):
        chunk = ", ".join(f"%{j}" for j in range(i, min(i + 16, first + count)))
        comma = "," if i + 16 < first + count else ""
        lines.append(f'{" " * indent}"{chunk}{comma}"')
    return "\n".join(lines)


def product(columns: int, element: str, a_in_registers: bool, init: bool) -> str:
    """`init`: d = A B, and what d held is not read, so that its registers are free before."""
    count = columns // 2
    if a_in_registers:
        name, argument, layouts = "rs", "const u32 (&a)[4]", ["kMnMajorB"]
        operand = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
        inputs = [f'"r"(a[{i}])' for i in range(4)]
    else:
        name, argument, layouts = "ss", "u64 a", ["kMnMajorA", "kMnMajorB"]
        operand = f"%{count}"
        inputs = ['"l"(a)']
    b = count + len(inputs)
    inputs.append('"l"(b)')
    if not init:
        inputs.append('"r"(static_cast<int>(accumulate))')
    immediates = ["1", "1"]  # signs
    for layout in layouts:
        immediates.append(f"%{count + len(inputs)}")
        inputs.append(f'"n"(static_cast<int>({layout}))')
    parameters = ", ".join(f"bool {layout}" for layout in layouts)
    return f"""
  template <{parameters}>
  __device__ __forceinline__ static void {name}{"_init" if init else ""}(
      float (&d)[{columns // 8}][4], {argument}, u64 b{"" if init else ", bool accumulate"}) {{
    asm volatile(
        "{{ .reg .pred p; setp.ne.b32 p, {"0" if init else f"%{b + 1}"}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{element}.{element} {{"
{numbers(0, count, 8)}
        "}}, {operand}, %{b}, p, {", ".join(immediates)}; }}"
        :
{wrapped(registers("=f" if init else "+f", "d", count), 10)}
        :
{wrapped(inputs, 10)});
  }}
"""


def instruction(columns: int, element: str, type_name: str) -> str:
    products = "".join(
        product(columns, element, a_in_registers, init)
        for a_in_registers in (False, True)
        for init in (False, True)
    )
    return f"""
template <>
struct WgmmaInstruction<{columns}, Element::{type_name}> {{{products}}};
"""


def wait(columns: int) -> str:
    count = columns // 2
    return f"""
template <int kPending>
__device__ __forceinline__ void wait_for_wgmma(float (&d)[{columns // 8}][4]) {{
  asm volatile(
      "wgmma.wait_group.sync.aligned %{count};"
      :
{wrapped(registers("+f", "d", count), 8)}
      : "n"(kPending)
      : "memory");
}}
"""


def wait_with_a(columns: int, steps: int) -> str:
    count = columns // 2 + 4 * steps
    outputs = registers("+f", "d", columns // 2) + registers("+r", "a", 4 * steps)
    return f"""
template <int kPending>
__device__ __forceinline__ void wait_for_wgmma(float (&d)[{columns // 8}][4],
                                               u32 (&a)[{steps}][4]) {{
  asm volatile(
      "wgmma.wait_group.sync.aligned %{count};"
      :
{wrapped(outputs, 8)}
      : "n"(kPending)
      : "memory");
}}
"""


def text() -> str:
    parts = [HEAD]
    for columns in COLUMNS:
        for element, type_name in (("bf16", "kBFloat16"), ("f16", "kFloat16")):
            parts.append(instruction(columns, element, type_name))
    parts += [wait(columns) for columns in COLUMNS]
    parts += [wait_with_a(columns, steps) for columns, steps in WITH_A]
    return "".join([*parts, TAIL])


def main() -> int:
    if sys.argv[1:] not in ([], ["--check"]):
        print("accepted: no argument, or --check", file=sys.stderr)
        return 2
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_text() == text():
            return 0
        print(f"{TARGET} is not what scripts/generate_wgmma.py writes", file=sys.stderr)
        return 1
    TARGET.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
