"""Meshes of ranks: places, sub-meshes, groups, the stack of ``with mesh:``, values."""

from __future__ import annotations

import asyncio
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from helpers.clocks import HANG_TIMEOUT
from nbrt.distributed import DeviceMesh, current_mesh, init_device_mesh
from nbrt.distributed.communicators.threads import thread_world
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    CollectiveTimeoutError,
    DistributedError,
    UnknownDeviceError,
)


def on_ranks(function: Any, ranks: int = 8) -> list[Any]:
    return dist.run(function, ranks=ranks, timeout=HANG_TIMEOUT)


# -- places ----------------------------------------------------------------------------------------


def test_every_rank_knows_its_place() -> None:
    def place() -> tuple[Any, ...]:
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        return (
            mesh.get_rank(),
            mesh.get_coordinate(),
            [mesh.get_local_rank(dim) for dim in ("pp", 1, -1)],
            str(mesh.device),
        )

    for rank, (own, coordinate, locals_, device) in enumerate(on_ranks(place)):
        expected = tuple(int(at) for at in np.unravel_index(rank, (2, 2, 2)))
        assert (own, coordinate, tuple(locals_)) == (rank, expected, expected)
        assert device == f"cpu:{rank % 4}"


def test_sizes_names_and_array() -> None:
    def mesh() -> DeviceMesh:
        return init_device_mesh("cpu", (2, 3), dim_names=("dp", "tp"))

    made = on_ranks(mesh, 6)[4]
    assert (made.shape, made.ndim, made.size()) == ((2, 3), 2, 6)
    assert [made.size(dim) for dim in (0, 1, -1, "dp", "tp", np.int64(1))] == [2, 3, 3, 2, 3, 3]
    assert made.mesh_dim_names == ("dp", "tp")
    assert made.device_type == "cpu"
    assert made.mesh.dtype == np.int64
    assert made.mesh.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert repr(made) == ("DeviceMesh('cpu', [[0, 1, 2], [3, 4, 5]], mesh_dim_names=('dp', 'tp'))")
    with pytest.raises(ValueError, match="read-only"):
        made.mesh[0, 0] = 5


def test_a_mesh_keeps_its_ranks_when_the_array_changes() -> None:
    def changed() -> list[int]:
        given = np.array([1, 0])
        mesh = DeviceMesh("cpu", given)
        given[:] = 7
        return [int(rank) for rank in mesh.mesh]

    assert on_ranks(changed, 2) == [[1, 0], [1, 0]]


def test_by_default_all_ranks_of_the_current_kind_in_one_dimension() -> None:
    assert (
        on_ranks(lambda: init_device_mesh(), 3)[1]
        == on_ranks(lambda: DeviceMesh("cpu", [0, 1, 2]), 3)[1]
    )
    assert init_device_mesh(mesh_shape=1).mesh.tolist() == [0]


def test_ranks_off_the_mesh() -> None:
    def place() -> Any:
        mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("dp",))
        if mesh.get_rank() == 3:
            with pytest.raises(DistributedError, match="got rank 3"):
                mesh.get_local_rank()
            with pytest.raises(DistributedError, match="got rank 3; only members have groups"):
                mesh.get_group()
            assert mesh["dp"].get_coordinate() is None
        return mesh.get_coordinate()

    assert on_ranks(place, 4) == [(0,), (1,), (2,), None]


def test_a_one_dimensional_mesh_needs_no_dimension_named() -> None:
    def places() -> tuple[int, int]:
        mesh = init_device_mesh("cpu", (2, 2))
        with pytest.raises(ArgumentError, match="a dimension of a 2-d mesh, got None"):
            mesh.get_local_rank()
        return init_device_mesh("cpu", (4,)).get_local_rank(), mesh.get_local_rank(1)

    assert on_ranks(places, 4) == [(0, 0), (1, 1), (2, 0), (3, 1)]


# -- other meshes ----------------------------------------------------------------------------------


def test_sub_meshes_hold_this_rank() -> None:
    whole = np.arange(8).reshape(2, 2, 2)

    def check() -> None:
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        pp, dp, tp = mesh.get_coordinate() or ()
        assert mesh["tp"].mesh.tolist() == whole[pp, dp].tolist()
        assert mesh["pp"].mesh.tolist() == whole[:, dp, tp].tolist()
        assert mesh["pp", "tp"].mesh.tolist() == whole[:, dp].tolist()
        turned = mesh["tp", "pp"]
        assert turned.mesh.tolist() == whole[:, dp].T.tolist()
        assert turned.mesh_dim_names == ("tp", "pp")
        assert turned.get_coordinate() == (tp, pp)
        assert mesh["tp", "dp", "pp"].get_coordinate() == (tp, dp, pp)
        assert mesh["pp", "dp", "tp"] is mesh
        assert turned["pp"] == mesh["pp"]
        assert turned["pp"].root is mesh

    on_ranks(check)


def test_flattening_keeps_the_order() -> None:
    def check() -> None:
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
        flat = mesh.flatten()
        assert flat.mesh.tolist() == list(range(8))
        assert flat.mesh_dim_names == ("dp_tp",)
        assert flat.get_local_rank() == mesh.get_rank()
        assert mesh["tp", "dp"]._flatten("all").mesh.tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
        assert mesh["tp"].flatten("x").mesh_dim_names == ("x",)
        assert DeviceMesh("cpu", [[1, 0]]).flatten().mesh_dim_names is None

    on_ranks(check)


def test_slicing_by_bad_names() -> None:
    mesh = DeviceMesh("cpu", [[0]], ("dp", "tp"))
    with pytest.raises(ArgumentError, match=r"dimensions \('dp', 'tp'\), got 'pp'"):
        mesh["pp"]
    with pytest.raises(ArgumentError, match="each once"):
        mesh["dp", "dp"]
    with pytest.raises(ArgumentError, match="one or more dimensions"):
        mesh[()]
    for bad in (0, (0, 1), slice(None)):
        with pytest.raises(ArgumentTypeError, match="names of dimensions"):
            mesh[bad]  # type: ignore[index]
    with pytest.raises(ArgumentError, match="whose dimensions have names"):
        DeviceMesh("cpu", [[0]])["dp"]
    for wrong in (2, -3):
        with pytest.raises(ArgumentError, match=f"dimension of a 2-d mesh, got {wrong}"):
            mesh.size(wrong)
    for wrong_type in (True, 0.0):
        with pytest.raises(ArgumentTypeError, match="by number or name"):
            mesh.size(wrong_type)  # type: ignore[arg-type]


# -- groups ----------------------------------------------------------------------------------------


def test_groups_are_of_the_ranks_along_dimensions() -> None:
    whole = np.arange(8).reshape(2, 2, 2)

    def check() -> None:
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        pp, dp, tp = mesh.get_coordinate() or ()
        assert mesh.get_group("dp").ranks == tuple(whole[pp, :, tp])
        assert mesh.get_group(("pp", "tp")).ranks == tuple(whole[:, dp].ravel())
        assert mesh.get_group(["tp", "pp"]) is mesh.get_group((0, -1))
        assert mesh.get_group().ranks == tuple(range(8))
        assert [group.rank for group in mesh.get_all_groups()] == [pp, dp, tp]
        for dims in ("pp", ("dp", "tp"), None):
            group = mesh.get_group(dims)
            assert tuple(group.all_gather_object(mesh.get_rank())) == group.ranks
        total = mesh["tp", "dp"].get_group().all_reduce(np.array(mesh.get_rank()))
        assert total == whole[pp].sum()

    on_ranks(check)


def test_a_mesh_talks_to_nobody_before_a_group_is_used() -> None:
    def only_two() -> int:
        if dist.get_rank() > 1:
            return -1  # these ranks never make a mesh
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        return int(mesh.get_group("tp").all_reduce(np.array(1)))

    assert on_ranks(only_two, 4) == [2, 2, -1, -1]


def test_members_that_do_not_come_are_named_by_their_numbers_in_the_world() -> None:
    def half() -> None:
        mesh = init_device_mesh("cpu", (2, 2))
        if mesh.get_rank() == 2:
            mesh.get_group(0).barrier()

    with pytest.raises(CollectiveTimeoutError, match=r"expected ranks \[0\] to come to barrier"):
        on_ranks(half, 4)


def test_from_group_adopts_groups() -> None:
    def check() -> None:
        world = dist.world()
        plain = DeviceMesh.from_group(world.group([3, 2, 1, 0]), mesh_dim_names=("x",))
        assert plain.mesh.tolist() == [3, 2, 1, 0]
        assert plain.device_type == "cpu"
        assert plain.get_local_rank("x") == 3 - world.rank
        row, column = divmod(world.rank, 2)
        rows, columns = world.group([column, column + 2]), world.group([2 * row, 2 * row + 1])
        mesh = DeviceMesh.from_group([rows, columns], "cpu", [[0, 1], [2, 3]], ("dp", "tp"))
        assert mesh == init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        assert mesh.get_group("dp") is rows
        assert mesh.get_all_groups() == [rows, columns]
        with pytest.raises(ArgumentError, match=r"along dimension 0, got"):
            DeviceMesh.from_group([columns, rows], "cpu", [[0, 1], [2, 3]])
        with pytest.raises(ArgumentError, match="expected 2 groups"):
            DeviceMesh.from_group(rows, "cpu", [[0, 1], [2, 3]])
        with pytest.raises(ArgumentError, match="one group, or a group for each dimension"):
            DeviceMesh.from_group([rows, columns])
        with pytest.raises(ArgumentTypeError, match="communicators, got 3"):
            DeviceMesh.from_group([3])  # type: ignore[list-item]

    on_ranks(check, 4)


def test_meshes_of_a_group_are_equal_by_the_ranks_of_the_world() -> None:
    def check() -> bytes:
        world = dist.world()
        pair = [2 * (world.rank // 2), 2 * (world.rank // 2) + 1]
        mesh = DeviceMesh("cpu", [1, 0], communicator=world.group(pair))
        assert mesh.mesh.tolist() == [1, 0]
        assert mesh == DeviceMesh("cpu", pair[::-1])
        assert (mesh == DeviceMesh("cpu", [1, 0])) is (pair == [0, 1])
        assert pickle.loads(pickle.dumps(mesh)) == mesh
        assert mesh.get_group().ranks == tuple(pair[::-1])
        return pickle.dumps(mesh)

    first, _, third, _ = on_ranks(check, 4)
    assert first != third


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sample_backend")
def test_equality_hash_and_pickles() -> None:
    def check() -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        same = DeviceMesh("cpu", [[0, 1], [2, 3]], ["dp", "tp"])
        assert mesh == same
        assert hash(mesh) == hash(same)
        others = [
            DeviceMesh("sample", mesh.mesh, ("dp", "tp")),
            DeviceMesh("cpu", mesh.mesh, ("dp", "xx")),
            DeviceMesh("cpu", mesh.mesh),
            DeviceMesh("cpu", [[1, 0], [2, 3]], ("dp", "tp")),
            mesh.flatten(),
            mesh["dp"],
        ]
        assert all(mesh != other for other in others)
        assert len({mesh, same, *others}) == 7
        assert mesh != "mesh"
        copied = pickle.loads(pickle.dumps(mesh))
        assert copied == mesh
        assert copied.get_coordinate() == mesh.get_coordinate()
        # An object that another rank sends is a mesh of this rank.
        sent = dist.world().broadcast_object(mesh)
        assert sent.get_coordinate() == mesh.get_coordinate()
        assert sent.get_group("tp").all_gather_object(1) == [1, 1]

    on_ranks(check, 4)


def test_large_meshes_are_shown_in_part() -> None:
    _, members = thread_world([None] * 1000)
    mesh = DeviceMesh("cpu", np.arange(1000).reshape(10, 100), communicator=members[0])
    assert "..." in repr(mesh)
    assert len(repr(mesh)) < 1000
    with pytest.raises(ArgumentError, match=r"in \[0, 1000\), got \[1000, 1001, 1002, ...,"):
        DeviceMesh("cpu", np.arange(5000), communicator=members[0])


def test_a_picture_names_dimensions_and_ranks() -> None:
    _, members = thread_world([None] * 6)
    mesh = DeviceMesh("cpu", [[5, 1, 2], [3, 4, 0]], ("outer", "inner"), communicator=members[0])
    picture = mesh._repr_html_()
    assert all(name in picture for name in ("outer", "inner"))
    assert all(f">{rank}<" in picture for rank in range(6))


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ([0, 0], r"every rank once in a mesh, got \[0\] more than once"),
        ([0, 4], r"ranks of a world of 4, in \[0, 4\), got \[4\]"),
        ([-1, 0], r"got \[-1\]"),
        ([[0, 1], [2]], "an array of ranks"),
        ([0.0, 1.0], "non-empty array of ranks"),
        ([False, True], "non-empty array of ranks"),
        (["0"], "non-empty array of ranks"),
        ([], "non-empty array of ranks"),
        (0, "non-empty array of ranks"),
        (None, "non-empty array of ranks"),
        (np.array([2**63], np.uint64), r"got \[9223372036854775808\]"),
    ],
)
def test_bad_meshes_are_refused(mesh: Any, message: str) -> None:
    _, members = thread_world([None] * 4)
    with pytest.raises(ArgumentError, match=message):
        DeviceMesh("cpu", mesh, communicator=members[0])


def test_bad_names_and_kinds_are_refused() -> None:
    for names in (("a", "b"), (1,), ("a", "a"), (), 5, (["a"],)):
        with pytest.raises(ArgumentError, match="expected 1 different names"):
            DeviceMesh("cpu", [0], names)  # type: ignore[arg-type]
    assert DeviceMesh("cpu", [0], "a").mesh_dim_names == ("a",)
    with pytest.raises(ArgumentError, match="got both"):
        DeviceMesh("cpu", [0], ("a",), dim_names=("b",))
    with pytest.raises(UnknownDeviceError, match="cpx"):
        DeviceMesh("cpx", [0])


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"at most 1 ranks, got shape \(2, 2\); start more"):
        init_device_mesh("cpu", (2, 2))
    for shape in ((), (0,), (1, 0)):
        with pytest.raises(ArgumentError, match="ints of at least 1"):
            init_device_mesh("cpu", shape)
    with pytest.raises(ArgumentError, match="negative"):
        init_device_mesh("cpu", (-1,))
    for wrong in ((1.0,), "11"):
        with pytest.raises(ArgumentTypeError, match="shape of ints"):
            init_device_mesh("cpu", wrong)  # type: ignore[arg-type]


# -- ambient ---------------------------------------------------------------------------------------


def test_with_mesh_is_a_stack() -> None:
    outer, inner = DeviceMesh("cpu", [0], ("a",)), DeviceMesh("cpu", [[0]])

    def leave() -> None:
        with inner, outer:
            assert current_mesh() is outer
            raise KeyError

    with outer as entered:
        assert entered is outer is current_mesh()
        with pytest.raises(KeyError):
            leave()
        assert current_mesh() is outer
        with outer, inner, outer:
            assert current_mesh() is outer
        assert current_mesh() is outer
    with pytest.raises(DistributedError, match="pass device_mesh=, or enter one"):
        current_mesh()


def test_ranks_and_threads_do_not_share_the_stack() -> None:
    def rank() -> list[str | None]:
        seen: list[str | None] = []

        def look() -> None:
            try:
                seen.append(repr(current_mesh()))
            except DistributedError:
                seen.append(None)

        look()
        with DeviceMesh("cpu", [dist.get_rank()]) as mine:
            dist.world().barrier()
            look()
            assert seen[-1] == repr(mine)
            other = threading.Thread(target=look)
            other.start()
            other.join()
            dist.world().barrier()
        look()
        return seen

    with DeviceMesh("cpu", [0]) as outside:
        for number, seen in enumerate(on_ranks(rank, 3)):
            assert seen == [None, f"DeviceMesh('cpu', [{number}])", None, None]
        assert current_mesh() is outside


def test_tasks_do_not_share_the_stack() -> None:
    meshes = [DeviceMesh("cpu", [0], (name,)) for name in "abc"]

    async def task(mesh: DeviceMesh, entered: asyncio.Barrier) -> tuple[Any, Any, Any]:
        before = current_mesh()
        with mesh:
            await entered.wait()  # all are inside theirs
            inside = current_mesh()
            await entered.wait()
        return before, inside, current_mesh()

    async def program() -> None:
        entered = asyncio.Barrier(2)
        with meshes[0]:
            found = await asyncio.gather(*(task(mesh, entered) for mesh in meshes[1:]))
            assert current_mesh() is meshes[0]
        for (before, inside, after), mesh in zip(found, meshes[1:], strict=True):
            assert before is after is meshes[0]
            assert inside is mesh

    asyncio.run(program())


def test_a_kind_is_no_device() -> None:
    for wrong in ("cpu:0", nbrt.Device("cpu", 0)):
        with pytest.raises(ArgumentError, match="expected a type of device, such as 'cpu', got"):
            dist.DeviceMesh(wrong, [0])  # type: ignore[arg-type]


def test_ranks_of_another_kind_make_no_tensors_over_a_mesh() -> None:
    """It can be planned with, as on a machine without such devices."""

    def rank() -> tuple[int, ...]:
        mesh = dist.init_device_mesh("cuda", (2,))
        with pytest.raises(DistributedError, match=r"type 'cuda', got rank [01] on cpu:[01];"):
            dist.rand(4, device_mesh=mesh)
        return dist.DTensorSpec(mesh, [dist.Shard(0)], (3,), "float32").local_shape

    assert dist.run(rank, ranks=2, device_type="cpu") == [(2,), (1,)]
