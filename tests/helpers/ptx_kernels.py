"""Small kernels in PTX, by hand, for tests of the simulated driver."""

from __future__ import annotations

import textwrap

__all__ = ["kernel", "module"]

_HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"

_PROLOGUE = """\
.reg .b16 %h<8>;
.reg .b32 %r<32>;
.reg .b64 %d<32>;
.reg .pred %p<8>;
.reg .b32 %tid, %block, %size, %index;
mov.u32 %tid, %tid.x;
mov.u32 %block, %ctaid.x;
mov.u32 %size, %ntid.x;
mad.lo.u32 %index, %block, %size, %tid;
"""


def module(*parts: str, header: str = _HEADER) -> bytes:
    """Return the text of a PTX module.

    Parameters
    ----------
    *parts : str
        Kernels, functions and variables.
    header : str
        The directives at the start.
    """
    return "\n".join([header, *parts]).encode()


def kernel(name: str, parameters: str, body: str, *, limits: str = "") -> str:
    """Return the text of a kernel.

    The body finds its thread index, its block index, the size of the block and the index in the
    grid, all of the x dimension, in ``%tid``, ``%block``, ``%size`` and ``%index``; parameters in
    registers of their names; and %r, %d, %h and %p for its values.

    Parameters
    ----------
    name : str
        Name of the kernel.
    parameters : str
        Types and names, such as ``"u64 out, u32 n"``.
    body : str
        Instructions.
    limits : str
        Performance directives, such as ``.maxntid 64``.
    """
    pairs = [pair.split() for pair in parameters.split(",") if pair.strip()]
    declared = ", ".join(f".param .{kind} {name}_{value}" for kind, value in pairs)
    loads = "".join(
        f".reg .b{kind[1:]} %{value};\nld.param.{kind} %{value}, [{name}_{value}];\n"
        for kind, value in pairs
    )
    inner = textwrap.indent(_PROLOGUE + loads + textwrap.dedent(body), "    ")
    return f".visible .entry {name}({declared})\n{limits}\n{{\n{inner}\n    ret;\n}}\n"
