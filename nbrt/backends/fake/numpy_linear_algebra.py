"""`numpy.linalg` of fake arrays: shapes and dtypes of factors and solutions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from nbrt.backends.fake.numpy_layouts import in_axis_order, reduced
from nbrt.backends.fake.numpy_operands import lifted, sample
from nbrt.backends.fake.numpy_products import product_dtype
from nbrt.backends.fake.numpy_rules import new_result, rule
from nbrt.backends.fake.numpy_ufuncs import broadcast_shape

__all__: list[str] = []


def _matrix(a: Any, *, is_square: bool = False) -> Any:
    (source,) = lifted(a)
    if source.ndim < 2:
        raise np.linalg.LinAlgError(
            f"{source.ndim}-dimensional array given. Array must be at least two-dimensional"
        )
    if is_square and source.shape[-1] != source.shape[-2]:
        raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square")
    return source


def _identity(source: Any) -> Any:
    return np.ones((1,) * max(source.ndim, 2), source.dtype)


def _same_shape(function: Any) -> Any:
    def apply(a: Any, **options: Any) -> Any:
        source = _matrix(a, is_square=True)
        kind = function(_identity(source)).dtype
        return new_result(function, source, source.shape, kind)

    return apply


rule(np.linalg.inv)(_same_shape(np.linalg.inv))


@rule(np.linalg.cholesky)
def _cholesky(a: Any, /, *, upper: bool = False) -> Any:
    result: Any = _same_shape(np.linalg.cholesky)(a)
    return result


@rule(np.linalg.matrix_power)
def _matrix_power(a: Any, n: int) -> Any:
    source = _matrix(a, is_square=True)
    kind = np.linalg.matrix_power(_identity(source), n).dtype
    return new_result(np.linalg.matrix_power, source, source.shape, kind)


@rule(np.linalg.det)
def _det(a: Any) -> Any:
    source = _matrix(a, is_square=True)
    kind = np.linalg.det(_identity(source)).dtype
    return new_result(np.linalg.det, source, source.shape[:-2], kind)


@rule(np.linalg.slogdet)
def _slogdet(a: Any) -> Any:
    source = _matrix(a, is_square=True)
    return _named(np.linalg.slogdet, source, source.shape[:-2], source.shape[:-2])


def _named(function: Any, source: Any, *shapes: tuple[int, ...], **options: Any) -> Any:
    """Return a named tuple of new arrays with the dtypes that NumPy gives for a matrix of 1x1."""
    known = function(_identity(source), **options)
    parts = (
        new_result(function, source, shape, each.dtype)
        for shape, each in zip(shapes, known, strict=True)
    )
    return type(known)(*parts)


@rule(np.linalg.eig)
def _eig(a: Any) -> Any:
    source = _matrix(a, is_square=True)
    known = np.linalg.eig(_identity(source))
    # Complex, as the eigenvalues of a general real matrix are.
    kinds = [np.result_type(each.dtype, np.complex64) for each in known]
    return type(known)(
        new_result(np.linalg.eig, source, source.shape[:-1], kinds[0]),
        new_result(np.linalg.eig, source, source.shape, kinds[1]),
    )


@rule(np.linalg.eigvals)
def _eigvals(a: Any) -> Any:
    source = _matrix(a, is_square=True)
    kind = np.result_type(np.linalg.eigvals(_identity(source)).dtype, np.complex64)
    return new_result(np.linalg.eigvals, source, source.shape[:-1], kind)


@rule(np.linalg.eigh)
def _eigh(a: Any, UPLO: Any = "L") -> Any:  # noqa: N803 (NumPy's name)
    source = _matrix(a, is_square=True)
    return _named(np.linalg.eigh, source, source.shape[:-1], source.shape, UPLO=UPLO)


@rule(np.linalg.eigvalsh)
def _eigvalsh(a: Any, UPLO: Any = "L") -> Any:  # noqa: N803 (NumPy's name)
    source = _matrix(a, is_square=True)
    kind = np.linalg.eigvalsh(_identity(source), UPLO).dtype
    return new_result(np.linalg.eigvalsh, source, source.shape[:-1], kind)


@rule(np.linalg.svd)
def _svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:
    source = _matrix(a, is_square=hermitian)
    *loop, rows, columns = source.shape
    least = min(rows, columns)
    if not compute_uv:
        kind = np.linalg.svd(_identity(source), compute_uv=False).dtype
        return new_result(np.linalg.svd, source, (*loop, least), kind)
    left, right = (rows, columns) if full_matrices else (least, least)
    shapes = ((*loop, rows, left), (*loop, least), (*loop, right, columns))
    return _named(np.linalg.svd, source, *shapes)


@rule(np.linalg.svdvals)
def _svdvals(x: Any, /) -> Any:
    return _svd(x, compute_uv=False)


@rule(np.linalg.qr)
def _qr(a: Any, mode: Any = "reduced") -> Any:
    source = _matrix(a)
    *loop, rows, columns = source.shape
    least = min(rows, columns)
    if mode == "reduced":
        return _named(np.linalg.qr, source, (*loop, rows, least), (*loop, least, columns))
    if mode == "complete":
        return _named(np.linalg.qr, source, (*loop, rows, rows), (*loop, rows, columns))
    known: Any = np.linalg.qr(_identity(source), mode)
    if mode == "r":
        return new_result(np.linalg.qr, source, (*loop, least, columns), known.dtype)
    factors = new_result(np.linalg.qr, source, (*loop, rows, columns), known[0].dtype)
    return (
        factors.as_owner(factors.layout.mT),
        new_result(np.linalg.qr, source, (*loop, least), known[1].dtype),
    )


@rule(np.linalg.pinv)
def _pinv(a: Any, *args: Any, **options: Any) -> Any:
    source = _matrix(a)
    *loop, rows, columns = source.shape
    kind = np.linalg.pinv(_identity(source)).dtype
    return new_result(np.linalg.pinv, source, (*loop, columns, rows), kind)


@rule(np.linalg.matrix_rank)
def _matrix_rank(A: Any, *args: Any, **options: Any) -> Any:  # noqa: N803 (NumPy's name)
    (source,) = lifted(A)
    shape = source.shape[:-2] if source.ndim > 1 else ()
    return new_result(np.linalg.matrix_rank, source, shape, np.intp)


@rule(np.linalg.cond)
def _cond(x: Any, p: Any = None) -> Any:
    source = _matrix(x, is_square=p not in (None, 2, -2))
    kind = np.linalg.cond(_identity(source), p).dtype
    return new_result(np.linalg.cond, source, source.shape[:-2], kind)


@rule(np.linalg.solve)
def _solve(a: Any, b: Any) -> Any:
    source, right = lifted(a, b)
    source = _matrix(source, is_square=True)
    side = source.shape[-1]
    kind = np.linalg.solve(_identity(source), np.ones(1, right.dtype)).dtype
    if right.ndim == 1:
        if right.shape != (side,):
            raise _mismatch("solve1", 0, right.shape[0], side)
        shape = source.shape[:-1]
    else:
        _check_axes(right, 2)
        if right.shape[-2] != side:
            raise _mismatch("solve", 0, right.shape[-2], side)
        loop = broadcast_shape([source.shape[:-2], right.shape[:-2]])
        shape = (*loop, *right.shape[-2:])
    return new_result(np.linalg.solve, source, shape, kind)


def _check_axes(array: Any, ndim: int) -> None:
    if array.ndim < ndim:
        raise ValueError(f"expected an array of at least {ndim} axes, got shape {array.shape}")


def _mismatch(name: str, axis: int, size: int, expected: int) -> ValueError:
    return ValueError(
        f"{name}: Input operand 1 has a mismatch in its core dimension {axis} (size {size} is "
        f"different from {expected})"
    )


@rule(np.linalg.lstsq)
def _lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    source, right = lifted(a, b)
    if source.ndim != 2 or right.ndim not in (1, 2):
        wrong = source.ndim if source.ndim != 2 else right.ndim
        raise np.linalg.LinAlgError(
            f"{wrong}-dimensional array given. Array must be two-dimensional"
        )
    rows, columns = source.shape
    if right.shape[0] != rows:
        raise np.linalg.LinAlgError("Incompatible dimensions")
    known = np.linalg.lstsq(_identity(source), np.ones((1, 1), right.dtype), rcond)
    rest = right.shape[1:]
    # Of full rank, as random matrices are: the residuals exist where there are more rows.
    residuals = (math.prod(rest),) if rows > columns else (0,)
    shapes = ((columns, *rest), residuals, (), (min(rows, columns),))
    kinds = (known[0].dtype, known[1].dtype, np.dtype(np.int32), known[3].dtype)
    x, squares, rank, values = (
        new_result(np.linalg.lstsq, source, shape, kind)
        for shape, kind in zip(shapes, kinds, strict=True)
    )
    return x, squares, rank, values


@rule(np.linalg.tensorsolve)
def _tensorsolve(a: Any, b: Any, axes: Any = None) -> Any:
    source, right = lifted(a, b)
    shape = list(source.shape)
    for axis in axes or ():
        shape.append(shape.pop(axis))
    rest = tuple(shape[-(source.ndim - right.ndim) :])
    if source.size != math.prod(rest) ** 2:
        raise np.linalg.LinAlgError(
            "Input arrays must satisfy the requirement             prod(a.shape[b.ndim:]) == "
            "prod(a.shape[:b.ndim])"
        )
    kind = np.linalg.solve(np.ones((1, 1), source.dtype), np.ones(1, right.dtype)).dtype
    return new_result(np.linalg.tensorsolve, source, rest, kind)


@rule(np.linalg.tensorinv)
def _tensorinv(a: Any, ind: int = 2) -> Any:
    (source,) = lifted(a)
    if ind <= 0:
        raise ValueError("Invalid ind argument.")
    first, second = source.shape[:ind], source.shape[ind:]
    if math.prod(first) != math.prod(second):
        raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square")
    kind = np.linalg.inv(np.ones((1, 1), source.dtype)).dtype
    return new_result(np.linalg.tensorinv, source, (*second, *first), kind)


@rule(np.linalg.multi_dot)
def _multi_dot(arrays: Any, *, out: Any = None) -> Any:
    sources = lifted(*arrays)
    if len(sources) < 2:
        raise ValueError("Expecting at least two arrays.")
    for at, each in enumerate(sources):
        is_end = at in (0, len(sources) - 1)
        if each.ndim != 2 and not (is_end and each.ndim == 1):
            raise np.linalg.LinAlgError(
                f"{each.ndim}-dimensional array given. Array must be two-dimensional"
            )
    for one, other in itertools.pairwise(sources):
        if one.shape[-1] != other.shape[0]:
            raise ValueError(
                f"shapes {one.shape} and {other.shape} not aligned: {one.shape[-1]} (dim "
                f"{one.ndim - 1}) != {other.shape[0]} (dim 0)"
            )
    shape = sources[0].shape[:-1] + sources[-1].shape[1:]
    return new_result(np.linalg.multi_dot, sources[0], shape, product_dtype(*sources), out)


@rule(np.linalg.norm)
def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    (source,) = lifted(x)
    kind = np.linalg.norm(sample(source), ord, axis, keepdims).dtype
    shape, axes = reduced(source, axis, keepdims)
    return in_axis_order(source.memory, shape, kind, axes)


@rule(np.linalg.matrix_norm)
def _matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    return _norm(x, ord, (-2, -1), keepdims)


@rule(np.linalg.vector_norm)
def _vector_norm(
    x: Any,
    /,
    *,
    axis: Any = None,
    keepdims: bool = False,
    ord: Any = 2,
) -> Any:
    (source,) = lifted(x)
    if axis is None or isinstance(axis, tuple):
        kind = np.linalg.vector_norm(np.ones(1, source.dtype), ord=ord).dtype
        shape, _ = reduced(source, axis, keepdims)
        return new_result(np.linalg.vector_norm, source, shape, kind)
    return _norm(source, ord, axis, keepdims)
