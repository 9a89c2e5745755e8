"""`processor`: the CPU that kernels compile for, this machine's or the one of ``NBRT_CPU``."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from nbrt.config import settings
from nbrt.errors import ArgumentError

__all__ = ["Processor", "processor"]

# Instructions of operating systems, which hypervisors hide. LLVM emits them for intrinsics only.
_SYSTEM = frozenset({"clzero", "mwaitx", "pku", "rdpru", "sgx", "shstk", "wbnoinvd"})

_MODULE = """
@cell = external global i32
{functions}
"""
_FUNCTIONS = """
define internal void @use{index}() "target-features"="+{feature}" {{
  store volatile i32 {index}, ptr @cell
  ret void
}}
define void @has{index}() "target-cpu"="{name}" {mode} {{
  call void @use{index}()
  ret void
}}
"""


@dataclass(frozen=True, slots=True)
class Processor:
    """A CPU of LLVM.

    Attributes
    ----------
    name : str
        LLVM's name, such as ``"znver4"`` or ``"x86-64-v3"``.
    features : str
        All features that code may use or must not, as LLVM has them: ``"+avx2,-avx512f"``.
    """

    name: str
    features: str

    @property
    def vector_registers(self) -> tuple[int, int]:
        """The number of vector registers that code may use, and the bytes of one."""
        features = self.features.split(",")
        if "+avx512f" in features:
            return 32, 64
        if "+avx" in features:
            return 16, 32
        return (16 if "+sse2" in features else 32), 16

    @property
    def has_fast_streaming(self) -> bool:
        """Whether stores that bypass the caches are fast from one thread, as measured on Zen.

        On other processors, they may occupy the buffers of a core for longer than other stores.
        For a level such as ``"x86-64-v3"``, the CPU of this machine decides.
        """
        name = llvm.get_host_cpu_name() if self.name.startswith("x86-64") else self.name
        return name.startswith("znver")


@cache
def processor() -> Processor:
    """Return the CPU that this process compiles kernels for, fixed at the first call.

    Raises
    ------
    ArgumentError
        If LLVM does not know the CPU of ``NBRT_CPU``, or this machine lacks one of its features.
    """
    here = llvm.get_host_cpu_features()
    name = settings().cpu
    if name is None:
        return Processor(llvm.get_host_cpu_name(), here.flatten())
    expected = (
        "expected NBRT_CPU to be a CPU of LLVM that this machine can stand for, such as x86-64-v3"
    )
    found = _features_of(name, list(here))
    if not found:
        raise ArgumentError(f"{expected}; LLVM knows no {name!r}")
    missing = sorted(each for each in found - _SYSTEM if not here[each])
    if missing:
        raise ArgumentError(f"{expected}; got {name!r}, but {_host()} lacks {', '.join(missing)}")
    chosen = [f"{'+' if each in found and here[each] else '-'}{each}" for each in here]
    return Processor(name, ",".join(chosen))


def _host() -> str:
    return f"this machine ({llvm.get_host_cpu_name()})"


def _features_of(name: str, asked: list[str]) -> set[str]:
    """Return the features that a CPU of LLVM has, among those asked for.

    LLVM's C interface does not list them. But the inliner moves a function that needs a feature
    only into a function for a CPU that has it. (Of the features without effect on the code of a
    function, such as ``cx16``, it says that all CPUs have them.)
    """
    if not (name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum()):
        return set()  # not quotable in LLVM IR, and no name
    llvm.initialize_native_target()
    target = llvm.Target.from_default_triple()
    # Without the mode, LLVM ends the process at a CPU of 32 bits and at an unknown one.
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    mode = '"target-features"="+64bit"' if is_x86 else ""
    functions = "".join(
        _FUNCTIONS.format(index=index, feature=feature, name=name, mode=mode)
        for index, feature in enumerate(asked)
    )
    module = llvm.parse_assembly(
        f'target triple = "{target.triple}"' + _MODULE.format(functions=functions)
    )
    builder = llvm.create_pass_builder(
        target.create_target_machine(opt=2), llvm.create_pipeline_tuning_options(2)
    )
    builder.getModulePassManager().run(module, builder)
    return {
        feature
        for index, feature in enumerate(asked)
        if "call" not in str(module.get_function(f"has{index}"))
    }
