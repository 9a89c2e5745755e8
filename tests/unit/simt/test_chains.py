"""Chains of multiply-adds in turns: loops of LLVM IR, before and after, and their results."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
import numpy as np
import pytest

from nbrt.backends.cpu.simt.llvm.chains import may_have_chains, with_chains_in_turns

STEPS, LANES = 30, 4
KIND = f"<{LANES} x double>"
FMA = f"@llvm.fma.v{LANES}f64"


def chain(name: str, x: str, steps: int) -> list[str]:
    """Return the instructions of a polynomial of x, of which the last one defines `name`."""
    lines, value = [], x
    for step in range(steps):
        result = name if step == steps - 1 else f"{name}.{step}"
        coefficient = f"{KIND} splat (double {0.5 + step / 8!r})"
        lines.append(f"{result} = call {KIND} {FMA}({KIND} {value}, {KIND} {x}, {coefficient})")
        value = result
    return lines


def module(body: list[str]) -> str:
    """Return a module whose function f runs a loop over vectors with a body of instructions."""
    text = "\n".join(f"  {line}" for line in body)
    return f"""
declare {KIND} {FMA}({KIND}, {KIND}, {KIND})
define void @f(ptr %from, ptr %to, i64 %n, i64 %divisor) {{
entry:
  br label %loop

loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %p = getelementptr {KIND}, ptr %from, i64 %i
  %q = getelementptr {KIND}, ptr %to, i64 %i
{text}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %end

end:
  ret void
}}
"""


def two_chains(steps: int = STEPS) -> list[str]:
    load = f"load {KIND}, ptr"
    return [
        f"%x = {load} %p, align 8",
        *chain("%a", "%x", steps),
        f"store {KIND} %a, ptr %p, align 8",
        f"%y = {load} %q, align 8",
        f"%z = fmul {KIND} %y, splat (double -5.0e-1)",
        *chain("%b", "%z", steps),
        f"%again = {load} %p, align 8",
        f"%sum = fadd {KIND} %b, %again",
        f"store {KIND} %sum, ptr %q, align 8",
    ]


def run(text: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what the function of a module makes of two arrays."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), jit=True
    )
    parsed = llvm.parse_assembly(text)
    parsed.verify()
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)(
        engine.get_function_address("f")
    )
    x, y = x.copy(), y.copy()
    call(x.ctypes.data, y.ctypes.data, x.size // LANES, 3)
    return x, y


def changed(body: list[str]) -> str:
    text = with_chains_in_turns(module(body))
    assert text is not None
    assert sorted(text.split("\n")) == sorted(module(body).split("\n"))
    return text


def places(text: str, *parts: str) -> list[int]:
    """Return the lines of a module that have one of some parts."""
    return [i for i, line in enumerate(text.split("\n")) if any(part in line for part in parts)]


def test_two_chains_go_on_side_by_side_with_equal_bits() -> None:
    body = [*two_chains(), *two_chains_of_other_names()]
    before, after = module(body), changed(body)
    assert may_have_chains(before)
    x, y = np.random.default_rng(1).uniform(-1.0, 1.0, (2, 40))
    for found, expected in zip(run(after, x, y), run(before, x, y), strict=True):
        assert np.array_equal(found, expected)
    # The chains of the second pair begin before the first ones end.
    first, second = places(after, "%a.", "%a ="), places(after, "%c.", "%c =")
    assert second[0] < first[-1]
    assert first[0] < second[-1]


def two_chains_of_other_names() -> list[str]:
    """Return two chains more, of which the first one does not depend on memory."""
    splat = f"fadd {KIND} splat (double 2.5e-1), splat (double 1.25e-1)"
    return [
        f"%u = {splat}",
        *chain("%c", "%u", STEPS),
        f"%old = load {KIND}, ptr %q, align 8",
        f"%new = fadd {KIND} %old, %c",
        f"store {KIND} %new, ptr %q, align 8",
    ]


def test_accesses_calls_and_integer_divisions_keep_their_order() -> None:
    body = [
        *two_chains()[:-1],
        "%quotient = udiv i64 %n, %divisor",
        "%m = add i64 %quotient, 1",
        f"store {KIND} %sum, ptr %q, align 8",
        *two_chains_of_other_names(),
    ]
    kept = [" load ", " store ", " udiv "]
    before, after = module(body), changed(body)
    order = [before.split("\n")[place] for place in places(before, *kept)]
    assert [after.split("\n")[place] for place in places(after, *kept)] == order


def matrix() -> list[str]:
    """Return sixteen chains of eight steps."""
    lines = [f"%x = load {KIND}, ptr %p, align 8"]
    for number in range(16):
        lines.append(f"%x{number} = fmul {KIND} %x, splat (double {float(number)!r})")
        lines += chain(f"%a{number}", f"%x{number}", 8)
        lines.append(f"store {KIND} %a{number}, ptr %q, align 8")
    return lines


def many_values() -> list[str]:
    """Return chains that begin with more values than registers hold."""
    lines = [f"%x{number} = load {KIND}, ptr %p, align 8" for number in range(100)]
    lines += chain("%a", "%x0", STEPS)
    lines.append("%s0 = fadd " + f"{KIND} %a, %x1")
    for number in range(1, 99):
        lines.append(f"%s{number} = fadd {KIND} %s{number - 1}, %x{number + 1}")
    return [*lines, f"store {KIND} %s98, ptr %q, align 8"]


@pytest.mark.parametrize(
    "body",
    [two_chains(20), matrix(), many_values(), [*two_chains(60), "fence seq_cst"]],
    ids=["short", "matrix", "values", "unknown instruction"],
)
def test_other_loops_are_left_as_they_are(body: list[str]) -> None:
    llvm.parse_assembly(module(body)).verify()
    assert with_chains_in_turns(module(body)) is None


def test_blocks_that_are_no_loops_are_left_as_they_are() -> None:
    body = module([*two_chains(), *two_chains_of_other_names()])
    text = body.replace("label %loop, label %end", "label %end, label %end")
    assert with_chains_in_turns(text) is None
