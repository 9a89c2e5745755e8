"""Arrays of other libraries, by protocol."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nbrt
from helpers.launches import increment
from nbrt.errors import ArgumentTypeError, DeviceMismatchError, NbrtError


class Exporter:
    """An array of another library, as far as DLPack shows it."""

    def __init__(self, array: np.ndarray, device_type: int = 1) -> None:
        self.array = array
        self.device_type = device_type

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_type, 0


class CudaExporter:
    """An array that claims to lie on a CUDA device."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (3,), "typestr": "<f4", "data": (4096, False), "version": 3}


def test_arrays_are_shared_with_other_libraries(device: nbrt.Device) -> None:
    x = nbrt.to(np.arange(6.0), device, copy=True)
    if not nbrt.get_interface_for_device(device).capabilities.host_addressable:
        pytest.skip("NumPy takes host memory only")
    twin = np.from_dlpack(x)
    twin[0] = 7.0
    assert x[0] == 7.0
    used = nbrt.memory_allocated(device)
    del x
    assert nbrt.memory_allocated(device) == used
    assert twin.tolist() == [7.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    del twin
    assert nbrt.memory_allocated(device) < used


def test_host_arrays_of_other_libraries_are_shared() -> None:
    values = np.arange(6, dtype=np.int32)
    with nbrt.device("cpu:0"):
        x = nbrt.asarray(Exporter(values), copy=False)
        x[0] = 9
        assert values[0] == 9
        nbrt.copy(Exporter(values), np.int32(4))
        assert values.tolist() == [4] * 6
        increment[1, 32](Exporter(values))
        assert values.tolist() == [5] * 6
        assert nbrt.device_of(Exporter(values)) == nbrt.Device("cpu", 0)
        assert nbrt.to_host(Exporter(values)).tolist() == [5] * 6


def test_host_arrays_move_to_devices(device: nbrt.Device) -> None:
    x = nbrt.to(Exporter(np.arange(6.0)), device, copy=True)
    assert nbrt.device_of(x) == device
    assert nbrt.to_host(x).tolist() == list(range(6))


def test_memory_of_unknown_kinds_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="DLPack device type 8"):
        nbrt.asarray(Exporter(np.zeros(3), device_type=8))


def test_cuda_arrays_on_cpu_devices() -> None:
    with nbrt.device("cpu:0"), pytest.raises(DeviceMismatchError, match=r"copy it with nbrt\.to"):
        increment[1, 32](CudaExporter())
    if not nbrt.is_available("cuda"):
        with pytest.raises(NbrtError, match="cuda"):
            nbrt.asarray(CudaExporter())


def test_array_protocol_and_subclasses() -> None:
    class WithArray:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.arange(3, dtype=np.int32)

    class Special(np.ndarray):
        pass

    with nbrt.device("cpu:0"):
        assert nbrt.asarray(WithArray()).tolist() == [0, 1, 2]
        values = np.zeros(3, np.int32).view(Special)
        increment[1, 32](values)
        assert values.tolist() == [1, 1, 1]
        assert nbrt.device_of(values) == nbrt.Device("cpu", 0)


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.arange(6, dtype=torch.int32)
    with nbrt.device("cpu:0"):
        x = nbrt.asarray(tensor, copy=False)
        x[0] = 9
        assert tensor[0] == 9
        increment[1, 32](tensor)
        assert tensor.tolist() == [10, 2, 3, 4, 5, 6]
        back = torch.from_dlpack(nbrt.zeros(3))
        assert back.tolist() == [0.0, 0.0, 0.0]
        nbrt.copy(tensor, np.int32(1))
        assert tensor.tolist() == [1] * 6
