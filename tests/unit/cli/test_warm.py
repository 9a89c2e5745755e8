"""``nbrt warm``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbrt.backends.code_store.store import CodeStore
from nbrt.cli.main import main
from nbrt.config import override

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCRIPT = """\
import sys

import nbrt
from numba import cuda

@nbrt.kernel
def fill(x, value):
    x[cuda.grid(1)] = value

@nbrt.kernel
def broken(x):
    x[0] = x.nonsense

x = nbrt.zeros(8)
fill[1, 8](x, 2.0)
if "broken" in sys.argv:
    broken[1, 8](x)
if "read" in sys.argv:
    print("read", float(nbrt.to_host(x)[0]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    with override(cache_dir=str(tmp_path / "cache")):
        yield str(path)


def test_the_kernels_of_a_script_are_compiled(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for source in ("compiled", "cached"):
        assert main(["warm", "--device", "cpu", "--workers", "0", script]) == 0
        assert f"1 kernel: 1 {source}; " in capsys.readouterr().out
    assert len(list(CodeStore("cpu").entries())) == 1


def test_errors_of_a_kernel_are_printed(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warm", "--device", "cpu", "--workers", "0", script, "broken"]) == 1
    out = capsys.readouterr().out
    assert "2 kernels: 1 compiled, 1 failed; " in out
    assert "broken does not compile, launched at train.py:17 <module>:" in out
    assert "train.py:12" in out


def test_reads_of_a_script(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["warm", "--device", "cpu", "--workers", "0"]
    assert main([*options, "--reads", "zeros", script, "read"]) == 0
    assert "read 0.0\n" in capsys.readouterr().out
    assert main([*options, script, "read"]) == 1
    printed = capsys.readouterr()
    assert "1 kernel: 1 cached; " in printed.out
    assert "The script ended with status 1: the table covers the part that ran." in printed.out
    assert "FakeReadError" in printed.err


def test_unknown_gpus_are_refused(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warm", "--targets", "H100,nothing", script]) == 1
    assert "nbrt: expected a GPU" in capsys.readouterr().err
