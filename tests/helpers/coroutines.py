"""Thread functions written by hand in LLVM assembly, run as coroutines through llvmlite."""

from __future__ import annotations

import ctypes
import re
import time
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from nbrt.backends.cpu.simt.coroutines import coroutine_block, coroutine_grid
from nbrt.backends.cpu.simt.llvm.model import ThreadIR

HEAD = """
declare void @nbrt.barrier()
declare i32 @nbrt.barrier.count(i32)
declare i32 @nbrt.barrier.and(i32)
declare i32 @nbrt.barrier.or(i32)
declare void @nbrt.grid.sync()
declare void @nbrt.warp.sync(i32)
declare i32 @nbrt.activemask()
declare ptr @nbrt.shared.dynamic()
declare i64 @nbrt.shared.bytes()
"""

PLACE = (
    "ptr %ret, ptr %excinfo, i32 %tid.x, i32 %tid.y, i32 %tid.z, i32 %bid.x, i32 %bid.y, i32 %bid.z"
    ", i32 %grid.x, i32 %grid.y, i32 %grid.z, i64 %turn.x, i64 %turn.y, i64 %turn.z"
)


def thread(body: str, parameters: str = "ptr %out", block: Any = 64, module: str = "") -> ThreadIR:
    """Make a thread function; in `body`, markers of warp operations declare themselves."""
    found = re.findall(r"call (\S+) @(nbrt\.(?:shfl|vote|match|shared)[\w.]*)\(([^)]*)\)", body)
    declared = {
        f"declare {kind} @{name}({', '.join(a.split()[0] for a in args.split(',') if a.strip())})"
        for kind, name, args in found
    }
    text = HEAD + module + "\n".join(sorted(declared - set(HEAD.splitlines())))
    text += f"\ndefine i32 @work({PLACE}, {parameters}) {{\n{body}\n}}\n"
    parsed = llvm.parse_assembly(text)  # what LLVM prints is what the lowering is given
    shape = block if isinstance(block, tuple) else (block, 1, 1)
    return ThreadIR(str(parsed), "work", shape)


def store(kind: str, value: str) -> str:
    """Write the code that stores a value as the thread's element of ``%out``."""
    return (
        f"  %out.at = getelementptr {kind}, ptr %out, i32 %tid.x\n"
        f"  store {kind} {value}, ptr %out.at"
    )


def optimised(text: str) -> tuple[Any, Any, float]:
    """Compile a module with LLVM's O3 pipeline; give it, a target machine and the seconds."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, jit=True
    )
    start = time.perf_counter()
    module = llvm.parse_assembly(text)
    module.triple = llvm.get_process_triple()
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    builder.getModulePassManager().run(module, builder)
    module.verify()
    return module, machine, time.perf_counter() - start


class Compiled:
    """A block or grid function in memory, called with arrays and integers."""

    def __init__(self, text: str, symbol: str, hooks: Any = ()) -> None:
        module, machine, self.seconds = optimised(text)
        for name, hook in dict(hooks).items():
            llvm.add_symbol(name, ctypes.cast(hook, ctypes.c_void_p).value)
        self.optimised = str(module)
        start = time.perf_counter()
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        self.seconds += time.perf_counter() - start
        self._address = self._engine.get_function_address(symbol)
        self.where = np.full(6, -1, np.int32)
        self.stop = np.zeros(1, np.int64)
        self.excinfo = ctypes.c_void_p()

    def __call__(
        self,
        *args: Any,
        at: Any = (0, 0, 0),
        grid: Any = (1, 1, 1),
        dynamic: Any = None,
        seed: Any = None,
    ) -> int:
        shared = np.zeros(0, np.uint8) if dynamic is None else dynamic
        result = ctypes.c_void_p()
        values: list[Any] = [ctypes.pointer(result), ctypes.pointer(self.excinfo)]
        values += [ctypes.c_int32(v) for v in (0, 0, 0, *at, *grid)] + [ctypes.c_int64(0)] * 3
        values += [_passed(arg) for arg in args]
        values += [_passed(shared), ctypes.c_int64(shared.nbytes)]
        values += [_passed(self.stop), _passed(self.where)]
        values += [] if seed is None else [ctypes.c_int64(seed)]
        function = ctypes.CFUNCTYPE(ctypes.c_int32, *map(type, values))(self._address)
        return int(function(*values))


def _passed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_int64(value) if isinstance(value, int) else value


def compiled(code: ThreadIR, entry: str = "block", hooks: Any = (), **options: Any) -> Compiled:
    """Lower a thread function and compile the function of the block or the grid."""
    lower = {"block": coroutine_block, "grid": coroutine_grid}[entry]
    return Compiled(lower(code, **options), f"{code.name}.{entry}", hooks)
