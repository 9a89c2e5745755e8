"""The path file through which NBRT_NUMBA_CUDA=1 acts on programs that do not import nbrt."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from helpers.processes import output_of

ROOT = Path(__file__).resolve().parents[3]
NAME = "nbrt_numba_cuda.pth"
SOURCE = ROOT / "nbrt" / "compat" / "numba_cuda" / NAME
LOADED = """
    import sys
    print(*sorted(name for name in sys.modules if name.partition(".")[0] in (
        "numba", "numpy", "numba_cuda", "cuda", "ctypes", "importlib.metadata", "nbrt")))
"""


def test_an_editable_install_has_the_file() -> None:
    installed = Path(sysconfig.get_paths()["purelib"]) / NAME
    assert installed.read_bytes() == SOURCE.read_bytes()


def test_python_runs_its_one_line() -> None:
    (line,) = SOURCE.read_text().splitlines()
    assert line.startswith("import "), "site adds other lines to sys.path"


def test_it_imports_nothing_without_the_variable_and_little_with_it() -> None:
    assert output_of(LOADED).split() == []
    loaded = output_of(LOADED, environment={"NBRT_NUMBA_CUDA": "1"}).split()
    assert "nbrt.compat.numba_cuda.startup" in loaded
    assert {name.partition(".")[0] for name in loaded} == {"nbrt"}
    assert {name for name in loaded if not name.startswith("nbrt.compat")} <= {
        "nbrt",
        "nbrt._lazy_exports",
        "nbrt.errors",
    }
