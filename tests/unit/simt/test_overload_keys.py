"""Registrations with Numba, in the keys of compiled kernels on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers.processes import output_of

if TYPE_CHECKING:
    from pathlib import Path


def test_the_registrations_of_nbrt_are_not_of_the_program() -> None:
    code = """
from nbrt.backends.foreign_overloads import hash_overloads
from nbrt.backends.cpu.simt.builtins import REPLACEMENTS
from nbrt.backends.cpu.simt.target import register_whole_library
register_whole_library()
len(REPLACEMENTS)  # imports all builtins
print(hash_overloads(lambda function: b""))
"""
    assert output_of(code).strip() == "b''"


def test_packages_that_numba_imports_late_do_not_change_keys(tmp_path: Path) -> None:
    """The key of the first kernel is computed before Numba imports them, others after."""
    package, info = tmp_path / "late_package", tmp_path / "late_package-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: late_package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[numba_extensions]\ninit = late_package:register\n")
    (package / "__init__.py").write_text(
        """
from numba.core import types
from numba.extending import overload_method

def register():
    @overload_method(types.Array, "late_total")
    def late_total(array):
        return lambda array: array.sum()
"""
    )
    (tmp_path / "program.py").write_text(
        """
import numpy as np
import nbrt

@nbrt.kernel
def one(x):
    x[0] = 1

@nbrt.kernel
def total(x):
    x[1] = x.late_total()

x = np.ones(2)
with nbrt.device("cpu:0"):
    one[1, 1](x)
    total[1, 1](x)
print(x)
"""
    )
    cache = tmp_path / "cache"
    for _ in range(2):
        environment = {"NBRT_CACHE_DIR": str(cache)}
        assert output_of("import program", environment=environment, path=(tmp_path,)) == "[1. 2.]\n"
        assert len(list(cache.rglob("*.nbrtc"))) == 2
