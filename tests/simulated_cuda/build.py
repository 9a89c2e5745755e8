"""Build the simulated CUDA driver and NCCL on first use, and keep them in the user's cache."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BuildError", "build", "cache_directory", "compiler", "compiler_version"]

LIBRARY = "libcuda.so.1"
NCCL_LIBRARY = "libnccl.so.2"
NVML_LIBRARY = "libnvidia-ml.so.1"

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_DRIVER = _HERE / "driver"
_NCCL = _HERE / "nccl"
_NVML = _HERE / "nvml"
_GPUS = _ROOT / "nbrt" / "_internal" / "gpus.py"
_GENERATORS = ("build.py", "declarations.py", "tables.py", "versions.py")

_FLAGS = [
    "-std=gnu11", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra",
    # Functions of the API have parameters that a simulation needs not.
    "-Wno-unused-parameter",
]  # fmt: skip
_LIBRARIES = ["-lpthread", "-ldl", "-lm", "-lrt"]
# The oldest C library that the wheels of CuPy and numba-cuda need, so that one build of zig's
# compiler runs beside each of them.
_ZIG_GLIBC = "2.17"


class BuildError(RuntimeError):
    """The simulated driver cannot be built; the message has the output of the compiler."""


def cache_directory() -> Path:
    """Return the folder of the built libraries: within that of nbrt's compiled kernels."""
    root = os.environ.get("NBRT_CACHE_DIR")
    if root is None:
        root = str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nbrt")
    return Path(root) / "simulated_cuda"


def compiler() -> list[str]:
    """Return the command of a C compiler: ``$CC``, the system's, or that of the wheel ziglang.

    Raises
    ------
    BuildError
        If there is none.
    """
    if chosen := shlex.split(os.environ.get("CC", "")):
        return chosen
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    if importlib.util.find_spec("ziglang") is not None:
        target = f"{platform.machine()}-linux-gnu.{_ZIG_GLIBC}"
        return [sys.executable, "-m", "ziglang", "cc", "-target", target]
    raise BuildError(
        "the simulated CUDA driver needs a C compiler, and there is no cc, gcc or clang; install "
        "one, set CC, or pip install ziglang"
    )


def compiler_version(command: list[str]) -> str:
    """Return what a compiler says about itself.

    Raises
    ------
    BuildError
        If it does not run.
    """
    return _run([*command, "--version"]).stdout


def build() -> Path:
    """Return the path of ``libcuda.so.1``, and build it if it is not in the cache.

    ``libnccl.so.2`` lies beside it.

    Several processes may build at once: one of them compiles, and the others wait for it.

    Raises
    ------
    BuildError
        If there is no compiler, or it fails, or the cache cannot be written to.
    """
    if sys.platform != "linux":
        raise BuildError(f"the simulated CUDA driver is for Linux, not {sys.platform}")
    command = compiler()
    folder = cache_directory() / _key(command)
    library = folder / LIBRARY
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.exists():
                _compile(command, folder)
    except OSError as error:
        raise BuildError(
            f"the simulated CUDA driver cannot be built in {folder}: {error}; set NBRT_CACHE_DIR "
            "to a folder that can be written to"
        ) from error
    return library


def _sources(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.c"))


def _key(command: list[str]) -> str:
    """Return the name of the folder of a build: a digest of everything that it depends on."""
    pxd = Path(_package("cuda.bindings")) / "cydriver.pxd"
    files = [file for folder in (_DRIVER, _NCCL, _NVML) for file in sorted(folder.glob("*.[ch]"))]
    files += [_GPUS, pxd]
    files += [_HERE / name for name in _GENERATORS]
    digest = hashlib.sha256(compiler_version(command).encode())
    for text in (platform.machine(), *command, *_FLAGS, *_LIBRARIES):
        digest.update(f"{text}\0".encode())
    for file in files:
        digest.update(f"{file.name}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:24]


def _package(name: str) -> str:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise BuildError(
            f"the simulated CUDA driver takes its declarations from {name}: install it"
        )
    return str(Path(spec.origin).parent)


def _compile(command: list[str], folder: Path) -> None:
    from simulated_cuda import declarations, tables

    with tempfile.TemporaryDirectory(dir=folder) as name:
        scratch = Path(name)
        sources = _sources(_DRIVER)
        (scratch / "cuda_declarations.h").write_text(declarations.declarations(), encoding="utf-8")
        exports = declarations.exports(declarations.implemented(sources))
        generated = {"exports.c": exports, "tables.c": tables.tables(_GPUS)}
        for file, text in generated.items():
            (scratch / file).write_text(text, encoding="utf-8")
        sources += [scratch / file for file in generated]
        messages = _link(command, scratch, LIBRARY, sources)
        messages += _link(command, scratch, NCCL_LIBRARY, _sources(_NCCL))
        messages += _link(command, scratch, NVML_LIBRARY, _sources(_NVML), needs=[LIBRARY])
        (folder / "compiler.log").write_text(messages, encoding="utf-8")
        # The last one tells that all is done.
        for library in (NCCL_LIBRARY, NVML_LIBRARY, LIBRARY):
            (scratch / library).rename(folder / library)


def _link(
    command: list[str], scratch: Path, library: str, sources: list[Path], needs: Sequence[str] = ()
) -> str:
    """Compile and link a library, and return the messages of the compiler.

    `needs` are libraries of the same folder.
    """
    base = _digest_of_headers(command, [scratch, _DRIVER, *{source.parent for source in sources}])
    translate = functools.partial(_translate, command, scratch, base)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(translate, sources))
    inputs = [*(path for path, _ in objects), *(scratch / name for name in needs)]
    options = [f"-Wl,-soname,{library}", "-Wl,-rpath,$ORIGIN", "-Wl,-z,defs"]
    link = [*command, "-shared", "-pthread", "-g", *options]
    _run([*link, "-o", str(scratch / library), *map(str, inputs), *_LIBRARIES])
    return "".join(messages for _, messages in objects)


def _digest_of_headers(command: list[str], folders: list[Path]) -> str:
    """Return a digest of everything that an object depends on, but for its source file."""
    digest = hashlib.sha256(compiler_version(command).encode())
    digest.update("\0".join([platform.machine(), *command, *_FLAGS]).encode())
    for header in sorted({path for folder in folders for path in folder.glob("*.h")}):
        digest.update(hashlib.sha256(header.read_bytes()).digest())
    return digest.hexdigest()


def _translate(command: list[str], scratch: Path, base: str, source: Path) -> tuple[Path, str]:
    """Compile a file unless the cache has its object; return that and the compiler's messages."""
    text = f"{base}\0{source.name}\0".encode() + source.read_bytes()
    target = cache_directory() / "objects" / f"{hashlib.sha256(text).hexdigest()[:32]}.o"
    if target.exists():
        return target, ""
    target.parent.mkdir(exist_ok=True)
    made = scratch / f"{target.stem}.o"
    include = [f"-I{scratch}", f"-I{_DRIVER}"]
    done = _run([*command, *_FLAGS, *include, "-c", str(source), "-o", str(made)])
    made.rename(target)
    return target, done.stderr


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"cannot run {shlex.join(command)}: {error}") from error
    if done.returncode:
        raise BuildError(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done
