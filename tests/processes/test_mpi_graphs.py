"""Graphs of ranks that are processes: replays are eager runs, and failures end the job."""

from __future__ import annotations

from helpers.mpi import mpiexec, needs_mpi, succeed

pytestmark = needs_mpi

REPLAYS = """
    import nbrt
    import nbrt.distributed as dist
    from helpers.dtensor_programs import bits, draws, moves

    mesh = dist.init_device_mesh("cpu", (2,))
    world = dist.world()

    def run(program, how):
        x = nbrt.asarray(np.arange(12.0).reshape(4, 3) * (world.rank + 1))
        own = nbrt.Generator(5)
        nbrt.default_generator().manual_seed(3)
        found = []
        if how == "captured":
            with nbrt.graph() as g:
                arrays = program(mesh, x, own)
            assert own.get_offset() == 0
        for _ in range(3):
            if how == "captured":
                g.replay()
            else:
                arrays = program(mesh, x, own)
            found.append((bits(arrays), own.state, nbrt.default_generator().state))
            x += 0.5
        return found

    for program in (moves, draws):
        assert run(program, "captured") == run(program, "eager")
"""

REFUSED = """
    x = nbrt.full(4, 1.0)
    tensor = dist.DTensor.from_local(x, mesh, [dist.Shard(0)])
    for call in (
        lambda: world.all_reduce(x),
        lambda: dist.distribute_tensor(x, mesh, [dist.Shard(0)]),
        lambda: tensor.sum().item(),
    ):
        try:
            with nbrt.graph():
                call()
        except CaptureError:
            pass
        else:
            raise AssertionError("captured")
    # The ranks are still in step.
    assert tensor.full_tensor().tolist() == [1.0] * 8
"""

RAISES = """
    import nbrt
    import nbrt.distributed as dist

    mesh = dist.init_device_mesh("cpu", (2,))
    own = nbrt.Generator(7)
    with nbrt.graph() as g:
        drawn = dist.rand(8, device_mesh=mesh, placements=[dist.Shard(0)], generator=own)
        whole = drawn.full_tensor()
    g.replay()
    if dist.get_rank() == 1:
        raise KeyError("planted")
    try:
        g.replay()
    except RankFailedError as error:
        assert error.rank == 1 and "planted" in str(error)
        assert own.get_offset() == 8
        print("told", flush=True)
        raise SystemExit(3)
"""


def test_replays_give_the_bits_and_states_of_eager_runs() -> None:
    succeed(2, REPLAYS + REFUSED, timeout=240)


def test_a_rank_that_raises_is_named_and_the_replay_takes_no_words() -> None:
    done = mpiexec(2, RAISES)

    assert done.returncode != 0
    assert "told" in done.stdout, done.stderr
    assert "KeyError: 'planted'" in done.stderr
