"""Properties of the processor, read from the operating system."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path

from nbrt.backends.interface import DeviceProperties

__all__ = ["available_memory", "cpu_properties", "total_memory", "usable_cores"]

_SIMD_BITS = (("avx512f", 512), ("avx2", 256), ("avx", 256), ("sse2", 128), ("asimd", 128))
_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def total_memory() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_memory() -> int:
    """Return the bytes available without swapping."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _read(_MEMINFO), re.MULTILINE)
    if match is not None:
        return int(match[1]) * 1024
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return total_memory()


@cache
def cpu_properties() -> DeviceProperties:
    """Describe the processor as a device; its cores are the multiprocessors."""
    information = _read(_CPUINFO)
    name = re.search(r"^model name\s*:\s*(.+)$", information, re.MULTILINE)
    flags = _flags(information)
    cores = usable_cores()
    return DeviceProperties(
        name=name[1].strip() if name else platform.processor() or platform.machine(),
        total_memory=total_memory(),
        multi_processor_count=cores,
        max_threads_per_multi_processor=1024,
        details={
            "architecture": platform.machine(),
            "logical_cores": os.cpu_count() or 1,
            "physical_cores": _physical_cores(information),
            "usable_cores": cores,
            "simd_bits": next((bits for flag, bits in _SIMD_BITS if flag in flags), 64),
            "simd_features": tuple(flag for flag, _ in _SIMD_BITS if flag in flags),
            "has_fma": bool({"fma", "asimd"} & flags),
            "cache_bytes": _caches(),
        },
    )


def _flags(information: str) -> set[str]:
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", information, re.MULTILINE)
    return set(match[1].split()) if match else set()


def _physical_cores(information: str) -> int:
    pairs = set(
        re.findall(r"^physical id\s*:\s*(\d+)$.*?^core id\s*:\s*(\d+)$", information, re.M | re.S)
    )
    return len(pairs) or (os.cpu_count() or 1)


def _caches() -> dict[str, int]:
    """Return bytes per cache of the first core, such as ``{"L1d": 32768, "L2": 1048576}``."""
    sizes = {}
    for folder in sorted(_CACHES.glob("index*")):
        level, kind, size = (_read(folder / file).strip() for file in ("level", "type", "size"))
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if match is None or not level:
            continue
        suffix = {"Data": "d", "Instruction": "i"}.get(kind, "")
        sizes[f"L{level}{suffix}"] = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
    return sizes


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
