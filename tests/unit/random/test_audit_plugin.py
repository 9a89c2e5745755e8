"""``@pytest.mark.rng_reproducible``: what passes, what fails, and what it says."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.processes import output_of
from nbrt.backends.code_store.folder import cache_directory
from nbrt.errors import ArgumentError
from nbrt.testing import rng_plugin
from nbrt.testing.reproducibility import NotReproducibleError, check_reproducible

pytest_plugins = ["pytester"]

# Taken here, as pytester gives its processes another home.
KERNEL_CACHE = cache_directory()

TESTS = """
import threading
import unittest

import pytest

import nbrt


@pytest.fixture
def rng():
    generator = nbrt.Generator(3, device="cpu:0")
    generator.random(8, dtype="float32")
    return generator


@pytest.mark.rng_reproducible
def test_pass_seeded():
    nbrt.Generator(7).random((4, 5), dtype="float32")
    nbrt.random.rand(3)


@pytest.mark.rng_reproducible(devices=["cpu:0"], threads=[1], shards=[2])
def test_pass_fixture(rng):
    rng.random(3, dtype="float32")
    rng.spawn(1)[0].random(4, dtype="float32")


@pytest.mark.rng_reproducible
def test_pass_threads():
    works = [
        threading.Thread(target=nbrt.Generator(seed).random, args=(4, "float32"))
        for seed in range(3)
    ]
    for work in works:
        work.start()
    for work in works:
        work.join()


def test_pass_without_the_marker():
    nbrt.Generator().random(3, dtype="float32")


class TestMethods:
    @pytest.mark.rng_reproducible
    def test_pass_method(self, rng):
        rng.random(3, dtype="float32")


@pytest.mark.rng_reproducible(devices=["cpu:0", "cuda"])
def test_skip_devices():
    nbrt.random.rand(3)


@pytest.mark.rng_reproducible
def test_fail_unseeded():
    nbrt.Generator().random(3, dtype="float32")


@pytest.mark.rng_reproducible
def test_fail_by_device():
    nbrt.random.rand(3)
    nbrt.random.rand(10 + nbrt.current_device().index)


@pytest.mark.rng_reproducible
def test_fail_without_draws():
    nbrt.zeros(3)


@pytest.mark.rng_reproducible(device="cpu:0")
def test_fail_arguments():
    nbrt.random.rand(3)


@pytest.mark.rng_reproducible
def test_fail_itself():
    nbrt.random.rand(3)
    assert nbrt.current_device().index == 0


class TestCase(unittest.TestCase):
    @pytest.mark.rng_reproducible
    def test_error_unittest(self):
        nbrt.random.rand(3)
"""


def test_the_marker(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBRT_CPU_DEVICES", "2")
    monkeypatch.setenv("NBRT_CACHE_DIR", str(KERNEL_CACHE or ""))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    pytester.makepyfile(TESTS)
    # One worker: the reports cross to another process as they do with many.
    options = ["-p", "nbrt.testing.rng_plugin", "-n", "1", "-ra", "--strict-markers"]
    # As pyproject.toml says: of an editable install pytest has found the import hook loaded.
    warnings = ["-W", "error", "-W", "ignore:Module already imported so cannot be rewritten"]
    result = pytester.runpytest_subprocess(*options, *warnings, timeout=HANG_TIMEOUT)
    result.assert_outcomes(passed=5, failed=5, errors=1, skipped=1)
    result.stdout.fnmatch_lines_random(
        [
            "the runs differ (seed): * a generator made without a seed takes one from *",
            "    *test_the_marker.py:* in test_fail_unseeded: nbrt.Generator().random(3, *",
            "the runs differ (shape): (10,) in cpu:0 with 1 thread, (11,) in cpu:1 with 1 thread*",
            "expected random draws to compare, got none",
            "expected rng_reproducible with devices, threads and shards by name, *'device'*",
            "E*raised when run on cpu:1 with 1 thread",
            "expected rng_reproducible on a plain test function*test_error_unittest*",
            "SKIPPED*1 draws gave equal bits on cpu:0 with 1 thread, cpu:0 with 2 threads; 1 of*",
        ]
    )
    assert "FAILED test_the_marker.py::test_pass" not in result.stdout.str()
    assert "During handling" not in result.stdout.str()


def test_the_plugin_comes_with_an_installed_nbrt() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    entries = project["entry-points"]["pytest11"]
    assert entries[rng_plugin.__name__] == rng_plugin.__name__


def test_an_unused_plugin_loads_nothing_heavy() -> None:
    code = """
        import sys
        import nbrt.testing.rng_plugin

        print([name for name in ("numpy", "numba", "nbrt.runtime.array") if name in sys.modules])
    """
    assert output_of(code) == "[]\n"


def test_the_check_without_pytest() -> None:
    rng = nbrt.Generator(5, device="cpu:0")

    def program() -> None:
        rng.random(4, dtype="float32")

    arguments = {"devices": ["cpu:0", "cpu:1"], "threads": (1, 2)}
    checked = check_reproducible(program, generators=[rng], shards=(1, 2), **arguments)
    assert checked.draws == checked.replayed == 1
    assert checked.runs == ("cpu:0 with 1 thread", "cpu:1 with 1 thread", "cpu:0 with 2 threads")
    with pytest.raises(NotReproducibleError, match=r"differ \(offset\)"):
        check_reproducible(program, **arguments)


def test_a_check_puts_everything_back() -> None:
    with nbrt.fork_rng():
        nbrt.random.rand(4)
        before = nbrt.random.get_state().tolist(), nbrt.current_device()

        def program() -> None:
            nbrt.random.rand(4)

        check_reproducible(program, devices=["cpu:1"], threads=[3], shards=[])
        assert (nbrt.random.get_state().tolist(), nbrt.current_device()) == before


@pytest.mark.parametrize("arguments", [{"devices": []}, {"threads": ()}])
def test_a_check_that_would_run_nowhere(arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="expected devices and numbers of threads"):
        check_reproducible(lambda: None, **arguments)
