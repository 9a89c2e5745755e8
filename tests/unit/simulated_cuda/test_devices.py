"""Devices: properties of the chosen GPU, and which devices are visible."""

from __future__ import annotations

import ctypes
import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from cuda.bindings import driver

from helpers.driver_calls import call, status
from nbrt._internal.gpus import GPUS, gpu_named
from nbrt.backends.cuda import discovery

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

A = driver.CUdevice_attribute
INVALID = driver.CUdevice(99)


def attribute(name: str, device: int = 0) -> int:
    return int(call(driver.cuDeviceGetAttribute(getattr(A, f"CU_DEVICE_ATTRIBUTE_{name}"), device)))


# Ask one question with each of some settings. A driver reads its settings in cuInit, so processes
# that are forked before it share the loaded library, each with other settings.
ASK_EACH = """
import json, os, sys
from cuda.bindings import driver

driver.cuDriverGetVersion()
results = []
for value in {values!r}:
    read, write = os.pipe()
    if os.fork() == 0:
        os.environ[{setting!r}] = value
        is_usable = driver.cuInit(0)[0] == 0
        os.write(write, json.dumps([{question} for device in range(
            driver.cuDeviceGetCount()[1] if is_usable else 0
        )]).encode())
        os._exit(0)
    os.wait()
    results.append(json.loads(os.read(read, 100000)))
print(json.dumps(results))
"""


@pytest.fixture
def ask_each(run_child: Callable[..., str]) -> Callable[..., list[Any]]:
    """Evaluate an expression of `device` for all devices, with each value of a setting."""

    def ask(question: str, setting: str, values: Sequence[str], **settings: str) -> list[Any]:
        program = ASK_EACH.format(question=question, setting=setting, values=list(values))
        return cast("list[Any]", json.loads(run_child(program, **settings)))

    return ask


NAMES = (
    "MULTIPROCESSOR_COUNT COMPUTE_CAPABILITY_MAJOR COMPUTE_CAPABILITY_MINOR "
    "MAX_THREADS_PER_MULTIPROCESSOR MAX_BLOCKS_PER_MULTIPROCESSOR "
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR MAX_SHARED_MEMORY_PER_BLOCK_OPTIN "
    "RESERVED_SHARED_MEMORY_PER_BLOCK CLUSTER_LAUNCH"
)
GPU = (
    f"[driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, 'CU_DEVICE_ATTRIBUTE_' + n),"
    f" device)[1] for n in '{NAMES}'.split()]"
    f" + [driver.cuDeviceTotalMem(device)[1], driver.cuDeviceGetName(80, device)[1].decode()]"
)


def test_the_attributes_are_those_of_the_chosen_gpu(ask_each: Callable[..., list[Any]]) -> None:
    gpus = {name: gpu for name, gpu in GPUS.items() if gpu.multiprocessors is not None}
    settings = {"NBRT_SIM_DEVICES": "1", "NBRT_SIM_MEMORY": "512M"}
    names = [name.lower().replace(" ", "-") for name in gpus]
    answers = ask_each(GPU, "NBRT_SIM_GPU", names, **settings)
    for gpu, ((*values, memory, name),) in zip(gpus.values(), answers, strict=True):
        limits = gpu.limits
        assert values == [
            gpu.multiprocessors,
            *gpu.capability,
            limits.threads,
            limits.blocks,
            limits.shared,
            limits.shared_per_block,
            limits.shared_reserved,
            gpu.capability >= (9, 0),
        ]
        assert memory == 512 << 20
        assert gpu_named(name.partition("\0")[0]) == gpu


def test_an_unknown_gpu_is_replaced(ask_each: Callable[..., list[Any]]) -> None:
    question = "driver.cuDeviceGetName(80, device)[1].decode()"
    (names,) = ask_each(question, "NBRT_SIM_GPU", ["Voodoo 2"])
    assert {name.partition("\0")[0] for name in names} == {"NVIDIA H100 SXM"}


def test_every_attribute_can_be_asked(initialised: ModuleType) -> None:
    last = int(A.CU_DEVICE_ATTRIBUTE_MAX)
    for number in range(1, last):
        call(driver.cuDeviceGetAttribute(A(number) if number in set(A) else number, 0))


def test_queries_agree_with_the_attributes(initialised: ModuleType) -> None:
    capability = call(driver.cuDeviceComputeCapability(0))
    assert capability == (
        attribute("COMPUTE_CAPABILITY_MAJOR"),
        attribute("COMPUTE_CAPABILITY_MINOR"),
    )
    properties = call(driver.cuDeviceGetProperties(0))
    assert properties.maxThreadsPerBlock == attribute("MAX_THREADS_PER_BLOCK") == 1024
    assert list(properties.maxThreadsDim) == [1024, 1024, 64]
    assert properties.SIMDWidth == attribute("WARP_SIZE") == 32


def test_a_name_is_cut_to_the_buffer(initialised: ModuleType) -> None:
    assert call(driver.cuDeviceGetName(7, 0)).rstrip(b"\0") == b"NVIDIA"
    assert status(driver.cuDeviceGetName(0, 0)) == "INVALID_VALUE"


@pytest.mark.parametrize(
    "query",
    [
        lambda: driver.cuDeviceGet(99),
        lambda: driver.cuDeviceGet(-1),
        lambda: driver.cuDeviceGetName(10, INVALID),
        lambda: driver.cuDeviceTotalMem(INVALID),
        lambda: driver.cuDeviceGetUuid(INVALID),
        lambda: driver.cuDeviceGetAttribute(A.CU_DEVICE_ATTRIBUTE_WARP_SIZE, INVALID),
        lambda: driver.cuDeviceGetPCIBusId(20, INVALID),
        lambda: driver.cuDeviceGetProperties(INVALID),
        lambda: driver.cuDeviceComputeCapability(INVALID),
        lambda: driver.cuDeviceCanAccessPeer(0, INVALID),
        lambda: driver.cuDevicePrimaryCtxRetain(INVALID),
        lambda: driver.cuDevicePrimaryCtxGetState(INVALID),
    ],
)
def test_a_device_that_does_not_exist(
    initialised: ModuleType, query: Callable[[], tuple[object, ...]]
) -> None:
    assert status(query()) == "INVALID_DEVICE"


def test_devices_are_found_by_their_pci_ids(initialised: ModuleType) -> None:
    for device in range(2):
        text = call(driver.cuDeviceGetPCIBusId(20, device)).rstrip(b"\0")
        assert int(call(driver.cuDeviceGetByPCIBusId(text))) == device
        assert int(call(driver.cuDeviceGetByPCIBusId(text.partition(b":")[2]))) == device
    assert status(driver.cuDeviceGetByPCIBusId(b"0000:99:00.0")) == "INVALID_DEVICE"
    assert status(driver.cuDeviceGetByPCIBusId(b"nothing")) == "INVALID_VALUE"


def test_nvml_names_the_devices_as_the_driver_does(initialised: ModuleType) -> None:
    from cuda.bindings import nvml

    nvml.init_v2()
    uuids = [
        nvml.device_get_uuid(nvml.device_get_handle_by_index_v2(index))
        for index in range(nvml.device_get_count_v2())
    ]
    nvml.shutdown()
    own = [bytes(call(driver.cuDeviceGetUuid(device)).bytes).hex() for device in range(2)]
    assert [uuid.removeprefix("GPU-").replace("-", "") for uuid in uuids] == own


VISIBLE = ["0", "1,0", " 2 , 0,", "0,7,1", "GPU-a1", "GPU-a2,1", "GPU-", "0,0", "-1", "", "x"]


def test_visible_devices_are_those_that_nbrt_expects(ask_each: Callable[..., list[Any]]) -> None:
    uuids = tuple(f"GPU-a{place}6e6272" for place in range(3))
    question = "bytes(driver.cuDeviceGetUuid(device)[1].bytes)[0] - 0xA0"
    answers = ask_each(question, "CUDA_VISIBLE_DEVICES", VISIBLE, NBRT_SIM_DEVICES="3")
    assert dict(zip(VISIBLE, map(tuple, answers), strict=True)) == {
        visible: discovery.visible_indices(visible, uuids) for visible in VISIBLE
    }


def test_nbrt_counts_the_devices(run_child: Callable[..., str]) -> None:
    program = """
from nbrt.backends.cuda import discovery
print(discovery.count_visible_devices(), discovery.why_unavailable())
"""
    assert run_child(program, NBRT_SIM_DEVICES="4", CUDA_VISIBLE_DEVICES="2,3") == "2 None"


def test_peers(initialised: ModuleType) -> None:
    P = driver.CUdevice_P2PAttribute
    assert call(driver.cuDeviceCanAccessPeer(0, 1)) == 1
    assert call(driver.cuDeviceCanAccessPeer(1, 1)) == 0
    access = P.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
    assert call(driver.cuDeviceGetP2PAttribute(access, 0, 1)) == 1
    assert status(driver.cuDeviceGetP2PAttribute(access, 0, 0)) == "INVALID_DEVICE"


def test_memory_can_be_limited(initialised: ModuleType) -> None:
    before = call(driver.cuDeviceTotalMem(1))
    with initialised.limited_memory(1 << 20, device=1):
        assert call(driver.cuDeviceTotalMem(1)) == 1 << 20
    assert call(driver.cuDeviceTotalMem(1)) == before


def test_null_pointers_are_invalid_values(initialised: ModuleType) -> None:
    library = ctypes.CDLL("libcuda.so.1")
    for name in ("cuDeviceGetCount", "cuDriverGetVersion", "cuCtxGetCurrent"):
        assert library[name](None) == driver.CUresult.CUDA_ERROR_INVALID_VALUE
