"""Calls of the driver that barriers, warp instructions and atomics become."""

from __future__ import annotations

from typing import Any

import numpy as np

from unit.simulated_cuda.ptx.executor import Operation, Program, apply

FRAME = """
    .visible .entry k(.param .u64 out)
    {{
      .reg .u64 %o; .reg .u32 %r<8>; .reg .b64 %d; .reg .pred %p, %q; .reg .b32 %a;
      ld.param.u64 %o, [out]; mov.u32 %a, 5; setp.eq.u32 %p, %a, 5; mov.b64 %d, 99;
      mov.u32 %r0, 0; mov.u32 %r1, 0;
      {0}
      st.global.v2.u32 [%o], {{%r0, %r1}};
      ret;
    }}"""


class Recorder:
    """Records calls, and returns chosen values."""

    def __init__(self, **results: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.functions = {
            name: self._function(name, results.get(name, 0))
            for name in (
                *("sim_barrier", "sim_barrier_arrive", "sim_barrier_reduce", "sim_warp_sync"),
                *("sim_shuffle", "sim_ballot", "sim_match", "sim_redux", "sim_active_mask"),
            )
        }

    def _function(self, name: str, result: int) -> Any:
        def call(_thread: int, *arguments: Any) -> int | None:
            if name in ("sim_shuffle", "sim_match"):
                *arguments, flag = arguments
                flag[0] = 1
            self.calls.append((name[4:], *arguments))
            return None if name in _VOID else result

        return call


_VOID = ("sim_barrier", "sim_barrier_arrive", "sim_warp_sync")


def run(body: str, **results: int) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Return the calls that a body makes, and its %r0 and %r1."""
    recorder = Recorder(**results)
    out = np.zeros(2, np.uint32)
    Program(FRAME.format(body), **recorder.functions).run("k", out, lane=3)
    return recorder.calls, out.tolist()


def test_barriers() -> None:
    calls, out = run(
        "bar.sync 0; barrier.sync.aligned 2, 64; bar.arrive 3, %a; barrier.cta.sync 1;"
        "bar.warp.sync 0xff; bar.red.popc.u32 %r0, 0, %p; bar.red.and.pred %q, 1, 32, !%p;"
        "selp.u32 %r1, 1, 0, %q;",
        sim_barrier_reduce=7,
    )
    assert calls == [
        *[("barrier", 0, 0), ("barrier", 2, 64), ("barrier_arrive", 3, 5), ("barrier", 1, 0)],
        *[("warp_sync", 0xFF), ("barrier_reduce", 0, 0, 0, 1), ("barrier_reduce", 1, 32, 1, 0)],
    ]
    assert out == [7, 1]


def test_shuffles() -> None:
    calls, out = run(
        "shfl.sync.up.b32 %r0|%q, %a, 1, 0, -1; selp.u32 %r1, 1, 0, %q;"
        "shfl.sync.idx.b32 %r2, %a, 2, 31, 0xf; shfl.down.b32 %r2, %a, 2, 31;",
        sim_shuffle=12,
        sim_active_mask=6,
    )
    assert calls == [
        ("shuffle", 0, 5, 1, 0, 0xFFFFFFFF),
        ("shuffle", 3, 5, 2, 31, 0xF),
        ("active_mask",),
        ("shuffle", 1, 5, 2, 31, 6),
    ]
    assert out == [12, 1]


def test_votes_and_matches() -> None:
    calls, out = run(
        "vote.sync.ballot.b32 %r0, %p, 15; vote.sync.all.pred %q, %p, 15;"
        "vote.sync.any.pred %q, !%p, 15; vote.sync.uni.pred %q, %p, 15;"
        "match.any.sync.b64 %r2, %d, -1; match.all.sync.b32 %r1|%q, %a, 3;"
        "activemask.b32 %r3; elect.sync %r4|%q, 8;",
        sim_ballot=8,
        sim_match=5,
    )
    ballots = [("ballot", 1, 15), ("ballot", 0, 15), ("ballot", 0, 15), ("ballot", 0, 15)]
    assert calls == [
        *ballots,
        ("ballot", 1, 15),
        ("match", 99, 0xFFFFFFFF, 0),
        ("match", 5, 3, 1),
        ("active_mask",),
        ("ballot", 1, 8),
    ]
    assert out == [8, 5]


def test_reductions_of_a_warp() -> None:
    names = ["add.s32", "min.s32", "max.s32", "min.u32", "max.u32", "and.b32", "or.b32", "xor.b32"]
    body = "".join(f"redux.sync.{name} %r0, %a, -1;" for name in names)
    calls, _ = run(body)
    assert calls == [("redux", number, 5, 0xFFFFFFFF) for number in range(8)]


ATOMICS = {
    "add.u32": lambda old, value: old + value,
    "min.s32": min,
    "max.u32": max,
    "and.b32": lambda old, value: old & value,
    "or.b32": lambda old, value: old | value,
    "xor.b32": lambda old, value: old ^ value,
    "exch.b32": lambda old, value: value,
    "inc.u32": lambda old, value: 0 if old >= value else old + 1,
    "dec.u32": lambda old, value: value if old == 0 or old > value else old - 1,
}


def test_atomics_of_integers() -> None:
    pairs = [(0, 0), (5, 3), (3, 5), (5, 5), (1 << 31, 9), (4, 0xFFFFFFFF)]
    for name, function in ATOMICS.items():
        for modifier in ("atom.global", "atom.relaxed.sys.global", "red.release.gpu.global"):
            is_red = modifier.startswith("red")
            if is_red and "exch" in name:
                continue
            target = "" if is_red else "%d, "
            text = f"{modifier}.{name} {target}[%rd1-4], %b;" + " mov.u32 %d, 0;" * is_red
            operation = Operation(text, "u32", ("u32", "u32"))
            # %rd1 has stepped past the element of the first operand
            [(_, (memory, values), out)] = apply([operation], lambda _o: list(np.array(
                pairs, np.uint32).T.copy()))  # fmt: skip
            for index, (old, value) in enumerate(pairs):
                x, y = (old, value)
                if ".s32" in name:
                    x, y = (int(np.uint32(n).astype(np.int32)) for n in pairs[index])
                assert memory[index] == function(x, y) & 0xFFFFFFFF, (name, old, value)
                assert out[index] == (0 if is_red else old)
            assert values.tolist() == [value for _, value in pairs]


def test_compare_and_swap_of_all_widths() -> None:
    program = Program("""
        .visible .entry k(.param .u64 out)
        {
          .reg .u64 %o, %l<3>; .reg .b32 %r; .reg .b16 %h; .reg .b128 %w<3>;
          ld.param.u64 %o, [out];
          atom.global.cas.b16 %h, [%o], 1, 9;
          atom.acquire.gpu.global.cas.b32 %r, [%o+4], 5, 9;
          atom.acq_rel.sys.cas.b64 %l0, [%o+8], 3, 0x100000002;
          mov.b64 %l1, 1; mov.b64 %l2, 2; mov.b128 %w0, {%l1, %l2}; mov.b128 %w1, {%l2, %l1};
          atom.global.cas.b128 %w2, [%o+16], %w0, %w1;
          mov.b128 {%l1, %l2}, %w2; st.global.v2.u64 [%o+32], {%l1, %l2};
          ret;
        }""")
    memory = np.zeros(8, np.uint64)
    out = memory[memory.ctypes.data // 8 % 2 :][:6]
    out[:4] = [1 | 4 << 32, 3, 1, 2]
    program.run("k", out)
    assert out.tolist() == [9 | 4 << 32, 0x100000002, 2, 1, 1, 2]


def test_atomic_sums_of_floats() -> None:
    tiny = 2.0**-140
    program = Program("""
        .visible .entry k(.param .u64 out)
        {
          .reg .u64 %o, %s; .reg .f32 %f<4>; .reg .f64 %d; .reg .b32 %r; .reg .b16 %h;
          ld.param.u64 %o, [out]; ld.global.f32 %f0, [%o];
          atom.global.add.f32 %f1, [%o], %f0; st.shared.f32 [0], %f0;
          atom.shared.add.f32 %f2, [0], %f0; ld.shared.f32 %f3, [0];
          cvta.shared.u64 %s, 4; st.f32 [%s], %f0; red.add.f32 [%s], %f0; ld.f32 %f2, [%s];
          st.global.f32 [%o+4], %f3; st.global.f32 [%o+8], %f2;
          atom.global.add.f64 %d, [%o+16], 0d3FF0000000000000;
          mov.b32 %r, 0x3C003C00; atom.global.add.noftz.f16x2 %r, [%o+24], %r;
          mov.b16 %h, 0x3F80; red.global.add.noftz.bf16 [%o+28], %h;
          ret;
        }""")
    out = np.zeros(8, np.float32)
    out[0] = tiny
    out[4:6].view(np.float64)[0] = 0.5
    out[6:].view(np.uint16)[:3] = [0x3C00, 0x4000, 0x3F80]
    program.run("k", out)
    assert out[:3].tolist() == [0, 2 * tiny, 2 * tiny]
    assert out[4:6].view(np.float64)[0] == 1.5
    assert out[6:].view(np.uint16)[:3].tolist() == [0x4000, 0x4200, 0x4000]
