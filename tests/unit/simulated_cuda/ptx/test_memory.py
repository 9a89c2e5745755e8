"""State spaces, vectors, initialisers and alignment."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from helpers.processes import output_of
from simulated_cuda.ptx.errors import PtxError
from unit.simulated_cuda.ptx.executor import Program


def test_parameters_of_all_sizes_lie_at_their_alignment() -> None:
    program = Program("""
        .visible .entry k(.param .u64 out, .param .u8 a, .param .align 8 .b8 s[12], .param .u16 b,
                          .param .f64 c)
        {
          .reg .u32 %r<5>; .reg .u64 %o; .reg .f64 %f; .reg .b16 %h;
          ld.param.u64 %o, [out]; ld.param.u8 %r0, [a]; ld.param.u32 %r1, [s+8];
          ld.param.u16 %h, [b]; cvt.u32.u16 %r2, %h; ld.param.f64 %f, [c];
          st.global.v2.u32 [%o], {%r0, %r1}; st.global.u32 [%o+8], %r2; st.global.f64 [%o+16], %f;
          ret;
        }""")
    facts = program.facts["kernels"]["k"]
    assert facts["parameters"] == [[0, 8], [8, 1], [16, 12], [28, 2], [32, 8]]
    assert facts["parameter_bytes"] == 40
    out = np.zeros(6, np.uint32)
    block = bytearray(40)
    block[:8] = out.ctypes.data.to_bytes(8, "little")
    block[8], block[24:28], block[28:30] = 200, b"\x04\x03\x02\x01", b"\xff\xff"
    block[32:] = np.float64(2.5).tobytes()
    program.run("k", np.frombuffer(bytes(block), np.void(40).dtype)[0])
    assert out[:3].tolist() == [200, 0x01020304, 0xFFFF]
    assert out[4:].view(np.float64)[0] == 2.5


def test_loads_extend_to_the_width_of_the_register() -> None:
    program = Program("""
        .visible .entry k(.param .u64 out, .param .u64 in)
        {
          .reg .u64 %o, %i; .reg .b32 %r<4>; .reg .b64 %d<2>;
          ld.param.u64 %o, [out]; ld.param.u64 %i, [in];
          ld.global.s8 %r0, [%i]; ld.global.u8 %r1, [%i]; ld.global.s16 %r2, [%i];
          ld.global.b16 %r3, [%i]; ld.global.s32 %d0, [%i]; ld.global.u32 %d1, [%i];
          st.global.v4.b32 [%o], {%r0, %r1, %r2, %r3}; st.global.v2.b64 [%o+16], {%d0, %d1};
          ret;
        }""")
    out = np.zeros(4, np.int64)
    program.run("k", out, np.array([0xFFFEFDFC], np.uint32))
    assert out.view(np.uint32)[:4].tolist() == [0xFFFFFFFC, 0xFC, 0xFFFFFDFC, 0xFDFC]
    assert out[2:].tolist() == [0xFFFEFDFC - (1 << 32), 0xFFFEFDFC]


def test_vectors_may_swap_registers() -> None:
    program = Program("""
        .visible .entry k(.param .u64 out)
        {
          .reg .u64 %o; .reg .f32 %f<4>;
          ld.param.u64 %o, [out];
          ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%o];
          st.global.v4.f32 [%o], {%f3, %f2, %f1, %f0};
          ld.global.v2.f32 {%f1, _}, [%o];
          st.global.f32 [%o+16], %f1;
          ret;
        }""")
    out = np.arange(8, dtype=np.float32)[: 5 + 3].copy()
    program.run("k", out)
    assert out[:5].tolist() == [3, 2, 1, 0, 3]


GLOBALS = """
    .visible .global .align 4 .u32 counter = 7;
    .global .align 8 .b8 text[6] = {104, 101, 108, 108, 111, 0};
    .global .align 8 .u64 pointers[3] = {text, generic(text)+2, counter};
    .global .align 8 .b8 bytes[16] = {1, 2, 3, 4, 5, 6, 7, 8, 0xFF(text), 0xFF00(text),
        0xFF0000(text), 0xFF000000(text), 0xFF00000000(text), 0xFF0000000000(text),
        0xFF000000000000(text), 0xFF00000000000000(text)};
    .const .align 4 .f32 table[4] = {0f3F800000, 0f40000000, -1.5, 0};
    .visible .global .align 4 .u32 matrix[2][3] = {{1, 2, 3}, {4, 5}};
    .visible .entry k(.param .u64 out)
    {
      .reg .u64 %o, %p<6>; .reg .u32 %r<6>; .reg .f32 %f;
      ld.param.u64 %o, [out];
      ld.global.u64 %p0, [pointers+8]; ld.u8 %r0, [%p0];
      ld.global.u64 %p1, [bytes+8]; ld.u8 %r1, [%p1+4];
      ld.const.f32 %f, [table+8];
      ld.global.u32 %r2, [counter]; add.u32 %r2, %r2, 1; st.global.u32 [counter], %r2;
      mov.u64 %p2, matrix; ld.global.u32 %r3, [%p2+16];
      st.global.v4.u32 [%o], {%r0, %r1, %r2, %r3}; st.global.f32 [%o+16], %f;
      ret;
    }"""


def test_initialised_variables_and_addresses() -> None:
    program = Program(GLOBALS)
    assert program.facts["variables"]["counter"] == 4
    assert program.facts["variables"]["matrix"] == 24
    out = np.zeros(5, np.uint32)
    program.run("k", out)
    assert out[:4].tolist() == [ord("l"), ord("o"), 8, 5]
    assert out[4:].view(np.float32)[0] == -1.5
    counter = ctypes.c_uint32.from_address(program.module.address("counter"))
    assert counter.value == 8


SHARED = """
    .shared .align 4 .b8 common[20];
    .shared .align 8 .b8 first[8];
    .shared .align 16 .b8 second[16];
    .extern .shared .align 16 .b8 dynamic[];
    .func (.param .b32 result) touch()
    { .reg .u32 %r; mov.u32 %r, common; st.param.b32 [result], %r; ret; }
    .visible .entry one(.param .u64 out)
    {
      .reg .u64 %o; .reg .u32 %r<5>; .param .b32 value; .shared .align 4 .u32 own;
      ld.param.u64 %o, [out];
      call.uni (value), touch, (); ld.param.b32 %r0, [value];
      mov.u32 %r1, first; mov.u32 %r2, dynamic; mov.u32 %r3, own;
      st.global.v4.u32 [%o], {%r0, %r1, %r2, %r3};
      st.shared.u32 [first+4], 77; mov.u32 %r4, first; add.u32 %r4, %r4, 4;
      ld.shared.u32 %r4, [%r4]; st.global.u32 [%o+16], %r4;
      ret;
    }
    .visible .entry two(.param .u64 out)
    {
      .reg .u64 %o, %p<2>; .reg .u32 %r<4>; .reg .pred %q;
      ld.param.u64 %o, [out];
      mov.u32 %r0, second; cvta.shared.u64 %p0, second; st.u32 [%p0+8], 5;
      ld.shared.u32 %r1, [second+8]; cvta.to.shared.u64 %p1, %p0; cvt.u32.u64 %r2, %p1;
      isspacep.shared %q, %p0; selp.u32 %r3, 1, 0, %q;
      st.global.v4.u32 [%o], {%r0, %r1, %r2, %r3};
      isspacep.global %q, %o; selp.u32 %r3, 1, 0, %q; st.global.u32 [%o+16], %r3;
      ret;
    }"""


def test_each_kernel_has_its_own_shared_memory_behind_that_of_functions() -> None:
    program = Program(SHARED)
    kernels = program.facts["kernels"]
    assert kernels["one"]["static_shared"] == 48
    assert kernels["two"]["static_shared"] == 16
    out = np.zeros(5, np.uint32)
    program.run("one", out)
    common, first, dynamic, own, value = out.tolist()
    assert (common, first, own, dynamic, value) == (0, 24, 32, 48, 77)
    program.run("two", out)
    assert out.tolist() == [0, 5, 0, 1, 1]


def test_local_memory_starts_with_a_pattern_and_registers_with_zero() -> None:
    program = Program("""
        .visible .entry k(.param .u64 out)
        {
          .local .align 8 .b8 depot[32]; .reg .b64 %sp, %o; .reg .b32 %r<3>; .reg .pred %q;
          ld.param.u64 %o, [out]; mov.b64 %sp, depot; cvta.local.u64 %sp, %sp;
          ld.u32 %r0, [%sp+4]; st.local.u32 [depot+8], 3; ld.u32 %r1, [%sp+8];
          selp.u32 %r2, %r2, 9, %q;
          st.global.u32 [%o], %r0; st.global.u32 [%o+4], %r1; st.global.u32 [%o+8], %r2;
          ret;
        }""")
    facts = program.facts["kernels"]["k"]
    assert facts["local_bytes"] == 32
    assert facts["stack_bytes"] > 32
    out = np.zeros(3, np.uint32)
    program.run("k", out)
    assert out.tolist() == [0xA5A5A5A5, 3, 9]


MISALIGNED = """
import os
import numpy as np
from unit.simulated_cuda.ptx.executor import Program

data = np.zeros(16, np.uint64)
base = data.ctypes.data + (-data.ctypes.data & 15)
for access, offset, size in [
    ("ld.global.u32 %r, [%p+2];", 2, 4),
    ("st.global.v2.u32 [%p+4], {%r, %r};", 4, 8),
    ("ld.v4.f32 {%f, %f, %f, %f}, [%p+8];", 8, 16),
    ("atom.global.add.u32 %r, [%p+1], 1;", 1, 4),
]:
    body = "{ .reg .u64 %p; .reg .u32 %r; .reg .f32 %f; ld.param.u64 %p, [in]; " + access + "}"

    def report(thread, address, alignment):
        os._exit(100 if (address - base, alignment) == (offset, size) else 1)

    program = Program(".visible .entry k(.param .u64 in)" + body, sim_misaligned=report)
    child = os.fork()
    if child == 0:
        program.run("k", np.uint64(base))
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 100, access
"""


def test_a_misaligned_access_is_reported() -> None:
    """The report does not return in the driver; here it ends a process."""
    output_of(MISALIGNED)


def test_volatile_and_ordered_accesses() -> None:
    program = Program("""
        .visible .entry k(.param .u64 out)
        {
          .reg .u64 %o; .reg .u32 %r<4>;
          ld.param.u64 %o, [out];
          st.volatile.global.u32 [%o], 1; ld.volatile.global.u32 %r0, [%o];
          st.release.gpu.global.u32 [%o+4], 2; ld.acquire.sys.u32 %r1, [%o+4];
          st.relaxed.cta.u32 [%o+8], 3; ld.relaxed.gpu.global.u32 %r2, [%o+8];
          ld.global.nc.L1::no_allocate.L2::128B.u32 %r3, [%o]; fence.acq_rel.gpu; membar.sys;
          prefetch.global.L2 [%o];
          add.u32 %r0, %r0, %r1; add.u32 %r2, %r2, %r3; st.global.cs.v2.u32 [%o+16], {%r0, %r2};
          ret;
        }""")
    out = np.zeros(6, np.uint32)
    program.run("k", out)
    assert out.tolist() == [1, 2, 3, 0, 3, 4]


def test_an_initialiser_with_an_unknown_symbol_is_an_error() -> None:
    with pytest.raises(PtxError, match="unknown symbol nothing"):
        Program(".global .u64 p = nothing;")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".global .u32 a; .global .u32 a;", "line 4: a is defined twice"),
        (".extern .global .u32 a; .visible .entry k() { st.global.u32 [a], 1; }", "unresolved"),
        (".func f() { ret; } .func f() { ret; }", "line 4: f is defined twice"),
        (".global .f32 a = 1;", "an integer initialises a float"),
    ],
)
def test_wrong_declarations_are_errors(text: str, message: str) -> None:
    with pytest.raises(PtxError, match=message):
        Program(text)


def test_joined_modules_resolve_extern_symbols() -> None:
    program = Program("""
        .version 8.7
        .target sm_90
        .address_size 64
        .extern .global .align 4 .u32 number;
        .extern .func (.param .b32 r) get();
        .visible .entry k(.param .u64 out)
        {
          .reg .u64 %o; .reg .u32 %r<2>; .param .b32 value;
          ld.param.u64 %o, [out]; call (value), get, (); ld.param.b32 %r0, [value];
          ld.global.u32 %r1, [number]; st.global.v2.u32 [%o], {%r0, %r1}; ret;
        }
        .version 8.0
        .target sm_80
        .address_size 64
        .visible .global .align 4 .u32 number = 5;
        .weak .func (.param .b32 r) get() { st.param.b32 [r], 6; ret; }
        .weak .func (.param .b32 r) get() { st.param.b32 [r], 7; ret; }""")
    out = np.zeros(2, np.uint32)
    program.run("k", out)
    assert out.tolist() == [6, 5]
