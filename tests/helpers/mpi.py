"""Start ranks as processes, with the mpiexec that belongs to the running Python."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from helpers.clocks import HANG_TIMEOUT
from helpers.processes import ROOT, TESTS, environment_of_users

BIN = Path(sys.executable).parent
MPIEXEC = shutil.which("mpiexec", path=BIN) or shutil.which("mpiexec")

needs_mpi = pytest.mark.skipif(
    MPIEXEC is None or importlib.util.find_spec("mpi4py") is None,
    reason=f"mpi4py or mpiexec is not installed (looked in {BIN} and in PATH)",
)

START = """
import os, sys, threading
import numpy as np
from nbrt import config
from nbrt.distributed.communicators.mpi import MpiCommunicator
from nbrt.errors import *
"""


def mpiexec(
    ranks: int,
    code: str,
    *arguments: str,
    options: tuple[str, ...] = (),
    timeout: float = HANG_TIMEOUT,
) -> subprocess.CompletedProcess[str]:
    """Run dedented code on ranks; it finds the usual names imported, and its arguments."""
    assert MPIEXEC is not None
    inherited = environment_of_users()
    inherited["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "kernels", TESTS)))
    return subprocess.run(
        [
            MPIEXEC, *options, "-n", str(ranks),
            sys.executable, "-W", "error", "-c", START + textwrap.dedent(code),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=inherited,
    )  # fmt: skip


def succeed(ranks: int, code: str, timeout: float = HANG_TIMEOUT) -> None:
    """Run code on ranks; all must succeed and write nothing to stderr."""
    done = mpiexec(ranks, code, timeout=timeout)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
