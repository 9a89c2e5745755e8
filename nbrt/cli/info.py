"""``nbrt info``: versions, devices, and reasons for unavailable backends."""

from __future__ import annotations

import platform
from importlib import metadata

from nbrt._version import __version__
from nbrt.backends.registry import (
    describe_unavailable,
    get_interface_for_device,
    known_backends,
)
from nbrt.errors import BackendUnavailableError
from nbrt.runtime.device import default_device

__all__ = ["info_lines"]

_PACKAGES = (
    "numpy",
    "numba",
    "llvmlite",
    "numba-cuda",
    "cuda-core",
    "cupy-cuda12x",
    "cupy-cuda13x",
)


def info_lines() -> list[str]:
    """Return the lines of the report; creates no context on a GPU."""
    lines = [f"nbrt {__version__} on Python {platform.python_version()}, {platform.platform()}"]
    lines.append("packages: " + ", ".join(_versions()))
    try:
        lines.append(f"default device: {default_device()}")
    except BackendUnavailableError as error:
        lines.append(f"default device: none ({error})")
    reasons = describe_unavailable()
    for name in known_backends():
        if name in reasons:
            lines.append(f"{name}: unavailable: {reasons[name]}")
        else:
            lines += _device_lines(name)
    return lines


def _device_lines(name: str) -> list[str]:
    interface = get_interface_for_device(name)
    lines = [f"{name}: {interface.device_count()} device(s)"]
    for index in range(interface.device_count()):
        properties = interface.get_device_properties(index)
        capability = properties.compute_capability
        parts = [
            properties.name,
            f"{properties.total_memory / 2**30:.1f} GiB",
            f"{properties.multi_processor_count} multiprocessors",
        ]
        if capability is not None:
            parts.append(f"compute capability {capability[0]}.{capability[1]}")
        lines.append(f"  {name}:{index}: " + ", ".join(parts))
        if index == 0:
            lines += [f"    {key}: {value}" for key, value in properties.details.items()]
    return lines


def _versions() -> list[str]:
    versions = []
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return versions
