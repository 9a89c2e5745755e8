"""Faults of kernels on the simulated device: status, sticky error and report."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from helpers.driver_calls import call, status
from helpers.driver_launches import Device
from helpers.ptx_kernels import kernel

TESTS = Path(__file__).parents[3]

WRITE = kernel(
    "write_at",
    "u64 out, u64 offset",
    "add.u64 %d0, %out, %offset;\nmad.wide.u32 %d0, %tid, 4, %d0;\nst.global.u32 [%d0], %tid;\n",
)
READ = kernel(
    "read_at",
    "u64 out",
    "ld.global.u32 %r0, [%out];\nmul.lo.u32 %r0, %r0, 3;\nst.global.u32 [%out], %r0;\n",
)
BUFFER = ".extern .shared .align 16 .b8 buffer[];\n"


def fail(
    device: Any, simulation: Any, text: str, *arguments: Any, threads: int = 64, shared: int = 0
) -> tuple[str, str]:
    """Run a kernel that faults; return the status of the context and the report."""
    call(device.launch(device.function(text), 1, threads, *arguments, shared=shared))
    result = status(driver.cuCtxSynchronize())
    assert status(driver.cuMemAlloc(8)) == result, "the error is not sticky"
    return result, simulation.take_report()


def test_write_past_an_allocation(device: Any, simulation: Any) -> None:
    out = device.array(np.zeros(1024))
    result, report = fail(device, simulation, WRITE, out, ctypes.c_uint64(4096))
    assert result == "ILLEGAL_ADDRESS"
    assert "kernel write_at, block (0, 0, 0), thread (" in report
    assert "illegal write" in report
    assert "past the end of the device allocation" in report
    assert "of 4096 bytes" in report


def test_read_of_freed_memory(device: Any, simulation: Any) -> None:
    out = device.array(np.zeros(1024))
    call(driver.cuMemFree(out.address))
    result, report = fail(device, simulation, READ, out)
    assert result == "ILLEGAL_ADDRESS"
    assert "illegal read" in report
    assert "freed device allocation" in report


def test_null_pointer(device: Any, simulation: Any) -> None:
    result, report = fail(device, simulation, READ, ctypes.c_uint64(16))
    assert (result, "null pointer" in report) == ("ILLEGAL_ADDRESS", True)


def test_write_past_shared_memory(device: Any, simulation: Any) -> None:
    text = BUFFER + kernel(
        "overrun",
        "",
        "mov.u32 %r0, buffer;\nmad.lo.u32 %r0, %tid, 4, %r0;\nst.shared.u32 [%r0 + 256], %tid;\n",
    )
    result, report = fail(device, simulation, text, shared=256)
    assert result == "ILLEGAL_ADDRESS"
    assert "of the 256 bytes of shared memory" in report


def test_misaligned_address(device: Any, simulation: Any) -> None:
    out = device.array(np.zeros(8))
    result, report = fail(device, simulation, WRITE, out, ctypes.c_uint64(2))
    assert result == "MISALIGNED_ADDRESS"
    assert "access of 4 bytes at the misaligned address" in report


def test_trap(device: Any, simulation: Any) -> None:
    result, report = fail(device, simulation, kernel("trapped", "", "trap;"))
    assert result == "LAUNCH_FAILED"
    assert "kernel trapped" in report


ASSERT = """\
.extern .func __assertfail(
    .param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 text[6] = {97, 32, 60, 32, 98, 0};
""" + kernel(
    "asserts",
    "",
    """
    setp.ne.u32 %p0, %tid, 3;
    @%p0 ret;
    mov.u64 %d0, text;
    cvta.global.u64 %d0, %d0;
    {
    .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    st.param.b64 [a], %d0;
    st.param.b64 [b], %d0;
    st.param.b32 [c], 12;
    st.param.b64 [d], %d0;
    st.param.b64 [e], 1;
    call __assertfail, (a, b, c, d, e);
    }
    """,
)


def test_assertion(device: Any, simulation: Any, capfd: pytest.CaptureFixture[str]) -> None:
    result, report = fail(device, simulation, ASSERT)
    assert result == "ASSERT"
    assert "thread (3, 0, 0): assertion `a < b` failed" in report
    printed = capfd.readouterr().err
    assert "a < b:12: a < b: block: [0,0,0], thread: [3,0,0] Assertion `a < b` failed." in printed


def test_deadlock(device: Any, simulation: Any) -> None:
    text = kernel(
        "stuck",
        "",
        """
        setp.lt.u32 %p0, %tid, 3;
        @%p0 bra other;
        bar.sync 0;
        ret;
        other:
        bar.sync 1;
        """,
    )
    result, report = fail(device, simulation, text)
    assert result == "LAUNCH_TIMEOUT"
    assert "kernel stuck" in report
    assert "deadlock: 64 threads wait" in report
    assert "barrier" in report


def test_lanes_that_do_not_arrive(device: Any, simulation: Any) -> None:
    text = kernel(
        "half",
        "",
        """
        setp.lt.u32 %p0, %tid, 16;
        @%p0 bra other;
        bar.warp.sync 0xffffffff;
        ret;
        other:
        bar.sync 0;
        """,
    )
    result, report = fail(device, simulation, text, threads=32)
    assert (result, "deadlock" in report) == ("LAUNCH_TIMEOUT", True)


def test_lane_that_its_mask_does_not_name(device: Any, simulation: Any) -> None:
    text = kernel("wrong_mask", "", "bar.warp.sync 0x0000ffff;")
    result, report = fail(device, simulation, text, threads=32)
    assert result == "ILLEGAL_INSTRUCTION"
    assert "does not name it" in report


RECURSION = """
.func (.param .b32 result) deeper(.param .b32 depth)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<4>;
    .local .align 8 .b8 frame[1024];
    ld.param.u32 %r0, [depth];
    mov.u64 %d0, frame;
    st.local.u32 [%d0], %r0;
    add.u32 %r1, %r0, 1;
    {
    .param .b32 a; .param .b32 b;
    st.param.b32 [a], %r1;
    call (b), deeper, (a);
    ld.param.b32 %r2, [b];
    }
    ld.local.u32 %r3, [%d0];
    add.u32 %r2, %r2, %r3;
    st.param.b32 [result], %r2;
    ret;
}
""" + kernel(
    "recursive",
    "u64 out",
    """
    BARRIER
    {
    .param .b32 a; .param .b32 b;
    st.param.b32 [a], %tid;
    call (b), deeper, (a);
    ld.param.b32 %r0, [b];
    }
    st.global.u32 [%out], %r0;
    """,
)


@pytest.mark.parametrize("barrier", ["", "bar.sync 0;"])
def test_stack_overflow(device: Any, simulation: Any, barrier: str) -> None:
    out = device.array([0])
    text = RECURSION.replace("BARRIER", barrier)
    result, report = fail(device, simulation, text, out, threads=2)
    assert (result, "stack overflow" in report) == ("HARDWARE_STACK_ERROR", True)


WAIT = kernel(
    "waits",
    "u64 out",
    """
    again:
    ld.volatile.global.u32 %r0, [%out];
    setp.eq.u32 %p0, %r0, 0;
    @%p0 bra again;
    """,
)


def test_loop_that_waits_for_ever_has_a_timeout(device: Any, simulation: Any) -> None:
    out = device.array([0])
    ctypes.CDLL(None).setenv(b"NBRT_SIM_TIMEOUT", b"1", 1)
    try:
        result, report = fail(device, simulation, WAIT, out, threads=2)
    finally:
        ctypes.CDLL(None).unsetenv(b"NBRT_SIM_TIMEOUT")
    assert result == "LAUNCH_TIMEOUT"
    assert "made progress" in report


def test_context_of_a_kernel_that_waits_can_be_destroyed(initialised: Any) -> None:
    context = call(driver.cuCtxCreate(None, 0, 0))
    device = Device()
    call(device.launch(device.function(WAIT), 1, 2, device.array([0])))
    call(driver.cuCtxDestroy(context))


def test_fault_breaks_its_context_only(device: Any, simulation: Any) -> None:
    function = device.function(READ)
    other = call(driver.cuCtxCreate(None, 0, 0))
    out, healthy = device.array([5]), device.function(READ)
    broken = call(driver.cuCtxPopCurrent())
    call(device.launch(function, 1, 1, ctypes.c_uint64(8)))
    assert status(driver.cuCtxSynchronize()) == "ILLEGAL_ADDRESS"
    call(driver.cuCtxPushCurrent(broken))
    device.run(healthy, 1, 1, out)
    assert out.get()[0] == 15
    call(driver.cuCtxDestroy(other))


CRASH = f"""
import ctypes, faulthandler, sys
sys.path.insert(0, {str(TESTS)!r})
from simulated_cuda import loader
loader.load()
import numpy as np
from cuda.bindings import driver
from helpers.driver_launches import Device
EARLY
driver.cuInit(0)
driver.cuCtxCreate(None, 0, 0)
device = Device()
device.launch(device.function({READ!r}), 1, 1, ctypes.c_uint64(8))
assert int(driver.cuCtxSynchronize()[0]) == 700
LATE
ctypes.c_int.from_address(24).value = 1
"""


@pytest.mark.parametrize("place", ["EARLY", "LATE"])
def test_other_faults_go_to_the_handler_before(simulation: Any, place: str) -> None:
    program = CRASH.replace(place, "faulthandler.enable()").replace("EARLY", "").replace("LATE", "")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -11
    assert "kernel read_at" in done.stderr
    assert "Fatal Python error: Segmentation fault" in done.stderr
