"""Placements: values, how they print, what they ask."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from nbrt.distributed import Partial, Placement, Replicate, Shard, StridedShard
from nbrt.distributed.placements import checked_placements
from nbrt.errors import ArgumentError, ArgumentTypeError

EVERY: list[Placement] = [
    Shard(0),
    Shard(-1),
    StridedShard(0, 1),
    StridedShard(0, 2),
    Replicate(),
    Partial(),
    Partial("max"),
]


def test_texts_are_those_of_torch() -> None:
    texts = ["S(0)", "S(-1)", "_S(0, 1)", "_S(0, 2)", "R", "P(sum)", "P(max)"]
    assert [str(each) for each in EVERY] == texts
    assert repr(EVERY) == (
        "[Shard(dim=0), Shard(dim=-1), StridedShard(dim=0, split_factor=1), "
        "StridedShard(dim=0, split_factor=2), Replicate(), Partial(op='sum'), Partial(op='max')]"
    )


def test_equal_placements_are_one_key() -> None:
    again = [copy.deepcopy(pickle.loads(pickle.dumps(each))) for each in EVERY]
    assert again == EVERY
    assert len({*EVERY, *again}) == len(EVERY)
    # A strided shard of one chunk cuts alike, and is another placement all the same, as in torch.
    assert StridedShard(0, 1) != Shard(0)  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("placement", EVERY, ids=str)
def test_placements_do_not_change(placement: Placement) -> None:
    for name in [field.name for field in dataclasses.fields(placement)]:  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(placement, name, 1)
    with pytest.raises((AttributeError, TypeError)):
        placement.other = 1  # type: ignore[attr-defined]


def test_questions() -> None:
    assert [each.is_shard() for each in EVERY] == [True] * 4 + [False] * 3
    assert [each.is_shard(0) for each in EVERY] == [True, False, True, True] + [False] * 3
    assert [each.is_replicate() for each in EVERY] == [False] * 4 + [True] + [False] * 2
    assert [each.is_partial() for each in EVERY] == [False] * 5 + [True, True]
    assert [each.is_partial("max") for each in EVERY] == [False] * 6 + [True]


def test_numbers_of_numpy_become_plain() -> None:
    placement = StridedShard(np.int8(1), np.uint8(200))  # type: ignore[arg-type]
    assert placement == StridedShard(1, 200)
    assert (type(placement.dim), type(placement.split_factor)) == (int, int)


@pytest.mark.parametrize("dim", [True, 0.0, "0", None])
def test_dims_are_ints(dim: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="dimension to cut as an int"):
        Shard(dim)
    with pytest.raises(ArgumentTypeError, match="dimension to cut as an int"):
        StridedShard(dim, 2)


@pytest.mark.parametrize("factor", [0, -1, True, 2.0, None])
def test_split_factors_are_positive_ints(factor: Any) -> None:
    with pytest.raises(ArgumentError, match="int of at least 1"):
        StridedShard(0, factor)


@pytest.mark.parametrize("op", ["mean", None, 1, ["sum"]])
def test_reductions_are_known(op: Any) -> None:
    with pytest.raises(ArgumentError, match="expected a reduction of"):
        Partial(op)


def test_checked_placements() -> None:
    assert checked_placements(None, 2, 0) == (Replicate(), Replicate())
    assert checked_placements(Shard(-2), 1, 3) == (Shard(1),)
    assert checked_placements([Partial(), StridedShard(-1, 3)], 2, 2) == (
        Partial(),
        StridedShard(1, 3),
    )
    for dim in (2, -3):
        with pytest.raises(ArgumentError, match="dimension of a 2-d tensor to cut"):
            checked_placements([Shard(dim)], 1, 2)
    with pytest.raises(ArgumentError, match="each of the 2 dimensions of the mesh, got 1"):
        checked_placements([Shard(0)], 2, 1)
    for wrong in ("S(0)", Shard, 0):
        with pytest.raises(ArgumentTypeError, match="Shard, StridedShard, Replicate or Partial"):
            checked_placements([wrong], 1, 1)  # type: ignore[list-item]
    with pytest.raises(ArgumentTypeError, match="sequence of placements, got 0"):
        checked_placements(0, 1, 1)  # type: ignore[arg-type]
