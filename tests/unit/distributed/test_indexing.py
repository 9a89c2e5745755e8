"""``x[index]`` and ``x[index] = value`` are NumPy's; writing never gathers the tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nbrt.distributed as dist
from helpers.spread import count_collectives, counted, same, spread
from nbrt.distributed import Partial, Replicate, Shard, StridedShard
from nbrt.errors import ArgumentError, ArgumentTypeError, PlacementError

S_ = np.s_
LAYOUTS: dict[tuple[int, ...], list[tuple[Any, ...]]] = {
    (4,): [(Replicate(),), (Shard(0),), (Shard(1),), (StridedShard(0, 3),)],
    (2, 2): [(Shard(0), Shard(1)), (Shard(1), Shard(1)), (StridedShard(0, 2), Shard(0))],
    (2, 3): [(Shard(2), Shard(0)), (Shard(0), Shard(0)), (Replicate(), Shard(1))],
}
INDICES: list[Any] = [
    ..., S_[:], S_[1], S_[-1, ...], S_[:, 2], S_[..., 0], S_[1:4], S_[::2], S_[::-1], S_[4:1:-2],
    S_[:, 1:3, :], S_[:, ::-1, ::2], S_[None], S_[:, None, 1:], S_[..., None], S_[2, 3, 1],
    S_[2:2], S_[:, np.int64(1), None, ..., ::2], S_[1:5:3, 0], S_[-3:, -2:, None, -1:],
    S_[6::-4, None, :, 1],
]  # fmt: skip


def on_mesh(shape: tuple[int, ...], body: Any, ranks: int | None = None) -> None:
    dist.run(lambda: body(dist.init_device_mesh("cpu", shape)), ranks=ranks or int(np.prod(shape)))


@pytest.mark.parametrize("shape", list(LAYOUTS))
def test_reading_equals_numpy(shape: tuple[int, ...]) -> None:
    whole = np.arange(7 * 5 * 3).reshape(7, 5, 3)

    def body(mesh: Any) -> None:
        for layout in LAYOUTS[shape]:
            x = spread(whole, mesh, layout)
            for index in INDICES:
                same(x[index], whole[index])

    on_mesh(shape, body)


@pytest.mark.parametrize("shape", list(LAYOUTS))
def test_writing_equals_numpy(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    count_collectives(monkeypatch)
    whole = np.arange(7 * 5 * 3).reshape(7, 5, 3)

    def body(mesh: Any) -> None:
        same_everywhere = [Replicate()] * mesh.ndim
        for layout in LAYOUTS[shape]:
            for index in INDICES:
                expected, x = whole.copy(), spread(whole, mesh, layout)
                part = x.to_local()
                value = -np.arange(whole[index].size).reshape(whole[index].shape)
                with counted() as met:
                    x[index] = 1000
                    x[index] = spread(value, mesh, same_everywhere)
                assert not met
                expected[index] = value
                assert x.to_local() is part
                same(x, expected)
                if value.ndim and value.size:
                    x[index] = spread(value[..., :1] * 2, mesh, [Shard(0)] * mesh.ndim)
                    expected[index] = value[..., :1] * 2
                    x[index] = spread(np.array(value.flat[0] * 3.0), mesh, same_everywhere)
                    expected[index] = value.flat[0] * 3.0
                    same(x, expected)

    on_mesh(shape, body)


def test_what_is_taken_whole_keeps_its_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    count_collectives(monkeypatch)

    def body(mesh: Any) -> None:
        whole = np.arange(7.0 * 6).reshape(7, 6)
        x = spread(whole, mesh, [Shard(0), Replicate()])
        with counted() as met:
            column, piece, wider = x[:, 3], x[:, ::-2], x[None, :, None]
            x[:, 3] = column * 2
            x[0:7, 1:3] = x[:, 3:5]
        assert not met
        assert column.placements == piece.placements == (Shard(0), Replicate())
        assert wider.placements == (Shard(1), Replicate())
        expected = whole.copy()
        expected[:, 3] = whole[:, 3] * 2
        expected[:, 1:3] = expected[:, 3:5]
        same(x, expected)
        with counted() as met:
            row = x[2]
        assert met == ["all_gather"]
        assert row.placements == (Replicate(), Replicate())
        with counted() as met:
            rows = list(x)
        assert met == ["all_gather"]
        same(rows[2], expected[2])
        column = x[:, 0]
        column += 100
        same(x[:, 0], expected[:, 0] + 100)

    on_mesh((2, 2), body)


def test_partial_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    count_collectives(monkeypatch)

    def body(mesh: Any) -> None:
        whole = np.arange(12.0).reshape(4, 3)
        x, y = (spread(each, mesh, [Partial()]) for each in (whole, whole[1:3] * 5))
        with counted() as met:
            assert x[1].placements == (Partial(),)
            x[:2] = y
        assert not met
        expected = whole.copy()
        expected[:2] = whole[1:3] * 5
        same(x, expected)
        for value in (0.0, spread(whole, mesh, [Replicate()])):
            with pytest.raises(PlacementError, match="without partial terms to assign"):
                x[...] = value
        z = spread(whole, mesh, [Shard(0)])
        z[...] = x
        same(z, expected)

    on_mesh((4,), body)


def test_what_is_no_basic_index_says_what_to_do() -> None:
    def body(mesh: Any) -> None:
        whole = np.arange(12).reshape(4, 3)
        x = spread(whole, mesh, [Shard(0)])
        for mask in (x > 3, whole > 3, True):
            with pytest.raises(PlacementError, match=r"np\.where"):
                x[mask]
            with pytest.raises(PlacementError, match=r"np\.where"):
                x[mask] = 0
        for indices in ([0, 1], np.array([1, 2]), spread(np.arange(2), mesh, [Replicate()])):
            with pytest.raises(PlacementError, match="full_tensor"):
                x[indices]
        with pytest.raises(ArgumentTypeError, match="got 'a'"):
            x["a"]
        with pytest.raises(ArgumentError, match=r"\[-3, 3\) of dimension 1, got 3"):
            x[0, 3]
        with pytest.raises(ArgumentError, match="index of a 2-d tensor"):
            x[0, 0, 0]
        with pytest.raises(ArgumentTypeError, match="distribute_tensor"):
            x[0] = np.zeros(3)
        with pytest.raises(ArgumentError, match="broadcasts to shape"):
            x[0] = spread(np.zeros(4), mesh, [Shard(0)])
        same(x, whole)
        assert [int(row[0]) for row in x] == [0, 3, 6, 9]

    on_mesh((4,), body)


def test_ranks_off_the_mesh_write_nothing() -> None:
    def body(mesh: Any) -> None:
        whole = np.arange(12).reshape(4, 3)
        x = spread(whole, mesh, [Shard(0), Shard(1)])
        x[1:3, 0] = x[0, 1:]
        expected = whole.copy()
        expected[1:3, 0] = whole[0, 1:]
        same(x, expected)
        same(x[::2, None], expected[::2, None])

    on_mesh((2, 2), body, ranks=5)
