"""Build the C part of the bridge on first use, into the cache of the simulated driver."""

from __future__ import annotations

import fcntl
import hashlib
import shlex
import subprocess
import tempfile
from pathlib import Path

from simulated_cuda import declarations
from simulated_cuda.build import BuildError, cache_directory, compiler, compiler_version

__all__ = ["SOURCES", "build_bridge"]

LIBRARY = "cupy_runtime.so"
SOURCES = tuple(sorted(Path(__file__).parent.glob("*.c")))

_HEADERS = tuple(sorted(Path(__file__).parent.glob("*.h")))
_FLAGS = [
    "-std=gnu11", "-O1", "-g", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall",
    "-Wextra",
]  # fmt: skip


def build_bridge(trampolines: str) -> Path:
    """Return the path of the library made of the C files here and a generated one.

    Raises
    ------
    BuildError
        If there is no compiler, or it fails.
    """
    command = [*compiler(), *_FLAGS]
    digest = hashlib.sha256(compiler_version(compiler()).encode())
    for text in (*command, trampolines, declarations.PXD.read_text(encoding="utf-8")):
        digest.update(f"{text}\0".encode())
    for file in (*SOURCES, *_HEADERS):
        digest.update(file.read_bytes())
    folder = cache_directory() / digest.hexdigest()[:24]
    library = folder / LIBRARY
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(command, trampolines, folder)
    return library


def _compile(command: list[str], trampolines: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        scratch = Path(name)
        header = declarations.declarations()
        (scratch / "cuda_declarations.h").write_text(header, encoding="utf-8")
        (scratch / "trampolines.c").write_text(trampolines, encoding="utf-8")
        files = [str(file) for file in (*SOURCES, scratch / "trampolines.c")]
        folders = [f"-I{scratch}", f"-I{Path(__file__).parent}"]
        target = scratch / LIBRARY
        command = [*command, *folders, *files, "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
        (folder / "compiler.log").write_text(done.stderr, encoding="utf-8")
        target.rename(folder / LIBRARY)
