"""Stand-ins of the approximate instructions.

The ISA bounds the error of ``.approx`` instructions and leaves the result open, so no processor can
give the bits of a GPU. A stand-in is the exact function to about 40 bits, computed with IEEE
operations in double precision and rounded once: the same on every machine, and well inside the
bounds of the ISA. Kernels that use one have `SimKernelInfo.approximates` set.
"""

from __future__ import annotations

import struct
from math import factorial, log

__all__ = ["HELPERS"]


def _polynomial(result: str, variable: str, coefficients: list[float]) -> str:
    """Return instructions for a polynomial in Horner's scheme, lowest coefficient first."""
    lines = []
    value = repr(coefficients[-1])
    for index, coefficient in enumerate(reversed(coefficients[:-1])):
        last = index == len(coefficients) - 2
        product, total = f"%{result}.p{index}", f"%{result}" if last else f"%{result}.s{index}"
        lines.append(f"  {product} = fmul double {_number(value)}, {variable}")
        lines.append(f"  {total} = fadd double {product}, {_number(repr(coefficient))}")
        value = total
    return "\n".join(lines)


def _number(text: str) -> str:
    if text.startswith("%"):
        return text
    return f"0x{int.from_bytes(struct.pack('<d', float(text)), 'little'):016X}"


_LN2 = log(2.0)

_EXP2 = f"""
define internal double @sim.ex2(double %x) #1 {{
  %high = call double @llvm.minnum.f64(double %x, double 1100.0)
  %clamped = call double @llvm.maxnum.f64(double %high, double -1022.0)
  %whole = call double @llvm.roundeven.f64(double %clamped)
  %rest = fsub double %clamped, %whole
{_polynomial("power", "%rest", [_LN2**k / factorial(k) for k in range(13)])}
  %n = fptosi double %whole to i64
  %biased = add i64 %n, 1023
  %limited = call i64 @llvm.smin.i64(i64 %biased, i64 2047)
  %bits = shl i64 %limited, 52
  %scale = bitcast i64 %bits to double
  %value = fmul double %power, %scale
  %is.nan = fcmp uno double %x, %x
  %result = select i1 %is.nan, double %x, double %value
  ret double %result
}}"""

_LOG2 = f"""
define internal double @sim.lg2(double %x) #1 {{
  %bits = bitcast double %x to i64
  %field = lshr i64 %bits, 52
  %fraction = and i64 %bits, 4503599627370495
  %unit.bits = or i64 %fraction, 4607182418800017408
  %unit = bitcast i64 %unit.bits to double
  %large = fcmp ogt double %unit, 0x3FF6A09E667F3BCD
  %halved = fmul double %unit, 0.5
  %m = select i1 %large, double %halved, double %unit
  %carry = zext i1 %large to i64
  %sum = add i64 %field, %carry
  %n = sub i64 %sum, 1023
  %whole = sitofp i64 %n to double
  %numerator = fsub double %m, 1.0
  %denominator = fadd double %m, 1.0
  %s = fdiv double %numerator, %denominator
  %t = fmul double %s, %s
{_polynomial("series", "%t", [2 / _LN2 / (2 * k + 1) for k in range(11)])}
  %log = fmul double %series, %s
  %value = fadd double %whole, %log
  %is.zero = fcmp oeq double %x, 0.0
  %a = select i1 %is.zero, double 0xFFF0000000000000, double %value
  %is.infinite = fcmp oeq double %x, 0x7FF0000000000000
  %b = select i1 %is.infinite, double 0x7FF0000000000000, double %a
  %valid = fcmp oge double %x, 0.0
  %result = select i1 %valid, double %b, double 0x7FF8000000000000
  ret double %result
}}"""

_SINE = [(-1) ** k / factorial(2 * k + 1) for k in range(9)]
_COSINE = [(-1) ** k / factorial(2 * k) for k in range(9)]


def _trigonometric(name: str, quarter: int) -> str:
    """Return sine, or cosine as the sine a quarter turn later, of a reduced argument."""
    return f"""
define internal double @sim.{name}(double %x) #1 {{
  %turns = fmul double %x, 0x3FE45F306DC9C883
  %limited0 = call double @llvm.minnum.f64(double %turns, double 0x4310000000000000)
  %limited = call double @llvm.maxnum.f64(double %limited0, double 0xC310000000000000)
  %k = call double @llvm.roundeven.f64(double %limited)
  %minus = fneg double %k
  %r0 = call double @llvm.fma.f64(double %minus, double 0x3FF921FB54442D18, double %x)
  %r1 = call double @llvm.fma.f64(double %minus, double 0x3C91A62633145C07, double %r0)
  %r2 = call double @llvm.minnum.f64(double %r1, double 0x3FE921FB54442D18)
  %r = call double @llvm.maxnum.f64(double %r2, double 0xBFE921FB54442D18)
  %t = fmul double %r, %r
{_polynomial("odd", "%t", _SINE)}
  %sine = fmul double %odd, %r
{_polynomial("cosine", "%t", _COSINE)}
  %n = fptosi double %k to i64
  %quadrant = add i64 %n, {quarter}
  %swaps = trunc i64 %quadrant to i1
  %value = select i1 %swaps, double %cosine, double %sine
  %two = and i64 %quadrant, 2
  %negates = icmp ne i64 %two, 0
  %opposite = fneg double %value
  %signed = select i1 %negates, double %opposite, double %value
  %magnitude = call double @llvm.fabs.f64(double %x)
  %finite = fcmp olt double %magnitude, 0x7FF0000000000000
  %result = select i1 %finite, double %signed, double 0x7FF8000000000000
  ret double %result
}}"""


_TANH = f"""
define internal double @sim.tanh(double %x) #1 {{
  %t = fmul double %x, %x
{_polynomial("series", "%t", [1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925])}
  %near = fmul double %series, %x
  %magnitude = call double @llvm.fabs.f64(double %x)
  %scaled = fmul double %magnitude, {_number(repr(-2 / _LN2))}
  %power = call double @sim.ex2(double %scaled)
  %numerator = fsub double 1.0, %power
  %denominator = fadd double 1.0, %power
  %quotient = fdiv double %numerator, %denominator
  %far = call double @llvm.copysign.f64(double %quotient, double %x)
  %small = fcmp olt double %magnitude, 0.0625
  %result = select i1 %small, double %near, double %far
  ret double %result
}}"""

_DIVIDE = """
define internal float @sim.div.approx(float %a, float %b) #1 {
  %quotient = fdiv float %a, %b
  %magnitude = call float @llvm.fabs.f32(float %b)
  %large = fcmp ogt float %magnitude, 0x47D0000000000000
  %finite = fcmp olt float %magnitude, 0x7FF0000000000000
  %underflows = and i1 %large, %finite
  %zero = call float @llvm.copysign.f32(float 0.0, float %b)
  %product = fmul float %a, %zero
  %result = select i1 %underflows, float %product, float %quotient
  ret float %result
}"""

# Subnormal operands and results are flushed, and the low 32 bits of the result are 0.
_RECIPROCAL = """
define internal double @sim.rcp.approx.f64(double %x) #1 {
  %magnitude = call double @llvm.fabs.f64(double %x)
  %small = fcmp olt double %magnitude, 0x0010000000000000
  %zero = call double @llvm.copysign.f64(double 0.0, double %x)
  %operand = select i1 %small, double %zero, double %x
  %quotient = fdiv double 1.0, %operand
  %bits = bitcast double %quotient to i64
  %high = and i64 %bits, -4294967296
  %cut = bitcast i64 %high to double
  %size = call double @llvm.fabs.f64(double %cut)
  %tiny = fcmp olt double %size, 0x0010000000000000
  %flushed = call double @llvm.copysign.f64(double 0.0, double %cut)
  %result = select i1 %tiny, double %flushed, double %cut
  ret double %result
}"""

HELPERS = {
    "sim.ex2": _EXP2,
    "sim.lg2": _LOG2,
    "sim.sin": _trigonometric("sin", 0),
    "sim.cos": _trigonometric("cos", 1),
    "sim.tanh": _TANH,
    "sim.div.approx": _DIVIDE,
    "sim.rcp.approx.f64": _RECIPROCAL,
}
"""Definitions by name. ex2, lg2, sin, cos and tanh take and return doubles."""
