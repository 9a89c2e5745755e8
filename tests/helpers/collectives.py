"""The rules of every communicator as cases: functions that a rank calls with its communicator.

Every rank knows what every other gives, so it works out the expected result alone, with NumPy.
Run them all in one order on all ranks: ``for case in CASES: case(communicator)``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

import nbrt
from nbrt.distributed.communicators.base import REDUCTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.distributed.communicators.base import Communicator

__all__ = ["CASES", "OnDevice", "given", "reduced"]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [
    np.dtype(name)
    for name in (
        "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
        "float16", "float32", "float64", "complex64", "complex128",
    )
] + [BFLOAT16]  # fmt: skip
OPAQUE_DTYPES = [
    np.dtype("datetime64[s]"),
    np.dtype(">i4"),
    np.dtype("S5"),
    np.dtype([("x", "<f4"), ("y", "i1")]),
]
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (2, 0, 3), (3, 4, 5)]
UFUNCS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def given(rank: int, shape: tuple[int, ...], dtype: Any, salt: int = 0) -> Any:
    """Return what a rank gives: small integers, whose sums and products are exact in any dtype."""
    values = np.random.default_rng([rank, salt, *shape]).integers(0, 4, shape)
    return np.asarray(values).astype(dtype)


def reduced(op: str, arrays: list[Any]) -> Any:
    """Reduce in order of rank."""
    return np.asarray(functools.reduce(UFUNCS[op], arrays))


def same(found: Any, expected: Any) -> None:
    """Assert equal type, shape, dtype and bytes, in a contiguous array."""
    assert isinstance(found, np.ndarray)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.flags.c_contiguous
    assert found.tobytes() == expected.tobytes(), f"expected {expected!r}, got {found!r}"


def dtypes_of(comm: Communicator) -> list[Any]:
    """Return the dtypes of arrays on the communicator's device; NumPy has more than CuPy."""
    return [*DTYPES, *OPAQUE_DTYPES] if comm.device.kind == "cpu" else DTYPES


class OnDevice:
    """A communicator for the cases: takes and returns NumPy arrays, and copies them to its device.

    It checks that results are new, contiguous arrays, and that arguments keep their values.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def group(self, ranks: Any) -> OnDevice:
        return OnDevice(self._comm.group(ranks))

    def broadcast(self, array: Any, *args: Any) -> Any:
        return self._call("broadcast", array, *args)

    def all_reduce(self, array: Any, *args: Any) -> Any:
        return self._call("all_reduce", array, *args)

    def all_gather(self, array: Any, *args: Any) -> Any:
        return self._call("all_gather", array, *args)

    def reduce_scatter(self, arrays: Any, *args: Any) -> Any:
        return self._call("reduce_scatter", arrays, *args)

    def all_to_all(self, arrays: Any, *args: Any) -> Any:
        return self._call("all_to_all", arrays, *args)

    def scatter(self, arrays: Any, out: Any, root: int = 0) -> Any:
        # The memory around `out` goes to the device too, and must keep its values there.
        whole = out if out.base is None else out.base
        memory = nbrt.to(whole, self._comm.device)
        place = memory if whole is out else memory[tuple(slice(None, None, 2) for _ in out.shape)]
        assert self._comm.scatter(self._move(arrays), place, root) is place
        whole[...] = nbrt.to_host(memory)
        return out

    def _call(self, name: str, arrays: Any, *args: Any) -> Any:
        moved = self._move(arrays)
        found = getattr(self._comm, name)(moved, *args)
        for before, after in zip(_listed(arrays), _listed(moved), strict=True):
            np.testing.assert_array_equal(before, nbrt.to_host(after))
        assert all(each.flags.c_contiguous for each in _listed(found))
        assert all(each is not mine for each in _listed(found) for mine in _listed(moved))
        return [nbrt.to_host(each) for each in found] if _is_list(found) else nbrt.to_host(found)

    def _move(self, arrays: Any) -> Any:
        if arrays is None:
            return None
        if _is_list(arrays):
            return [self._move(each) for each in arrays]
        moved = nbrt.to(np.asarray(arrays, order="C"), self._comm.device)
        if arrays.ndim and not arrays.flags.c_contiguous:  # give it other strides as well
            wide = nbrt.to(np.repeat(np.ascontiguousarray(arrays), 2, -1), self._comm.device)
            moved = wide[..., ::2]
        return moved


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _listed(value: Any) -> list[Any]:
    return list(value) if _is_list(value) else [value]


def identity(comm: Communicator) -> None:
    assert 0 <= comm.rank < comm.size == len(comm.ranks)
    assert comm.all_gather_object(comm.rank) == list(range(comm.size))
    assert comm.all_gather_object(comm.ranks) == [comm.ranks] * comm.size
    assert comm.timeout > 0


def broadcast_of_every_dtype_and_shape(comm: Communicator) -> None:
    for number, dtype in enumerate(dtypes_of(comm)):
        root = number % comm.size
        mine = given(comm.rank, (2, 3), dtype)
        before = mine.copy()
        same(comm.broadcast(mine, root), given(root, (2, 3), dtype))
        same(mine, before)
    for shape in SHAPES:
        same(comm.broadcast(given(comm.rank, shape, "f4")), given(0, shape, "f4"))


def all_reduce_of_every_dtype_and_operation(comm: Communicator) -> None:
    for dtype in DTYPES:
        for op in REDUCTIONS:
            arrays = [given(rank, (2, 3), dtype) for rank in range(comm.size)]
            same(comm.all_reduce(arrays[comm.rank].copy(), op), reduced(op, arrays))
    for shape in SHAPES:
        arrays = [given(rank, shape, "f4") for rank in range(comm.size)]
        same(comm.all_reduce(arrays[comm.rank]), reduced("sum", arrays))


def all_reduce_gives_the_same_bits_everywhere(comm: Communicator) -> None:
    for dtype in ("f2", "f4", "f8", "c16", BFLOAT16):
        for size in (3, 5000):  # MPI libraries change their algorithm with the size
            rng = np.random.default_rng([comm.rank, size])
            mine = (rng.standard_normal(size) * 10.0 ** rng.integers(-3, 1, size)).astype(dtype)
            for op in ("sum", "prod"):
                found = comm.all_reduce(mine, op)
                assert len(set(comm.all_gather_object(found.tobytes()))) == 1
            terms = [np.asarray(each, "c16") for each in comm.all_gather(mine)]
            bound = comm.size * float(ml_dtypes.finfo(dtype).eps)
            error = np.abs(np.asarray(comm.all_reduce(mine), "c16") - sum(terms))
            assert (error <= bound * sum(np.abs(term) for term in terms)).all()


def not_a_number_wins_every_minimum_and_maximum(comm: Communicator) -> None:
    mine = np.full(comm.size, float(comm.rank), "f4")
    mine[comm.rank] = np.nan
    for op in ("min", "max"):
        assert np.isnan(comm.all_reduce(mine, op)).all()


def integers_wrap_around(comm: Communicator) -> None:
    mine = np.full(3, 100, np.int8)
    same(comm.all_reduce(mine), reduced("sum", [mine] * comm.size))


def all_gather_of_every_dtype_and_shape(comm: Communicator) -> None:
    for dtype in dtypes_of(comm):
        found = comm.all_gather(given(comm.rank, (2, 3), dtype))
        for rank, array in enumerate(found):
            same(array, given(rank, (2, 3), dtype))
        assert len(found) == comm.size
    for shape in SHAPES:
        for rank, array in enumerate(comm.all_gather(given(comm.rank, shape, "i2"))):
            same(array, given(rank, shape, "i2"))


def all_gather_of_uneven_arrays(comm: Communicator) -> None:
    shapes = [(rank, 3) for rank in range(comm.size)]  # rank 0 gives nothing
    found = comm.all_gather(given(comm.rank, shapes[comm.rank], "f8"), shapes)
    for rank, array in enumerate(found):
        same(array, given(rank, shapes[rank], "f8"))
    mixed = [(), *[(2,) * rank for rank in range(1, comm.size)]]
    found = comm.all_gather(given(comm.rank, mixed[comm.rank], BFLOAT16), mixed)
    for rank, array in enumerate(found):
        same(array, given(rank, mixed[rank], BFLOAT16))


def reduce_scatter_of_every_dtype_and_operation(comm: Communicator) -> None:
    for dtype in DTYPES:
        for op in REDUCTIONS:
            arrays = [given(comm.rank, (2, 3), dtype, to) for to in range(comm.size)]
            theirs = [given(rank, (2, 3), dtype, comm.rank) for rank in range(comm.size)]
            same(comm.reduce_scatter(arrays, op), reduced(op, theirs))


def reduce_scatter_of_uneven_arrays(comm: Communicator) -> None:
    for dtype in ("f4", "f2"):
        arrays = [given(comm.rank, (to, 2), dtype, to) for to in range(comm.size)]
        theirs = [given(rank, (comm.rank, 2), dtype, comm.rank) for rank in range(comm.size)]
        same(comm.reduce_scatter(arrays), reduced("sum", theirs))


def all_to_all_of_every_dtype(comm: Communicator) -> None:
    for dtype in dtypes_of(comm):
        arrays = [given(comm.rank, (2, 3), dtype, to) for to in range(comm.size)]
        found = comm.all_to_all(arrays)
        assert len(found) == comm.size
        for rank, array in enumerate(found):
            same(array, given(rank, (2, 3), dtype, comm.rank))


def all_to_all_of_uneven_arrays(comm: Communicator) -> None:
    def shape(giver: int, taker: int) -> tuple[int, ...]:
        return (giver * taker % 3, 1 + taker)  # some are empty

    arrays = [given(comm.rank, shape(comm.rank, to), "i4", to) for to in range(comm.size)]
    shapes = [shape(giver, comm.rank) for giver in range(comm.size)]
    for rank, array in enumerate(comm.all_to_all(arrays, shapes)):
        same(array, given(rank, shapes[rank], "i4", comm.rank))


def scatter_fills_the_array_given_for_it(comm: Communicator) -> None:
    for number, dtype in enumerate(dtypes_of(comm)):
        root = number % comm.size
        arrays = [given(root, (to, 3), dtype, to) for to in range(comm.size)]
        out = np.zeros((comm.rank, 3), dtype)
        found = comm.scatter(arrays if comm.rank == root else None, out, root)
        assert found is out
        same(out, arrays[comm.rank])
    padded = np.zeros((4, 6), "f4")
    arrays = [given(0, (2, 3), "f4", to) for to in range(comm.size)]
    comm.scatter(arrays if comm.rank == 0 else None, padded[::2, ::2])
    assert padded[::2, ::2].tolist() == arrays[comm.rank].tolist()
    assert padded.sum() == arrays[comm.rank].sum()


def arrays_of_any_strides(comm: Communicator) -> None:
    def strided(rank: int, salt: int = 0) -> Any:
        return given(rank, (4, 6), "f4", salt)[::-2, ::3].T

    arrays = [strided(rank) for rank in range(comm.size)]
    packed = [np.ascontiguousarray(array) for array in arrays]
    mine = arrays[comm.rank]
    same(comm.broadcast(mine, comm.size - 1), packed[-1])
    same(comm.all_reduce(mine, "max"), reduced("max", packed))
    for found, expected in zip(comm.all_gather(mine), packed, strict=True):
        same(found, expected)
    outgoing = [strided(comm.rank, to) for to in range(comm.size)]
    incoming = [np.ascontiguousarray(strided(rank, comm.rank)) for rank in range(comm.size)]
    for found, expected in zip(comm.all_to_all(outgoing), incoming, strict=True):
        same(found, expected)
    same(comm.reduce_scatter(outgoing, "min"), reduced("min", incoming))
    repeated = np.broadcast_to(np.float32(comm.rank), (2, 2))
    for rank, found in enumerate(comm.all_gather(repeated)):
        same(found, np.full((2, 2), rank, "f4"))


def results_are_the_callers_own(comm: Communicator) -> None:
    mine = np.full(4, comm.rank, "i8")
    results = [
        comm.broadcast(mine), comm.all_reduce(mine), *comm.all_gather(mine),
        *comm.all_to_all([mine] * comm.size), comm.reduce_scatter([mine] * comm.size),
    ]  # fmt: skip
    comm.barrier()
    for number, result in enumerate(results):
        assert not np.shares_memory(result, mine)
        result[...] = 1000 * comm.rank + number
    comm.barrier()
    assert mine.tolist() == [comm.rank] * 4
    for number, result in enumerate(results):
        assert result.tolist() == [1000 * comm.rank + number] * 4


def large_arrays(comm: Communicator) -> None:
    size = 3_000_001  # far beyond what a transport sends at once
    mine = np.arange(size, dtype="i4") * (comm.rank + 1)
    total = comm.size * (comm.size + 1) // 2
    same(comm.all_reduce(mine), np.arange(size, dtype="i4") * np.int32(total))
    same(comm.broadcast(mine, comm.size - 1), np.arange(size, dtype="i4") * np.int32(comm.size))
    for rank, found in enumerate(comm.all_gather(mine[: size // 4])):
        same(found, np.arange(size // 4, dtype="i4") * np.int32(rank + 1))


def objects(comm: Communicator) -> None:
    value = {"rank": comm.rank, "big": "x" * (comm.rank * 5000), "array": np.arange(comm.rank)}
    found = comm.all_gather_object(value)
    for rank, each in enumerate(found):
        assert each["rank"] == rank
        assert len(each["big"]) == 5000 * rank
        assert each["array"].tolist() == list(range(rank))
    assert comm.all_gather_object(None) == [None] * comm.size
    for root in range(comm.size):
        assert comm.broadcast_object(("from", comm.rank, "y" * 3000), root) == (
            "from", root, "y" * 3000,
        )  # fmt: skip


def barriers(comm: Communicator) -> None:
    for _ in range(3):
        assert comm.barrier() is None


def groups_of_some_ranks(comm: Communicator) -> None:
    everyone = comm.group(range(comm.size))
    assert (everyone.rank, everyone.size, everyone.ranks) == (comm.rank, comm.size, comm.ranks)
    assert (everyone.timeout, everyone.device) == (comm.timeout, comm.device)
    alone = comm.group([comm.rank])
    assert (alone.rank, alone.size, alone.ranks) == (0, 1, (comm.ranks[comm.rank],))
    same(alone.all_reduce(np.arange(3)), np.arange(3))
    turned = comm.group(range(comm.size)[::-1])
    assert turned.rank == comm.size - 1 - comm.rank
    assert turned.all_gather_object(comm.rank) == list(range(comm.size))[::-1]
    same(turned.broadcast(np.array([comm.rank])), np.array([comm.size - 1]))


def groups_of_groups_do_not_mix(comm: Communicator) -> None:
    members = [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2]
    half = comm.group(members)
    again = comm.group(members)
    assert half.ranks == tuple(comm.ranks[rank] for rank in members)
    total = np.array(sum(members))
    same(half.all_reduce(np.array(comm.rank)), total)
    same(comm.all_reduce(np.array(1)), np.array(comm.size))
    same(again.all_reduce(np.array(2 * comm.rank)), 2 * total)
    inner = half.group([half.size - 1]) if half.rank == half.size - 1 else None
    assert inner is None or inner.ranks == (half.ranks[-1],)
    comm.barrier()


CASES: list[Callable[[Communicator], None]] = [
    identity,
    broadcast_of_every_dtype_and_shape,
    all_reduce_of_every_dtype_and_operation,
    all_reduce_gives_the_same_bits_everywhere,
    not_a_number_wins_every_minimum_and_maximum,
    integers_wrap_around,
    all_gather_of_every_dtype_and_shape,
    all_gather_of_uneven_arrays,
    reduce_scatter_of_every_dtype_and_operation,
    reduce_scatter_of_uneven_arrays,
    all_to_all_of_every_dtype,
    all_to_all_of_uneven_arrays,
    scatter_fills_the_array_given_for_it,
    arrays_of_any_strides,
    results_are_the_callers_own,
    large_arrays,
    objects,
    barriers,
    groups_of_some_ranks,
    groups_of_groups_do_not_mix,
]
"""Every case, in an order that all ranks keep."""
