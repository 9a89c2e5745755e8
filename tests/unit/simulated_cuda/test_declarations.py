"""The generated declarations agree with NVIDIA's public headers."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cuda import bindings

from simulated_cuda import build, declarations, versions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

# cuda-bindings 13.5 is newer than the headers of 13.4: enumerators with another value, and fields
# that the headers do not have.
CHANGED = {"CUDA_VERSION", "CU_COREDUMP_LIGHTWEIGHT_FLAGS"}
NEW_FIELDS = {"CUgraphNodeParams_st.memcpyBatch", "CUgraphNodeParams_st.fabricCpyBatch"}


@pytest.fixture(scope="module")
def include() -> Path:
    folder = Path(bindings.__file__).parents[2] / "nvidia" / "cu13" / "include"
    if not (folder / "cudaTypedefs.h").exists():
        pytest.skip("nvidia-cuda-runtime is not installed")
    return folder


@pytest.fixture(scope="module")
def headers(include: Path) -> str:
    return (include / "cuda.h").read_text(encoding="utf-8")


def values(folder: Path, name: str, first: str, expressions: Mapping[str, str]) -> dict[str, int]:
    """Compile a program that prints the values of expressions, and run it."""
    lines = (f'printf("%s %lld\\n", "{key}", (long long)({c}));' for key, c in expressions.items())
    source = folder / f"{name}.c"
    include = "#include <stddef.h>\n#include <stdio.h>"
    body = "\n".join(lines)
    source.write_text(f"{first}\n{include}\nint main(void) {{\n{body}\n}}\n")
    program = folder / name
    subprocess.run([*build.compiler(), str(source), "-w", "-o", str(program)], check=True)
    output = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    return {key: int(value) for key, value in map(str.split, output.splitlines())}


def test_types_and_enumerators_are_those_of_cuda_h(
    headers: str, include: Path, tmp_path: Path
) -> None:
    ours = declarations.declarations()
    (tmp_path / "cuda_declarations.h").write_text(ours)
    bodies = dict(re.findall(r"^(?:struct|union) (\w+) {\n(.*?)^};", ours, re.M | re.S))
    layout = {}
    for kind, name in re.findall(r"\b(struct|union) (\w+)\b", headers):
        if name in bodies:
            layout[name] = f"sizeof({kind} {name})"
            for field in re.findall(r"(\w+)(?:\[\w+\])*;", bodies[name]):
                if f"{name}.{field}" not in NEW_FIELDS:
                    layout[f"{name}.{field}"] = f"offsetof({kind} {name}, {field})"
    public_words = set(re.findall(r"\w+", headers))
    names = set(re.findall(r"^#define (CU\w+) \(-?\d+\)$", ours, re.M)) & public_words
    enumerators = {name: name for name in sorted(names - CHANGED)}
    assert len(layout) > 500
    assert len(enumerators) > 900

    expressions = layout | enumerators
    own = values(tmp_path, "own", f'#include "{tmp_path}/cuda_declarations.h"', expressions)
    public = values(tmp_path, "public", f'#include "{include}/cuda.h"', expressions)
    assert {name: (own[name], public[name]) for name in own if own[name] != public[name]} == {}


def test_versions_are_those_of_the_typedefs(include: Path) -> None:
    text = (include / "cudaTypedefs.h").read_text(encoding="utf-8")
    public: dict[str, set[int]] = {}
    for name, version in re.findall(r"\*PFN_(cu\w+?)_v(\d+)\)", text):
        public.setdefault(name, set()).add(int(version))
    for name, entries in versions.variants().items():
        listed = [version for version, _ in entries]
        assert listed == sorted(listed)
        # Functions with a number in their name have a line for the newest interface only.
        assert set(listed) & public.get(name, set(listed)), name
    several = {name for name, found in public.items() if len(found) > 1}
    known = {function.name for function in declarations.functions()}
    assert several & known <= versions.variants().keys()


def test_variants_of_the_per_thread_stream_are_those_of_cuda_h(headers: str) -> None:
    public = dict(re.findall(r"#define +(cu\w+) +__CUDA_API_(PTDS|PTSZ)\(", headers))
    assert set(versions.PER_THREAD_COPIES.split()) == {k for k, v in public.items() if v == "PTDS"}
    streams = {name for name, kind in public.items() if kind == "PTSZ"}
    assert set(versions.PER_THREAD_STREAMS.split()) == streams


def test_every_symbol_of_cuda_h_is_exported(headers: str, simulation: ModuleType) -> None:
    library = ctypes.CDLL("libcuda.so.1")
    renamed = re.findall(r"#define +cu\w+ +(?:__CUDA_API_PT[DS][SZ]\()?(cu\w+)", headers)
    declared = re.findall(r"CUDAAPI\s+(cu\w+)\(", headers)
    missing = {name for name in {*renamed, *declared} if not hasattr(library, name)}
    # Variants that no program of today uses.
    assert missing == {
        "cuGetProcAddress_v2_ptsz",
        "cuGraphInstantiate_v2",
        "cuStreamGetCaptureInfo_v2_ptsz",
        "cuTexRefSetAddress2D_v2",
    }


def test_a_function_that_cuda_bindings_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="declares no cuNothing"):
        declarations.exports(frozenset({"cuNothing"}))
