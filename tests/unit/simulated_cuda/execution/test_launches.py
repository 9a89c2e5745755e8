"""Checks of launches, forms of parameters, occupancy, printing and the heap of kernels."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from helpers.driver_calls import Latch, call, status
from helpers.ptx_kernels import kernel

EMPTY = kernel("empty", "", "")
BUFFER = ".extern .shared .align 16 .b8 buffer[];\n"
ADD = kernel(
    "add",
    "u64 out, u32 a, u64 b",
    "cvt.u64.u32 %d0, %a;\nadd.u64 %d0, %d0, %b;\nst.global.u64 [%out], %d0;\n",
)
DYNAMIC_LIMIT = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@pytest.mark.parametrize(
    ("grid", "block", "shared"),
    [
        (0, 1, 0),
        (1, 0, 0),
        (1, 1025, 0),
        (1, (1, 1, 65), 0),
        ((1, 65536), 1, 0),
        (1, (32, 33), 0),
        (1, 1, 48 * 1024 + 1),
    ],
)
def test_geometry_out_of_limits(device: Any, grid: Any, block: Any, shared: int) -> None:
    assert (
        status(device.launch(device.function(EMPTY), grid, block, shared=shared)) == "INVALID_VALUE"
    )


def test_limits_of_a_kernel(device: Any) -> None:
    limited = device.function(kernel("limited", "", "", limits=".maxntid 64, 1, 1"))
    required = device.function(kernel("required", "", "", limits=".reqntid 8, 4, 1"))
    assert status(device.launch(limited, 1, 65)) == "INVALID_VALUE"
    assert status(device.launch(required, 1, 32)) == "INVALID_VALUE"
    device.run(limited, 1, 64)
    device.run(required, 1, (8, 4))


def test_more_shared_memory_must_be_asked_for(device: Any) -> None:
    text = BUFFER + kernel("large", "", "mov.u32 %r0, buffer; st.shared.u32 [%r0 + 65532], %tid;")
    function = device.function(text)
    assert status(device.launch(function, 1, 1, shared=65536)) == "INVALID_VALUE"
    call(driver.cuFuncSetAttribute(function, DYNAMIC_LIMIT, 65536))
    device.run(function, 1, 1, shared=65536)


def test_packed_parameters(device: Any) -> None:
    class Packed(ctypes.Structure):
        _fields_ = (("out", ctypes.c_uint64), ("a", ctypes.c_uint32), ("b", ctypes.c_uint64))

    out = device.array([0], np.uint64)
    function, packed = device.function(ADD), Packed(out.address, 5, 1 << 40)
    size = ctypes.c_size_t(ctypes.sizeof(packed))
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(packed), 2, ctypes.addressof(size), 0)
    call(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, ctypes.addressof(extra)))
    call(driver.cuCtxSynchronize())
    assert out.get()[0] == (1 << 40) + 5
    size.value = 12
    result = driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, ctypes.addressof(extra))
    assert status(result) == "INVALID_VALUE"


def test_parameters_are_copied_by_the_launch(device: Any) -> None:
    stream = call(driver.cuStreamCreate(1))
    out, latch = device.array([0], np.uint64), Latch().hold(stream)
    value = ctypes.c_uint64(7)
    call(device.launch(device.function(ADD), 1, 1, out, 1, value, stream=stream))
    value.value = 9
    latch.open()
    call(driver.cuStreamSynchronize(stream))
    assert out.get()[0] == 8
    call(driver.cuStreamDestroy(stream))


def test_missing_function_and_parameters(device: Any) -> None:
    assert status(device.launch(driver.CUfunction(0), 1, 1)) == "INVALID_HANDLE"
    assert status(device.launch(driver.CUfunction(4096), 1, 1)) == "INVALID_HANDLE"
    assert status(device.launch(device.function(ADD), 1, 1)) == "INVALID_VALUE"


def test_function_of_another_context(device: Any) -> None:
    function = device.function(EMPTY)
    other = call(driver.cuCtxCreate(None, 0, 1))
    assert status(device.launch(function, 1, 1)) == "INVALID_HANDLE"
    call(driver.cuCtxDestroy(other))
    device.run(function, 1, 1)


def launch_with(function: Any, kind: str, **values: Any) -> str:
    """Launch with an attribute; return the status."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{kind}")
    value = attribute.value
    for name, given in values.items():
        part, _, field = name.partition("__")
        if field:
            inner = getattr(value, part)
            setattr(inner, field, given)
            given = inner
        setattr(value, part, given)
    attribute.value = value
    config = driver.CUlaunchConfig()
    config.gridDimX = config.gridDimY = config.gridDimZ = 1
    config.blockDimX = config.blockDimY = config.blockDimZ = 1
    config.hStream = driver.CUstream(0)
    config.attrs, config.numAttrs = [attribute], 1
    return status(driver.cuLaunchKernelEx(config, function, 0, 0))


def test_attributes_of_a_launch(device: Any) -> None:
    function = device.function(EMPTY)
    assert launch_with(function, "COOPERATIVE", cooperative=1) == "SUCCESS"
    assert launch_with(function, "PRIORITY", priority=-1) == "SUCCESS"
    one = {"clusterDim__x": 1, "clusterDim__y": 1, "clusterDim__z": 1}
    assert launch_with(function, "CLUSTER_DIMENSION", **one) == "SUCCESS"
    assert launch_with(function, "CLUSTER_DIMENSION", **{**one, "clusterDim__x": 2}) == (
        "NOT_SUPPORTED"
    )


def test_launch_records_an_event(device: Any) -> None:
    event = call(driver.cuEventCreate(2))
    latch = Latch().hold(driver.CUstream(0))
    function = device.function(EMPTY)
    result = launch_with(function, "PROGRAMMATIC_EVENT", programmaticEvent__event=event)
    assert result == "SUCCESS"
    assert status(driver.cuEventQuery(event)) == "NOT_READY"
    latch.open()
    call(driver.cuEventSynchronize(event))
    call(driver.cuEventDestroy(event))


def test_module_may_be_unloaded_before_its_kernel_runs(device: Any) -> None:
    stream = call(driver.cuStreamCreate(1))
    out, latch = device.array([0], np.uint64), Latch().hold(stream)
    loaded = device.load(ADD)
    function = call(driver.cuModuleGetFunction(loaded, b"add"))
    call(device.launch(function, 1, 1, out, 1, ctypes.c_uint64(2), stream=stream))
    call(driver.cuModuleUnload(loaded))
    latch.open()
    call(driver.cuStreamSynchronize(stream))
    assert out.get()[0] == 3
    call(driver.cuStreamDestroy(stream))


# ---- occupancy ----------------------------------------------------------------------------------


def test_occupancy(device: Any) -> None:
    function = device.function(EMPTY)
    kinds = driver.CUdevice_attribute

    def limit(name: str) -> int:
        return call(driver.cuDeviceGetAttribute(getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}"), 0))

    def blocks(threads: int, shared: int = 0) -> int:
        return call(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared))

    assert blocks(1) == limit("MAX_BLOCKS_PER_MULTIPROCESSOR")
    assert blocks(1024) == limit("MAX_THREADS_PER_MULTIPROCESSOR") // 1024
    shared = limit("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR")
    assert blocks(32, 40_000) == shared // (40_064 + limit("RESERVED_SHARED_MEMORY_PER_BLOCK"))
    assert status(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 0, 0)) == (
        "INVALID_VALUE"
    )
    grid, block = call(driver.cuOccupancyMaxPotentialBlockSize(function, 0, 0, 0))
    assert grid == blocks(block) * limit("MULTIPROCESSOR_COUNT")
    assert grid * block == limit("MULTIPROCESSOR_COUNT") * limit("MAX_THREADS_PER_MULTIPROCESSOR")
    available = call(driver.cuOccupancyAvailableDynamicSMemPerBlock(function, 2, 128))
    call(driver.cuFuncSetAttribute(function, DYNAMIC_LIMIT, available))
    assert blocks(128, available) >= 2


# ---- printing and the heap ----------------------------------------------------------------------

FORMAT = b"%d %u %5.2f|%-6s|%c %llx %%\n\0"
PRINT = f"""\
.extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 values);
.global .align 1 .b8 format[{len(FORMAT)}] = {{{", ".join(map(str, FORMAT))}}};
.global .align 1 .b8 word[4] = {{97, 98, 99, 0}};
""" + kernel(
    "print",
    "",
    """
    .local .align 8 .b8 values[48];
    mov.u64 %d1, values;
    cvta.local.u64 %d1, %d1;
    st.u32 [%d1], -3;
    st.u32 [%d1 + 4], 7;
    st.f64 [%d1 + 8], 0d3FF8000000000000;
    mov.u64 %d2, word;
    cvta.global.u64 %d2, %d2;
    st.u64 [%d1 + 16], %d2;
    st.u32 [%d1 + 24], 90;
    st.u64 [%d1 + 32], 0xabcdef012;
    mov.u64 %d3, format;
    cvta.global.u64 %d3, %d3;
    {
    .param .b64 a; .param .b64 b; .param .b32 c;
    st.param.b64 [a], %d3;
    st.param.b64 [b], %d1;
    call (c), vprintf, (a, b);
    ld.param.b32 %r0, [c];
    }
    """,
)


def test_printf(device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    function = device.function(PRINT)
    call(device.launch(function, 1, 2))
    call(driver.cuCtxSynchronize())
    assert capfd.readouterr().out == "-3 7  1.50|abc   |Z abcdef012 %\n" * 2


def test_printf_has_a_limit(device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    call(driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE, 4096))
    device.run(device.function(PRINT), 1, 1024)
    assert 0 < len(capfd.readouterr().out) <= 4096


HEAP = """\
.extern .func (.param .b64 result) malloc(.param .b64 size);
.extern .func free(.param .b64 address);
""" + kernel(
    "heap",
    "u64 out, u64 bytes, u32 keep",
    """
    {
    .param .b64 a; .param .b64 b;
    st.param.b64 [a], %bytes;
    call (b), malloc, (a);
    ld.param.b64 %d0, [b];
    }
    mad.wide.u32 %d1, %index, 8, %out;
    st.global.u64 [%d1], %d0;
    setp.eq.u64 %p0, %d0, 0;
    @%p0 ret;
    st.u64 [%d0], %d0;
    setp.ne.u32 %p0, %keep, 0;
    @%p0 ret;
    {
    .param .b64 a;
    st.param.b64 [a], %d0;
    call free, (a);
    }
    """,
)


def test_heap_of_kernels(device: Any) -> None:
    call(driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE, 1 << 20))
    out, function = device.array(np.zeros(100), np.uint64), device.function(HEAP)
    device.run(function, 1, 100, out, ctypes.c_uint64(1000), 0)
    assert (out.get() != 0).all()
    device.run(function, 1, 20, out, ctypes.c_uint64(100_000), 1)
    assert (out.get()[:20] != 0).sum() == 10
