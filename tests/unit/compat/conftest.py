"""Fixtures of the tests of programs for ``numba.cuda`` on CPU devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nbrt.compat import numba_cuda
from nbrt.config import override

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def installed() -> Iterator[None]:
    """``numba.cuda`` runs on CPU devices during the module."""
    numba_cuda.install()
    yield
    numba_cuda.uninstall()


@pytest.fixture(scope="module")
def fail(installed: None) -> Any:
    """A kernel that stores outside of its array, in checked mode: each launch fails."""
    from numba import cuda

    @cuda.jit
    def fail(x: Any) -> None:
        x[x.size] = 1

    with override(check=True):
        assert fail.kernel  # has checks from now on
    return fail
