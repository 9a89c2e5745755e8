"""Why tests of CuPy fail on the simulated driver, by a pattern of their name and error."""

from __future__ import annotations

__all__ = ["REASONS"]

REASONS: dict[str, str] = {
    r"test_dynamical_parallelism_compile_failure": (
        "expects the message of a compiler with the headers of a whole toolkit; NVRTC of the "
        "wheels gives another one"
    ),
    r"named symbol not found": (
        "expects the driver's text of an error; the simulation gives that of cuda-bindings"
    ),
    r"test_raw_picklable": "needs nvcc in a child process",
    r"TestUnwrap": (
        "expects `a - floor(a / b) * b` to be contracted to a fused multiply-add, as ptxas does to "
        "PTX instructions without a rounding mode; the simulation rounds twice, which PTX permits"
    ),
    r"test_inplace_same_memory_space": (
        "reads elements that other threads of the launch overwrite; the values depend on their "
        "order"
    ),
    r"TestCubReduction.*\n.*TimeLimit": (
        "CuPy's block reduction of millions of elements, whose threads wait for each other at each "
        "step, takes longer than the limit of the run"
    ),
}
"""Regular expression, searched for in the test's id, a newline and the error; and the reason."""
