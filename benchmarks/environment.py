"""Where figures were taken: processor, versions, commit, load; and pinning to few cores."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "describe_environment", "last_line", "pin", "run_pinned", "version_of"]

ROOT = Path(__file__).resolve().parent.parent

_PACKAGES = [
    "numpy",
    "numba",
    "numba-cuda",
    "llvmlite",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "warp-lang",
    "torch",
    "jax",
    "randomgen",
    "taichi",
    "quadrants",
    "pyopencl",
    "pocl-binary-distribution",
    "intel-opencl-rt",
]

_THREAD_VARIABLES = [
    "NBRT_CPU_THREADS",
    "NUMBA_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "POCL_MAX_PTHREAD_COUNT",
    "POCL_CPU_MAX_CU_COUNT",
]


def version_of(package: str) -> str | None:
    """Return an installed package's version, None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe_environment() -> dict[str, Any]:
    """Return the machine, the versions and the commit, as plain values."""
    versions = {package: version_of(package) for package in _PACKAGES}
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {package: version for package, version in versions.items() if version},
        "commit": _commit(),
    }


def pin(cores: int) -> None:
    """Keep this process, and the threads it starts from now on, on the last `cores` cores."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[-cores:])


def run_pinned(
    module: str,
    cores: int,
    *arguments: str,
    threads: int | None = None,
    seconds: float | None = None,
) -> Any:
    """Run a benchmark's worker on `cores` cores, with as many threads each; return its JSON.

    The child prints JSON as the last line of its output. Thread counts are read by most libraries
    when they are imported, so another count needs another process.

    Raises
    ------
    RuntimeError
        If it fails, or takes longer than `seconds`.
    """
    environment = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(threads or cores))}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.pinned", str(cores), module, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{module} took more than {seconds:.0f} s on {cores} core(s)") from None
    if done.returncode != 0:
        raise RuntimeError(f"{module} failed on {cores} core(s):\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def last_line(arguments: list[str], variables: dict[str, str]) -> str:
    """Run Python with arguments and more environment variables; return the last line it prints.

    Raises
    ------
    RuntimeError
        If it fails, with the last line of its errors.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError((done.stderr.splitlines() or ["no message"])[-1][:90])
    return done.stdout.splitlines()[-1]


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    facts = dict(
        (part.strip() for part in line.split(":", 1)) for line in text.splitlines() if ":" in line
    )
    family, model = facts.get("cpu family", "?"), facts.get("model", "?")
    return f"{facts.get('model name', platform.machine())} (family {family}, model {model})"


def _commit() -> str:
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return "none yet"
    return commit + (
        " with changes" if _git("status", "--porcelain", "--", "nbrt", "kernels") else ""
    )


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
