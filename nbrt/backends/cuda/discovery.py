"""The number of CUDA devices and the reason if none is usable, without initialising CUDA.

``cuInit`` must not run here: afterwards the process could not fork. The count comes from NVML,
which does not initialise CUDA, filtered by ``CUDA_VISIBLE_DEVICES`` with CUDA's rules. Without NVML
and with MIG slices, one short child process counts the devices with the driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from typing import Any

__all__ = ["count_visible_devices", "visible_indices", "why_unavailable"]

_CHILD = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count))
print(count.value)
"""
_CHILD_SECONDS = 60
_CUPY_WHEELS = {"cupy-cuda12x": 12, "cupy-cuda13x": 13}


def count_visible_devices() -> int:
    """Return the number of devices that CUDA would find now."""
    if not _has_driver_library():
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible.strip():
        return 0
    uuids = _nvml_uuids()
    if uuids is None or (visible is not None and "MIG-" in visible):
        return _count_in_child(visible)
    return len(uuids) if visible is None else len(visible_indices(visible, uuids))


def visible_indices(visible: str, uuids: tuple[str, ...]) -> tuple[int, ...]:
    """Return the devices that a value of ``CUDA_VISIBLE_DEVICES`` names.

    By CUDA's rules, entries are indices or prefixes of uuids; the list ends at the first entry that
    names no device; a device named twice makes the whole list invalid.

    Examples
    --------
    >>> visible_indices("1,0,7,2", ("GPU-a", "GPU-b", "GPU-c"))
    (1, 0)
    """
    indices: list[int] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.startswith("GPU-"):
            matches = [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
        else:
            matches = [int(entry)] if entry.isdecimal() and int(entry) < len(uuids) else []
        if len(matches) != 1:
            break
        if matches[0] in indices:
            return ()
        indices.append(matches[0])
    return tuple(indices)


def why_unavailable() -> str | None:
    """Return the reason why no CUDA device is usable, with the next step; None if one is."""
    for package, module in (("CuPy", "cupy"), ("numba-cuda", "numba_cuda")):
        if importlib.util.find_spec(module) is None:
            return (
                f'{package} is not installed; pip install "nbrt[cuda12]", or "nbrt[cuda13]" for a '
                f"CUDA 13 driver (nvidia-smi shows which)"
            )
    if not _has_driver_library():
        return (
            "the NVIDIA driver is missing (libcuda.so.1 cannot be loaded); install the driver, or "
            "in a container start it with --gpus all"
        )
    if count_visible_devices() == 0:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            return (
                f"no device is visible: CUDA_VISIBLE_DEVICES={visible!r} names none of this "
                f"machine's; unset it or name one that nvidia-smi -L lists"
            )
        return "the NVIDIA driver finds no device; run nvidia-smi for details"
    return _why_incompatible()


def _why_incompatible() -> str | None:
    driver, wheel = _driver_major(), _cupy_major()
    if driver is not None and wheel is not None and driver < wheel:
        return (
            f"the NVIDIA driver supports CUDA {driver}, but the installed CuPy is built for CUDA "
            f'{wheel}; pip uninstall cupy-cuda{wheel}x and pip install "nbrt[cuda{driver}]", or '
            f"update the driver"
        )
    return None


def _cupy_major() -> int | None:
    """Return the CUDA version of the installed CuPy wheel without importing it."""
    majors = set()
    for name, major in _CUPY_WHEELS.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.distribution(name)
            majors.add(major)
    return majors.pop() if len(majors) == 1 else None


@functools.cache
def _has_driver_library() -> bool:
    # Loading the library runs no CUDA code; only cuInit does.
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _nvml() -> Any:
    """Return the initialised NVML bindings, or None; the caller calls ``shutdown``."""
    try:
        from cuda.bindings import nvml
    except ImportError:
        return None
    try:
        nvml.init_v2()
    except Exception:  # noqa: BLE001  # the child process counts the devices then
        return None
    return nvml


@functools.cache
def _nvml_uuids() -> tuple[str, ...] | None:
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        return tuple(
            str(nvml.device_get_uuid(nvml.device_get_handle_by_index_v2(index)))
            for index in range(nvml.device_get_count_v2())
        )
    except Exception:  # noqa: BLE001  # as above
        return None
    finally:
        nvml.shutdown()


@functools.cache
def _driver_major() -> int | None:
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        return int(nvml.system_get_cuda_driver_version()) // 1000
    except Exception:  # noqa: BLE001  # `initialize` checks the version
        return None
    finally:
        nvml.shutdown()


@functools.cache
def _count_in_child(visible: str | None) -> int:
    """Count the devices in a child process; `visible` is the key of the cache."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _CHILD],
            capture_output=True,
            text=True,
            timeout=_CHILD_SECONDS,
            check=True,
        )
        return int(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0
