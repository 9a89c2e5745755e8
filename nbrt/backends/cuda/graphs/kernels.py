"""`GraphKernels`: the small kernels that graphs add to the work of the user.

They are PTX, which the driver compiles, so that a graph needs neither numba-cuda nor NVRTC.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbrt.backends.cuda.graphs.calls import GraphCalls
    from nbrt.backends.cuda.queues import CudaQueue

__all__ = ["CONDITION_PARAMETER", "CONDITION_TYPES", "GraphKernels", "condition_text", "state_text"]

CONDITION_TYPES = {
    "bool": "u8",
    "int8": "s8",
    "uint8": "u8",
    "int16": "s16",
    "uint16": "u16",
    "int32": "s32",
    "uint32": "u32",
    "int64": "s64",
    "uint64": "u64",
}
"""PTX's types of the dtypes that a flag can have."""

CONDITION_PARAMETER = 0
"""The parameter of the kernel of `condition_text` that is the handle of the condition."""

_HEADER = """
.version 8.0
.target sm_70
.address_size 64
"""

_STATE = """
// target = {source.seed, source.offset + words}
.visible .entry derive_state(.param .u64 target, .param .u64 source, .param .u64 words) {
    .reg .b64 %rd<7>;
    ld.param.u64 %rd1, [target];
    ld.param.u64 %rd2, [source];
    ld.param.u64 %rd3, [words];
    ld.global.u64 %rd4, [%rd2];
    ld.global.u64 %rd5, [%rd2+8];
    add.u64 %rd6, %rd5, %rd3;
    st.global.u64 [%rd1], %rd4;
    st.global.u64 [%rd1+8], %rd6;
    ret;
}
"""

# A branch number beyond 32 bits, or below 0, selects no branch: the largest number stands for it.
_CONDITION = """
.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);

// condition = is_number ? *flag : *flag != 0; for a loop (counter != 0): counter[0] counts the
// turns, and more turns than limit end it and set counter[1].
.visible .entry set_condition(
    .param .u64 handle, .param .u64 flag, .param .u32 is_number,
    .param .u64 counter, .param .u64 limit
) {
    .reg .b32 %r<4>;
    .reg .b64 %rd<8>;
    .reg .pred %p<5>;
    ld.param.u64 %rd1, [handle];
    ld.param.u64 %rd2, [flag];
    ld.param.u32 %r1, [is_number];
    ld.param.u64 %rd3, [counter];
    ld.param.u64 %rd4, [limit];
    LOAD
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra NUMBER;
    setp.ne.u64 %p2, %rd5, 0;
    selp.u32 %r2, 1, 0, %p2;
    setp.eq.u64 %p3, %rd3, 0;
    @%p3 bra SET;
    @!%p2 bra SET;
    ld.global.u64 %rd6, [%rd3];
    add.u64 %rd6, %rd6, 1;
    st.global.u64 [%rd3], %rd6;
    setp.le.u64 %p4, %rd6, %rd4;
    @%p4 bra SET;
    mov.u64 %rd7, 1;
    st.global.u64 [%rd3+8], %rd7;
    mov.u32 %r2, 0;
    bra SET;
NUMBER:
    min.u64 %rd5, %rd5, 4294967295;
    cvt.u32.u64 %r2, %rd5;
SET:
    {
    .param .b64 param0;
    .param .b32 param1;
    st.param.b64 [param0], %rd1;
    st.param.b32 [param1], %r2;
    call.uni cudaGraphSetConditional, (param0, param1);
    }
    ret;
}
"""


def state_text() -> str:
    """Return the PTX of the kernel that derives one generator state from another."""
    return _HEADER + _STATE


def condition_text(dtype: str) -> str:
    """Return the PTX of the kernel that sets a condition from a flag of a dtype."""
    kind = CONDITION_TYPES[dtype]
    if kind.endswith("64"):
        load = "ld.global.u64 %rd5, [%rd2];"
    elif kind.endswith("32"):
        load = f"ld.global.{kind} %r3, [%rd2]; cvt.{kind[0]}64.{kind} %rd5, %r3;"
    else:
        # Registers of 32 bits take narrower loads, extended by the type.
        load = f"ld.global.{kind} %r3, [%rd2]; cvt.{kind[0]}64.{kind[0]}32 %rd5, %r3;"
    return _HEADER + _CONDITION.replace("LOAD", load)


class GraphKernels:
    """The kernels, loaded on their first use on each device."""

    def __init__(self, calls: GraphCalls) -> None:
        self._calls = calls
        self._functions: dict[tuple[int, str], int] = {}
        self._lock = threading.Lock()

    def derive_state(self, queue: CudaQueue, target: int, source: int, words: int) -> None:
        """Enqueue the write of a generator state at `target`, `words` further than `source`."""
        function = self._function(queue.index, "derive_state", "")
        self._launch(queue, function, [ctypes.c_uint64(value) for value in (target, source, words)])

    def set_condition(
        self,
        queue: CudaQueue,
        flag: int,
        dtype: str,
        *,
        is_number: bool,
        counter: int = 0,
        limit: int = 0,
    ) -> None:
        """Enqueue the assignment of a condition, whose handle is set in the node later."""
        function = self._function(queue.index, "set_condition", dtype)
        values = [
            ctypes.c_uint64(0),
            ctypes.c_uint64(flag),
            ctypes.c_uint32(is_number),
            ctypes.c_uint64(counter),
            ctypes.c_uint64(limit),
        ]
        self._launch(queue, function, values)

    def _function(self, index: int, name: str, dtype: str) -> int:
        with self._lock:
            function = self._functions.get((index, name + dtype))
            if function is None:
                text = condition_text(dtype) if dtype else state_text()
                # Loading may allocate memory, which a capture excludes.
                with self._calls.driver.relaxed():
                    module = self._calls.load(text.encode() + b"\0")
                    function = self._calls.function(module, name)
                self._functions[index, name + dtype] = function
            return function

    def _launch(self, queue: CudaQueue, function: int, values: list[Any]) -> None:
        table = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        one = (1, 1, 1)
        address = ctypes.addressof(table)
        self._calls.driver.launch(function, one, one, 0, queue.handle, address)
