"""Load the simulated CUDA driver into this process and prepare its child processes.

`load` is for the tests. It changes the environment, so that a child process loads the same
library: a process that finds ``libcuda.so.1`` by name through ``LD_LIBRARY_PATH``, and a process of
Python through ``startup/sitecustomize.py``, which calls `prepare`.

Settings of the environment: ``NBRT_SIMULATED_CUDA=0`` never loads it, ``force`` loads it beside a
real driver; without either, it is loaded if the machine has no working driver.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Every child process of Python imports this module: further imports wait for their use.
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Sequence

__all__ = ["has_real_driver", "is_wanted", "load", "loaded", "prepare"]

_LIBRARY = "NBRT_SIM_LIBRARY"
_STARTUP = Path(__file__).with_name("startup")
# The first import of one of these packages needs the driver.
_USERS = frozenset({"cuda", "cupy", "cupy_backends", "numba_cuda"})

_PROBE = """
import ctypes, sys
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError:
    sys.exit(1)
sys.exit(hasattr(driver, "sim_inject") or driver.cuInit(0) != 0)
"""
_PROBE_SECONDS = 60

_lock = threading.RLock()
_loaded: ctypes.CDLL | None = None


def has_real_driver() -> bool:
    """Whether a CUDA driver other than the simulated one works; asks a child process."""
    import subprocess

    command = [sys.executable, "-I", "-S", "-c", _PROBE]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:  # a driver that hangs is there
        return True
    return done.returncode == 0


def is_wanted() -> bool:
    """Whether the settings and this machine ask for the simulated driver."""
    setting = os.environ.get("NBRT_SIMULATED_CUDA", "")
    if setting == "0" or sys.platform != "linux":
        return False
    return setting == "force" or _LIBRARY in os.environ or not has_real_driver()


def loaded() -> ctypes.CDLL | None:
    """Return the simulated driver if this process has loaded it."""
    return _loaded


def load() -> ctypes.CDLL:
    """Build and load the simulated driver, for this process and its child processes.

    Raises
    ------
    BuildError
        If the library cannot be built.
    RuntimeError
        If CuPy has been imported already: it has bound another runtime.
    """
    if _loaded is not None:
        return _loaded
    if "cupy_backends" in sys.modules:
        raise RuntimeError("load the simulated CUDA driver before CuPy is imported")
    from simulated_cuda.build import build, cache_directory

    _set_environment(build(), cache_directory())
    return _load_library()


def _set_environment(library: Path, cache: Path) -> None:
    os.environ[_LIBRARY] = str(library)
    _prepend("LD_LIBRARY_PATH", str(library.parent))
    _prepend("PYTHONPATH", str(_STARTUP))
    # NVRTC makes PTX, which can be translated, and CuPy keeps it apart from machine code. CuPy's
    # accelerators contain machine code only.
    os.environ["CUPY_COMPILE_WITH_PTX"] = "1"
    os.environ["CUPY_ACCELERATORS"] = ""
    os.environ["CUPY_CACHE_DIR"] = str(cache / "cupy")


def _prepend(variable: str, path: str) -> None:
    parts = [part for part in os.environ.get(variable, "").split(os.pathsep) if part]
    if path not in parts:
        os.environ[variable] = os.pathsep.join([path, *parts])


def _load_library() -> ctypes.CDLL:
    """Load the library that the environment names, and connect it with its parts in Python.

    A later ``dlopen("libcuda.so.1")`` of any library finds it, because a loaded library answers
    to its SONAME.
    """
    import ctypes

    global _loaded
    with _lock:
        if _loaded is None:
            path = Path(os.environ[_LIBRARY])
            driver = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
            for name in ("libnvidia-ml.so.1", "libnccl.so.2"):
                ctypes.CDLL(str(path.with_name(name)), ctypes.RTLD_GLOBAL)
            _loaded = driver
            _connect(driver)
        return _loaded


def _connect(driver: ctypes.CDLL) -> None:
    here = Path(__file__).parent
    if (here / "ptx" / "translator.py").exists():
        from simulated_cuda.ptx import translator

        translator.register(driver)
    if (here / "cupy_runtime").exists():
        from simulated_cuda import cupy_runtime

        cupy_runtime.install()


class _LoadOnFirstUse:
    """An import hook that loads the driver when a package that uses it is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
        if name.partition(".")[0] in _USERS:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _load_library()


def prepare() -> None:
    """Let this process load the library of its parent process on first use.

    Most child processes use no CUDA, and should start as fast as without a simulated driver.
    """
    if _loaded is None and Path(os.environ.get(_LIBRARY, "")).is_file():
        sys.meta_path.insert(0, _LoadOnFirstUse())  # type: ignore[arg-type]
