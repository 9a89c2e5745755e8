"""Any sharding gives the single-device bits over MPI processes as well: a sample of the proof."""

from __future__ import annotations

from helpers.mpi import mpiexec, needs_mpi, succeed

pytestmark = needs_mpi

SAMPLE = """
    import nbrt.distributed as dist
    from helpers.sharded_draws import differing
    from helpers.shardings import shardings
    from nbrt.testing.draws import DrawCase

    world = dist.init_process_group("mpi", timeout=180)
    wanted = tuple(shardings(((4,), (3,), (2, 2), (1, 2, 2)), ((0, 3), (5, 3), (7,))))
    # Each process compiles what the cache on disk does not have, all at once.
    cases = (
        DrawCase("random"),
        DrawCase("standard_normal"),
        DrawCase("integers", {"low": 3, "high": 100}, "int64", "torch"),
    )
    for case in cases:
        # Only the ranks of a mesh gather over it.
        assert differing(case, wanted, gather=case is cases[0]) == []
    assert world.all_gather_object(len(wanted)) == [len(wanted)] * 4
"""

DISAGREE = """
    import nbrt
    import nbrt.distributed as dist

    mesh = dist.init_device_mesh("cpu", (2, 2))  # joins the world by itself, as in torch
    world = dist.world()
    assert world.size == 4
    nbrt.manual_seed(5)
    try:
        dist.manual_seed(8 if world.rank == 2 else 7, mesh)
    except RankMismatchError as error:
        assert "rank 2" in str(error), error
    else:
        raise AssertionError("seeds that differ were taken")
    assert nbrt.default_generator().state == nbrt.PhiloxState(5)
    # The ranks are still in step.
    dist.manual_seed(7, mesh)
    whole = dist.rand(9, device_mesh=mesh, placements=[dist.Shard(0)] * 2).full_tensor()
    assert whole.tobytes() == nbrt.Generator(7).random(9, "f4").tobytes()
"""

RAISES_IN_A_REGION = """
    import nbrt
    import nbrt.distributed as dist

    world = dist.init_process_group("mpi", timeout=180)
    mesh = dist.init_device_mesh("cpu", (4,))
    spec = dist.DTensorSpec(mesh, [dist.Shard(0)], (9,), "float32")
    before = nbrt.default_generator().state
    try:
        with dist.current_tracker().distribute_region(spec) as part:
            part.random(spec.local_shape)
            if world.rank == 1:
                raise KeyError("planted")
            world.barrier()
    except RankFailedError as error:
        assert error.rank == 1 and "planted" in str(error)
        assert nbrt.default_generator().state == before
        print("told", flush=True)
        raise SystemExit(3)
"""


def test_shardings_over_processes_give_the_single_device_bits() -> None:
    succeed(4, SAMPLE, timeout=240)


def test_a_rank_that_disagrees_on_the_seed_is_named_and_nothing_changes() -> None:
    succeed(4, DISAGREE)


def test_a_rank_that_raises_in_a_region_is_named_and_states_are_restored() -> None:
    done = mpiexec(4, RAISES_IN_A_REGION)

    assert done.returncode != 0
    # A slow machine may need MPI's abort to end the job, of which mpiexec then tells at length.
    # The ranks share one pipe: their lines may run into one another.
    assert done.stdout.count("told") == 3, done.stderr
    assert "KeyError: 'planted'" in done.stderr
