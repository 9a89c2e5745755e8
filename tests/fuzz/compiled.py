"""Run a program as a kernel of nbrt."""

from __future__ import annotations

import contextlib
import hashlib
import linecache
from typing import TYPE_CHECKING, Any

import numpy as np

from fuzz import program as p
from helpers.lowerings import force
from nbrt.backends.cpu.launch import CpuProgram

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def kernel_of(program: p.Program) -> Any:
    """Compile a program's source to its Python function; tracebacks show the source."""
    source = str(program)
    name = f"<program {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "fuzz_program"}
    exec(compile(source, name, "exec"), namespace)
    return namespace["kernel"]


def run(program: p.Program, kinds: Sequence[str | None]) -> Iterator[dict[str, np.ndarray]]:
    """Run a program in each lowering, None for the default; yield its arrays."""
    kernel = CpuProgram(kernel_of(program), cache=False)
    for kind in kinds:
        arrays = arrays_of(program)
        arguments = [np.int32(program.n), *(arrays[name] for name in program.parameters[1:])]
        # The code of one thread is kept, and lowered again for each kind.
        kernel._entries.clear()
        with contextlib.nullcontext() if kind is None else force(kind):
            kernel.plan(0, (program.grid, 1, 1), (program.block, 1, 1))(*arguments)
        yield arrays


def arrays_of(program: p.Program) -> dict[str, np.ndarray]:
    """Return the arrays of a launch by parameter: inputs are random, the others constant."""
    random = np.random.default_rng(program.seed)
    threads = program.grid * program.block
    arrays = {}
    for kind in p.INTEGERS:
        bounds = np.iinfo(kind)
        values = random.integers(bounds.min, bounds.max, p.INPUT_SIZE, kind, endpoint=True)
        arrays[f"x_{kind}"] = np.where(random.random(p.INPUT_SIZE) < 0.5, values & 15, values)
    for kind in p.FLOATS:
        values = random.normal(0, 10, p.INPUT_SIZE)
        values[:6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40]
        arrays[f"x_{kind}"] = values.astype(kind)
    arrays |= {f"y_{kind}": np.full(threads, 77, kind) for kind in p.TYPES}
    arrays |= {f"a_{name}": np.full(p.BINS, 3, kind) for name, kind in p.ATOMICS.items()}
    kept = {f"z_{v.target}": np.full(threads, 88, v.target.type) for v in program.variables}
    return arrays | kept
