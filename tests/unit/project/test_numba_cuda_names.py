"""The page of names of numba.cuda holds for the installed numba-cuda."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import numba_cuda_names  # noqa: E402
from nbrt.compat.numba_cuda.successor import REFUSED, SUPPLIED  # noqa: E402


def test_every_host_name_has_a_state() -> None:
    assert set(numba_cuda_names.host_names()) == set(numba_cuda_names.FEATURES)


def test_every_name_of_the_successor_is_supplied_or_refused() -> None:
    assert set(numba_cuda_names.successor_names()) == SUPPLIED.keys() | REFUSED.keys()
    assert not SUPPLIED.keys() & REFUSED.keys()


def test_the_page_is_that_of_the_installed_package() -> None:
    written = numba_cuda_names.PAGE.read_text(encoding="utf-8")
    assert written == numba_cuda_names.page(), "run tools/numba_cuda_names.py --write"
