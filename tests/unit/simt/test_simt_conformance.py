"""The conformance runner: what it calls passed, failed and not applicable.

The tests that it is given are written here, in the style of numba-cuda's own.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from helpers.clocks import HANG_TIMEOUT

if TYPE_CHECKING:
    import selectors

ROOT = Path(__file__).resolve().parents[3]

KERNELS = """
import subprocess
import sys

import numpy as np
from numba import cuda, int32
from numba.cuda.core.errors import TypingError
from numba.cuda.testing import CUDATestCase, skip_on_cudasim, unittest


@cuda.jit(device=True)
def plus(a, b):
    return a + b


@cuda.jit
def shifted(out, values, by):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = plus(values[i], by)


class TestKernels(CUDATestCase):
    def test_host_arrays(self):
        out = np.zeros(100)
        shifted[4, 32](out, np.arange(100.0), 2)
        np.testing.assert_array_equal(out, np.arange(100.0) + 2)

    def test_device_arrays_and_stream(self):
        stream = cuda.stream()
        values = cuda.to_device(np.arange(100.0), stream=stream)
        out = cuda.device_array_like(values)
        shifted.forall(100, stream=stream)(out, values, 3)
        stream.synchronize()
        np.testing.assert_array_equal(out.copy_to_host(), np.arange(100.0) + 3)

    @skip_on_cudasim("the simulator ignores signatures")
    def test_signature_converts(self):
        @cuda.jit("void(int32[:], int32)")
        def store(out, value):
            out[0] = value >> 1

        out = np.zeros(1, np.int32)
        store[1, 1](out, 2**32 - 1)
        self.assertEqual(out[0], -1)

    @skip_on_cudasim("the simulator checks no types")
    def test_typing_error(self):
        with self.assertRaises(TypingError):
            cuda.jit("void(int32[:])")(lambda out: out.no_such_method())

    @skip_on_cudasim("the simulator compiles nothing")
    def test_ptx(self):
        shifted[1, 32](np.zeros(1), np.zeros(1), 1)
        self.assertIn(".entry", next(iter(shifted.inspect_asm().values())))

    def test_wrong(self):
        out = np.zeros(1)
        shifted[1, 1](out, np.ones(1), 1)
        self.assertEqual(out[0], 3)

    def test_no_kernel(self):
        self.assertEqual(1 + 1, 2)

    def test_in_a_child(self):
        code = (
            "from numba import cuda\\nimport numpy as np\\n"
            "@cuda.jit\\ndef fives(x):\\n    x[cuda.grid(1)] = 5\\n"
            "x = np.zeros(2)\\nfives[1, 2](x)\\nassert x.sum() == 10"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
"""

DEATHS = """
import ctypes
import threading
from pathlib import Path


def test_a_hangs():
    Path(__file__).with_suffix(".hangs").touch()
    threading.Event().wait()


def test_b_dies():
    ctypes.string_at(0)


def test_c_still_runs():
    raise ValueError("as expected")
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for folder, name, text in (("cudapy", "kernels", KERNELS), ("doc_examples", "deaths", DEATHS)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
        (tmp_path / folder / f"test_{name}.py").write_text(text)
    return tmp_path


def outcomes(suite: Path, only: str, *options: str) -> dict[str, tuple[str, str]]:
    results = suite / "results.json"
    command = [sys.executable, "-m", "tests.conformance", str(suite), "--only", only]
    limit = ["--limit", str(HANG_TIMEOUT)]
    files = ["--json", str(results), "--report", str(suite / "page.md")]
    subprocess.run([*command, *limit, *files, *options], check=True, cwd=ROOT, capture_output=True)
    found = {}
    for engine, modules in json.loads(results.read_text()).items():
        for tests in modules.values():
            for test in tests:
                name = test["test"].rpartition(".")[2].rpartition("::")[2]
                found[f"{engine} {name}"] = (test["outcome"], test["detail"])
    return found


def test_kernels_under_both_engines(suite: Path) -> None:
    found = outcomes(suite, "kernels")
    told = {name: outcome for name, (outcome, _) in found.items()}
    assert told == {
        "nbrt test_host_arrays": "passed",
        "nbrt test_device_arrays_and_stream": "passed",
        "nbrt test_signature_converts": "passed",
        "nbrt test_typing_error": "passed",
        "nbrt test_ptx": "passed",
        "nbrt test_wrong": "failed",
        "nbrt test_no_kernel": "passed",
        "nbrt test_in_a_child": "passed",
        "simulator test_host_arrays": "passed",
        "simulator test_device_arrays_and_stream": "passed",
        "simulator test_signature_converts": "skipped",
        "simulator test_typing_error": "skipped",
        "simulator test_ptx": "skipped",
        "simulator test_wrong": "failed",
        "simulator test_no_kernel": "passed",
        "simulator test_in_a_child": "passed",
    }
    assert "(2.0) != 3" in found["nbrt test_wrong"][1]
    page = (suite / "page.md").read_text()
    assert "| cudapy/test_kernels | 7 | 6 | 1 | 0 | 4 | 1 | 3 |" in page
    assert "`cudapy/test_kernels.py::TestKernels.test_wrong`" in page


def test_a_hang_and_a_crash_cost_only_their_own_test(
    suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    runner: Any = importlib.import_module("tests.conformance.runner")
    hangs = suite / "doc_examples" / "test_deaths.hangs"
    limits = []

    def comes(selector: selectors.BaseSelector, seconds: float) -> bool:
        """Let the time be over once the first test hangs, however long the others take."""
        while not selector.select(0.05):
            if hangs.exists():
                hangs.unlink()
                limits.append(seconds)
                return False
        return True

    monkeypatch.setattr(runner, "_comes", comes)
    hung, died, ran = runner.run_file("simulator", suite, "doc_examples.test_deaths", 3.0)
    assert hung.test.endswith("test_a_hangs")
    assert (hung.outcome, hung.detail) == ("failed", "TimeLimit: more than 3 s")
    assert died.detail.startswith("ProcessDied: exit status -11")
    assert ran.detail.startswith("ValueError: as expected")
    assert limits == [3.0]
