"""The key of CUDA code on disk: it changes with everything that the compiler reads."""

from __future__ import annotations

import linecache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from numba import cuda, njit
from numba.core.typing import templates as core_templates
from numba.cuda.typing import templates as cuda_templates

from nbrt.backends import foreign_overloads
from nbrt.backends.cuda import kernel_images
from nbrt.backends.cuda.kernel_images import target_of
from nbrt.backends.cuda.numba_compiler import NumbaCudaCompiler
from nbrt.backends.cuda.target_options import hash_options
from nbrt.backends.fingerprint import UnhashableError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_overloads")

SOURCE = """
SCALE = 3
@cuda.jit(device=True)
def inner(a):
    return a + 2

@njit
def helper(a):
    return inner(a) * SCALE + TABLE[0]

def make(shift):
    def kernel(x, n):
        i = cuda.grid(1)
        if i < n:
            x[i] = helper(i) + shift + settings.OFFSET
    return kernel
"""


@pytest.fixture
def compiler() -> NumbaCudaCompiler:
    driver: Any = SimpleNamespace(cupy=np)
    return NumbaCudaCompiler(driver)


def kernel_of(
    source: str = SOURCE, shift: float = 1, offset: int = 5, table: float = 0.25, line: int = 0
) -> Any:
    """Make the kernel anew, as another process would."""
    file = f"<{line} {source}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    settings = type(linecache)("settings")
    vars(settings)["OFFSET"] = offset
    scope: dict[str, Any] = {
        "cuda": cuda,
        "njit": njit,
        "settings": settings,
        "TABLE": np.array([table, 1.0]),
        "__name__": "program",
    }
    exec(compile("\n" * line + source, file, "exec"), scope)
    return scope["make"](shift)


def key_of(
    compiler: NumbaCudaCompiler,
    kernel: Any,
    capability: tuple[int, int] = (8, 0),
    args: tuple[Any, ...] = (np.zeros(4), 4),
) -> str | None:
    source = compiler.adopt(kernel)
    return source.key(source.types_of(args), target_of(capability))


def test_the_key_is_that_of_another_process(compiler: NumbaCudaCompiler) -> None:
    key = key_of(compiler, kernel_of())
    assert key is not None
    assert key_of(compiler, kernel_of()) == key
    assert key_of(compiler, kernel_of(line=7)) == key
    assert key_of(compiler, cuda.jit(kernel_of())) == key


@pytest.mark.parametrize(
    "changes",
    [
        {"source": SOURCE.replace("SCALE = 3", "SCALE = 4")},
        {"source": SOURCE.replace("a + 2", "a - 2")},
        {"source": SOURCE.replace("a + 2", "a + 3")},
        {"source": SOURCE.replace("i < n", "i <= n")},
        {"source": SOURCE.replace("device=True", "device=True, fastmath=True")},
        {"source": SOURCE.replace("device=True", "device=True, forceinline=True")},
        {"source": SOURCE.replace("@njit\n", "@njit(fastmath=True)\n")},
        {"shift": 2},
        {"shift": 1.0},
        {"offset": 6},
        {"table": 0.5},
    ],
)
def test_a_change_of_what_the_kernel_reads(
    compiler: NumbaCudaCompiler, changes: dict[str, Any]
) -> None:
    keys = {key_of(compiler, kernel_of()), key_of(compiler, kernel_of(**changes))}
    assert None not in keys
    assert len(keys) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"fastmath": True},
        {"max_registers": 32},
        {"launch_bounds": (128, 2)},
        {"opt": False},
        {"lineinfo": True},
        {"shared_memory_carveout": "maxshared"},
    ],
)
def test_a_change_of_a_compiler_option(
    compiler: NumbaCudaCompiler, options: dict[str, Any]
) -> None:
    keys = {key_of(compiler, kernel_of())}
    keys |= {key_of(compiler, cuda.jit(**options)(kernel_of())) for _ in range(2)}
    assert None not in keys
    assert len(keys) == 2


def test_line_information_depends_on_the_place(compiler: NumbaCudaCompiler) -> None:
    decorate = cuda.jit(lineinfo=True)
    keys = [key_of(compiler, decorate(kernel_of(line=line))) for line in (0, 0, 3)]
    assert None not in keys
    assert keys[0] == keys[1] != keys[2]


def test_types_and_capabilities(compiler: NumbaCudaCompiler) -> None:
    arguments = [
        (np.zeros(4), 4),
        (np.zeros(4, np.float32), 4),
        (np.zeros((4, 4)), 4),
        (np.zeros(8)[::2], 4),
        (np.zeros(4), 4.0),
        (np.zeros(4), np.int32(4)),
        (np.zeros(4, [("a", "f4")]), 4),
        (np.zeros(4, [("b", "f4")]), 4),
    ]
    keys = [key_of(compiler, kernel_of(), args=each) for each in arguments]
    keys += [key_of(compiler, kernel_of(), each) for each in ((7, 5), (8, 6), (9, 0), (12, 0))]
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_versions_and_settings(
    compiler: NumbaCudaCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [key_of(compiler, kernel_of())]
    known = kernel_images.versions()
    assert {"numba-cuda", "numba", "llvmlite", "numpy", "python"} <= known.keys()
    assert known.keys() & {"nvidia-nvvm", "nvidia-cuda-nvcc-cu12", "libdevice"}
    for name in known:
        with monkeypatch.context() as patch:
            patch.setattr(kernel_images, "versions", lambda name=name: {**known, name: "other"})
            keys.append(key_of(compiler, kernel_of()))
    for name, value in (("OPT", 0), ("FORCE_CUDA_CC", (8, 9))):
        with monkeypatch.context() as patch:
            patch.setattr(f"numba.cuda.core.config.{name}", value)
            keys.append(key_of(compiler, kernel_of()))
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_without_packages_of_nvidia_libdevice_tells_versions_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_images, "_TOOLKIT", ())
    found = kernel_images.versions.__wrapped__()
    assert found["libdevice"]


def test_the_content_of_linked_files(compiler: NumbaCudaCompiler, tmp_path: Path) -> None:
    keys = []
    for name, content in (("a.ptx", "one"), ("b.ptx", "two"), ("c.ptx", "one"), ("d.cu", "one")):
        (tmp_path / name).write_text(content)
        kernel = cuda.jit(link=[str(tmp_path / name)])(kernel_of())
        keys.append(key_of(compiler, kernel))
    assert None not in keys
    one, two, same, other_kind = keys
    assert one == same
    assert len({one, two, other_kind, key_of(compiler, kernel_of())}) == 4


def test_linked_objects(compiler: NumbaCudaCompiler) -> None:
    def key(linked: Any) -> str | None:
        return key_of(compiler, cuda.jit(link=[linked])(kernel_of()))

    one, two = key(cuda.PTXSource(b"one")), key(cuda.PTXSource(b"two"))
    assert None not in (one, two)
    assert one != two
    assert key(cuda.PTXSource(b"one")) == one
    assert key(cuda.PTXSource(b"one", setup_callback=print)) is None
    assert key(cuda.CUSource('#include "other.cuh"')) is None


def test_a_linked_file_that_includes_others_is_not_stored(
    compiler: NumbaCudaCompiler, tmp_path: Path
) -> None:
    (tmp_path / "a.cu").write_text('# include "b.cuh"\n')
    kernel = cuda.jit(link=[str(tmp_path / "a.cu")])(kernel_of())
    assert key_of(compiler, kernel) is None
    missing = cuda.jit(link=[str(tmp_path / "missing.ptx")])(kernel_of())
    assert key_of(compiler, missing) is None


@pytest.mark.parametrize(
    "source",
    [
        SOURCE.replace("@njit\n", "@cuda.jit(device=True, debug=True, opt=False)\n"),
        SOURCE.replace("device=True", "device=True, inline=lambda *_: True"),
        SOURCE.replace(
            "@njit\ndef helper(a):", "outer = cuda.declare_device('f', 'int64(int64)')\n"
            "@njit\ndef helper(a):\n    a = outer(a)",
        ),
        SOURCE.replace("@njit\n", ""),  # what overload does with a plain function is unknown
    ],
)  # fmt: skip
def test_functions_that_are_not_stored(compiler: NumbaCudaCompiler, source: str) -> None:
    assert key_of(compiler, kernel_of(source)) is None


class Pair(NamedTuple):
    array: Any
    number: int


def test_launches_that_need_numba_are_not_stored(compiler: NumbaCudaCompiler) -> None:
    debug = cuda.jit(debug=True, opt=False)(kernel_of())
    extended = cuda.jit(extensions=[object()])(kernel_of())
    assert key_of(compiler, debug) is None
    assert key_of(compiler, extended) is None
    assert key_of(compiler, kernel_of(), args=(Pair(np.zeros(4), 1), 4)) is None
    assert key_of(compiler, kernel_of(), args=((np.zeros(4), 1), 4)) is not None
    compiler.is_packed = False
    assert key_of(compiler, kernel_of()) is None


OVERLOADS = """
from numba.cuda.extending import overload, overload_method
from numba.cuda import types
FACTOR = 3

def method(array, n):
    def implementation(array, n):
        return array[0] * n + FACTOR
    return implementation

def function(x):
    return lambda x: x

def unknown(x):
    return plain(x)
"""


def hash_of(monkeypatch: pytest.MonkeyPatch, source: str, statement: str) -> bytes:
    """Hash the overloads that a program registers."""
    scope: dict[str, Any] = {"__name__": "program", "np": np, "plain": lambda x: x}
    with monkeypatch.context() as patch:
        for templates in (core_templates, cuda_templates):
            for name in ("functions", "attributes"):
                known = [
                    each
                    for each in getattr(templates.builtin_registry, name)
                    if not foreign_overloads._is_foreign(each)
                ]
                patch.setattr(templates.builtin_registry, name, known)
        # The lists of globals, to which a registration adds the same templates.
        for templates in (core_templates, cuda_templates):
            known = list(templates.builtin_registry.globals)
            patch.setattr(templates.builtin_registry, "globals", known)
        exec(source + statement, scope)
        return foreign_overloads.hash_overloads(hash_options)


def test_overloads_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels call them by the names of Numba's and NumPy's functions and methods."""
    method = "overload_method(types.Array, 'scaled', target='cuda')(method)\n"
    function = "overload(np.cbrt, target='cuda')(function)\n"
    cases = [
        (OVERLOADS, ""),
        (OVERLOADS, method),
        (OVERLOADS, function),
        (OVERLOADS, method + function),
        (OVERLOADS, method.replace("scaled", "other")),
        (OVERLOADS, method.replace("Array", "Tuple")),
        (OVERLOADS, function.replace("target=", "inline='always', target=")),
        (OVERLOADS, function.replace("cuda", "generic")),
        (OVERLOADS.replace("FACTOR = 3", "FACTOR = 4"), method),
        (OVERLOADS.replace("* n", "/ n"), method),
    ]
    found = [hash_of(monkeypatch, *case) for case in cases]
    assert len(set(found)) == len(found)
    assert found == [hash_of(monkeypatch, *case) for case in cases]
    assert hash_of(monkeypatch, OVERLOADS, function + method) == found[3]
    with pytest.raises(UnhashableError):
        hash_of(monkeypatch, OVERLOADS, "overload(np.cbrt, target='cuda')(unknown)")


def test_overloads_of_functions_of_the_program_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = "def own(x): pass\noverload(own)(unknown)\noverload(own, target='cuda')(unknown)\n"
    assert hash_of(monkeypatch, OVERLOADS, own) == hash_of(monkeypatch, OVERLOADS, "") == b""


def test_overloads_are_a_part_of_the_key(
    compiler: NumbaCudaCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key_of(compiler, kernel_of())
    monkeypatch.setattr(kernel_images, "hash_overloads", lambda *_: b"other")
    assert None is not key_of(compiler, kernel_of()) != before
