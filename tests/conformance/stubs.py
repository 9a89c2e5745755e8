"""Stand-ins for packages that numba-cuda's tests import; a test that uses one is not applicable."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

from tests.conformance import rules

__all__ = ["install"]

_MEMBERS = {
    "filecheck": (),
    "filecheck.matcher": ("Matcher",),
    "filecheck.options": ("Options",),
    "filecheck.parser": ("Parser", "pattern_for_opts"),
    "filecheck.finput": ("FInput",),
    "cffi": ("FFI",),
}


def install() -> None:
    """Put stand-ins where the packages are missing."""
    import numba.cuda.typing.cffi_utils  # noqa: F401  # finds out for itself that cffi is missing

    missing = {
        name for name in _MEMBERS if importlib.util.find_spec(name.partition(".")[0]) is None
    }
    for name in sorted(missing):
        module = sys.modules[name] = ModuleType(name)
        for member in _MEMBERS[name]:
            setattr(module, member, _stand_in(name))


class MissingPackageError(rules.NotApplicable, ImportError):
    """Also an `ImportError`, for those who can do without the package."""


def _stand_in(package: str) -> type:
    def refuse(*_: Any, **__: Any) -> None:
        name = package.partition(".")[0]
        raise MissingPackageError(f"needs the package {name}, which is not installed")

    return type("StandIn", (), {"__init__": refuse})
