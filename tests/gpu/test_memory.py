from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import nbrt
from nbrt.errors import OutOfMemoryError

pytestmark = pytest.mark.gpu

LAYOUTS = {
    "C": lambda array: array,
    "F": lambda array: array.T,
    "gaps": lambda array: array[:, ::2],
    "reversed": lambda array: array[::-1],
}
VALUES = np.arange(64 * 64, dtype=np.int32).reshape(64, 64)


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("origin", LAYOUTS)
@pytest.mark.parametrize("road", ["h2d", "d2h", "d2d", "pinned"])
def test_copies(road: str, origin: str, to: str) -> None:
    source: Any = LAYOUTS[origin](VALUES)
    if road in ("d2h", "d2d"):
        source = LAYOUTS[origin](nbrt.to(VALUES, "cuda:0"))
    if road == "pinned":
        pinned = nbrt.get_interface_for_device("cuda").empty_pinned((64, 64), VALUES.dtype)
        pinned[...] = VALUES
        source = LAYOUTS[origin](pinned)
    target: Any = np.zeros((64, 64), np.int32)
    if road != "d2h":
        target = nbrt.zeros((64, 64), "int32", device="cuda:0")
    target = LAYOUTS[to](target)
    expected = LAYOUTS[origin](VALUES)
    if target.shape != source.shape:
        source, expected = source[:, :1], expected[:, :1]
    stream = nbrt.current_stream("cuda:0")
    nbrt.copy(target, source, stream=stream)
    stream.synchronize()
    result = target if road == "d2h" else nbrt.to_host(target)
    np.testing.assert_array_equal(result, np.broadcast_to(expected, result.shape))


def test_fill_keeps_bits() -> None:
    for value in (0.0, -0.0, 1.5, np.nan):
        array = nbrt.full(1000, value, "float32", device="cuda:0")
        assert nbrt.to_host(array).tobytes() == np.full(1000, value, np.float32).tobytes()


def test_views_keep_memory_alive() -> None:
    gc.collect()
    before = nbrt.memory_allocated("cuda:0")
    array = nbrt.empty(1 << 20, "uint8", device="cuda:0")
    view = array[100:200]
    del array
    gc.collect()
    assert nbrt.memory_allocated("cuda:0") == before + (1 << 20)
    del view
    gc.collect()
    assert nbrt.memory_allocated("cuda:0") == before


def test_memory_is_reused_and_given_back() -> None:
    nbrt.empty_cache("cuda:0")
    addresses = set()
    for _ in range(10):
        array = nbrt.empty(8 << 20, "uint8", device="cuda:0")
        addresses.add(array.data.ptr)
        del array
    assert len(addresses) == 1
    assert nbrt.memory_reserved("cuda:0") >= 8 << 20
    nbrt.empty_cache("cuda:0")
    assert nbrt.memory_reserved("cuda:0") < 8 << 20


def test_out_of_memory() -> None:
    _, total = nbrt.mem_get_info("cuda:0")
    with pytest.raises(OutOfMemoryError, match="cuda:0"):
        nbrt.empty(2 * total, "uint8", device="cuda:0")
    assert nbrt.zeros(4, device="cuda:0").shape == (4,)


def test_adopts_torch_tensors_and_gives_them_arrays() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA")
    tensor = torch.arange(10, device="cuda:0")
    array = nbrt.asarray(tensor)
    assert array.data.ptr == tensor.data_ptr()
    assert nbrt.device_of(tensor) == nbrt.Device("cuda:0")
    back = torch.from_dlpack(nbrt.to(np.arange(5, dtype=np.float32), "cuda:0"))
    assert back.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.multi_gpu
@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("origin", LAYOUTS)
def test_copies_between_devices(second_device: nbrt.Device, origin: str, to: str) -> None:
    source = LAYOUTS[origin](nbrt.to(VALUES, "cuda:0"))
    target = LAYOUTS[to](nbrt.zeros((64, 64), "int32", device=second_device))
    expected = LAYOUTS[origin](VALUES)
    if target.shape != source.shape:
        source, expected = source[:, :1], expected[:, :1]
    nbrt.default_stream("cuda:0").synchronize()
    nbrt.copy(target, source)
    np.testing.assert_array_equal(nbrt.to_host(target), np.broadcast_to(expected, target.shape))
