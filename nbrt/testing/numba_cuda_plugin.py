"""A pytest plugin: ``pytest --nbrt-numba-cuda`` runs tests of ``numba.cuda`` programs on nbrt.

Installed with nbrt. It takes effect before pytest imports the first ``conftest.py``, also in the
workers of pytest-xdist and in child processes of tests. ``NBRT_NUMBA_CUDA=1`` does the same.
"""

from __future__ import annotations

import sys

import pytest

__all__: list[str] = []

_OPTION = "--nbrt-numba-cuda"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("nbrt").addoption(
        _OPTION,
        action="store_true",
        help="run programs for numba.cuda on nbrt, without a GPU on CPU devices",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Install before any test module or ``conftest.py`` can import ``numba.cuda``."""
    if early_config.known_args_namespace.nbrt_numba_cuda:
        # A late import: a session without the option imports nothing of nbrt.
        from nbrt.compat.numba_cuda import install_at_import

        install_at_import()


def pytest_report_header() -> str | None:
    """Name the device on which ``numba.cuda`` runs."""
    module = sys.modules.get("nbrt.compat.numba_cuda")
    if module is None or not module.is_installed():
        return None
    from nbrt.runtime.device import default_device

    return f"numba.cuda: nbrt on {default_device()}"
