"""Fixtures of the tests of programs for ``numba.cuda`` on CPU devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbrt.compat import numba_cuda

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def installed() -> Iterator[None]:
    """``numba.cuda`` runs on CPU devices during the module."""
    numba_cuda.install()
    yield
    numba_cuda.uninstall()
