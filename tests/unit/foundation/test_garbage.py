"""`gc_disabled`: nothing is collected by itself in the block, and as before behind it."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda
from numba.core.registry import CPUDispatcher

import nbrt
from nbrt import config
from nbrt._internal.gc_control import gc_disabled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def collections() -> Iterator[list[str]]:
    """Count the collections of a block."""
    found: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        found.append(phase)

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


def test_nothing_is_collected_in_the_block() -> None:
    with collections() as found:
        with gc_disabled():
            kept = [[] for _ in range(100_000)]
            assert found == []
        assert gc.isenabled()
        kept += [[] for _ in range(100_000)]
        assert found
    assert len(kept) == 200_000


def test_blocks_nest_and_end_by_errors_too() -> None:
    found = []

    @gc_disabled()
    def fail() -> None:
        with gc_disabled():
            pass
        found.append(gc.isenabled())
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        fail()
    assert found == [False]
    assert gc.isenabled()


def test_who_has_turned_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with gc_disabled():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_compiling_collects_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enabled: list[bool] = []
    compile_entry = CPUDispatcher.compile

    def compile_and_look(self: CPUDispatcher, signature: Any) -> Any:
        enabled.append(gc.isenabled())
        return compile_entry(self, signature)

    def add_one(x: Any) -> None:
        x[cuda.threadIdx.x] += 1

    monkeypatch.setattr(CPUDispatcher, "compile", compile_and_look)
    x = np.zeros(32)
    with config.override(cache_dir=str(tmp_path)), nbrt.device("cpu"):
        nbrt.kernel(add_one)[1, 32](x)
    assert x.tolist() == [1] * 32
    assert enabled
    assert not any(enabled)
    assert gc.isenabled()
