"""Modules, libraries, kernels, functions and the linker of the simulated device."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cuda.bindings import driver

from helpers.driver_calls import call, status
from helpers.ptx_kernels import kernel, module

if TYPE_CHECKING:
    from pathlib import Path

Attribute = driver.CUfunction_attribute
Jit = driver.CUjit_option

COUNTER = ".visible .global .align 4 .u32 counter = 40;\n"
COUNT = kernel("count", "u64 out", "atom.global.add.u32 %r0, [counter], 1;\n")
SHARED = ".shared .align 16 .b8 table[400];\n"
EMPTY = kernel("empty", "u64 out, u32 n, u64 other", "", limits=".maxntid 64, 2, 1")
IMAGE = module(COUNTER, COUNT, SHARED, EMPTY)


@pytest.fixture
def library(device: Any) -> driver.CUlibrary:
    return call(driver.cuLibraryLoadData(IMAGE, [], [], 0, [], [], 0))


def read(address: Any) -> int:
    value = np.zeros(1, np.uint32)
    call(driver.cuMemcpyDtoH(value.ctypes.data, address, 4))
    return int(value[0])


def test_functions_of_a_module(device: Any) -> None:
    loaded = device.load(COUNTER, COUNT, EMPTY)
    assert call(driver.cuModuleGetFunctionCount(loaded)) == 2
    names = {
        call(driver.cuFuncGetName(f)) for f in call(driver.cuModuleEnumerateFunctions(2, loaded))
    }
    assert names == {b"count", b"empty"}
    function = call(driver.cuModuleGetFunction(loaded, b"empty"))
    assert int(call(driver.cuFuncGetModule(function))) == int(loaded)
    assert call(driver.cuFuncIsLoaded(function)).name.endswith("_LOADED")
    assert [call(driver.cuFuncGetParamInfo(function, i)) for i in range(3)] == [
        (0, 8),
        (8, 4),
        (16, 8),
    ]
    assert status(driver.cuFuncGetParamInfo(function, 3)) == "INVALID_VALUE"
    assert status(driver.cuModuleGetFunction(loaded, b"missing")) == "NOT_FOUND"


def test_each_load_has_its_own_variables(device: Any) -> None:
    first, second = device.load(COUNTER, COUNT), device.load(COUNTER, COUNT)
    function = call(driver.cuModuleGetFunction(first, b"count"))
    device.run(function, 1, 2, ctypes.c_uint64(0))
    (a, size), (b, _) = (call(driver.cuModuleGetGlobal(m, b"counter")) for m in (first, second))
    assert size == 4
    assert (read(a), read(b)) == (42, 40)
    assert status(driver.cuModuleGetGlobal(first, b"missing")) == "NOT_FOUND"
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert call(driver.cuPointerGetAttribute(kind, a)) == driver.CUmemorytype.CU_MEMORYTYPE_DEVICE


def test_unloaded_module_is_no_module(device: Any) -> None:
    loaded = device.load(EMPTY)
    function = call(driver.cuModuleGetFunction(loaded, b"empty"))
    call(driver.cuModuleUnload(loaded))
    assert status(driver.cuModuleUnload(loaded)) == "INVALID_HANDLE"
    assert status(driver.cuModuleGetFunction(loaded, b"empty")) == "INVALID_HANDLE"
    assert status(driver.cuFuncGetName(function)) == "INVALID_HANDLE"
    assert status(device.launch(function, 1, 1, *[ctypes.c_uint64()] * 3)) == "INVALID_HANDLE"


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (b"\x7fELF\x02\x01\x01", "NO_BINARY_FOR_GPU"),
        (b"\x50\xed\x55\xba\x01", "NO_BINARY_FOR_GPU"),
        (b"not an image", "INVALID_IMAGE"),
        (b"", "INVALID_IMAGE"),
        (module(".visible .entry broken() { add.u32 %x; }"), "INVALID_PTX"),
    ],
)
def test_image_that_cannot_run(device: Any, image: bytes, expected: str) -> None:
    assert status(driver.cuModuleLoadData(image)) == expected
    assert status(driver.cuLibraryLoadData(image, [], [], 0, [], [], 0)) == expected


def test_log_of_the_compiler(device: Any) -> None:
    log = bytearray(2000)
    options = [Jit.CU_JIT_ERROR_LOG_BUFFER, Jit.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    image = module(".visible .entry broken()\n{\n add.u32 %x;\n}\n")
    result = driver.cuModuleLoadDataEx(image, 2, options, [log, len(log)])
    assert status(result) == "INVALID_PTX"
    assert b"%x" in log or b"add" in log


def test_ptx_for_a_newer_device_is_refused(device: Any) -> None:
    header = ".version 8.0\n.target sm_{}\n.address_size 64\n"
    newer = module(EMPTY, header=header.format("100a"))
    log = bytearray(200)
    options = [Jit.CU_JIT_ERROR_LOG_BUFFER, Jit.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    result = driver.cuModuleLoadDataEx(newer, 2, options, [log, len(log)])
    assert status(result) == "NO_BINARY_FOR_GPU"
    assert b"for sm_100, and the device is sm_90" in log
    call(driver.cuModuleUnload(call(driver.cuModuleLoadData(newer.replace(b"100a", b"90a")))))


def test_module_of_a_file(device: Any, tmp_path: Path) -> None:
    path = tmp_path / "module.ptx"
    path.write_bytes(IMAGE)
    loaded = call(driver.cuModuleLoad(str(path).encode()))
    assert call(driver.cuModuleGetFunctionCount(loaded)) == 2
    assert status(driver.cuModuleLoad(str(tmp_path / "missing").encode())) == "FILE_NOT_FOUND"


def test_module_needs_a_context(initialised: Any) -> None:
    call(driver.cuCtxSetCurrent(driver.CUcontext(0)))
    assert status(driver.cuModuleLoadData(IMAGE)) == "INVALID_CONTEXT"


def test_kernels_of_a_library(device: Any, library: driver.CUlibrary) -> None:
    assert call(driver.cuLibraryGetKernelCount(library)) == 2
    names = [
        call(driver.cuKernelGetName(k)) for k in call(driver.cuLibraryEnumerateKernels(2, library))
    ]
    assert sorted(names) == [b"count", b"empty"]
    kernel_ = call(driver.cuLibraryGetKernel(library, b"count"))
    assert int(call(driver.cuLibraryGetKernel(library, b"count"))) == int(kernel_)
    assert int(call(driver.cuKernelGetLibrary(kernel_))) == int(library)
    assert call(driver.cuKernelGetParamInfo(kernel_, 0)) == (0, 8)
    assert status(driver.cuLibraryGetKernel(library, b"missing")) == "NOT_FOUND"
    function = call(driver.cuKernelGetFunction(kernel_))
    assert int(call(driver.cuFuncGetModule(function))) == int(
        call(driver.cuLibraryGetModule(library))
    )


def test_library_has_variables_in_each_context(device: Any, library: driver.CUlibrary) -> None:
    kernel_ = call(driver.cuLibraryGetKernel(library, b"count"))
    device.run(driver.CUfunction(int(kernel_)), 1, 3, ctypes.c_uint64(0))
    here, _ = call(driver.cuLibraryGetGlobal(library, b"counter"))
    other = call(driver.cuCtxCreate(None, 0, 1))
    there, _ = call(driver.cuLibraryGetGlobal(library, b"counter"))
    assert (read(here), read(there)) == (43, 40)
    device.run(call(driver.cuKernelGetFunction(kernel_)), 1, 2, ctypes.c_uint64(0))
    assert (read(here), read(there)) == (43, 42)
    call(driver.cuCtxDestroy(other))
    call(driver.cuLibraryUnload(library))
    assert status(driver.cuLibraryUnload(library)) == "INVALID_HANDLE"
    assert status(driver.cuKernelGetName(kernel_)) == "INVALID_HANDLE"


def test_managed_variables_of_a_library(device: Any) -> None:
    image = module(
        ".visible .global .attribute(.managed) .align 4 .u32 both = 3;\n", COUNTER, COUNT
    )
    loaded = call(driver.cuLibraryLoadData(image, [], [], 0, [], [], 0))
    address, size = call(driver.cuLibraryGetManaged(loaded, b"both"))
    assert (size, ctypes.c_uint32.from_address(int(address)).value) == (4, 3)
    assert status(driver.cuLibraryGetManaged(loaded, b"counter")) == "NOT_FOUND"


def test_attributes_of_functions(device: Any) -> None:
    uses = kernel("uses", "u64 out", "ld.shared.u32 %r0, [table];\nld.const.u32 %r0, [c + 4];")
    loaded = device.load(SHARED, ".const .align 4 .b32 c[2][5];\n", EMPTY, uses)
    empty, uses = (call(driver.cuModuleGetFunction(loaded, n)) for n in (b"empty", b"uses"))

    def value(name: str, function: Any) -> int:
        return call(
            driver.cuFuncGetAttribute(getattr(Attribute, f"CU_FUNC_ATTRIBUTE_{name}"), function)
        )

    assert value("MAX_THREADS_PER_BLOCK", empty) == 128
    assert value("MAX_THREADS_PER_BLOCK", uses) == 1024
    assert 400 <= value("SHARED_SIZE_BYTES", uses) <= 416
    assert value("CONST_SIZE_BYTES", uses) == 40
    assert value("PTX_VERSION", uses) == 80
    assert value("MAX_DYNAMIC_SHARED_SIZE_BYTES", empty) <= 48 * 1024
    assert value("NUM_REGS", empty) > 0
    limit = Attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    call(driver.cuFuncSetAttribute(empty, limit, 60_000))
    assert value("MAX_DYNAMIC_SHARED_SIZE_BYTES", empty) == 60_000
    assert status(driver.cuFuncSetAttribute(empty, limit, 1 << 20)) == "INVALID_VALUE"
    registers = Attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
    assert status(driver.cuFuncSetAttribute(empty, registers, 9)) == "INVALID_VALUE"


def test_attributes_of_a_kernel_belong_to_a_device(device: Any, library: driver.CUlibrary) -> None:
    kernel_ = call(driver.cuLibraryGetKernel(library, b"empty"))
    carveout = Attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    call(driver.cuKernelSetAttribute(carveout, 50, kernel_, 1))
    values = [call(driver.cuKernelGetAttribute(carveout, kernel_, number)) for number in (0, 1)]
    assert values == [-1, 50]
    assert status(driver.cuKernelGetAttribute(carveout, kernel_, 99)) == "INVALID_DEVICE"


# ---- linking ------------------------------------------------------------------------------------

HELPER = """
.func (.param .b32 result) helper(.param .b32 value)
{{
    .reg .b32 %r<2>;
    ld.param.u32 %r0, [value];
    add.u32 %r0, %r0, {0};
    st.param.b32 [result], %r0;
    ret;
}}
.visible .func (.param .b32 result) {1}(.param .b32 value)
{{
    .reg .b32 %r<2>;
    ld.param.u32 %r0, [value];
    {{
    .param .b32 a; .param .b32 b;
    st.param.b32 [a], %r0;
    call (b), helper, (a);
    ld.param.b32 %r1, [b];
    }}
    st.param.b32 [result], %r1;
    ret;
}}
"""
EXTERN = ".extern .func (.param .b32 result) {}(.param .b32 value);\n"
CALL = """
{{
    .param .b32 a; .param .b32 b;
    st.param.b32 [a], %r0;
    call (b), {}, (a);
    ld.param.b32 %r0, [b];
}}
"""
MAIN = kernel(
    "main",
    "u64 out",
    "mov.u32 %r0, 0;\n"
    + CALL.format("tens")
    + CALL.format("ones")
    + "st.global.u32 [%out], %r0;\n",
)


def link(*images: bytes, kind: Any = None, names: Any = None) -> tuple[Any, bytearray, Any]:
    log = bytearray(1000)
    options = [Jit.CU_JIT_ERROR_LOG_BUFFER, Jit.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    state = call(driver.cuLinkCreate(2, options, [log, len(log)]))
    ptx = driver.CUjitInputType.CU_JIT_INPUT_PTX
    for number, image in enumerate(images):
        name = f"input{number}".encode()
        call(driver.cuLinkAddData(state, ptx, image, len(image), name, 0, [], []))
    return driver.cuLinkComplete(state), log, state


def test_link_resolves_and_keeps_private_functions_apart(device: Any) -> None:
    result, _, state = link(
        module(EXTERN.format("tens"), EXTERN.format("ones"), MAIN),
        module(HELPER.format(40, "tens")),
        module(HELPER.format(2, "ones")),
    )
    image, size = call(result)
    text = ctypes.string_at(int(image), size)
    call(driver.cuLinkDestroy(state))
    function = call(driver.cuModuleGetFunction(call(driver.cuModuleLoadData(text)), b"main"))
    out = device.array([0])
    device.run(function, 1, 1, out)
    assert out.get()[0] == 42
    assert status(driver.cuLinkDestroy(state)) == "INVALID_HANDLE"


def test_link_names_what_is_missing(device: Any) -> None:
    result, log, state = link(
        module(EXTERN.format("tens"), EXTERN.format("ones"), MAIN), module(HELPER.format(1, "ones"))
    )
    assert status(result) == "NO_BINARY_FOR_GPU"
    assert b"Undefined reference to 'tens'" in log
    call(driver.cuLinkDestroy(state))


def test_link_takes_ptx_only(device: Any) -> None:
    state = call(driver.cuLinkCreate(0, [], []))
    kinds = driver.CUjitInputType

    def add(kind: Any, data: bytes, name: bytes = b"name") -> str:
        return status(driver.cuLinkAddData(state, kind, data, len(data), name, 0, [], []))

    assert add(kinds.CU_JIT_INPUT_CUBIN, b"\x7fELF") == "NO_BINARY_FOR_GPU"
    assert add(kinds.CU_JIT_INPUT_LIBRARY, b"!<arch>", b"libother.a") == "NO_BINARY_FOR_GPU"
    assert add(kinds.CU_JIT_INPUT_LIBRARY, b"!<arch>", b"libcudadevrt.a") == "SUCCESS"
    assert add(kinds.CU_JIT_INPUT_PTX, b"no ptx") == "INVALID_PTX"
    assert status(driver.cuLinkComplete(state)) == "INVALID_VALUE"
    call(driver.cuLinkDestroy(state))
