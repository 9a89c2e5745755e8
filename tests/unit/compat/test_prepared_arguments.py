"""Kernel arguments of a program's own types, which an extension of the launch prepares.

The program runs in a separate process: the types that it registers would change the keys of the
code of all other tests.
"""

from __future__ import annotations

from helpers.processes import run_python

_PROGRAM = """
import numpy as np
from numba import cuda, types
from numba.core.extending import make_attribute_wrapper, models, register_model, typeof_impl


class Range:
    def __init__(self, start, stop):
        self.start, self.stop = start, stop


class RangeType(types.Type):
    def __init__(self):
        super().__init__("Range")


@typeof_impl.register(Range)
def _typeof(_value, _context):
    return RangeType()


@register_model(RangeType)
class _RangeModel(models.StructModel):
    def __init__(self, manager, kind):
        members = [("start", types.int64), ("stop", types.int64), ("at", types.int64)]
        super().__init__(manager, kind, members)


for name in ("start", "stop", "at"):
    make_attribute_wrapper(RangeType, name, name)


class Handler:
    def __init__(self, members):
        self.members = members

    def prepare_args(self, kind, value, **_):
        if isinstance(value, Range):
            given = types.UniTuple(types.int64, self.members)
            return given, (value.start, value.stop, 7)[: self.members]
        return kind, value


def total(part, x, out):
    result = 0.0
    for i in range(part.start, part.stop):
        result += x[i]
    out[0] = result + part.at


x, out = np.arange(10.0), cuda.device_array(1)
signature = types.void(RangeType(), types.float64[:], types.float64[:])
for signatures in (), (signature,), ([signature],):
    kernel = cuda.jit(*signatures, extensions=[Handler(3)])(total)
    for start, stop in ((2, 5), (0, 10)):
        kernel[1, 1](Range(start, stop), x, out)
        assert out.copy_to_host()[0] == x[start:stop].sum() + 7

try:
    cuda.jit(extensions=[Handler(2)])(total)[1, 1](Range(0, 1), x, out)
except Exception as error:
    assert "3 members, and the extension prepares it as" in str(error), error
else:
    raise AssertionError("two members for three")
print("done")
"""


def test_a_kernel_reads_the_members_of_a_type_of_the_program() -> None:
    done = run_python(_PROGRAM, environment={"NBRT_NUMBA_CUDA": "1", "NBRT_DEVICE": "cpu"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
