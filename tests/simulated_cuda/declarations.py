"""Generate the C declarations and the exported functions of the simulated CUDA driver.

`cuda/bindings/cydriver.pxd` of cuda-bindings (Apache-2.0) lists every type and function of the
driver API, and `cuda.bindings.driver` the values of its enumerators. `declarations` translates
both to a C header. `exports` writes the exported function of each name: it counts the call, injects
faults, and calls ``sim_<name>`` if a source file of the driver defines that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cuda import bindings
from cuda.bindings import driver

from simulated_cuda.versions import PER_THREAD_COPIES, PER_THREAD_STREAMS, symbols

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Function", "declarations", "exports", "functions", "implemented"]

PXD = Path(bindings.__file__).with_name("cydriver.pxd")

_PREAMBLE = """\
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
"""
# Types of graphics interfaces, whose functions take them by pointer or handle only.
_FOREIGN = {"GLenum", "GLuint", "EGLint", "EGLImageKHR", "EGLStreamKHR", "EGLSyncKHR"}
# The .pxd lists the members of anonymous unions as fields: the first and the last member of each.
_ANONYMOUS_UNIONS = {
    "CUmemLocation_st": ("id", "localized"),
    "CUgraphNodeParams_st": ("reserved1[29]", "asBytes[232]"),
    "CUdevResource_st": ("sm", "_oversize[40]"),
    "CUDA_HOST_NODE_PARAMS_v2_st": ("ctx", "gCtx"),
    "CUDA_EVENT_RECORD_NODE_PARAMS_st": ("ctx", "gCtx"),
    "CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v2_st": ("ctx", "gCtx"),
    "CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2_st": ("ctx", "gCtx"),
    "CUstreamMemOpWaitValueParams_st": ("value", "value64"),
    "CUstreamMemOpWriteValueParams_st": ("value", "value64"),
    "CUlogicalEndpointProp_struct": ("unicast", "multicast"),
}
# The symbol without a suffix has the parameters of CUDA 11.3; proc_address.c defines it.
_SYMBOLS = {"cuGetProcAddress": ' __asm__("cuGetProcAddress_v2")'}


@dataclass(frozen=True)
class Function:
    """A function of the driver API: its C parameters are types and names."""

    name: str
    parameters: tuple[tuple[str, str], ...]

    @property
    def prototype(self) -> str:
        return ", ".join(f"{kind} {name}" for kind, name in self.parameters) or "void"

    @property
    def arguments(self) -> str:
        return ", ".join(name for _, name in self.parameters)


def functions() -> tuple[Function, ...]:
    """Return every function of the driver API that cuda-bindings knows, by name."""
    found = []
    for name, arguments in re.findall(r"^cdef CUresult (cu\w+)\((.*?)\) except", _text(), re.M):
        pairs = [_parameter(argument) for argument in arguments.split(",") if argument.strip()]
        found.append(Function(name, tuple(pairs)))
    return tuple(sorted(found, key=lambda function: function.name))


def _parameter(text: str) -> tuple[str, str]:
    kind, name = re.fullmatch(r"(.*?[\s*])(\w+)", text.strip()).groups()  # type: ignore[union-attr]
    return kind.strip(), f"{name}_"


def _text() -> str:
    # Cython gives C names as strings behind the names; they are equal, or types of no name.
    return re.sub(r""" +(['"]).*?\1""", "", PXD.read_text(encoding="utf-8"))


def declarations() -> str:
    """Return the C header: constants, types and prototypes."""
    blocks = _blocks(_text())
    parts = [_PREAMBLE, *_constants(), *_enumerators()]
    parts += [f"typedef void *{name};" for name in sorted(_FOREIGN)]
    parts += _in_order(blocks)
    parts += [f"CUresult {f.name}({f.prototype}){_SYMBOLS.get(f.name, '')};" for f in functions()]
    return "\n".join(parts) + "\n"


def _constants() -> Iterable[str]:
    for name, value in re.findall(r"^cdef enum: (CU\w+) = (-?\d+)$", _text(), re.M):
        yield f"#define {name} ({value})"


def _enumerators() -> Iterable[str]:
    seen: set[str] = set()
    for kind in vars(driver).values():
        # Newer cuda-bindings have an own base class for enumerations.
        if not (isinstance(kind, type) and issubclass(kind, int)):
            continue
        for name, member in getattr(kind, "__members__", {}).items():
            if name not in seen:
                seen.add(name)
                yield f"#define {name} ({int(member)})"


def _blocks(text: str) -> dict[str, tuple[str, set[str]]]:
    """Return the C text of each type, and the types that must be complete before it."""
    found: dict[str, tuple[str, set[str]]] = {}
    lines = text.splitlines()
    for number, line in enumerate(lines):
        line = line.strip()
        if match := re.fullmatch(r"(?:ctypedef|cdef) (struct|union) (\w+):", line):
            kind, name = match.groups()
            found[name] = _aggregate(kind, name, _body(lines, number))
        elif match := re.fullmatch(r"c(?:type)?def enum (\w+):", line):
            found[match[1]] = f"typedef int {match[1]};", set()
        elif match := re.fullmatch(r"ctypedef (.*?) \(\*(\w+)\)\(", line):
            arguments = " ".join(_body(lines, number, closing=True))
            found[match[2]] = f"typedef {match[1]} (*{match[2]})({arguments});", _names(arguments)
        elif match := re.fullmatch(r"ctypedef ([\w ]+?)( \*|\* ?| )(\w+)", line):
            base, star, name = match.groups()
            if name not in _FOREIGN and base != name:
                found[name] = f"typedef {base}{star} {name};", {base}
    return found


def _body(lines: list[str], number: int, *, closing: bool = False) -> list[str]:
    depth = len(lines[number]) - len(lines[number].lstrip())
    taken = []
    for line in lines[number + 1 :]:
        if closing and line.strip() == ")":
            break
        if line.strip() and len(line) - len(line.lstrip()) <= depth:
            break
        if line.strip():
            taken.append(line.strip())
    return taken


def _aggregate(kind: str, name: str, body: list[str]) -> tuple[str, set[str]]:
    if body == ["pass"]:
        return f"typedef struct {name} {name};", set()
    fields = "".join(f"    {line};\n" for line in body)
    if name in _ANONYMOUS_UNIONS:
        first, last = _ANONYMOUS_UNIONS[name]
        start = next(line for line in body if line.endswith(f" {first}"))
        end = next(line for line in body if line.endswith(f" {last}"))
        fields = fields.replace(f"    {start};\n", f"    union {{\n    {start};\n")
        fields = fields.replace(f"    {end};\n", f"    {end};\n    }};\n")
    text = f"typedef {kind} {name} {name};\n{kind} {name} {{\n{fields}}};"
    return text, set().union(*(_names(line) for line in body))


def _names(text: str) -> set[str]:
    return set(re.findall(r"\b[A-Za-z_]\w*", text))


def _in_order(blocks: Mapping[str, tuple[str, set[str]]]) -> list[str]:
    ordered: list[str] = []
    done: set[str] = set()

    def visit(name: str) -> None:
        if name in done or name not in blocks:
            return
        done.add(name)
        for needed in sorted(blocks[name][1] - {name}):
            visit(needed)
        ordered.append(blocks[name][0])

    for name in blocks:
        visit(name)
    return ordered


def implemented(sources: Iterable[Path]) -> frozenset[str]:
    """Return the functions that C files define as ``CUresult sim_<name>(``."""
    pattern = re.compile(r"^CUresult sim_(cu\w+)\(", re.M)
    return frozenset(
        name for source in sources for name in pattern.findall(source.read_text(encoding="utf-8"))
    )


def exports(defined: frozenset[str]) -> str:
    """Return the C file with the exported functions and the table of their names."""
    every = functions()
    if unknown := defined - {function.name for function in every}:
        raise ValueError(f"cuda-bindings declares no {', '.join(sorted(unknown))}")
    parts = ['#include "tables.h"']
    for number, function in enumerate(every):
        parts.append(_export(number, function, function.name in defined))
    parts += _table(every)
    parts += _per_thread(every)
    return "\n".join(parts) + "\n"


def _export(number: int, function: Function, is_defined: bool) -> str:
    head = f"SIM_EXPORT CUresult {function.name}({function.prototype})"
    if not is_defined:
        return f"{head} {{ return sim_not_supported({number}); }}"
    call = f"sim_{function.name}({function.arguments})"
    return (
        f"CUresult sim_{function.name}({function.prototype});\n"
        f"{head} {{ CUresult status = sim_enter({number});"
        f" return sim_leave({number}, status ? status : {call}); }}"
    )


def _table(every: tuple[Function, ...]) -> list[str]:
    rows = [f'{{"{f.name}", (void *){f.name}}},' for f in every]
    aliases = [
        f'SIM_EXPORT __typeof__({name}) {symbol} __attribute__((alias("{name}")));'
        for name, symbol in symbols().items()
    ]
    return [
        *aliases,
        "const SimFunction sim_functions[] = {",
        *rows,
        "};",
        f"const int sim_function_count = {len(every)};",
    ]


def _per_thread(every: tuple[Function, ...]) -> list[str]:
    """Return the variants of functions that use the per-thread stream instead of stream 0."""
    suffixes = dict.fromkeys(PER_THREAD_COPIES.split(), "_ptds")
    suffixes |= dict.fromkeys(PER_THREAD_STREAMS.split(), "_ptsz")
    chosen = [function for function in every if function.name in suffixes]
    parts, rows = [], []
    for function in chosen:
        name = f"{function.name}{suffixes[function.name]}"
        parts.append(
            f"SIM_EXPORT CUresult {name}({function.prototype}) {{"
            f" bool before = sim_set_per_thread_default(true);"
            f" CUresult status = {function.name}({function.arguments});"
            f" sim_set_per_thread_default(before); return status; }}"
        )
        if function.name in symbols():
            alias = f"{symbols()[function.name]}{suffixes[function.name]}"
            parts.append(f'SIM_EXPORT __typeof__({name}) {alias} __attribute__((alias("{name}")));')
        rows.append(f'{{"{function.name}", (void *){name}}},')
    table = ["const SimFunction sim_per_thread[] = {", *rows, "};"]
    return [*parts, *table, f"const int sim_per_thread_count = {len(rows)};"]
