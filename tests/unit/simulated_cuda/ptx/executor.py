"""Run small PTX programs on this processor, one thread after the other."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simulated_cuda.ptx.loading import LoadedModule, translate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HEADER = ".version 8.7\n.target sm_90\n.address_size 64\n"

DTYPES = {
    **{f"u{width}": np.dtype(f"uint{width}") for width in (8, 16, 32, 64)},
    **{f"s{width}": np.dtype(f"int{width}") for width in (8, 16, 32, 64)},
    **{f"b{width}": np.dtype(f"uint{width}") for width in (8, 16, 32, 64)},
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "pred": np.dtype(np.uint32),
}
SHARED_BYTES = 4096


class Thread(ctypes.Structure):
    """SimThread of driver/threads.h."""

    _fields_ = (
        ("tid", ctypes.c_uint32 * 3),
        ("ntid", ctypes.c_uint32 * 3),
        ("ctaid", ctypes.c_uint32 * 3),
        ("nctaid", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_void_p),
        ("lane", ctypes.c_uint32),
        ("warp", ctypes.c_uint32),
        ("block", ctypes.c_void_p),
        ("dynamic_shared", ctypes.c_uint32),
        ("sm", ctypes.c_uint32),
        ("grid", ctypes.c_uint64),
        ("sm_count", ctypes.c_uint32),
        ("total_shared", ctypes.c_uint32),
        ("clusters", ctypes.c_uint32 * 6),
    )


U32, U64, PTR = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "sim_barrier": (None, PTR, U32, U32),
    "sim_barrier_arrive": (None, PTR, U32, U32),
    "sim_barrier_reduce": (U32, PTR, U32, U32, U32, U32),
    "sim_warp_sync": (None, PTR, U32),
    "sim_shuffle": (U32, PTR, U32, U32, U32, U32, U32, ctypes.POINTER(U32)),
    "sim_ballot": (U32, PTR, U32, U32),
    "sim_match": (U32, PTR, U64, U32, U32, ctypes.POINTER(U32)),
    "sim_redux": (U32, PTR, U32, U32, U32),
    "sim_active_mask": (U32, PTR),
    "sim_yield": (None, PTR),
    "sim_grid_sync": (None, PTR),
    "sim_grid_workspace": (PTR, PTR),
    "sim_vprintf": (ctypes.c_int32, PTR, ctypes.c_char_p, PTR),
    "sim_malloc": (PTR, PTR, U64),
    "sim_free": (None, PTR, PTR),
    "sim_trap": (None, PTR),
    "sim_exit": (None, PTR),
    "sim_misaligned": (None, PTR, U64, U32),
    "sim_assert_fail": (None, PTR, ctypes.c_char_p, ctypes.c_char_p, U32, ctypes.c_char_p),
}


class Program:
    """A translated module.

    Parameters
    ----------
    text : str
        PTX text; without a ``.version`` it gets a header.
    **functions : callable
        What functions of the driver do, by name.
    """

    def __init__(self, text: str, **functions: Callable[..., Any]) -> None:
        text = text if ".version" in text else HEADER + text
        self._callbacks = {
            name: ctypes.CFUNCTYPE(*signature)(functions.get(name, lambda *_arguments: 0))
            for name, signature in SIGNATURES.items()
        }
        addresses = {
            name: ctypes.cast(callback, PTR).value or 0
            for name, callback in self._callbacks.items()
        }
        self.facts, code = translate(text.encode())
        self.module = LoadedModule(self.facts, code, addresses)
        self.shared = np.zeros(SHARED_BYTES + 128, np.uint8)

    def thread(self, **fields: Any) -> Thread:
        """Return a thread of a block of one thread, with other values for some fields."""
        one = (1, 1, 1)
        shared = self.shared.ctypes.data
        defaults = {"ntid": one, "nctaid": one, "shared": -(-shared // 128) * 128}
        thread = Thread(total_shared=SHARED_BYTES)
        for name, value in {**defaults, **fields}.items():
            setattr(thread, name, tuple(value) if isinstance(value, tuple | list) else value)
        return thread

    def run(self, kernel: str, *arguments: Any, **fields: Any) -> None:
        """Run one thread: arrays become addresses, NumPy scalars their bytes."""
        block = bytearray()
        for argument in arguments:
            value = (
                struct.pack("<Q", argument.ctypes.data)
                if isinstance(argument, np.ndarray)
                else np.asarray(argument).tobytes()
            )
            block += bytes(-len(block) % len(value)) + value
        entry = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(Thread))(
            self.module.address(kernel)
        )
        entry(bytes(block), ctypes.byref(self.thread(**fields)))


@dataclass(frozen=True)
class Operation:
    """An instruction that is applied to elements of arrays.

    `text` names its operands %d, %a, %b, %c and %e; predicates are passed as .u32.
    """

    text: str
    result: str
    operands: tuple[str, ...]


_LOADS = "abce"


def _kernel(name: str, operation: Operation) -> str:
    lines = [
        f".visible .entry {name}(.param .u64 out,",
        *(f"  .param .u64 in_{letter}," for letter, _ in _named(operation)),
        "  .param .u32 n)",
        "{",
        "  .reg .u64 %rd<9>; .reg .u32 %n, %i, %t; .reg .pred %done;",
    ]
    for letter, kind in (("d", operation.result), *_named(operation)):
        lines.append(f"  .reg .{_register(kind)} %{letter};")
    lines.append("  ld.param.u32 %n, [n]; ld.param.u64 %rd0, [out]; mov.u32 %i, 0;")
    for index, (letter, _) in enumerate(_named(operation), 1):
        lines.append(f"  ld.param.u64 %rd{index}, [in_{letter}];")
    lines += ["next:", "  setp.ge.u32 %done, %i, %n; @%done bra end;"]
    for index, (letter, kind) in enumerate(_named(operation), 1):
        target = "%t" if kind == "pred" else f"%{letter}"
        lines.append(f"  ld.global.{_memory(kind)} {target}, [%rd{index}];")
        if kind == "pred":
            lines.append(f"  setp.ne.u32 %{letter}, %t, 0;")
        lines.append(f"  add.u64 %rd{index}, %rd{index}, {DTYPES[kind].itemsize};")
    lines.append(f"  {operation.text}")
    if operation.result == "pred":
        lines.append("  selp.u32 %t, 1, 0, %d; st.global.u32 [%rd0], %t;")
    else:
        lines.append(f"  st.global.{_memory(operation.result)} [%rd0], %d;")
    lines.append(f"  add.u64 %rd0, %rd0, {DTYPES[operation.result].itemsize};")
    lines += ["  add.u32 %i, %i, 1; bra next;", "end: ret;", "}"]
    return "\n".join(lines)


def _named(operation: Operation) -> list[tuple[str, str]]:
    return list(zip(_LOADS, operation.operands, strict=False))


def _register(kind: str) -> str:
    return kind if kind not in ("u8", "s8", "b8") else "b16"


def _memory(kind: str) -> str:
    return "u32" if kind == "pred" else kind


def apply(
    operations: Sequence[Operation],
    arrays: Callable[[Operation], Sequence[np.ndarray[Any, Any]]],
) -> list[tuple[Operation, list[np.ndarray[Any, Any]], np.ndarray[Any, Any]]]:
    """Apply operations, which are compiled together.

    Returns
    -------
    list of tuple
        Each operation with its operands and its results.
    """
    names = [f"k{index}" for index in range(len(operations))]
    program = Program("\n".join(map(_kernel, names, operations)))
    found = []
    for name, operation in zip(names, operations, strict=True):
        inputs = [
            np.ascontiguousarray(array, DTYPES[kind])
            for array, kind in zip(arrays(operation), operation.operands, strict=True)
        ]
        out = np.zeros(inputs[0].size, DTYPES[operation.result])
        program.run(name, out, *inputs, np.uint32(out.size))
        found.append((operation, inputs, out))
    return found
