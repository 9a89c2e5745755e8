"""`__array_ufunc__` of distributed tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbrt.distributed.ops.elementwise import elementwise_all
from nbrt.distributed.ops.matmul import matmul
from nbrt.distributed.ops.operands import is_dtensor
from nbrt.distributed.ops.reductions import reduce_by
from nbrt.errors import PlacementError

__all__ = ["array_ufunc"]


def array_ufunc(
    ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run the call or ``reduce`` of a ufunc that NumPy dispatches."""
    if any(map(_has_rules_of_its_own, inputs)):
        return NotImplemented
    out = kwargs.get("out")
    if isinstance(out, tuple) and len(out) == 1:
        kwargs["out"] = out[0]
    if ufunc is np.matmul and method == "__call__":
        return matmul(*inputs, **kwargs)
    if ufunc.signature is None and method == "__call__":
        results = elementwise_all(ufunc, inputs, **kwargs)
        return results if ufunc.nout > 1 else results[0]
    if ufunc.signature is None and method == "reduce":
        return reduce_by(ufunc, *inputs, **kwargs)
    called = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    raise PlacementError(
        f"expected an element-wise operation or a reduction, got np.{called}, which has no rule "
        f"for distributed tensors; use it on full_tensor() or to_local()"
    )


def _has_rules_of_its_own(value: Any) -> bool:
    """Return whether NumPy should try the protocol of another library's type."""
    if is_dtensor(value) or hasattr(value, "shape"):
        return False
    return hasattr(value, "__array_ufunc__") and not isinstance(value, np.generic)
