from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.processes import output_of
from nbrt.backends.cuda import discovery

if TYPE_CHECKING:
    from nbrt.backends.cuda.backend import CudaInterface

CHECK_IMPORT = """
import sys
from nbrt.backends.cuda.backend import CudaInterface
interface = CudaInterface()
interface.device_count(), interface.is_available(), interface.unavailable_reason()
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"cupy", "numba", "numba_cuda", "nbrt_kernels"}, loaded
"""

UUIDS = ("GPU-aaaa", "GPU-abbb", "GPU-cccc")


@pytest.mark.parametrize("simulated_cuda", [False, True])
def test_import_and_questions_load_no_gpu_library(simulated_cuda: bool) -> None:
    # The simulated driver has parts in Python, which use llvmlite.
    assert output_of(CHECK_IMPORT, simulated_cuda=simulated_cuda) == ""


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,1,2", (0, 1, 2)),
        ("2, 0", (2, 0)),
        ("1,7,0", (1,)),
        ("-1", ()),
        ("0,-1,1", (0,)),
        ("1,1", ()),
        ("GPU-c,GPU-aa", (2, 0)),
        ("GPU-a", ()),  # ambiguous
        ("GPU-cccc,nonsense", (2,)),
        ("nonsense", ()),
    ],
)
def test_cuda_visible_devices(visible: str, expected: tuple[int, ...]) -> None:
    assert discovery.visible_indices(visible, UUIDS) == expected


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with a driver and three devices."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(discovery, "_has_driver_library", lambda: True)
    monkeypatch.setattr(discovery, "_nvml_uuids", lambda: UUIDS)
    monkeypatch.setattr(discovery, "_driver_major", lambda: 13)
    monkeypatch.setattr(discovery, "_cupy_major", lambda: 12)
    return monkeypatch


def test_counts_through_nvml(machine: pytest.MonkeyPatch) -> None:
    assert discovery.count_visible_devices() == 3
    assert discovery.why_unavailable() is None
    machine.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert discovery.count_visible_devices() == 2


def test_asks_a_child_where_nvml_cannot_answer(machine: pytest.MonkeyPatch) -> None:
    asked = []
    machine.setattr(discovery, "_count_in_child", lambda visible: asked.append(visible) or 1)
    machine.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    assert discovery.count_visible_devices() == 1
    machine.setattr(discovery, "_nvml_uuids", lambda: None)
    machine.delenv("CUDA_VISIBLE_DEVICES")
    assert discovery.count_visible_devices() == 1
    assert asked == ["MIG-1234", None]


def test_reason_no_device_visible(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("CUDA_VISIBLE_DEVICES", "")
    reason = discovery.why_unavailable()
    assert reason is not None
    assert "CUDA_VISIBLE_DEVICES=''" in reason
    assert "unset it" in reason


def test_reason_driver_missing(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(discovery, "_has_driver_library", lambda: False)
    reason = discovery.why_unavailable()
    assert reason is not None
    assert "libcuda.so.1" in reason
    assert discovery.count_visible_devices() == 0


def test_reason_cupy_missing(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(discovery.importlib.util, "find_spec", lambda name: None)
    reason = discovery.why_unavailable()
    assert reason is not None
    assert 'pip install "nbrt[cuda12]"' in reason


def test_reason_wheel_newer_than_driver(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(discovery, "_driver_major", lambda: 12)
    machine.setattr(discovery, "_cupy_major", lambda: 13)
    reason = discovery.why_unavailable()
    assert reason is not None
    assert "nbrt[cuda12]" in reason


CHILD = """
    from nbrt.backends.cuda import discovery

    print(discovery._has_driver_library(), discovery._count_in_child(None))
"""


def test_a_child_process_counts_nothing_without_a_driver() -> None:
    has_driver, count = output_of(CHILD).split()
    if has_driver == "True":
        pytest.skip("this machine has an NVIDIA driver: the child process finds its devices")
    assert count == "0"


def test_a_child_process_counts_what_the_driver_does(cuda_interface: CudaInterface) -> None:
    found = output_of(CHILD, simulated_cuda=True)
    assert found == f"True {cuda_interface.device_count()}\n"
