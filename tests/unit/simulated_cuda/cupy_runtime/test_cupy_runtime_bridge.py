"""The bridge itself: signatures, the import hook, child processes, refused modules."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from simulated_cuda import loader
from simulated_cuda.cupy_runtime import RUNTIME, SignatureError, bridge, install, library
from simulated_cuda.cupy_runtime.hook import ModuleChanges
from simulated_cuda.cupy_runtime.signatures import (
    CapsuleType,
    PythonSignature,
    _parse_capsule,
    _parse_docstring,
    capsule_types,
    implementations,
)
from simulated_cuda.cupy_runtime.trampolines import UNCHANGED, trampolines

# ---- signatures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PyObject *(void)", CapsuleType("f", "PyObject *", (), False, False)),
        (
            "intptr_t (size_t, int __pyx_skip_dispatch)",
            CapsuleType("f", "intptr_t", ("size_t",), True, False),
        ),
        (
            "PyObject *(struct __pyx_obj_x_Props *, cudaMemcpyKind, int __pyx_skip_dispatch, "
            "struct __pyx_opt_args_x *__pyx_optional_args)",
            CapsuleType("f", "PyObject *", ("PyObject *", "int"), True, True),
        ),
    ],
)
def test_types_of_capsules(text: str, expected: CapsuleType) -> None:
    assert _parse_capsule("f", text) == expected


def test_signatures_of_docstrings() -> None:
    module = ModuleType("module")
    module.cudaSome = 4  # type: ignore[attr-defined]
    text = "f(unsigned int flags, value, int mode=cudaSome, size_t n=-1) -> int\n\nMore."
    assert _parse_docstring(module, "f", text) == PythonSignature(
        "f",
        (("unsigned int", "flags"), ("object", "value"), ("int", "mode"), ("size_t", "n")),
        {"mode": 4, "n": -1},
    )


def test_texts_that_are_not_understood() -> None:
    with pytest.raises(SignatureError, match="f: expected the type of a C function, got 'int'"):
        _parse_capsule("f", "int")
    with pytest.raises(SignatureError, match="f: expected a signature in the docstring"):
        _parse_docstring(ModuleType("module"), "f", "Return f.")


@pytest.fixture(scope="session")
def signatures(cupy: ModuleType) -> tuple[Any, Any, Any]:
    """CuPy's own, read in a process in which the bridge has replaced the functions."""
    module = importlib.import_module(RUNTIME)
    program = (
        "import pickle, sys; from pathlib import Path; "
        f"sys.path.insert(0, {str(Path(loader.__file__).parents[1])!r}); "
        f"import {RUNTIME} as module; from simulated_cuda.cupy_runtime import signatures as s; "
        "sys.stdout.buffer.write(pickle.dumps("
        "(s.capsule_types(module), s.python_signatures(module))))"
    )
    import pickle

    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, check=True)
    capsules, methods = pickle.loads(done.stdout)
    assert capsule_types(module) == capsules
    return capsules, methods, implementations(library.SOURCES)


def test_every_function_is_there(signatures: tuple[Any, Any, Any]) -> None:
    text = trampolines(*signatures)
    for name in signatures[0].keys() - UNCHANGED:
        assert f" capsule_{name}(" in text


def test_unknown_function(signatures: tuple[Any, Any, Any]) -> None:
    capsules, methods, defined = signatures
    capsules = {**capsules, "newCall": CapsuleType("newCall", "int", (), True, False)}
    with pytest.raises(SignatureError, match="newCall: expected no such function, got Capsule"):
        trampolines(capsules, methods, defined)


def test_changed_type(signatures: tuple[Any, Any, Any]) -> None:
    capsules, methods, defined = signatures
    changed = dataclasses.replace(capsules["malloc"], parameters=("size_t", "int"))
    message = r"malloc: expected intptr_t \(size_t\), got intptr_t \(size_t, int\)"
    with pytest.raises(SignatureError, match=message):
        trampolines({**capsules, "malloc": changed}, methods, defined)
    changed = dataclasses.replace(capsules["malloc"], result="size_t")
    with pytest.raises(SignatureError, match=r"got size_t \(size_t\)"):
        trampolines({**capsules, "malloc": changed}, methods, defined)


def test_changed_options(signatures: tuple[Any, Any, Any]) -> None:
    capsules, methods, defined = signatures
    changed = dataclasses.replace(capsules["streamWaitEvent"], takes_options=False)
    with pytest.raises(SignatureError, match="streamWaitEvent: "):
        trampolines({**capsules, "streamWaitEvent": changed}, methods, defined)


def test_changed_arguments(signatures: tuple[Any, Any, Any]) -> None:
    capsules, methods, defined = signatures
    changed = PythonSignature("free", (), {})
    with pytest.raises(SignatureError, match="free: expected 1 arguments, got"):
        trampolines(capsules, {**methods, "free": changed}, defined)


def test_functions_of_python_are_replaced(runtime: Any) -> None:
    module = importlib.import_module(RUNTIME)
    own = {name for name in UNCHANGED if hasattr(module, name)}
    found = python_signatures_or_none(module)
    assert found == own | {name for name in found if name.startswith("__pyx_")}


def python_signatures_or_none(module: ModuleType) -> set[str]:
    """Return the names of functions with Cython's docstring, which the bridge's lack."""
    kinds = ("builtin_function_or_method", "cython_function_or_method")
    return {
        name for name, value in vars(module).items() if type(value).__name__ in kinds
        and value.__doc__
    }  # fmt: skip


def test_errors_reach_the_other_modules(cupy: Any) -> None:
    """The C functions in the capsules return the values that mean an exception."""
    assert cupy.__version__.startswith("14."), "compare the except values of CuPy's runtime.pxd"
    cuda = cupy.cuda
    with pytest.raises(cuda.memory.OutOfMemoryError):
        cuda.MemoryPool().malloc(1 << 60)  # malloc: intptr_t
    with pytest.raises(cuda.memory.OutOfMemoryError):
        cuda.MemoryPool(cuda.malloc_managed).malloc(1 << 60)
    with pytest.raises(cuda.runtime.CUDARuntimeError, match="MemoryAllocation"):
        cuda.pinned_memory.PinnedMemory(1 << 60)
    with pytest.raises(cuda.runtime.CUDARuntimeError, match="InvalidDevice"):
        cuda.Device(99).use()  # setDevice: an object
    with pytest.raises(cuda.runtime.CUDARuntimeError, match="InvalidValue"):
        cuda.MemoryAsyncPool(99)  # deviceSetMemPool with a handle that is none
    with pytest.raises(cuda.runtime.CUDARuntimeError, match="InvalidResourceHandle"):
        cuda.get_elapsed_time(cuda.Event(), cuda.Event())  # float


def test_defaults_of_optional_arguments(cupy: Any, runtime: Any) -> None:
    """CuPy's C functions may be called without the arguments that have defaults."""
    memory = cupy.cuda.ManagedMemory(64)  # flags=cudaMemAttachGlobal
    assert runtime.pointerGetMemoryType(memory.ptr) == runtime.memoryTypeManaged
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()  # mode=streamCaptureModeRelaxed
        runtime.free(runtime.malloc(64))  # which the relaxed mode permits
        stream.end_capture()


# ---- the import hook -----------------------------------------------------------------------------


def test_change_runs_before_the_importer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changed_module.py").write_text("value = 1\n")
    (tmp_path / "importing_module.py").write_text("from changed_module import value\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def change(module: Any) -> None:
        module.value += 1

    ModuleChanges({"changed_module": change}).install()
    try:
        importing = importlib.import_module("importing_module")
        assert importing.value == 2
        assert type(sys.modules["changed_module"].__loader__).__name__ == "SourceFileLoader"
        with pytest.raises(ImportError, match="changed_module has been imported"):
            ModuleChanges({"changed_module": change}).install()
    finally:
        sys.modules.pop("changed_module", None)
        sys.modules.pop("importing_module", None)


def test_failing_change_ends_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "refused_module.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def change(module: ModuleType) -> None:
        raise SignatureError("f: expected int (void), got nothing")

    ModuleChanges({"refused_module": change}).install()
    with pytest.raises(ImportError, match=r"f: expected int \(void\)"):
        importlib.import_module("refused_module")
    assert "refused_module" not in sys.modules


def test_late_installation(cupy: ModuleType) -> None:
    with pytest.raises(ImportError, match="load the driver first"):
        install()


def test_pickled_pools_are_checked(runtime: Any) -> None:
    module = importlib.import_module(RUNTIME)
    fields = bridge._pool_fields(module)
    assert fields(module.MemPoolProps(5, 6, 7, 8)) == (5, 6, 7, 8)


def test_child_process(cupy: ModuleType) -> None:
    program = "import cupy; print(int(cupy.arange(10).nbytes), cupy.cuda.runtime.getDeviceCount())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.split() == ["80", str(cupy.cuda.runtime.getDeviceCount())]


def test_memory_and_events_of_another_process(cupy: Any, runtime: Any) -> None:
    event = runtime.eventCreateWithFlags(runtime.eventInterprocess | runtime.eventDisableTiming)
    address = runtime.malloc(8)
    runtime.memset(address, 7, 8)
    runtime.eventRecord(event, 0)
    runtime.deviceSynchronize()
    handles = runtime.ipcGetMemHandle(address), runtime.ipcGetEventHandle(event)
    program = (
        "import numpy, cupy; runtime = cupy.cuda.runtime; "
        f"memory, event = {handles!r}; "
        "runtime.eventSynchronize(runtime.ipcOpenEventHandle(event)); "
        "address = runtime.ipcOpenMemHandle(memory); values = numpy.zeros(8, 'u1'); "
        "runtime.memcpy(values.ctypes.data, address, 8, runtime.memcpyDeviceToHost); "
        "runtime.memset(address, 9, 8); runtime.deviceSynchronize(); "
        "runtime.ipcCloseMemHandle(address); print(values.tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.strip() == str([7] * 8)
    values = np.zeros(8, np.uint8)
    runtime.memcpy(values.ctypes.data, address, 8, runtime.memcpyDeviceToHost)
    assert values.tolist() == [9] * 8
    runtime.free(address)
    runtime.eventDestroy(event)


# ---- modules with machine code -------------------------------------------------------------------


def test_modules_with_machine_code_raise(cupy: Any) -> None:
    from simulated_cuda.cupy_runtime import NotSimulatedError

    array = cupy.empty(8, "float32")
    with pytest.raises(NotSimulatedError, match=r"_generator_api\.init_curand"):
        cupy.random.default_rng(1)
    with pytest.warns(DeprecationWarning, match="[Jj]itify"):
        module = cupy.RawModule(code="__global__ void f() {}", jitify=True)
    with pytest.raises(NotSimulatedError, match="jitify"):
        module.compile()
    with pytest.raises(NotSimulatedError, match="device_reduce"):
        cupy.cuda.cub.device_reduce(array, 0, None)
