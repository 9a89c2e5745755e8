"""CUDA kernels on disk: found without the compiler, and missed when their meaning changes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda, njit

import nbrt
from helpers.processes import output_of
from nbrt.backends.cuda import kernel_images
from nbrt.backends.cuda.kernel_images import STORE, load_image, save_image, target_of
from nbrt.backends.cuda.numba_compiler import NumbaCudaCompiler, NumbaSource, host_compiler
from nbrt.backends.cuda.ptx import compile_ptx
from nbrt.config import override

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nbrt.backends.cuda.backend import CudaInterface

pytestmark = pytest.mark.usefixtures("cuda_interface", "no_overloads")

PROGRAM = """
import json, sys
import numpy as np
from numba import cuda, njit
import nbrt
import functions

@cuda.jit(cache=True)
def kernel(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = functions.helper(i) + functions.OFFSET

calls = []
from numba.cuda.cudadrv import nvvm
real = nvvm.compile_ir
nvvm.compile_ir = lambda *args, **kwargs: calls.append(1) or real(*args, **kwargs)

x = nbrt.zeros(4, device="cuda:0")
before = set(sys.modules)
nbrt.kernel(kernel)[1, 4](x)
new = [name for name in set(sys.modules) - before if name.startswith(("numba.", "numba_cuda."))]
print(json.dumps([len(calls), len(new), nbrt.to_host(x).tolist()]))
"""

FUNCTIONS = """
from numba import cuda, njit
OFFSET = 5

@cuda.jit(device=True)
def inner(a):
    return a * {factor}

@cuda.jit(device=True)
def helper(a):
    return inner(a) + 1
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with override(cache_dir=str(tmp_path / "cache")):
        yield tmp_path


@pytest.fixture
def nvvm_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options of the calls of NVVM."""
    from numba.cuda.cudadrv import nvvm

    calls: list[str] = []
    compile_ir = nvvm.compile_ir

    def counted(*args: Any, **options: Any) -> bytes:
        calls.append(options["arch"])
        result: bytes = compile_ir(*args, **options)
        return result

    monkeypatch.setattr(nvvm, "compile_ir", counted)
    return calls


def write(folder: Path, factor: int = 2) -> None:
    (folder / "functions.py").write_text(FUNCTIONS.format(factor=factor))
    if not (folder / "program.py").exists():  # its time is in the key of numba-cuda's cache
        (folder / "program.py").write_text(PROGRAM)


def run(folder: Path) -> tuple[int, int, list[float]]:
    """Run the program in a process: calls of NVVM, new modules of numba-cuda, and the result."""
    environment = {
        "NBRT_CACHE_DIR": str(folder / "cache"),
        "NBRT_DEVICE": "cuda",
        "NUMBA_CACHE_DIR": str(folder / "numba"),
        "PYTHONDONTWRITEBYTECODE": "1",  # both texts may be written within a second
    }
    text = output_of(
        "import program",
        "-W",
        "ignore",
        environment=environment,
        path=(folder,),
        simulated_cuda=True,
    )
    calls, modules, values = json.loads(text)
    return calls, modules, values


def compiled_ahead(source: NumbaSource, capability: tuple[int, int]) -> str:
    key = source.compile_code(source.types_of((np.zeros(4),)), target_of(capability))
    assert key is not None
    return key


def entries() -> list[Any]:
    return list(STORE.entries())


def double(x):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


def launched(function: Any = double) -> list[float]:
    """Launch a kernel as a new process would: with nothing of it in memory."""
    with nbrt.device("cuda:0"):
        x = nbrt.full(4, 3.0)
        nbrt.kernel(function)[1, 4](x)
        values: list[float] = nbrt.to_host(x).tolist()
    return values


@pytest.mark.slow
def test_other_processes_compile_only_what_has_changed(folder: Path) -> None:
    """Also where numba-cuda's own cache would give old results (numba#9483)."""
    write(folder)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: run(folder), range(2)))
    assert [values for _, _, values in results] == [[6, 8, 10, 12]] * 2
    assert any(calls for calls, _, _ in results)
    assert len(entries()) == 1
    assert run(folder) == (0, 0, [6, 8, 10, 12])
    write(folder, factor=3)
    calls, modules, values = run(folder)
    assert calls
    assert modules
    assert values == [6, 9, 12, 15]
    assert len(entries()) == 2


def test_a_launch_from_the_store(nvvm_calls: list[str]) -> None:
    assert launched() == [6] * 4
    assert len(nvvm_calls) == 1
    (stored,) = entries()
    assert stored.entry.name == "double"
    assert stored.entry.signature == "array(float64, 1d, C)"
    assert stored.entry.target.startswith("sm_")
    assert stored.entry.versions == kernel_images.versions()
    assert launched() == [6] * 4
    assert launched(cuda.jit(double)) == [6] * 4
    assert len(nvvm_calls) == 1


def test_the_launch_is_as_that_of_compiled_code(nvvm_calls: list[str]) -> None:
    def kernel(out, z):  # type: ignore[no-untyped-def]
        shared = cuda.shared.array(48, np.float64)
        i = cuda.threadIdx.x
        shared[i] = i
        cuda.cg.this_grid().sync()
        out[cuda.grid(1)] = shared[cuda.blockDim.x - 1 - i] + z.real - z.imag

    results = []
    for _ in range(2):
        with nbrt.device("cuda:0"):
            out = nbrt.zeros(96)
            nbrt.kernel(kernel)[2, 48](out, 1 + 2j)
        results.append(nbrt.to_host(out).tolist())
    assert results[0] == results[1] == [47 - i % 48 - 1 for i in range(96)]
    assert len(nvvm_calls) == 1


def test_attributes_of_stored_kernels(interface: CudaInterface) -> None:
    @cuda.jit(shared_memory_carveout=50)
    def kernel(out):  # type: ignore[no-untyped-def]
        shared = cuda.shared.array(100, np.float64)
        shared[cuda.threadIdx.x] = 1
        cuda.syncthreads()
        out[0] = shared[0]

    args = (interface._driver.cupy.zeros(1),)
    first, second = (
        NumbaCudaCompiler(interface._driver).adopt(kernel).compile(args) for _ in range(2)
    )
    assert second.is_packed
    assert second.static_shared == first.static_shared == 800
    assert second.max_threads_per_block == first.max_threads_per_block > 0
    driver = interface._driver
    carveout = (
        driver.bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    )
    for kernel in (first, second):
        assert driver.call("reading", "cuFuncGetAttribute", carveout, kernel._function) == 50


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_damaged_files_are_compiled_again(folder: Path, nvvm_calls: list[str], damage: str) -> None:
    assert launched() == [6] * 4
    (path,) = (folder / "cache" / "cuda").rglob("*.nbrtc")
    content = path.read_bytes()
    changed = content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
    path.write_bytes({"cut": content[:-9], "changed": changed, "empty": b""}[damage])
    assert launched() == [6] * 4
    assert len(nvvm_calls) == 2
    assert launched() == [6] * 4
    assert len(nvvm_calls) == 2


@pytest.mark.parametrize("what", ["code", "data", "name"])
def test_code_that_does_not_load_is_compiled_again(nvvm_calls: list[str], what: str) -> None:
    """Such as code of a newer CUDA than this driver's."""
    from dataclasses import replace

    assert launched() == [6] * 4
    (stored,) = entries()
    entry = STORE.get(stored.key)
    assert entry is not None
    changes: dict[str, Any] = {
        "code": {"sections": {"cubin": b"of another driver"}},
        "data": {"data": {}},
        "name": {"data": {**entry.data, "entry_name": "absent"}},
    }
    STORE.put(stored.key, replace(entry, **changes[what]))
    for _ in range(2):
        assert launched() == [6] * 4
        assert len(nvvm_calls) == 2


def test_nothing_is_stored_for_values_that_change_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scope: dict[str, Any] = {"cuda": cuda, "__name__": "program", "factor": 2}
    source = """
@cuda.jit(device=True)
def scaled(a): return a * factor
def kernel(x): x[cuda.grid(1)] = scaled(x[cuda.grid(1)])
"""
    exec(source, scope)
    from numba.cuda.dispatcher import CUDADispatcher

    compile_kernel = CUDADispatcher.compile

    def changing(self: Any, signature: Any) -> Any:
        scope["factor"] = 10
        return compile_kernel(self, signature)

    with monkeypatch.context() as patch:
        patch.setattr(CUDADispatcher, "compile", changing)
        launched(scope["kernel"])
    assert not entries()
    assert launched(scope["kernel"]) == [30] * 4
    assert len(entries()) == 1


def test_arrays_of_device_functions_that_change_in_place(nvvm_calls: list[str]) -> None:
    table = np.array([2.0, 0.0])

    @cuda.jit(device=True)
    def scaled(a):  # type: ignore[no-untyped-def]
        return a * table[0]

    def kernel(x):  # type: ignore[no-untyped-def]
        x[cuda.grid(1)] = scaled(x[cuda.grid(1)])

    results = []
    for value in (2, 10, 2):
        table[0] = value
        results.append(launched(kernel)[0])
    assert results == [6, 30, 6]
    assert len(nvvm_calls) == 2
    assert len(entries()) == 2


def test_several_capabilities_at_once(nvvm_calls: list[str]) -> None:
    capabilities = [(7, 5), (8, 0), (9, 0)]
    source = host_compiler().adopt(double)
    for _ in range(2):
        keys = [compiled_ahead(source, each) for each in capabilities]
        assert len(set(keys)) == len(capabilities)
        assert nvvm_calls == ["compute_75", "compute_80", "compute_90a"]
    targets = {stored.key: stored.entry.target for stored in entries()}
    assert [targets[key] for key in keys] == ["sm_75", "sm_80", "sm_90a"]
    for key, target in zip(keys, nvvm_calls, strict=True):
        image = load_image(key)
        assert image is not None
        if image.ptx is not None:
            assert f".target {target.replace('compute', 'sm')}" in image.ptx


def test_device_functions_are_compiled_once_for_each_capability(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their code may use instructions of the capability."""
    monkeypatch.setattr("nbrt.backends.cuda.numba_compiler.load_image", lambda _: None)

    @cuda.jit(device=True)
    def inner(a):  # type: ignore[no-untyped-def]
        return a + 1

    @njit
    def outer(a):  # type: ignore[no-untyped-def]
        return inner(a)

    def kernel(x):  # type: ignore[no-untyped-def]
        x[0] = outer(x[0])

    source = host_compiler().adopt(kernel)
    compiled = []
    for capability in ((8, 0), (9, 0), (8, 0)):
        for dtype in (np.float32, np.float64):
            source.compile_ptx((np.zeros(4, dtype),), capability)
        version = outer._CUDATypingContext__dispatcher
        compiled.append([*inner.overloads.values(), *version.overloads.values()])
    first, second, third = compiled
    assert list(map(id, first)) == list(map(id, third))
    assert len(first) == len(second) == 4
    assert not any(code is other for code in first for other in second)


def test_device_functions_with_signatures(nvvm_calls: list[str]) -> None:
    """They convert arguments, so the signatures are a part of the key."""
    results = []
    for signature in ("int64(int64)", "int64(int64)", "float64(float64)"):

        @cuda.jit(signature, device=True)
        def truncated(a):  # type: ignore[no-untyped-def]
            return a

        def kernel(x):  # type: ignore[no-untyped-def]
            x[cuda.grid(1)] = truncated(x[cuda.grid(1)] / 2)

        results.append(launched(kernel)[0])
    assert results == [1, 1, 1.5]
    assert len(nvvm_calls) == 2


def test_code_compiled_ahead_is_launched(interface: CudaInterface, nvvm_calls: list[str]) -> None:
    """Without a device, and without nvJitLink, the code is PTX, which the first launch links."""
    capability = interface.get_device_properties(0).compute_capability
    key = compiled_ahead(host_compiler().adopt(double), capability)
    assert len(nvvm_calls) == 1
    (stored,) = entries()
    assert stored.key == key
    for _ in range(2):
        assert launched() == [6] * 4
        image = load_image(key)
        assert image is not None
        assert image.cubin is not None
    assert len(nvvm_calls) == 1
    assert len(entries()) == 1


def test_ptx_comes_from_the_store(nvvm_calls: list[str]) -> None:
    args = (np.zeros(4),)
    first = compile_ptx(double, args, (8, 0))
    assert compile_ptx(double, args, (8, 0)) == first
    assert nvvm_calls == ["compute_80"]
    assert compile_ptx(double, args, (8, 6)) != first
    assert len(entries()) == 2


def test_ptx_is_stored_beside_machine_code() -> None:
    """Of a capability without features of one architecture, both are under one key."""
    name, types = "double", ("array(float64, 1d, C)",)
    image = kernel_images.KernelImage("entry", (8, 0, ""), cubin=b"code")
    save_image("0" * 64, name, types, image)
    save_image("0" * 64, name, types, kernel_images.KernelImage("entry", (8, 0, ""), ptx="text"))
    both = load_image("0" * 64)
    assert both is not None
    assert (both.ptx, both.cubin, both.target) == ("text", b"code", (8, 0, ""))


def test_without_a_folder_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbrt.backends.code_store.store.cache_directory", lambda: None)
    assert launched() == [6] * 4


def test_bundles_bring_code_for_the_visible_gpus_and_keep_other_on_request(
    cuda_interface: CudaInterface, folder: Path, nvvm_calls: list[str]
) -> None:
    expected = launched()
    capability = cuda_interface.get_compute_capability(0)
    other = (12, 0) if capability != (12, 0) else (8, 0)
    compiled_ahead(host_compiler().adopt(double), other)
    bundle = folder / "double.nbrt"
    assert len(nbrt.cache.bundle(bundle, kernels=["double"])) == 2
    nvvm_calls.clear()
    with override(cache_dir=str(folder / "elsewhere")):
        statuses = {each.entry.target: each.status for each in nbrt.cache.load(bundle)}
        names = ["sm_{}{}{}".format(*target_of(each)) for each in (capability, other)]
        assert statuses == dict(zip(names, ("loaded", "skipped"), strict=True))
        assert launched() == expected
        nbrt.cache.load(bundle, targets=names[1:])
        assert {each.entry.target for each in entries()} == set(names)
    assert nvvm_calls == []
