"""The CPU that kernels compile for, on machines with other features than this one."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest

from nbrt.backends.cpu.simt.processor import processor
from nbrt.config import override
from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="names of x86-64 processors"
)

# The x86-64 psABI: what its levels have beyond the level below, for arithmetic.
_SECOND = {"popcnt", "sse3", "sse4.1", "sse4.2", "ssse3"}
_THIRD = {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}
_FOURTH = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.fixture(autouse=True)
def fresh_processor() -> Iterator[None]:
    """Nothing is remembered from or for other tests."""
    processor.cache_clear()
    yield
    processor.cache_clear()


def machine_with(monkeypatch: pytest.MonkeyPatch, features: set[str]) -> None:
    known = dict.fromkeys(llvm.get_host_cpu_features(), False)
    known |= dict.fromkeys(
        {"64bit", "cmov", "cx16", "cx8", "fxsr", "mmx", "sahf", "sse", "sse2"}, True
    )
    real = type(llvm.get_host_cpu_features())
    monkeypatch.setattr(
        llvm, "get_host_cpu_features", lambda: real(known | dict.fromkeys(features, True))
    )


def enabled() -> set[str]:
    return {each[1:] for each in processor().features.split(",") if each.startswith("+")}


def test_this_machine_is_the_default() -> None:
    with override(cpu=None):
        found = processor()
    assert found.name == llvm.get_host_cpu_name()
    assert found.features == llvm.get_host_cpu_features().flatten()


def test_levels_have_their_features_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, _SECOND | _THIRD | _FOURTH | {"xsave", "crc32", "avx512vnni"})
    expected: set[str] = set()
    for level, added in (("", set()), ("-v2", _SECOND), ("-v3", _THIRD), ("-v4", _FOURTH)):
        expected |= added
        with override(cpu=f"x86-64{level}"):
            processor.cache_clear()
            found = enabled()
        assert expected <= found
        later = (_SECOND | _THIRD | _FOURTH | {"avx512vnni"}) - expected
        assert not later & found


def test_a_machine_that_lacks_features(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, _SECOND | _THIRD | {"xsave", "crc32"})
    with override(cpu="x86-64-v4"), pytest.raises(ArgumentError) as caught:
        processor()
    assert "lacks avx512bw, avx512cd, avx512dq, avx512f, avx512vl" in str(caught.value)
    with override(cpu="x86-64-v3"):
        assert "avx2" in enabled()
