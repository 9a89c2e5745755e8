"""The callbacks that the driver calls, through their C types."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from simulated_cuda.ptx import translator
from unit.simulated_cuda.ptx.executor import HEADER, SIGNATURES

if TYPE_CHECKING:
    from pathlib import Path

SUCCESS, INVALID_VALUE, INVALID_PTX, NOT_FOUND = 0, 1, 218, 500
TEXT = (
    HEADER
    + """
    .visible .global .align 8 .b8 data[24];
    .visible .entry first(.param .u64 a, .param .u32 b) .maxntid 64 { bar.sync 0; ret; }
    .visible .entry second() { .shared .u32 s; st.shared.u32 [s], 1; ret; }"""
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBRT_CACHE_DIR", str(tmp_path))


@pytest.fixture
def callbacks() -> Any:
    """The callbacks that a library gets."""
    received = []

    def set_translator(address: int) -> None:
        received.append(translator._Translator.from_address(address))

    functions = {
        name: ctypes.CFUNCTYPE(*signature)(lambda *_arguments: 0)
        for name, signature in SIGNATURES.items()
    }
    setter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(set_translator)
    library = SimpleNamespace(**functions, sim_set_translator=setter)
    translator.register(library)
    return received[0]


def load(callbacks: Any, text: bytes) -> tuple[int, Any, str]:
    module, error = ctypes.c_void_p(), ctypes.create_string_buffer(200)
    status = callbacks.load(text, len(text), 90, ctypes.byref(module), error, 200)
    return status, module, error.value.decode()


def test_kernels_and_variables_of_a_module(callbacks: Any) -> None:
    status, module, _ = load(callbacks, TEXT.encode())
    assert status == SUCCESS
    names = ctypes.create_string_buffer(100)
    assert callbacks.kernels(module, names, 100) == SUCCESS
    assert names.value == b"first\nsecond"
    assert callbacks.kernels(module, names, 5) == INVALID_VALUE
    info = translator.KernelInfo()
    assert callbacks.kernel(module, b"first", ctypes.byref(info)) == SUCCESS
    assert info.entry
    assert (info.parameter_count, info.parameter_bytes, info.max_threads) == (2, 12, 64)
    assert [(p.offset, p.size) for p in info.parameters[:2]] == [(0, 8), (8, 4)]
    assert (info.waits, info.spins, info.static_shared) == (1, 0, 0)
    assert callbacks.kernel(module, b"second", ctypes.byref(info)) == SUCCESS
    assert (info.waits, info.static_shared, info.parameter_count) == (0, 4, 0)
    assert callbacks.kernel(module, b"third", ctypes.byref(info)) == NOT_FOUND
    address, size = ctypes.c_void_p(), ctypes.c_size_t()
    arguments = ctypes.byref(address), ctypes.byref(size)
    assert callbacks.global_(module, b"data", *arguments) == SUCCESS
    assert address.value
    assert size.value == 24
    assert callbacks.global_(module, b"first", *arguments) == NOT_FOUND
    assert callbacks.unload(module) == SUCCESS
    assert callbacks.unload(module) == INVALID_VALUE
    assert callbacks.kernel(module, b"first", ctypes.byref(info)) == INVALID_VALUE


def test_invalid_ptx_gives_a_message_that_fits(callbacks: Any) -> None:
    status, _, message = load(callbacks, HEADER.encode() + b".visible .entry k()\n{ nonsense; }")
    assert status == INVALID_PTX
    assert message == "ptx, line 5: unsupported instruction nonsense"
    error = ctypes.create_string_buffer(8)
    module = ctypes.c_void_p()
    assert callbacks.load(b"nonsense", 8, 90, ctypes.byref(module), error, 8) == INVALID_PTX
    assert error.value == b"ptx, li"


def test_text_may_end_with_zeros_and_size_may_be_unknown(callbacks: Any) -> None:
    assert load(callbacks, TEXT.encode() + b"\0\0")[0] == SUCCESS
    module = ctypes.c_void_p()
    assert callbacks.load(TEXT.encode(), 0, 90, ctypes.byref(module), None, 0) == SUCCESS


def test_the_layout_of_the_structures_is_that_of_the_header() -> None:
    info = translator.KernelInfo
    assert info.parameters.offset == 16
    assert info.static_shared.offset == 16 + 512 * 8
    assert info.required_threads.offset == info.max_threads.offset + 4
    assert ctypes.sizeof(info) == 16 + 512 * 8 + 10 * 4
