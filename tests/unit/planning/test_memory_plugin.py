"""``@pytest.mark.max_memory``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.clocks import HANG_TIMEOUT
from helpers.processes import output_of
from nbrt.testing import memory_plugin

if TYPE_CHECKING:
    import pytest

pytest_plugins = ["pytester"]

PLUGIN_TESTS = """
import unittest

import pytest

import nbrt


@pytest.mark.max_memory("24GB", gpu="L4")
def test_pass():
    assert nbrt.get_device_properties("cuda").name == "NVIDIA L4"
    nbrt.empty(24 * 10**9 - 2**21, "uint8")


@pytest.mark.max_memory("1GiB", gpu="H100", devices=2)
def test_pass_on_two_devices():
    a = nbrt.empty(2**30, "uint8", device="cuda:0")
    b = nbrt.empty(2**30, "uint8", device="cuda:1")


@pytest.mark.max_memory(2**20, reads="zeros")
def test_pass_with_reads():
    assert float(nbrt.to_host(nbrt.empty(3))[0]) == 0


@pytest.mark.max_memory("24GB", gpu="L4")
def test_fail_beyond():
    weights = nbrt.empty(20 * 10**9, "uint8")
    activations = nbrt.empty(5 * 10**9, "uint8")


@pytest.mark.max_memory("24GB")
def test_fail_itself():
    assert nbrt.empty(3).size == 4


@pytest.mark.max_memory("many")
def test_fail_size():
    pass


@pytest.mark.max_memory("1GB", gpu="L5")
def test_fail_gpu():
    pass


@pytest.mark.max_memory(gpu="L4")
def test_fail_arguments():
    pass


@pytest.mark.max_memory("1GB")
@pytest.mark.parametrize("size", [1, 2 * 10**9])
def test_parameters(size):
    nbrt.empty(size, "uint8")


class TestCase(unittest.TestCase):
    @pytest.mark.max_memory("1GB")
    def test_error_unittest(self):
        pass
"""


def test_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PLUGIN_TESTS)
    options = ["-p", "nbrt.testing.memory_plugin", "-p", "no:xdist", "-ra", "--strict-markers"]
    warnings = ["-W", "error", "-W", "ignore:Module already imported so cannot be rewritten"]
    result = pytester.runpytest_subprocess(*options, *warnings, timeout=HANG_TIMEOUT)
    result.assert_outcomes(passed=4, failed=6, errors=1)
    result.stdout.fnmatch_lines(
        [
            "expected at most 24GB (24,000,000,000 bytes) on each device, got 25,* bytes on cuda:0;"
            " test_the_plugin.py:* test_fail_beyond holds 18.6 GiB of them",
            "plan for L4 (*); fits: no, * short",
            "  test_the_plugin.py:* test_fail_beyond *18.6 GiB *",
            "  test_the_plugin.py:* test_fail_beyond *4.7 GiB *",
            "E*assert 3 == 4",
            "max_memory: expected a size such as '24GB' *got 'many'",
            "max_memory: expected a GPU *got 'L5'*",
            "expected max_memory with a limit, and compile, *got () and [[]'gpu'[]]",
        ]
    )
    assert "FAILED test_the_plugin.py::test_pass" not in result.stdout.str()


def test_the_plugin_comes_with_an_installed_nbrt() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    entries = project["entry-points"]["pytest11"]
    assert entries[memory_plugin.__name__] == memory_plugin.__name__


def test_an_unused_plugin_loads_nothing_heavy() -> None:
    code = """
        import sys
        import nbrt.testing.memory_plugin

        print([name for name in ("numpy", "numba", "nbrt.planning") if name in sys.modules])
    """
    assert output_of(code).strip() == "[]"
