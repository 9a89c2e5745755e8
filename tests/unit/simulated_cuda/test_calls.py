"""Initialisation, injected faults, counters, names of errors, and addresses of functions."""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING

import pytest
from cuda.bindings import driver

from helpers.driver_calls import call, status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

E = driver.CUresult
FLAGS = driver.CUdriverProcAddress_flags
FOUND = driver.CUdriverProcAddressQueryResult


# --- errors ---------------------------------------------------------------------------------------


def test_every_error_has_its_name_and_a_text(initialised: ModuleType) -> None:
    for name, code in E.__members__.items():
        assert call(driver.cuGetErrorName(code)).decode() == name
        assert call(driver.cuGetErrorString(code))


def test_an_unknown_error_has_no_name(simulation: ModuleType) -> None:
    library = ctypes.CDLL("libcuda.so.1")
    name = ctypes.c_char_p(b"before")
    assert library.cuGetErrorName(12345, ctypes.byref(name)) == E.CUDA_ERROR_INVALID_VALUE
    assert name.value is None


# --- initialisation -------------------------------------------------------------------------------

PROGRAM = """
from cuda.bindings import driver
import os
print(driver.cuDeviceGetCount()[0].name, driver.cuDriverGetVersion())
print(driver.cuInit(1)[0].name, driver.cuInit(0)[0].name, driver.cuDeviceGetCount())
read, write = os.pipe()
if os.fork() == 0:
    calls = (
        driver.cuInit(0), driver.cuDeviceGetCount(), driver.cuCtxGetCurrent(),
        driver.cuDriverGetVersion(),
    )
    os.write(write, " ".join(result[0].name for result in calls).encode())
    os._exit(0)
os.wait()
print(os.read(read, 1000).decode())
"""


def test_calls_need_cu_init_in_the_same_process(run_child: Callable[..., str]) -> None:
    assert run_child(PROGRAM, NBRT_SIM_DEVICES="3").splitlines() == [
        "CUDA_ERROR_NOT_INITIALIZED (<CUresult.CUDA_SUCCESS: 0>, 13040)",
        "CUDA_ERROR_INVALID_VALUE CUDA_SUCCESS (<CUresult.CUDA_SUCCESS: 0>, 3)",
        "CUDA_ERROR_NOT_INITIALIZED CUDA_ERROR_NOT_INITIALIZED CUDA_ERROR_NOT_INITIALIZED "
        "CUDA_SUCCESS",
    ]


def test_a_fork_before_cu_init_can_initialise(run_child: Callable[..., str]) -> None:
    program = """
from cuda.bindings import driver
import os
driver.cuDriverGetVersion()
if os.fork() == 0:
    print(driver.cuInit(0)[0].name, driver.cuDeviceGetCount()[1], flush=True)
    os._exit(0)
os.wait()
"""
    assert run_child(program) == "CUDA_SUCCESS 2"


def test_without_devices_cu_init_says_so(run_child: Callable[..., str]) -> None:
    program = "from cuda.bindings import driver; print(driver.cuInit(0)[0].name)"
    assert run_child(program, NBRT_SIM_DEVICES="0") == "CUDA_ERROR_NO_DEVICE"


# --- injected faults and counters -----------------------------------------------------------------


def test_the_chosen_calls_fail(initialised: ModuleType) -> None:
    initialised.inject("cuDeviceGetCount", E.CUDA_ERROR_SYSTEM_NOT_READY, skip=2, times=2)
    results = [status(driver.cuDeviceGetCount()) for _ in range(6)]
    assert results == ["SUCCESS"] * 2 + ["SYSTEM_NOT_READY"] * 2 + ["SUCCESS"] * 2


def test_an_injected_fault_of_all_calls_ends_with_its_block(initialised: ModuleType) -> None:
    with initialised.failing("cuDeviceGetCount", E.CUDA_ERROR_UNKNOWN, times=0):
        assert {status(driver.cuDeviceGetCount()) for _ in range(5)} == {"UNKNOWN"}
        assert status(driver.cuDeviceGet(0)) == "SUCCESS"
    assert status(driver.cuDeviceGetCount()) == "SUCCESS"


def test_an_unknown_function_cannot_fail(initialised: ModuleType) -> None:
    with pytest.raises(ValueError, match="cuNothing is no function"):
        initialised.inject("cuNothing", 1)


def test_calls_are_counted(initialised: ModuleType) -> None:
    before = initialised.call_count("cuDeviceGetName")
    call(driver.cuDeviceGetName(10, 0))
    assert initialised.call_count("cuDeviceGetName") == before + 1
    assert initialised.call_count("cuNothing") == -1


def test_a_function_that_is_not_simulated_is_counted(
    initialised: ModuleType, tmp_path: Path, run_child: Callable[..., str]
) -> None:
    program = """
import ctypes, os
library = ctypes.CDLL("libcuda.so.1")
print(library.cuCheckpointProcessLock(os.getpid(), None))
"""
    names = tmp_path / "stubs"
    log = tmp_path / "log"
    output = run_child(program, NBRT_SIM_STUBS=str(names), NBRT_SIM_LOG=str(log))
    assert output == str(int(E.CUDA_ERROR_NOT_SUPPORTED))
    assert names.read_text() == "cuCheckpointProcessLock\n"
    assert re.fullmatch(
        r"\d+ \d+ cuCheckpointProcessLock -> 801 \(not simulated\)\n", log.read_text()
    )


# --- addresses of functions -----------------------------------------------------------------------


def address(name: bytes, version: int, flags: int = 0) -> tuple[int, str]:
    value, found = call(driver.cuGetProcAddress(name, version, flags))
    return int(value or 0), FOUND(found).name.removeprefix("CU_GET_PROC_ADDRESS_")


def test_an_address_is_that_of_the_exported_function(initialised: ModuleType) -> None:
    library = ctypes.CDLL("libcuda.so.1")
    expected = ctypes.cast(library.cuMemAlloc_v2, ctypes.c_void_p).value
    assert address(b"cuMemAlloc", 3020) == (expected, "SUCCESS")
    assert address(b"cuMemAlloc", 13000) == (expected, "SUCCESS")


@pytest.mark.parametrize(
    ("name", "version", "found"),
    [
        (b"cuMemAlloc", 2000, "VERSION_NOT_SUFFICIENT"),
        (b"cuGraphInstantiate", 11000, "VERSION_NOT_SUFFICIENT"),
        (b"cuMemAlloc_v9", 13000, "SYMBOL_NOT_FOUND"),
        (b"", 13000, "SYMBOL_NOT_FOUND"),
    ],
)
def test_an_address_that_is_not_found_is_no_error(
    initialised: ModuleType, name: bytes, version: int, found: str
) -> None:
    assert address(name, version) == (0, found)


def test_the_version_selects_the_interface(initialised: ModuleType) -> None:
    interfaces = [address(b"cuCtxCreate", version)[0] for version in (4000, 11040, 12000, 12050)]
    assert interfaces[1] == interfaces[2]
    assert len(set(interfaces)) == 3
    assert address(b"cuCtxGetDevice", 12000) != address(b"cuCtxGetDevice", 13000)


def test_wrong_arguments_of_get_proc_address(initialised: ModuleType) -> None:
    assert status(driver.cuGetProcAddress(b"cuInit", 99000, 0)) == "INVALID_VALUE"
    assert status(driver.cuGetProcAddress(b"cuInit", 12000, 8)) == "INVALID_VALUE"


def test_the_per_thread_flag_selects_the_variant_of_the_per_thread_stream(
    initialised: ModuleType,
) -> None:
    flag = FLAGS.CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
    library = ctypes.CDLL("libcuda.so.1")
    for name, symbol in (
        (b"cuStreamSynchronize", "cuStreamSynchronize_ptsz"),
        (b"cuMemcpyHtoD", "cuMemcpyHtoD_v2_ptds"),
        (b"cuDeviceGet", "cuDeviceGet"),
    ):
        expected = ctypes.cast(library[symbol], ctypes.c_void_p).value
        assert address(name, 13000, flag) == (expected, "SUCCESS")


def test_the_first_interface_of_get_proc_address_reports_by_its_result(
    initialised: ModuleType,
) -> None:
    library = ctypes.CDLL("libcuda.so.1")
    found = ctypes.c_void_p()
    arguments = ctypes.byref(found), 13000, ctypes.c_uint64(0)
    assert library.cuGetProcAddress(b"cuInit", *arguments) == 0
    assert found.value == ctypes.cast(library.cuInit, ctypes.c_void_p).value
    assert library.cuGetProcAddress(b"cuNothing", *arguments) == E.CUDA_ERROR_NOT_FOUND


def test_there_are_no_export_tables(initialised: ModuleType) -> None:
    identifier = driver.CUuuid()
    assert status(driver.cuGetExportTable(identifier)) == "NOT_FOUND"
