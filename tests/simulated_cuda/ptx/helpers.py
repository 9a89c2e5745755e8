"""LLVM text of helper functions that instructions call; a module gets those it uses.

Every helper is exact as the PTX ISA defines it, or a documented stand-in of an approximate
instruction (approximations.py). They use IEEE operations only, so results are equal on all
machines.
"""

from __future__ import annotations

import re

from simulated_cuda.ptx import approximations

__all__ = ["declarations_of", "helper_text"]

_FIXED = {
    # Steady clock in nanoseconds (CLOCK_MONOTONIC is 1 on Linux).
    "sim.clock": """
define internal i64 @sim.clock() #0 {
  %buffer = alloca [2 x i64]
  %status = call i32 @clock_gettime(i32 1, ptr %buffer)
  %seconds = load i64, ptr %buffer
  %second = getelementptr i8, ptr %buffer, i64 8
  %rest = load i64, ptr %second
  %scaled = mul i64 %seconds, 1000000000
  %result = add i64 %scaled, %rest
  ret i64 %result
}""",
    "sim.flush": """
define internal float @sim.flush(float %x) #1 {
  %magnitude = call float @llvm.fabs.f32(float %x)
  %small = fcmp olt float %magnitude, 0x3810000000000000
  %zero = call float @llvm.copysign.f32(float 0.0, float %x)
  %result = select i1 %small, float %zero, float %x
  ret float %result
}""",
    # max(x, +0) that keeps NaN.
    "sim.relu": """
define internal double @sim.relu(double %x) #1 {
  %negative = fcmp ole double %x, 0.0
  %result = select i1 %negative, double 0.0, double %x
  ret double %result
}""",
    # f16: the bits are shifted to their place in a double, and scaled by 2**(1023 - 15).
    "sim.widen.f16": """
define internal double @sim.widen.f16(i16 %bits) #1 {
  %low = and i16 %bits, 32767
  %wide = zext i16 %low to i64
  %placed = shl i64 %wide, 42
  %tiny = bitcast i64 %placed to double
  %scaled = fmul double %tiny, 0x7EF0000000000000
  %special = icmp uge i16 %low, 31744
  %top = or i64 %placed, 9218868437227405312
  %number = bitcast i64 %top to double
  %value = select i1 %special, double %number, double %scaled
  %negative = icmp slt i16 %bits, 0
  %minus = fneg double %value
  %result = select i1 %negative, double %minus, double %value
  ret double %result
}""",
    # e4m3: as f16, with a bias of 7; only 0x7f is NaN.
    "sim.widen.e4m3": """
define internal double @sim.widen.e4m3(i16 %bits) #1 {
  %low = and i16 %bits, 127
  %wide = zext i16 %low to i64
  %placed = shl i64 %wide, 49
  %tiny = bitcast i64 %placed to double
  %scaled = fmul double %tiny, 0x7F70000000000000
  %special = icmp eq i16 %low, 127
  %value = select i1 %special, double 0x7FF8000000000000, double %scaled
  %sign = and i16 %bits, 128
  %negative = icmp ne i16 %sign, 0
  %minus = fneg double %value
  %result = select i1 %negative, double %minus, double %value
  ret double %result
}""",
    # e5m2 is the upper half of f16.
    "sim.widen.e5m2": """
define internal double @sim.widen.e5m2(i16 %bits) #1 {
  %half = shl i16 %bits, 8
  %result = call double @sim.widen.f16(i16 %half)
  ret double %result
}""",
    # Numbers below 2**-14 become zeros of the same sign.
    "sim.flush.f16": """
define internal double @sim.flush.f16(double %x) #1 {
  %magnitude = call double @llvm.fabs.f64(double %x)
  %small = fcmp olt double %magnitude, 0x3F10000000000000
  %zero = call double @llvm.copysign.f64(double 0.0, double %x)
  %result = select i1 %small, double %zero, double %x
  ret double %result
}""",
    "sim.widen.bf16": """
define internal double @sim.widen.bf16(i16 %bits) #1 {
  %wide = zext i16 %bits to i32
  %placed = shl i32 %wide, 16
  %single = bitcast i32 %placed to float
  %result = fpext float %single to double
  ret double %result
}""",
    # Round a double to a format: bits of the mantissa, bias of the exponent, `infinity` (the bits
    # above those of the largest number) and place of the sign. Modes: 0 nearest even, 1 toward
    # zero, 2 down, 3 up, 4 nearest away from zero. With `finite`, infinities and overflows become
    # the largest number. NaN gives all bits but the sign.
    "sim.narrow": """
define internal i32 @sim.narrow(double %x, i64 %m, i64 %bias, i64 %infinity, i64 %sign.place,
                                i32 %mode, i1 %finite) #2 {
  %bits = bitcast double %x to i64
  %negative = icmp slt i64 %bits, 0
  %field = lshr i64 %bits, 52
  %field11 = and i64 %field, 2047
  %fraction = and i64 %bits, 4503599627370495
  %is.normal = icmp ne i64 %field11, 0
  %hidden = or i64 %fraction, 4503599627370496
  %significand = select i1 %is.normal, i64 %hidden, i64 %fraction
  %e1 = call i64 @llvm.umax.i64(i64 %field11, i64 1)
  %e = sub i64 %e1, 1023
  %emin = sub i64 1, %bias
  %scale = call i64 @llvm.smax.i64(i64 %e, i64 %emin)
  %lost = sub i64 %scale, %e
  %drop = sub i64 52, %m
  %shift0 = add i64 %lost, %drop
  %shift = call i64 @llvm.umin.i64(i64 %shift0, i64 60)
  %kept = lshr i64 %significand, %shift
  %unit = shl i64 1, %shift
  %mask = sub i64 %unit, 1
  %rest = and i64 %significand, %mask
  %half = lshr i64 %unit, 1
  %inexact = icmp ne i64 %rest, 0
  %above = icmp ugt i64 %rest, %half
  %tie = icmp eq i64 %rest, %half
  %odd = trunc i64 %kept to i1
  %tie.up = and i1 %tie, %odd
  %nearest = or i1 %above, %tie.up
  %away = or i1 %above, %tie
  %positive = xor i1 %negative, true
  %down = and i1 %negative, %inexact
  %up = and i1 %positive, %inexact
  %is.rn = icmp eq i32 %mode, 0
  %is.rm = icmp eq i32 %mode, 2
  %is.rp = icmp eq i32 %mode, 3
  %is.rna = icmp eq i32 %mode, 4
  %r0 = and i1 %is.rn, %nearest
  %r2 = and i1 %is.rm, %down
  %r3 = and i1 %is.rp, %up
  %r4 = and i1 %is.rna, %away
  %s0 = or i1 %r0, %r2
  %s1 = or i1 %r3, %r4
  %round = or i1 %s0, %s1
  %carry = zext i1 %round to i64
  %rounded = add i64 %kept, %carry
  %step = sub i64 %scale, %emin
  %base = shl i64 %step, %m
  %encoded = add i64 %base, %rounded
  %largest = sub i64 %infinity, 1
  %overflows = icmp uge i64 %encoded, %infinity
  %is.rz = icmp eq i32 %mode, 1
  %c2 = and i1 %is.rm, %positive
  %c3 = and i1 %is.rp, %negative
  %c23 = or i1 %c2, %c3
  %toward.zero = or i1 %is.rz, %c23
  %special = icmp eq i64 %field11, 2047
  %exact.infinity = xor i1 %special, true
  %clamps0 = and i1 %toward.zero, %exact.infinity
  %clamps = or i1 %clamps0, %finite
  %limit = select i1 %clamps, i64 %largest, i64 %infinity
  %over = or i1 %overflows, %special
  %magnitude = select i1 %over, i64 %limit, i64 %encoded
  %sign.bit = shl i64 1, %sign.place
  %sign = select i1 %negative, i64 %sign.bit, i64 0
  %number = or i64 %magnitude, %sign
  %nan.bits = sub i64 %sign.bit, 1
  %is.nan = fcmp uno double %x, %x
  %result = select i1 %is.nan, i64 %nan.bits, i64 %number
  %result32 = trunc i64 %result to i32
  ret i32 %result32
}""",
    # a * b + c where a * b is exact, rounded to odd: a later rounding to fewer bits is then right.
    "sim.fma.odd": """
define internal double @sim.fma.odd(double %a, double %b, double %c) #1 {
  %p = fmul double %a, %b
  %s = fadd double %p, %c
  %bb = fsub double %s, %p
  %aa = fsub double %s, %bb
  %db = fsub double %c, %bb
  %da = fsub double %p, %aa
  %error = fadd double %da, %db
  %inexact = fcmp one double %error, 0.0
  %bits = bitcast double %s to i64
  %odd = trunc i64 %bits to i1
  %even = xor i1 %odd, true
  %adjust = and i1 %inexact, %even
  %s.positive = fcmp ogt double %s, 0.0
  %e.positive = fcmp ogt double %error, 0.0
  %outward = icmp eq i1 %s.positive, %e.positive
  %delta = select i1 %outward, i64 1, i64 -1
  %moved = add i64 %bits, %delta
  %chosen = select i1 %adjust, i64 %moved, i64 %bits
  %result = bitcast i64 %chosen to double
  ret double %result
}""",
    "sim.bmsk": """
define internal i32 @sim.bmsk(i32 %a, i32 %b, i1 %clamp) #1 {
  %a5 = and i32 %a, 31
  %b5 = and i32 %b, 31
  %low = shl i32 -1, %a5
  %a.large = icmp uge i32 %a, 32
  %b.large = icmp uge i32 %b, 32
  %a.over = and i1 %a.large, %clamp
  %b.over = and i1 %b.large, %clamp
  %mask0 = select i1 %a.over, i32 0, i32 %low
  %sum = add i32 %a5, %b5
  %over = icmp uge i32 %sum, 32
  %sum5 = and i32 %sum, 31
  %high = shl i32 -1, %sum5
  %o1 = or i1 %over, %a.over
  %o2 = or i1 %o1, %b.over
  %mask1 = select i1 %o2, i32 0, i32 %high
  %not = xor i32 %mask1, -1
  %result = and i32 %mask0, %not
  ret i32 %result
}""",
    # The position of the n-th set bit from `base` on, upwards or downwards.
    "sim.fns": """
define internal i32 @sim.fns(i32 %mask, i32 %base, i32 %offset) #1 {
entry:
  %is.zero = icmp eq i32 %offset, 0
  %upward = icmp sge i32 %offset, 0
  %step = select i1 %upward, i32 1, i32 -1
  %negative = sub i32 0, %offset
  %size = select i1 %upward, i32 %offset, i32 %negative
  %first = call i32 @llvm.umax.i32(i32 %size, i32 1)
  br label %loop
loop:
  %position = phi i32 [ %base, %entry ], [ %next, %more ]
  %count = phi i32 [ %first, %entry ], [ %left, %more ]
  %inside = icmp ult i32 %position, 32
  br i1 %inside, label %test, label %none
test:
  %shifted = lshr i32 %mask, %position
  %bit = and i32 %shifted, 1
  %left = sub i32 %count, %bit
  %done = icmp eq i32 %left, 0
  br i1 %done, label %found, label %more
more:
  %next = add i32 %position, %step
  br i1 %is.zero, label %none, label %loop
found:
  ret i32 %position
none:
  ret i32 -1
}""",
    "sim.prmt": """
define internal i32 @sim.prmt(i32 %a, i32 %b, i32 %control) #1 {
entry:
  %low = zext i32 %a to i64
  %high = zext i32 %b to i64
  %placed = shl i64 %high, 32
  %bytes = or i64 %low, %placed
  br label %loop
loop:
  %k = phi i32 [ 0, %entry ], [ %k1, %loop ]
  %sum = phi i32 [ 0, %entry ], [ %total, %loop ]
  %place = shl i32 %k, 2
  %nibble0 = lshr i32 %control, %place
  %index = and i32 %nibble0, 7
  %distance = shl i32 %index, 3
  %distance64 = zext i32 %distance to i64
  %moved = lshr i64 %bytes, %distance64
  %byte = trunc i64 %moved to i8
  %sign = ashr i8 %byte, 7
  %flag = and i32 %nibble0, 8
  %replicates = icmp ne i32 %flag, 0
  %chosen = select i1 %replicates, i8 %sign, i8 %byte
  %wide = zext i8 %chosen to i32
  %to = shl i32 %k, 3
  %part = shl i32 %wide, %to
  %total = or i32 %sum, %part
  %k1 = add i32 %k, 1
  %done = icmp eq i32 %k1, 4
  br i1 %done, label %end, label %loop
end:
  ret i32 %total
}""",
}

_EXTRACT = """
define internal i{w} @sim.bfe.{kind}(i{w} %a, i32 %position, i32 %length) #1 {{
  %end = add i32 %position, %length
  %last0 = sub i32 %end, 1
  %last = call i32 @llvm.umin.i32(i32 %last0, i32 {top})
  %empty = icmp eq i32 %length, 0
  %top0 = sub i32 {top}, %last
  %top1 = zext i32 %top0 to i64
  %top = {resize_top}
  %up = shl i{w} %a, %top
  %size0 = sub i32 {w}, %length
  %size1 = call i32 @llvm.smax.i32(i32 %size0, i32 0)
  %down0 = call i32 @llvm.umax.i32(i32 %top0, i32 %size1)
  %inside = icmp ult i32 %position, {w}
  %reach = add i32 %top0, %position
  %down1 = call i32 @llvm.umin.i32(i32 %reach, i32 {top})
  %down2 = zext i32 %down1 to i64
  %down = {resize_down}
  %field = {shift} i{w} %up, %down
  %outside = {outside}
  %value = select i1 %inside, i{w} %field, i{w} %outside
  %result = select i1 %empty, i{w} 0, i{w} %value
  ret i{w} %result
}}"""

_INSERT = """
define internal i{w} @sim.bfi.b{w}(i{w} %a, i{w} %b, i32 %position, i32 %length) #1 {{
  %all = icmp uge i32 %length, {w}
  %size = select i1 %all, i32 0, i32 %length
  %inside = icmp ult i32 %position, {w}
  %place = select i1 %inside, i32 %position, i32 0
  %n = {resize} i32 %size{to}
  %p = {resize} i32 %place{to}
  %unit = shl i{w} 1, %n
  %low = sub i{w} %unit, 1
  %field = select i1 %all, i{w} -1, i{w} %low
  %bits = and i{w} %a, %field
  %mask = shl i{w} %field, %p
  %placed = shl i{w} %bits, %p
  %clear = xor i{w} %mask, -1
  %rest = and i{w} %b, %clear
  %joined = or i{w} %rest, %placed
  %result = select i1 %inside, i{w} %joined, i{w} %b
  ret i{w} %result
}}"""

_ROUNDED = """
define internal {kind} @sim.{operation}.{suffix}.{mode}({parameters}) #3 {{
  call void @llvm.set.rounding(i32 {number}) #4
  %r = call {kind} @llvm.experimental.constrained.{name}({arguments}{metadata}) #4
  call void @llvm.set.rounding(i32 1) #4
  ret {kind} %r
}}"""

_FLOATS = {"f32": "float", "f64": "double"}
_SET_ROUNDING = {"rz": 0, "rp": 2, "rm": 3}
_METADATA = ', metadata !"round.dynamic", metadata !"fpexcept.strict"'


def _bit_fields(name: str) -> str | None:
    if found := re.fullmatch(r"sim\.bfe\.([su])(32|64)", name):
        sign, width = found[1], int(found[2])
        narrow = width == 32
        return _EXTRACT.format(
            w=width,
            top=width - 1,
            kind=f"{sign}{width}",
            shift="ashr" if sign == "s" else "lshr",
            resize_top="trunc i64 %top1 to i32" if narrow else "add i64 %top1, 0",
            resize_down="trunc i64 %down2 to i32" if narrow else "add i64 %down2, 0",
            outside=f"ashr i{width} %a, {width - 1}" if sign == "s" else f"add i{width} 0, 0",
        )
    if found := re.fullmatch(r"sim\.bfi\.b(32|64)", name):
        width = int(found[1])
        resize, to = ("add", ", 0") if width == 32 else ("zext", " to i64")
        return _INSERT.format(w=width, resize=resize, to=to)
    return None


def _rounded(name: str) -> str | None:
    found = re.fullmatch(r"sim\.(add|sub|mul|div|fma|sqrt)\.(f32|f64)\.(rz|rm|rp)", name)
    if found:
        operation, suffix, mode = found.groups()
        kind = _FLOATS[suffix]
        count = {"fma": 3, "sqrt": 1}.get(operation, 2)
        arguments = ", ".join(f"{kind} %a{k}" for k in range(count))
        plain = operation in ("fma", "sqrt")
        return _ROUNDED.format(
            kind=kind,
            operation=operation,
            suffix=suffix,
            mode=mode,
            parameters=arguments,
            number=_SET_ROUNDING[mode],
            name=f"{'' if plain else 'f'}{operation}.{suffix}",
            arguments=arguments,
            metadata=_METADATA,
        )
    found = re.fullmatch(r"sim\.([su]itofp)\.(f32|f64)\.i(32|64)\.(rz|rm|rp)", name)
    if found:
        operation, suffix, width, mode = found.groups()
        return _ROUNDED.format(
            kind=_FLOATS[suffix],
            operation=operation,
            suffix=f"{suffix}.i{width}",
            mode=mode,
            parameters=f"i{width} %a0",
            number=_SET_ROUNDING[mode],
            name=f"{operation}.{suffix}.i{width}",
            arguments=f"i{width} %a0",
            metadata=_METADATA,
        )
    return None


def helper_text(name: str) -> str:
    """Return the definition of a helper.

    Raises
    ------
    KeyError
        If there is no such helper.
    """
    text = _FIXED.get(name) or approximations.HELPERS.get(name)
    text = text or _bit_fields(name) or _rounded(name)
    if text is None:
        raise KeyError(name)
    return text


def declarations_of(text: str) -> dict[str, str]:
    """Return the declarations of the functions outside the module that a helper calls."""
    found = {}
    for result, name, arguments in re.findall(
        r"call (\w+) @((?:llvm|clock)[\w.]+)\(([^)]*)\)", text
    ):
        types = ", ".join(part.split()[0] for part in arguments.split(",") if part.strip())
        found[name] = f"declare {result} @{name}({types})"
    return found
