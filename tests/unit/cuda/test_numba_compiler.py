from __future__ import annotations

import ctypes
import enum
import functools
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from numba import cuda

from nbrt.backends.cuda.numba_compiler import NumbaCudaCompiler
from nbrt.backends.cuda.numba_kernel import NumbaKernel, _argument_type
from nbrt.backends.cuda.numpy_loops import complete_numpy_loops
from nbrt.backends.cuda.packing import ArgumentPacker, parameters_of, shapes_of
from nbrt.errors import ArgumentTypeError, BackendUnavailableError, CompileError

if TYPE_CHECKING:
    from nbrt.backends.cuda.backend import CudaInterface


class Pair(NamedTuple):
    first: int
    second: int


class Color(enum.IntEnum):
    RED = 3


SCALARS = [
    True, 7, -7, 2**63, 1.5, 2 - 3j,
    np.bool_(True), np.int8(-3), np.int16(-300), np.int32(-70000), np.int64(-(2**40)),
    np.uint8(200), np.uint16(60000), np.uint32(2**31), np.uint64(2**63), np.float16(1.5),
    np.float32(1.5), np.float64(1.5), np.complex64(1 + 2j), np.complex128(1 + 2j),
]  # fmt: skip


@pytest.fixture
def compiler(interface: CudaInterface) -> NumbaCudaCompiler:
    return NumbaCudaCompiler(interface._driver)


@pytest.fixture
def matrix(interface: CudaInterface) -> Any:
    return interface._driver.cupy.empty((8, 16), "float32")


def saxpy(a, x, y):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < x.size:
        y[i] = a * x[i] + y[i]


def broken(a, x, y):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    x[i] = a.nonsense


def test_layouts_are_told_apart(compiler: NumbaCudaCompiler, matrix: Any) -> None:
    assert str(compiler.type_of(matrix)) == "array(float32, 2d, C)"
    assert str(compiler.type_of(matrix.T)) == "array(float32, 2d, F)"
    assert str(compiler.type_of(matrix[:, ::2])) == "array(float32, 2d, A)"
    assert str(compiler.type_of((matrix, 1))) == "Tuple(array(float32, 2d, C), int64)"


def test_every_eighth_float_is_not_dense(compiler: NumbaCudaCompiler, matrix: Any) -> None:
    """numba-cuda 0.30.4 takes it for dense: strides of 32 bytes, items of 32 bits."""
    every_eighth = matrix[0, ::8]
    assert every_eighth.strides == (32,)
    assert str(compiler.type_of(every_eighth)) == "array(float32, 1d, A)"


@pytest.mark.parametrize("bad", ["text", None, [1], {}, 2**64, -(2**63) - 1, object(), ("text",)])
def test_types_that_kernels_cannot_take(compiler: NumbaCudaCompiler, bad: Any) -> None:
    source = compiler.adopt(saxpy)
    with pytest.raises(ArgumentTypeError, match=r"argument 0 \(a\) of saxpy"):
        source.compile_ptx((bad, 1, 1), (9, 0))


def test_keys_tell_types_apart(compiler: NumbaCudaCompiler) -> None:
    keys = [compiler.key_of(value) for value in (1, 1.0, True, 1j, 2**63, np.int32(1), np.int8(1))]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert compiler.key_of(2**63) == compiler.key_of(np.uint64(1))
    assert compiler.key_of(2**64) not in (compiler.key_of(1), compiler.key_of(2**63))
    assert compiler.key_of(np.datetime64(1, "s")) != compiler.key_of(np.datetime64(1, "ms"))
    assert compiler.key_of((1,)) is None
    assert compiler.key_of(Color.RED) is None


def test_adopts_functions_and_dispatchers(compiler: NumbaCudaCompiler) -> None:
    assert compiler.adopt(saxpy).parameter_names == ("a", "x", "y")
    assert compiler.adopt(cuda.jit(saxpy)).name == "saxpy"
    with pytest.raises(ArgumentTypeError, match="device function saxpy"):
        compiler.adopt(cuda.jit(device=True)(saxpy))
    with pytest.raises(ArgumentTypeError, match="Python function"):
        compiler.adopt(print)


def test_explicit_signatures_give_way_to_the_arguments(compiler: NumbaCudaCompiler) -> None:
    dispatcher = cuda.jit(saxpy)
    dispatcher._can_compile = False  # what explicit signatures lead to, without a device
    adopted = compiler.adopt(dispatcher)._dispatcher
    assert adopted is not dispatcher
    assert adopted.targetoptions == dispatcher.targetoptions


def for_numba(value: Any) -> Any:
    """Return an argument with arrays that numba-cuda takes."""
    from cuda.core.utils import StridedMemoryView

    if isinstance(value, tuple):
        return tuple(map(for_numba, value))
    if not hasattr(value, "data") or not hasattr(value.data, "mem"):
        return value
    # The strided views of cuda-core 1.2 cannot have negative strides.
    if min(value.strides, default=0) < 0:
        return _argument_type()(value)
    return StridedMemoryView.from_dlpack(value, stream_ptr=-1)


def reference_parameters(kind: Any, value: Any) -> list[bytes]:
    """Return the bytes that numba-cuda itself passes for an argument."""
    from numba.cuda.dispatcher import _Kernel

    parameters: list[Any] = []
    kernel = SimpleNamespace(extensions=())
    kernel._prepare_args = functools.partial(_Kernel._prepare_args, kernel)  # of the members
    kernel._prepare_args(kind, for_numba(value), 0, [], parameters)
    found = []
    for parameter in parameters:
        if isinstance(parameter, bool | np.bool_):
            found.append(struct.pack("<?", parameter))
        elif isinstance(parameter, int):
            found.append(struct.pack("<q", parameter))
        else:
            found.append(bytes(parameter))
    return found


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: f"{type(value).__name__}-{value}")
def test_scalars_are_packed_as_numba_does(compiler: NumbaCudaCompiler, value: Any) -> None:
    kind = compiler.type_of(value)
    check_packing((kind,), (value,))


@pytest.mark.parametrize("layout", ["whole", "transposed", "gaps", "reversed", "row", "scalar"])
def test_arrays_are_packed_as_numba_does(
    compiler: NumbaCudaCompiler, matrix: Any, layout: str
) -> None:
    chosen = {
        "whole": matrix, "transposed": matrix.T, "gaps": matrix[1::3, ::2],
        "reversed": matrix[::-1, ::-1], "row": matrix[2], "scalar": matrix[3, 5],
    }[layout]  # fmt: skip
    check_packing((compiler.type_of(chosen),), (chosen,))


def test_mixed_arguments_keep_their_order(compiler: NumbaCudaCompiler, matrix: Any) -> None:
    args = (np.float32(2), matrix, 1 + 2j, matrix.T, True)
    check_packing(tuple(map(compiler.type_of, args)), args)


def test_tuples_are_packed_as_numba_does(compiler: NumbaCudaCompiler, matrix: Any) -> None:
    args = ((np.uint64(2), np.uint64(3)), (), (matrix.T, (1j, matrix[::2])), 7)
    check_packing(tuple(map(compiler.type_of, args)), args)


def check_packing(types: tuple[Any, ...], args: tuple[Any, ...]) -> None:
    shapes = shapes_of(types)
    assert shapes is not None
    packer = ArgumentPacker(code for shape in shapes for code in shape.codes)
    packed = packer.pack(parameters_of(shapes, args))
    expected = [
        parameter
        for kind, value in zip(types, args, strict=True)
        for parameter in reference_parameters(kind, value)
    ]
    table = (ctypes.c_void_p * len(expected)).from_address(packed.address)
    for position, parameter in enumerate(expected):
        assert ctypes.string_at(table[position], len(parameter)) == parameter, position
    packer.release(packed)
    assert packer.pack(parameters_of(shapes, args)) is packed


def fake_kernel(types: tuple[Any, ...], **changes: Any) -> Any:
    launched: list[Any] = []
    settings = {
        "argument_types": types, "debug": False, "extensions": [], "cooperative": False,
        "launch_config_sensitive": False, "launched": launched,
        "launch": lambda *args: launched.append(args),
    } | changes  # fmt: skip
    return SimpleNamespace(**settings)


LOADED = SimpleNamespace(handle=77, attrs=SimpleNamespace(maxthreads=1024, shared=0))


def configuration(a, out):  # type: ignore[no-untyped-def]
    sizes = cuda.gridDim, cuda.blockDim
    for k in range(2):
        out[k, 0], out[k, 1], out[k, 2] = sizes[k].x, sizes[k].y, sizes[k].z
    out[2, 0] = a


def test_packed_launch_goes_to_the_driver(
    interface: CudaInterface, compiler: NumbaCudaCompiler
) -> None:
    queue = interface.create_queue(0, 0)
    with queue.entered():
        out = interface._driver.cupy.zeros((3, 3), "float32")
    args = (np.float32(2.5), out)
    kernel = compiler.adopt(configuration).compile(args)
    assert kernel.is_packed
    kernel.launch(queue, (2, 3, 4), (5, 6, 7), 8, args)
    queue.synchronize()
    assert out.get().tolist() == [[2, 3, 4], [5, 6, 7], [2.5, 0, 0]]


@pytest.mark.parametrize(
    "changes", [{"debug": True}, {"extensions": [object()]}, {"launch_config_sensitive": True}]
)
def test_special_kernels_go_through_numba(
    interface: CudaInterface, compiler: NumbaCudaCompiler, changes: dict[str, Any]
) -> None:
    kernel = fake_kernel((compiler.type_of(1),), **changes)
    loaded = NumbaKernel(compiler, kernel, LOADED)
    queue = interface.create_queue(0, 0)
    for _ in range(2):
        loaded.launch(queue, (1, 1, 1), (1, 1, 1), 0, (1,))
    assert not loaded.is_packed
    first, second = (entry[3] for entry in kernel.launched)
    assert first is second
    assert int(first.handle) == queue.handle


@pytest.mark.parametrize("value", [Pair(1, 2), (1, Color.RED), Color.RED, np.datetime64(1, "s")])
def test_unpacked_types_go_through_numba(compiler: NumbaCudaCompiler, value: Any) -> None:
    assert not NumbaKernel(compiler, fake_kernel((compiler.type_of(value),)), LOADED).is_packed


def test_untested_numba_versions_go_through_numba(
    monkeypatch: pytest.MonkeyPatch, interface: CudaInterface
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.31.0")
    compiler = NumbaCudaCompiler(interface._driver)
    kernel = NumbaKernel(compiler, fake_kernel((compiler.type_of(1),)), LOADED)
    assert not kernel.is_packed


def test_shared_memory_limit_only_grows(
    compiler: NumbaCudaCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[int] = []
    kernel = NumbaKernel(compiler, fake_kernel(()), LOADED)
    monkeypatch.setattr(compiler.driver, "allow_shared", lambda _, nbytes: allowed.append(nbytes))
    for nbytes in (50_000, 60_000, 50_000):
        kernel.allow_shared(nbytes)
    assert allowed == [50_000, 60_000]


def ptx_or_skip(source: Any, args: tuple[Any, ...], capability: tuple[int, int]) -> str:
    try:
        ptx: str = source.compile_ptx(args, capability)
    except BackendUnavailableError as error:
        pytest.skip(f"NVVM or NVRTC is not installed: {str(error).splitlines()[0]}")
    return ptx


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_compiles_to_ptx(
    compiler: NumbaCudaCompiler, matrix: Any, capability: tuple[int, int]
) -> None:
    args = (np.float32(2), matrix[0], matrix[1])
    ptx = ptx_or_skip(compiler.adopt(saxpy), args, capability)
    assert f".target sm_{capability[0]}{capability[1]}" in ptx
    # One scalar, and seven parameters for each one-dimensional array.
    assert "_param_14" in ptx
    assert "_param_15" not in ptx


def test_compile_error_names_the_line(compiler: NumbaCudaCompiler, matrix: Any) -> None:
    args = (np.float32(2), matrix[0], matrix[1])
    line = broken.__code__.co_firstlineno + 2
    with pytest.raises(CompileError, match=rf"broken\(a: float32.*test_numba_compiler\.py:{line}"):
        compiler.adopt(broken).compile_ptx(args, (9, 0))


def test_loops_of_numba_cuda_stay_as_they_are() -> None:
    from numba.cuda.ufuncs import ufunc_db

    complete_numpy_loops()
    table, original = ufunc_db(), ufunc_db.__wrapped__()
    assert len(table) > len(original)
    for ufunc, loops in original.items():
        for signature, lower in loops.items():
            assert table[ufunc][signature].__code__ is lower.__code__, (ufunc, signature)
