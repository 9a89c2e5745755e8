"""Control flow, scopes, calls and the functions that CUDA provides."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from helpers.processes import output_of
from simulated_cuda.ptx.errors import PtxError
from unit.simulated_cuda.ptx.executor import Operation, Program, apply


def test_guards_leave_registers_alone() -> None:
    operations = [
        Operation("mov.u32 %d, %a; @%b add.u32 %d, %d, 5;", "u32", ("u32", "pred")),
        Operation("mov.u32 %d, %a; @!%b mul.lo.u32 %d, %d, 3;", "u32", ("u32", "pred")),
        Operation("setp.gt.u32 %d, %a, 5; @%b not.pred %d, %d;", "pred", ("u32", "pred")),
    ]
    a, b = np.array([3, 9], np.uint32), np.array([0, 1], np.uint32)
    results = apply(operations, lambda _operation: [a, b])
    assert [out.tolist() for _, _, out in results] == [[3, 14], [9, 9], [0, 0]]


def test_loops_branches_and_scopes() -> None:
    text = """{
        .reg .u32 %s; .reg .pred p; mov.u32 %s, 0;
        $again: { .reg .u32 t; and.b32 t, %a, 1; add.u32 %s, %s, t; }
        shr.u32 %a, %a, 1; setp.ne.u32 p, %a, 0; @p bra.uni $again;
        { .reg .u64 t; mov.u64 t, 10; cvt.u32.u64 %d, t; $inner: add.u32 %d, %d, %s; }
        { $inner: add.u32 %d, %d, 1; }
    }"""
    [(_, _, out)] = apply(
        [Operation(text, "u32", ("u32",))], lambda _operation: [np.array([0, 7, 255, 1 << 31])]
    )
    assert out.tolist() == [11, 14, 19, 12]


def test_a_switch() -> None:
    text = """{
        ts: .branchtargets zero, one, two;
        brx.idx %a, ts;
        zero: mov.u32 %d, 100; bra done;
        one: mov.u32 %d, 200; bra done;
        two: mov.u32 %d, 300;
        done: }"""
    [(_, _, out)] = apply(
        [Operation(text, "u32", ("u32",))], lambda _operation: [np.array([2, 0, 1])]
    )
    assert out.tolist() == [300, 100, 200]


CALLS = """
    .extern .func (.param .b32 r) later(.param .b32 x);
    .func (.param .align 8 .b8 r[16]) pair(.param .b64 x, .param .align 4 .b8 y[8])
    {
      .reg .b64 %x; .reg .b32 %y<2>;
      ld.param.b64 %x, [x]; ld.param.v2.b32 {%y0, %y1}, [y];
      st.param.b64 [r], %x; st.param.b32 [r+8], %y1; st.param.b32 [r+12], %y0; ret;
    }
    .func (.param .b32 r) square(.param .b32 x)
    { .reg .b32 %x; ld.param.b32 %x, [x]; mul.lo.u32 %x, %x, %x; st.param.b32 [r], %x; ret; }
    .func (.param .b32 r) later(.param .b32 x)
    { .reg .b32 %x; ld.param.b32 %x, [x]; sub.u32 %x, %x, 1; st.param.b32 [r], %x; ret; }
    .func (.param .b32 r) factorial(.param .b32 n)
    {
      .reg .b32 %n, %m; .reg .pred %p; .param .b32 below; .param .b32 result;
      ld.param.b32 %n, [n]; setp.lt.u32 %p, %n, 2; mov.u32 %m, 1; @%p bra end;
      sub.u32 %m, %n, 1; st.param.b32 [below], %m;
      call.uni (result), factorial, (below); ld.param.b32 %m, [result]; mul.lo.u32 %m, %m, %n;
      end: st.param.b32 [r], %m; ret;
    }
    .global .u64 functions[2] = {square, later};
    .alias renamed, later;
    .visible .entry k(.param .u64 out)
    {
      .reg .u64 %o, %p<3>; .reg .u32 %r<6>; .reg .b64 %x;
      ld.param.u64 %o, [out];
      { .param .b64 a; .param .align 4 .b8 b[8]; .param .align 8 .b8 c[16];
        st.param.b64 [a], 5; st.param.b32 [b], 6; st.param.b32 [b+4], 7;
        call (c), pair, (a, b); ld.param.b64 %x, [c]; ld.param.v2.b32 {%r0, %r1}, [c+8]; }
      st.global.u64 [%o], %x; st.global.v2.u32 [%o+8], {%r0, %r1};
      prototype: .callprototype (.param .b32 _) _ (.param .b32 _);
      { .param .b32 a; .param .b32 b; st.param.b32 [a], 9; ld.global.u64 %p0, [functions];
        call (b), %p0, (a), prototype; ld.param.b32 %r2, [b]; }
      { .param .b32 a; .param .b32 b; st.param.b32 [a], 9; mov.u64 %p1, later;
        call (b), %p1, (a), prototype; ld.param.b32 %r3, [b]; }
      { .param .b32 a; .param .b32 b; st.param.b32 [a], 5;
        call (b), factorial, (a); ld.param.b32 %r4, [b]; }
      call (%r5), renamed, (8);
      st.global.v4.u32 [%o+16], {%r2, %r3, %r4, %r5}; ret;
    }"""


def test_calls() -> None:
    out = np.zeros(8, np.uint32)
    Program(CALLS).run("k", out)
    assert out.tolist() == [5, 0, 7, 6, 81, 8, 120, 7]


PROVIDED = """
    .extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
    .extern .func (.param .b64 r) malloc(.param .b64 n);
    .extern .func free(.param .b64 p);
    .extern .func (.param .b64 r) cudaCGGetIntrinsicHandle(.param .b32 s);
    .extern .func (.param .b32 r) cudaCGSynchronize(.param .b64 h, .param .b32 f);
    .global .align 1 .b8 format[4] = {37, 100, 10, 0};
    .visible .entry k(.param .u64 out)
    {
      .local .align 8 .b8 depot[8]; .reg .b64 %o, %p<3>; .reg .b32 %r<3>;
      ld.param.u64 %o, [out]; mov.u64 %p0, format; mov.u64 %p1, depot; st.local.u32 [depot], 42;
      { .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], %p0; st.param.b64 [a], %p1;
        call.uni (r), vprintf, (f, a); ld.param.b32 %r0, [r]; st.global.u32 [%o], %r0; }
      { .param .b64 n; .param .b64 r; st.param.b64 [n], 24; call (r), malloc, (n);
        ld.param.b64 %p2, [r]; st.global.u64 [%o+8], %p2; }
      { .param .b64 n; st.param.b64 [n], %p2; call free, (n); }
      { .param .b32 s; .param .b64 h; .param .b32 f; .param .b32 e; st.param.b32 [s], 1;
        call (h), cudaCGGetIntrinsicHandle, (s); st.param.b32 [f], 0;
        call (e), cudaCGSynchronize, (h, f); ld.param.b32 %r1, [e]; st.global.u32 [%o+16], %r1; }
      ret;
    }"""


def test_functions_that_cuda_provides() -> None:
    calls: list[object] = []

    def print_(_thread: int, text: bytes, arguments: int) -> int:
        calls.append((text, ctypes.c_uint32.from_address(arguments).value))
        return 1

    program = Program(
        PROVIDED,
        sim_vprintf=print_,
        sim_malloc=lambda _thread, size: calls.append(size) or 0x1000,
        sim_free=lambda _thread, address: calls.append(("free", address)),
        sim_grid_sync=lambda _thread: calls.append("grid"),
    )
    out = np.full(3, 7, np.uint64)
    program.run("k", out)
    assert calls == [(b"%d\n", 42), 24, ("free", 0x1000), "grid"]
    assert out.view(np.uint32)[[0, 4]].tolist() == [1, 0]
    assert out[1] == 0x1000
    assert program.facts["kernels"]["k"]["waits"]


SPECIAL = """
    .visible .entry k(.param .u64 out)
    {
      .reg .u64 %o, %g; .reg .u32 %r<12>;
      ld.param.u64 %o, [out];
      mov.u32 %r0, %tid.x; mov.u32 %r1, %ntid.y; mov.u32 %r2, %ctaid.z; mov.u32 %r3, %nctaid.x;
      mov.u32 %r4, %laneid; mov.u32 %r5, %warpid; mov.u32 %r6, %lanemask_lt; mov.u32 %r7, %smid;
      mov.u32 %r8, WARP_SZ; mov.u32 %r9, %nwarpid; mov.u32 %r10, %dynamic_smem_size;
      mov.u32 %r11, %lanemask_ge; mov.u64 %g, %gridid;
      st.global.v4.u32 [%o], {%r0, %r1, %r2, %r3}; st.global.v4.u32 [%o+16], {%r4, %r5, %r6, %r7};
      st.global.v4.u32 [%o+32], {%r8, %r9, %r10, %r11}; st.global.u64 [%o+48], %g; ret;
    }"""


def test_special_registers() -> None:
    out = np.zeros(14, np.uint32)
    fields = {"tid": (3, 0, 0), "ntid": (33, 2, 1), "ctaid": (0, 0, 5), "nctaid": (7, 1, 1)}
    more = {"lane": 4, "warp": 1, "sm": 9, "dynamic_shared": 64, "grid": 1 << 40}
    Program(SPECIAL).run("k", out, **fields, **more)
    assert out[:12].tolist() == [3, 2, 5, 7, 4, 1, 15, 9, 32, 3, 64, 0xFFFFFFF0]
    assert out[12:].view(np.uint64)[0] == 1 << 40


def test_the_workspace_of_a_cooperative_grid_is_in_environment_registers() -> None:
    program = Program(
        """.visible .entry k(.param .u64 out)
        {
          .reg .u64 %o; .reg .u32 %r<3>; ld.param.u64 %o, [out];
          mov.u32 %r0, %envreg2; mov.u32 %r1, %envreg1; mov.u32 %r2, %envreg5;
          st.global.v2.u32 [%o], {%r0, %r1}; st.global.u32 [%o+8], %r2; ret;
        }""",
        sim_grid_workspace=lambda _thread: 0x123456789A,
    )
    out = np.ones(3, np.uint32)
    program.run("k", out)
    assert out.tolist() == [0x3456789A, 0x12, 0]


def test_trap_exit_and_assertions_end_the_thread() -> None:
    output_of("""
        import os
        from unit.simulated_cuda.ptx.executor import Program

        text = '''
            .extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n,
                                       .param .b64 s);
            .global .align 1 .b8 name[2] = {110, 0};
            .func leave() { exit; }
            .visible .entry a() { trap; }
            .visible .entry b() { call leave; trap; }
            .visible .entry c() {
                .param .b64 p; .param .b32 l; .param .b64 s; .reg .b64 %p; mov.u64 %p, name;
                st.param.b64 [p], %p; st.param.b32 [l], 12; st.param.b64 [s], 1;
                call __assertfail, (p, p, l, p, s); ret; }
            .visible .entry d() { .reg .pred %p; mov.pred %p, 1; @%p exit; trap; }'''

        def stop(code):
            return lambda *rest: os._exit(code + (rest[1:] == (b"n", b"n", 12, b"n")))

        program = Program(text, sim_trap=stop(10), sim_exit=stop(20), sim_assert_fail=stop(30))
        for name, code in {"a": 10, "b": 20, "c": 31, "d": 5}.items():
            if (child := os.fork()) == 0:
                program.run(name)
                os._exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code, name
        """)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("wgmma.fence.sync.aligned;", "line 6: unsupported instruction wgmma.fence"),
        ("add.rn.cool.f32 %f, %f, %f;", "line 6: unsupported modifier .cool of add.rn.cool.f32"),
        ("add.u32 %r, %r, %missing;", "line 6: add.u32: unknown name %missing"),
        ("bra nowhere;", "line 6: bra: nowhere is not a label"),
        ("add.u32 %r, %r;", "line 6: add.u32: invalid operands"),
        ("mov.u32 %r, 1 2;", "line 6: expected ';'"),
        ("tex.2d.v4.f32.f32 {%f,%f,%f,%f}, [t, {%f,%f}];", "line 6: .*not supported"),
        ("atom.global.min.f32 %f, [%o], %f;", "line 6: .*unsupported operation .min"),
        ("call missing, ();", "line 6: call: "),
    ],
)
def test_what_is_unknown_is_refused_with_its_line(line: str, message: str) -> None:
    text = f"""
        .visible .entry k()
        {{
          .reg .u32 %r; .reg .f32 %f; .reg .u64 %o;
          {line}
        }}"""
    with pytest.raises(PtxError, match=message):
        Program(".version 8.0\n" + text)


def test_debug_information_is_skipped() -> None:
    program = Program("""
        .version 8.7
        .target sm_90, debug
        .address_size 64
        .file 1 "/a/b.py"
        .visible .entry k(.param .u64 .ptr .global .align 4 out)
        .maxntid 128, 2, 1
        .minnctapersm 2
        .reqntid 16, 4
        {
          .reg .u64 %o;
          .loc 1 10 3, function_name $L__info, inlined_at 1 20 5
          ld.param.u64 %o, [out]; /* a
          comment */ st.global.u32 [%o], 4; // another
          .pragma "nounroll";
          ret;
          $L__end:
        }
        .section .debug_str { $L__info: .b8 107, 0 }
        .section .debug_loc { }""")
    facts = program.facts["kernels"]["k"]
    assert facts["max_threads"] == 256
    assert list(facts["required_threads"]) == [16, 4, 1]
    out = np.zeros(1, np.uint32)
    program.run("k", out)
    assert out[0] == 4
