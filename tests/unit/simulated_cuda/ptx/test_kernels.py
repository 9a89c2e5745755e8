"""The kernels of nbrt_kernels translate."""

from __future__ import annotations

import pytest

from helpers.kernels import compile_ptx, numba_type
from nbrt_kernels import KERNELS
from simulated_cuda.ptx.compile import compile_text
from simulated_cuda.ptx.module import ModuleBuilder
from simulated_cuda.ptx.parser import parse


@pytest.mark.parametrize("name", list(KERNELS))
def test_a_kernel_translates(name: str) -> None:
    spec = KERNELS[name]
    signature = tuple(
        numba_type(kind) if isinstance(kind, str) else kind for kind in spec.signatures[0]
    )
    text, facts = ModuleBuilder(parse(compile_ptx(spec.function, signature, (9, 0)))).build()
    assert len(facts.kernels) == 1
    [kernel] = facts.kernels.values()
    assert not kernel.approximates
    assert not kernel.spins
    assert len(compile_text(text, 0)) > 1000
