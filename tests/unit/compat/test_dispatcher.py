"""Dispatchers of ``cuda.jit`` on CPU devices: options, signatures, versions and their GPU code."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda import float32, float64, int32, int64, launchconfig, void
from numba.cuda.core.errors import TypingError

from nbrt.errors import LaunchError, NotSupportedError

pytestmark = pytest.mark.usefixtures("installed")


def add(r: Any, x: Any, y: Any) -> None:
    r[0] = x + y


def scale(x: Any, factor: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor


@pytest.mark.parametrize(
    "signature",
    [
        "void(float32[::1], int32)",
        (float32[::1], int32),
        void(float32[::1], int32),
        "(f4[::1], i4)",
    ],
    ids=str,
)
def test_each_form_of_a_signature_converts_arguments(signature: Any) -> None:
    kernel = cuda.jit(signature)(scale)
    x = cuda.to_device(np.ones(3, np.float32))
    kernel[1, 4](x, 2**32 + 3)  # an int32 parameter keeps the low bits
    np.testing.assert_array_equal(x.copy_to_host(), np.full(3, 3, np.float32))
    assert kernel.signatures == [(float32[::1], int32)]
    assert kernel.specialized


def test_a_list_of_signatures_selects_and_refuses() -> None:
    kernel = cuda.jit([(int64[::1], int64, int64), "(float64[::1], float64, float64)"])(add)
    whole, real = np.zeros(1, np.int64), np.zeros(1)
    kernel[1, 1](whole, 1, 2)
    kernel[1, 1](real, 1.5, 2)
    assert (whole[0], real[0]) == (3, 3.5)
    for _ in range(2):  # the first launch and a later one
        with pytest.raises(TypeError, match="No matching definition"):
            kernel[1, 1](np.zeros(1, complex), 1j, 1j)
    assert len(kernel.overloads) == 2


def test_a_signature_compiles_at_the_decorator() -> None:
    with pytest.raises(TypingError, match="undefined_name"):

        @cuda.jit("void(float32[::1])")
        def _(x: Any) -> None:
            x[0] = undefined_name  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TypeError, match="void return type"):
        cuda.jit("float32(float32[::1], float32)")(scale)


def test_versions_are_the_types_of_launches() -> None:
    kernel = cuda.jit(scale)
    for dtype in (np.float32, np.float64, np.float32):
        x = cuda.to_device(np.ones(2, dtype))
        kernel[1, 2](x, 2)
        kernel[1, 2](x, 2)
    assert set(kernel.overloads) == {(float32[::1], int64), (float64[::1], int64)}
    assert [each.args for each in kernel.nopython_signatures] == kernel.signatures
    kernel.disable_compile()
    with pytest.raises(TypeError, match="No matching definition"):
        kernel[1, 2](cuda.to_device(np.ones(2, complex)), 2)


def test_specialize_gives_one_kernel_for_each_type() -> None:
    kernel = cuda.jit(scale)
    special = kernel.specialize(float32[::1], int64)
    assert special is kernel.specialize(np.ones(3, np.float32), 5)
    assert special is not kernel.specialize(float64[::1], int64)
    assert len(kernel.specializations) == 2
    with pytest.raises(RuntimeError, match="already specialized"):
        special.specialize(float32[::1], int64)
    x = cuda.to_device(np.ones(3, np.float32))
    special[1, 4](x, 4)
    np.testing.assert_array_equal(x.copy_to_host(), np.full(3, 4))


def test_device_functions_have_the_result_types_of_their_signatures() -> None:
    @cuda.jit("float32(float32)", device=True)
    def half(x: Any) -> Any:
        return x / 2

    @cuda.jit([(int32,), (float64,)], device=True)
    def negative(x: Any) -> Any:
        return -x

    assert half.overloads[(float32,)].signature.return_type == float32
    assert negative.overloads[(float64,)].signature.return_type == float64

    @cuda.jit
    def kernel(r: Any, x: Any) -> None:
        r[0] = half(x) + negative(x)

    r = np.zeros(1)
    kernel[1, 1](r, 1 / 3)
    assert r[0] == float(np.float32(1 / 3) / np.float32(2)) - 1 / 3
    with pytest.raises(RuntimeError, match="device function as a kernel"):
        half[1, 1](1.0)


def test_options_that_cuda_refuses_are_refused() -> None:
    with pytest.raises(TypeError, match="'unknown_option'"):
        cuda.jit(unknown_option=1)(scale)[1, 1](np.ones(1), 2)
    with pytest.raises(NotSupportedError, match="link="):
        cuda.jit("void(float32[::1], int32)", link=["some.ptx"])(scale)
    with pytest.raises(ValueError, match="4 launch bounds"):
        cuda.jit("void(float32[::1], int32)", launch_bounds=(1, 2, 3, 4))(scale)
    bounded = cuda.jit(launch_bounds=128)(scale)
    x = np.ones(4)
    bounded[1, 128](x, 2)
    with pytest.raises(LaunchError, match="at most 128 threads"):
        bounded[1, 256](x, 2)
    np.testing.assert_array_equal(x, np.full(4, 2.0))


class _Doubled:
    """An extension that passes twice an array, and collects what ran after the launch."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def prepare_args(self, ty: Any, val: Any, stream: Any, retr: Any) -> Any:
        if isinstance(val, np.ndarray):
            copy = val * 2
            retr.append(lambda: self.seen.append(copy[0]))
            return ty, copy
        return ty, val


def test_extensions_replace_arguments_and_run_after_the_launch() -> None:
    extension = _Doubled()
    kernel = cuda.jit(extensions=[extension])(scale)
    x = np.ones(2)
    for _ in range(2):
        kernel[1, 2](x, 5)
    assert extension.seen == [10.0, 10.0]
    np.testing.assert_array_equal(x, np.ones(2))


def test_callbacks_and_compilations_see_the_launch() -> None:
    kernel = cuda.jit(scale)
    x, seen = np.ones(1), []
    launch = kernel[1, 1]
    launch(x, 2)
    launch.pre_launch_callbacks.append(lambda version, config: seen.append((version, config)))
    launch(x, 2)
    assert seen == [(kernel.overloads[float64[::1], int64], launch)]
    launch.pre_launch_callbacks.clear()
    with launchconfig.capture_compile_config(kernel) as captured:
        launch(np.ones(1, np.float32), 2)
    assert captured["config"] is launch


def test_the_code_for_a_gpu_is_made_on_demand() -> None:
    pytest.importorskip("cuda.bindings")

    @cuda.jit(void(float32[::1]))
    def kernel(x: Any) -> None:
        shared = cuda.shared.array(100, dtype=float32)
        i = cuda.threadIdx.x
        shared[i] = x[i]
        cuda.syncthreads()
        x[i] = shared[cuda.blockDim.x - 1 - i]

    try:
        ptx = kernel.inspect_asm((float32[::1],))
    except Exception as error:  # noqa: BLE001  # NVVM is optional, and each version misses in its own way
        pytest.skip(f"no NVVM: {error}")
    assert ".visible .entry" in ptx
    assert "sm_90" in ptx
    assert list(kernel.inspect_llvm()) == [(float32[::1],)]
    text = io.StringIO()
    kernel.inspect_types(text)
    assert "shared" in text.getvalue()


def test_cached_kernels_count_hits_and_misses(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("numba.cuda.core.config.CACHE_DIR", str(tmp_path))
    for hits in (0, 1):
        kernel = cuda.jit(cache=True)(scale)
        kernel[1, 1](np.ones(1), 2)
        kernel[1, 1](np.ones(1), 2)
        assert sum(kernel.stats.cache_hits.values()) == hits
        assert sum(kernel.stats.cache_misses.values()) == 1 - hits


def test_kernels_and_launches_are_pickled() -> None:
    launch = cuda.jit(scale)[2, 3]
    launch(np.ones(1), 2)
    other = pickle.loads(pickle.dumps(launch))
    x = np.ones(5)
    other(x, 7)
    np.testing.assert_array_equal(x, np.full(5, 7.0))
    assert (other.griddim, other.blockdim) == ((2, 1, 1), (3, 1, 1))


def test_forall_covers_all_tasks() -> None:
    kernel = cuda.jit(scale)
    x = cuda.to_device(np.ones(1001))
    kernel.forall(x.size)(x, 2)
    kernel.forall(x.size, tpb=32)(x, 2)
    kernel.forall(0)(x, 2)
    np.testing.assert_array_equal(x.copy_to_host(), np.full(1001, 4.0))
    with pytest.raises(ValueError, match="negative task count"):
        kernel.forall(-1)


def test_link_time_optimisation_is_accepted_without_its_library() -> None:
    x = np.ones(4)
    cuda.jit(lto=True)(scale)[1, 4](x, 2.0)
    np.testing.assert_array_equal(x, np.full(4, 2.0))
