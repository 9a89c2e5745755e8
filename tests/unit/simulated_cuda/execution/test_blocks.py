"""Threads, blocks and warps of launches on the simulated device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from helpers.driver_calls import call, status
from helpers.ptx_kernels import kernel

TESTS = Path(__file__).parents[3]
FULL = 0xFFFFFFFF

FILL = kernel(
    "fill",
    "u64 out, u32 n, u32 value",
    """
    setp.ge.u32 %p0, %index, %n;
    @%p0 ret;
    mad.wide.u32 %d0, %index, 4, %out;
    add.u32 %r0, %index, %value;
    st.global.u32 [%d0], %r0;
    """,
)
# Each block reverses its part of an array by way of dynamic shared memory.
_REVERSE = """
    mad.wide.u32 %d0, %index, 4, %out;
    ld.global.u32 %r0, [%d0];
    mov.u32 %r1, buffer;
    mad.lo.u32 %r2, %tid, 4, %r1;
    st.shared.u32 [%r2], %r0;
    BARRIER
    sub.u32 %r3, %size, %tid;
    sub.u32 %r3, %r3, 1;
    mad.lo.u32 %r3, %r3, 4, %r1;
    ld.shared.u32 %r0, [%r3];
    st.global.u32 [%d0], %r0;
    """
BUFFER = ".extern .shared .align 16 .b8 buffer[];\n"
REVERSE = BUFFER + kernel("reverse", "u64 out", _REVERSE.replace("BARRIER", "bar.sync 0;"))
UNSYNCHRONISED = BUFFER + kernel("reverse", "u64 out", _REVERSE.replace("BARRIER", ""))


def store(expression: str, *, parameters: str = "u64 out") -> str:
    """Return a kernel that stores %r0, computed by `expression`, for each thread of the grid."""
    end = "mad.wide.u32 %d0, %index, 4, %out;\nst.global.u32 [%d0], %r0;\n"
    return kernel("store", parameters, expression + "\n" + end)


def results(device: Any, text: str, threads: int = 32, blocks: int = 1) -> np.ndarray[Any, Any]:
    out = device.array(np.zeros(threads * blocks), np.uint32)
    device.run(device.function(text), blocks, threads, out)
    return out.get()


def test_every_thread_runs_once(device: Any) -> None:
    out = device.array(np.zeros(3000))
    device.run(device.function(FILL), 12, 256, out, 3000, 7)
    np.testing.assert_array_equal(out.get(), np.arange(3000) + 7)


def test_three_dimensions(device: Any) -> None:
    text = kernel(
        "indices",
        "u64 out",
        """
        mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z;
        mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ctaid.y; mov.u32 %r5, %ctaid.z;
        mad.lo.u32 %r6, %r5, 3, %r4; mad.lo.u32 %r6, %r6, 2, %r3;
        mad.lo.u32 %r6, %r6, 4, %r2; mad.lo.u32 %r6, %r6, 3, %r1; mad.lo.u32 %r6, %r6, 5, %r0;
        mad.wide.u32 %d0, %r6, 4, %out;
        atom.global.add.u32 %r7, [%d0], 1;
        """,
    )
    out = device.array(np.zeros(2 * 3 * 4 * 5 * 3 * 4))
    device.run(device.function(text), (2, 3, 4), (5, 3, 4), out)
    assert (out.get() == 1).all()


@pytest.mark.parametrize("threads", [1, 31, 32, 100, 1024])
def test_barrier_orders_accesses_of_a_block(device: Any, threads: int) -> None:
    values = np.arange(5 * threads, dtype=np.int32)
    out = device.array(values)
    device.run(device.function(REVERSE), 5, threads, out, shared=4 * threads)
    np.testing.assert_array_equal(out.get(), values.reshape(5, -1)[:, ::-1].ravel())


def test_missing_barrier_shows(device: Any) -> None:
    values = np.arange(256, dtype=np.int32)
    out = device.array(values)
    device.run(device.function(UNSYNCHRONISED), 1, 256, out, shared=4 * 256)
    assert (out.get() != values[::-1]).any()


def test_uninitialised_shared_memory_has_a_pattern(device: Any) -> None:
    text = BUFFER + store("mov.u32 %r1, buffer; ld.shared.u32 %r0, [%r1];")
    out = device.array(np.zeros(32), np.uint32)
    device.run(device.function(text), 1, 32, out, shared=64)
    assert (out.get() == 0x7F7F7F7F).all()


def test_threads_that_exit_release_barriers(device: Any) -> None:
    text = store(
        """
        and.b32 %r1, %tid, 1;
        setp.ne.u32 %p0, %r1, 0;
        @%p0 exit;
        bar.sync 0;
        setp.eq.u32 %p1, %r1, 0;
        vote.sync.ballot.b32 %r0, %p1, 0xffffffff;
        """
    )
    np.testing.assert_array_equal(results(device, text, 64), [0x55555555, 0] * 32)


def test_barrier_with_a_number_of_threads(device: Any) -> None:
    # The first warp produces and does not wait; the second one consumes.
    text = ".shared .align 4 .b8 box[4];\n" + store(
        """
        setp.ge.u32 %p0, %tid, 32;
        @%p0 bra consume;
        mov.u32 %r0, 5;
        setp.eq.u32 %p1, %tid, 0;
        @%p1 st.shared.u32 [box], %r0;
        bar.arrive 1, 64;
        bra done;
        consume:
        bar.sync 1, 64;
        ld.shared.u32 %r0, [box];
        done:
        """
    )
    np.testing.assert_array_equal(results(device, text, 64), 5)


@pytest.mark.parametrize(
    ("operation", "expected"), [("popc.u32 %r0", 33), ("or.pred %p2", 1), ("and.pred %p2", 0)]
)
def test_reduction_at_a_barrier(device: Any, operation: str, expected: int) -> None:
    text = store(
        f"""
        setp.lt.u32 %p0, %tid, 33;
        bar.red.{operation.replace(" ", " ")}, 0, %p0;
        {"selp.u32 %r0, 1, 0, %p2;" if "pred" in operation else ""}
        """
    )
    assert (results(device, text, 100) == expected).all()


@pytest.mark.parametrize(
    ("mode", "source"),
    [
        ("up.b32 %r0|%p0, %r1, 3, 0", lambda lane: lane - 3 if lane >= 3 else lane),
        ("down.b32 %r0|%p0, %r1, 3, 31", lambda lane: lane + 3 if lane < 29 else lane),
        ("bfly.b32 %r0|%p0, %r1, 5, 31", lambda lane: lane ^ 5),
        ("idx.b32 %r0|%p0, %r1, 9, 31", lambda lane: 9),
        # Segments of eight lanes: c = (32 - 8) << 8 | clamp.
        ("down.b32 %r0|%p0, %r1, 3, 0x181f", lambda lane: lane + 3 if lane % 8 < 5 else lane),
        ("up.b32 %r0|%p0, %r1, 3, 0x1800", lambda lane: lane - 3 if lane % 8 >= 3 else lane),
        ("idx.b32 %r0|%p0, %r1, 2, 0x181f", lambda lane: lane // 8 * 8 + 2),
    ],
)
def test_shuffle(device: Any, mode: str, source: Any) -> None:
    text = store(f"mul.lo.u32 %r1, %tid, 10;\nshfl.sync.{mode}, 0xffffffff;")
    expected = [10 * source(lane) for lane in range(32)]
    np.testing.assert_array_equal(results(device, text), expected)


def test_shuffle_within_half_a_warp(device: Any) -> None:
    text = store(
        """
        setp.ge.u32 %p1, %tid, 16;
        @%p1 bra upper;
        shfl.sync.bfly.b32 %r0, %tid, 1, 31, 0x0000ffff;
        bra done;
        upper:
        shfl.sync.bfly.b32 %r0, %tid, 2, 31, 0xffff0000;
        done:
        """
    )
    lanes = np.arange(32)
    np.testing.assert_array_equal(results(device, text), np.where(lanes < 16, lanes ^ 1, lanes ^ 2))


def test_shuffle_from_a_lane_outside_the_mask_is_undefined(device: Any) -> None:
    text = store(
        """
        setp.ge.u32 %p1, %tid, 16;
        mov.u32 %r0, 0;
        @%p1 bra done;
        shfl.sync.idx.b32 %r0, %tid, 20, 31, 0x0000ffff;
        done:
        """
    )
    assert (results(device, text)[:16] == 0x7F7F7F7F).all()


def test_votes_and_matches(device: Any) -> None:
    ballot = store("setp.lt.u32 %p0, %tid, 5;\nvote.sync.ballot.b32 %r0, %p0, 0xffffffff;")
    assert (results(device, ballot) == 31).all()
    match = store("and.b32 %r1, %tid, 1;\nmatch.any.sync.b32 %r0, %r1, 0xffffffff;")
    np.testing.assert_array_equal(results(device, match), [0x55555555, 0xAAAAAAAA] * 16)
    every = store("mov.u32 %r1, 4;\nmatch.all.sync.b32 %r0|%p0, %r1, 0xffffffff;")
    assert (results(device, every) == FULL).all()
    np.testing.assert_array_equal(results(device, every, 10), 0x3FF)
    differ = store("match.all.sync.b32 %r0|%p0, %tid, 0xffffffff;")
    assert (results(device, differ) == 0).all()


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("add.u32", 496), ("max.s32", 31), ("min.u32", 0), ("or.b32", 31), ("xor.b32", 0)],
)
def test_reduction_of_a_warp(device: Any, operation: str, expected: int) -> None:
    text = store(f"redux.sync.{operation} %r0, %tid, 0xffffffff;")
    assert (results(device, text) == expected).all()


def test_warp_with_few_threads(device: Any) -> None:
    text = store("setp.ge.u32 %p0, %tid, 0;\nvote.sync.ballot.b32 %r0, %p0, 0xffffffff;")
    np.testing.assert_array_equal(results(device, text, 40), [FULL] * 32 + [0xFF] * 8)


def test_active_mask_keeps_branches_apart(device: Any) -> None:
    text = store(
        """
        and.b32 %r1, %tid, 1;
        setp.ne.u32 %p0, %r1, 0;
        @%p0 bra odd;
        activemask.b32 %r0;
        bra done;
        odd:
        activemask.b32 %r0;
        done:
        """
    )
    np.testing.assert_array_equal(results(device, text), [0x55555555, 0xAAAAAAAA] * 16)


def test_active_mask_names_the_lanes_of_a_branch(device: Any) -> None:
    text = store(
        """
        mov.u32 %r0, 0;
        and.b32 %r1, %tid, 1;
        setp.ne.u32 %p0, %r1, 0;
        @%p0 bra done;
        activemask.b32 %r0;
        done:
        """
    )
    np.testing.assert_array_equal(results(device, text), [0x55555555, 0] * 16)


GRID_BARRIER = kernel(
    "grid_barrier",
    "u64 out",
    """
    mov.u32 %r5, %nctaid.x;
    bar.sync 0;
    setp.ne.u32 %p0, %tid, 0;
    @%p0 bra wait;
    atom.global.add.u32 %r0, [%out], 1;
    again:
    ld.volatile.global.u32 %r1, [%out];
    setp.lt.u32 %p1, %r1, %r5;
    @%p1 bra again;
    wait:
    bar.sync 0;
    ld.volatile.global.u32 %r1, [%out];
    atom.global.add.u32 %r0, [%out + 4], %r1;
    """,
)


def test_barrier_of_the_grid_made_of_atomics(device: Any) -> None:
    out = device.array([0, 0])
    device.run(device.function(GRID_BARRIER), 40, 64, out)
    np.testing.assert_array_equal(out.get(), [40, 40 * 40 * 64])


GRID_SYNC = """\
.extern .func (.param .b32 result) cudaCGSynchronize(.param .b64 handle, .param .b32 flags);
""" + kernel(
    "grid_sync",
    "u64 out",
    """
    atom.global.add.u32 %r0, [%out], 1;
    {
    .param .b64 a0; .param .b32 a1; .param .b32 result;
    st.param.b64 [a0], 1;
    st.param.b32 [a1], 0;
    call (result), cudaCGSynchronize, (a0, a1);
    ld.param.b32 %r1, [result];
    }
    ld.volatile.global.u32 %r1, [%out];
    atom.global.add.u32 %r0, [%out + 4], %r1;
    """,
)


def test_cooperative_groups(device: Any) -> None:
    out, function = device.array([0, 0]), device.function(GRID_SYNC)
    device.run(function, 20, 64, out, cooperative=True)
    np.testing.assert_array_equal(out.get(), [1280, 1280**2])


def test_grid_that_does_not_fit_is_not_cooperative(device: Any) -> None:
    function = device.function(GRID_SYNC)
    resident = call(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 64, 0))
    processors = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    most = resident * call(driver.cuDeviceGetAttribute(processors, 0))
    out = device.array([0, 0])
    result = device.launch(function, most + 1, 64, out, cooperative=True)
    assert status(result) == "COOPERATIVE_LAUNCH_TOO_LARGE"


ORDER = kernel(
    "order",
    "u64 out",
    """
    atom.global.add.u32 %r0, [%out], 1;
    mad.wide.u32 %d0, %r0, 4, %out;
    st.global.u32 [%d0 + 4], %index;
    """,
)


def order_of_threads(device: Any) -> list[int]:
    out = device.array(np.zeros(97))
    device.run(device.function(ORDER), 3, 32, out)
    return [int(number) for number in out.get()[1:]]


def test_order_of_threads_is_shuffled(device: Any) -> None:
    order = order_of_threads(device)
    assert order != sorted(order)
    assert sorted(order) == list(range(96))
    assert order_of_threads(device) == order


def test_order_of_threads_depends_on_the_seed(run_child: Any) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from simulated_cuda import loader
loader.load()
import numpy as np
from cuda.bindings import driver
from helpers.driver_launches import Device
driver.cuInit(0)
driver.cuCtxCreate(None, 0, 0)
device = Device()
out = device.array(np.zeros(97))
device.run(device.function({ORDER!r}), 3, 32, out)
print(*out.get()[1:])
"""
    assert run_child(program, NBRT_SIM_SEED="0") == " ".join(map(str, range(96)))
    first, second = (run_child(program, NBRT_SIM_SEED=seed) for seed in "12")
    assert first != second
