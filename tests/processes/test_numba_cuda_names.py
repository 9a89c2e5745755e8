"""Each host name of numba.cuda does on a CPU device what its page says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from helpers.processes import output_of

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import numba_cuda_names  # noqa: E402

PREPARED = """
import contextlib, io, json, sys
import numpy as np
from numba import cuda

ones = np.ones(3)
device = cuda.to_device(ones)

def plus_one(x):
    return x + 1

def copy(x, y):
    for i in range(x.size):
        y[i] = x[i]

@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2

def doubled(argument, array):
    double[1, 32](argument)
    return array.tolist()

def timed():
    first, last = cuda.event(), cuda.event()
    first.record()
    last.record()
    last.synchronize()
    return cuda.event_elapsed_time(first, last) >= 0

def entered(manager):
    with manager as value:
        return value

def printed(function):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        function()
    return text.getvalue()

def context_of(manager):
    cuda.set_memory_manager(manager)
    return cuda.cudadrv.driver._memory_manager is manager
"""
SIGNATURE = "'float64(float64)'"
# An expression for each name, and its value; ...: any.
CALLS: dict[str, tuple[str, object]] = {
    **{
        kind: (f"type(cuda.{kind}(b'code')).__mro__[1].__name__", "LinkableCode")
        for kind in ("Archive", "CUSource", "Cubin", "Fatbin", "LTOIR", "Object")
    },
    "LinkableCode": ("cuda.LinkableCode(b'code').data.decode()", "code"),
    "PTXSource": ("cuda.PTXSource(b'code').kind", ...),
    "BaseCUDAMemoryManager": (
        "isinstance(cuda.current_context().memory_manager, cuda.BaseCUDAMemoryManager)",
        True,
    ),
    "CudaSupportError": ("issubclass(cuda.CudaSupportError, ImportError)", ...),
    "GetIpcHandleMixin": (
        "isinstance(cuda.current_context().memory_manager, cuda.GetIpcHandleMixin)",
        True,
    ),
    "HostOnlyCUDAMemoryManager": (
        "isinstance(cuda.current_context().memory_manager, cuda.HostOnlyCUDAMemoryManager)",
        True,
    ),
    "In": ("doubled(cuda.In(a := np.ones(3)), a)", [1, 1, 1]),
    "InOut": ("doubled(cuda.InOut(a := np.ones(3)), a)", [2, 2, 2]),
    "Out": ("doubled(cuda.Out(a := np.zeros(3)), a)", [0, 0, 0]),
    "jit": ("doubled(a := np.ones(3), a)", [2, 2, 2]),
    "IpcHandle": ("isinstance(device.get_ipc_handle()._ipc_handle, cuda.IpcHandle)", True),
    "KernelRuntimeError": ("issubclass(cuda.KernelRuntimeError, RuntimeError)", True),
    "MappedMemory": (
        "isinstance((a := cuda.mapped_array(3)).gpu_data._mem, cuda.MappedMemory)",
        True,
    ),
    "MemoryInfo": ("isinstance(cuda.current_context().get_memory_info(), cuda.MemoryInfo)", True),
    "MemoryPointer": ("isinstance(device.gpu_data._mem, cuda.MemoryPointer)", True),
    "PinnedMemory": (
        "isinstance(cuda.current_context().memhostalloc(8), cuda.PinnedMemory)",
        True,
    ),
    "Reduce": ("cuda.Reduce(lambda a, b: a + b)(np.arange(100.0))", 4950.0),
    "reduce": ("cuda.reduce is cuda.Reduce", True),
    "as_cuda_array": ("cuda.as_cuda_array(device).copy_to_host().tolist()", [1, 1, 1]),
    "close": ("cuda.close()", None),
    **{
        name: (f"'.visible .func' in cuda.{name}(plus_one, {SIGNATURE}, device=True)[0]", True)
        for name in (
            "compile",
            "compile_ptx",
            "compile_for_current_device",
            "compile_ptx_for_current_device",
        )
    },
    "compile_all": (
        f"len(cuda.compile_all(plus_one, {SIGNATURE}, device=True, output='ltoir')[0]) > 0",
        True,
    ),
    "cuda_error": ("cuda.cuda_error()", None),
    "current_context": ("cuda.current_context().device.id", 0),
    "declare_device": ("cuda.declare_device('f', 'int32(int32)').name", "f"),
    "default_stream": ("cuda.default_stream().synchronize()", None),
    "legacy_default_stream": ("cuda.legacy_default_stream().synchronize()", None),
    "per_thread_default_stream": ("cuda.per_thread_default_stream().synchronize()", None),
    "defer_cleanup": ("entered(cuda.defer_cleanup())", None),
    "detect": ("'Found 1 CUDA devices' in printed(cuda.detect)", True),
    "device_array": ("list(cuda.device_array((2, 3), np.float32).shape)", [2, 3]),
    "device_array_like": ("list(cuda.device_array_like(ones).shape)", [3]),
    "event": ("cuda.event().query()", ...),
    "event_elapsed_time": ("timed()", True),
    "external_stream": ("cuda.external_stream(int(cuda.stream().handle)).synchronize()", None),
    "from_cuda_array_interface": (
        "cuda.from_cuda_array_interface(device.__cuda_array_interface__).copy_to_host().tolist()",
        [1, 1, 1],
    ),
    "get_current_device": ("list(cuda.get_current_device().compute_capability)", [9, 0]),
    "gpus": ("len(cuda.gpus)", 1),
    "list_devices": ("cuda.list_devices() is cuda.gpus", ...),
    "guvectorize": (
        "cuda.guvectorize(['void(float64[:], float64[:])'], '(n)->(n)')(copy)(ones).tolist()",
        [1, 1, 1],
    ),
    "vectorize": (f"cuda.vectorize([{SIGNATURE}])(plus_one)(ones).tolist()", ...),
    "is_available": ("cuda.is_available()", True),
    "is_bfloat16_supported": ("cuda.is_bfloat16_supported()", True),
    "is_cuda_array": ("[cuda.is_cuda_array(device), cuda.is_cuda_array(ones)]", [True, False]),
    "is_float16_supported": ("cuda.is_float16_supported()", True),
    "is_fp8_supported": ("cuda.is_fp8_supported()", True),
    "is_supported_version": ("cuda.is_supported_version()", True),
    "managed_array": ("doubled(a := cuda.managed_array(1), a)", ...),
    "mapped": ("doubled(entered(cuda.mapped(a := np.ones(2))), a)", [2, 2]),
    "mapped_array": ("doubled(a := cuda.mapped_array(1), a)", ...),
    "mapped_array_like": ("doubled(a := cuda.mapped_array_like(ones), a)", ...),
    "open_ipc_array": ("callable(cuda.open_ipc_array)", True),
    "pinned": ("entered(cuda.pinned(ones))", None),
    "pinned_array": ("cuda.pinned_array(3).shape[0]", 3),
    "pinned_array_like": ("cuda.pinned_array_like(ones).shape[0]", 3),
    "profile_start": ("cuda.profile_start()", None),
    "profile_stop": ("cuda.profile_stop()", None),
    "profiling": ("entered(cuda.profiling())", None),
    "require_context": ("cuda.require_context(lambda: 1)()", 1),
    "runtime": ("len(cuda.runtime.get_version())", 2),
    "select_device": ("cuda.select_device(0).id", 0),
    "set_memory_manager": (
        "context_of(type(cuda.current_context().memory_manager))",
        True,
    ),
    "stream": ("cuda.stream().synchronize()", None),
    "synchronize": ("cuda.synchronize()", None),
    "to_device": ("cuda.to_device(ones).copy_to_host().tolist()", [1, 1, 1]),
}


def test_each_name_has_a_call() -> None:
    assert set(CALLS) == set(numba_cuda_names.FEATURES)


def test_calls_do_what_the_page_says() -> None:
    last = ("close", "set_memory_manager")  # they end the context
    expressions = {
        name: expression
        for name, (expression, _) in sorted(CALLS.items(), key=lambda item: item[0] in last)
    }
    code = f"""{PREPARED}
results = {{}}
for name, expression in {expressions!r}.items():
    try:
        results[name] = eval(expression)
    except Exception as error:
        results[name] = f"{{type(error).__name__}}: {{error}}"
json.dump(results, sys.stdout, default=str)
"""
    results = json.loads(
        output_of(code, "-W", "ignore", environment={"NBRT_NUMBA_CUDA": "1", "NBRT_DEVICE": "cpu"})
    )
    wrong = {
        name: (results[name], expected)
        for name, (_, expected) in CALLS.items()
        if (results[name] != expected and expected is not ...)
        or (isinstance(results[name], str) and "Error: " in results[name])
    }
    assert wrong == {}
