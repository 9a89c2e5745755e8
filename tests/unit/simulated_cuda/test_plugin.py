"""The plugin of pytest, and how child processes come to the simulated driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from simulated_cuda import loader

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import pytest

TESTS = Path(__file__).parents[2]
WHERE = "import sys; print(sorted(n for n in sys.modules if n.startswith(('simulated', 'ctypes'))))"

SESSION = """
import ctypes, os, subprocess, sys
import pytest
from cuda.bindings import driver

LOCK = "import ctypes; ctypes.CDLL('libcuda.so.1').cuCheckpointProcessLock(1, None)"

def lock():
    return driver.cuCheckpointProcessLock(1, None)[0].name

def test_calls_a_stub():
    assert lock() == "CUDA_ERROR_NOT_SUPPORTED"

def test_calls_nothing():
    pass

@pytest.mark.allows_stubs("cuCheckpointProcessLock")
def test_may_call_this_stub():
    lock()

@pytest.mark.allows_stubs("cuCheckpointProcessUnlock")
def test_may_call_another_stub():
    lock()

def test_has_a_child_that_calls_a_stub():
    subprocess.run([sys.executable, "-c", LOCK], check=True)

def test_injects(simulation):
    simulation.inject("cuInit", driver.CUresult.CUDA_ERROR_UNKNOWN, times=0)

def test_is_not_injected(simulation):
    assert driver.cuInit(0)[0] == 0
"""


def test_a_test_that_calls_a_stub_fails(simulation: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "test_session.py").write_text(SESSION)
    options = ["-q", "-p", "no:cacheprovider", "-p", "simulated_cuda.plugin", "--strict-markers"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_session.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTEST_ADDOPTS": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ['PYTHONPATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert failed == [
        f"test_session.py::{name}"
        for name in (
            "test_calls_a_stub",
            "test_may_call_another_stub",
            "test_has_a_child_that_calls_a_stub",
        )
    ], done.stdout
    message = "the simulated CUDA driver has no cuCheckpointProcessLock"
    reports = done.stdout.partition("short test summary")[0]
    assert reports.count(message) == 3


def test_a_child_process_loads_the_driver_on_first_use(run_child: Callable[..., str]) -> None:
    program = """
import sys
print("simulated_cuda.loader" in sys.modules, "ctypes" in sys.modules)
from cuda.bindings import driver
from simulated_cuda import loader
print(loader.loaded() is not None)
"""
    assert run_child(program).split() == ["True", "False", "True"]


def test_a_child_process_finds_the_library_without_site_packages(
    run_child: Callable[..., str],
) -> None:
    program = "import ctypes; print(hasattr(ctypes.CDLL('libcuda.so.1'), 'sim_inject'))"
    assert run_child(program, "-I", "-S") == "True"


def test_a_child_process_can_do_without(run_child: Callable[..., str]) -> None:
    assert run_child(WHERE, NBRT_SIMULATED_CUDA="0") == "[]"


def test_another_sitecustomize_runs_too(run_child: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.was_here = __name__\n")
    path = f"{os.environ['PYTHONPATH']}{os.pathsep}{tmp_path}"
    program = "import sys; print(sys.was_here, 'simulated_cuda' in sys.modules)"
    assert run_child(program, PYTHONPATH=path) == "sitecustomize True"


def test_a_spawned_process_uses_the_driver(run_child: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "spawned.py").write_text(
        "from cuda.bindings import driver\n"
        "def count(_):\n"
        "    driver.cuInit(0)\n"
        "    return driver.cuDeviceGetCount()[1]\n"
    )
    program = f"""
import multiprocessing, sys
sys.path.insert(0, {str(tmp_path)!r})
import spawned
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(spawned.count, [0]))
"""
    assert run_child(program, NBRT_SIM_DEVICES="3") == "[3]"


def test_it_is_wanted_without_a_real_driver_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NBRT_SIM_LIBRARY", raising=False)
    monkeypatch.delenv("NBRT_SIMULATED_CUDA", raising=False)
    monkeypatch.setattr(loader, "has_real_driver", lambda: True)
    assert not loader.is_wanted()
    monkeypatch.setenv("NBRT_SIMULATED_CUDA", "force")
    assert loader.is_wanted()
    monkeypatch.setattr(loader, "has_real_driver", lambda: False)
    monkeypatch.setenv("NBRT_SIMULATED_CUDA", "0")
    assert not loader.is_wanted()
    monkeypatch.setenv("NBRT_SIMULATED_CUDA", "")
    assert loader.is_wanted()


def test_the_simulated_driver_is_no_real_one(simulation: ModuleType) -> None:
    assert not loader.has_real_driver()
