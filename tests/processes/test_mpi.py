"""Ranks that are real processes: what they compute, and how they end when one goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from helpers.mpi import mpiexec, needs_mpi, succeed
from helpers.processes import output_of

if TYPE_CHECKING:
    from pathlib import Path

Fails = Callable[..., dict[int, str]]

RUN_CASES = """
    from helpers.collectives import CASES

    world = MpiCommunicator()
    for case in CASES:
        case(world)
"""

DISAGREE = """
    def error_of(function):
        try:
            function()
        except NbrtError as error:
            return type(error).__name__, str(error)
        return "no error", ""

    odd = world.rank == 2
    x = np.ones(3, "f4")
    y = x.astype("f8") if odd else x
    shape = (3,)
    with config.override(distributed_check=True):
        found = [
            error_of(lambda: world.broadcast(x) if odd else world.all_reduce(x)),
            error_of(lambda: world.all_reduce(y)),
            error_of(lambda: world.all_reduce(x, "max" if odd else "sum")),
            error_of(lambda: world.broadcast(x, int(odd))),
            error_of(lambda: world.all_gather(x[:odd])),
            error_of(lambda: world.group([1, 2]).barrier() if world.rank in (1, 2) else None),
            error_of(lambda: world.all_to_all([x] * 4, [(2,) if odd else shape] * 4)),
            error_of(lambda: world.scatter([x] * 4 if odd else None, x[:world.rank + 1], 2)),
            error_of(lambda: world.all_reduce(x)),
        ]
    said = [
        "expected every rank in all_reduce(shape=(3,), dtype=float32, op=sum), as ranks [0, 1, 3] "
        "are; rank 2 came to broadcast(shape=(3,), dtype=float32, root=0)",
        "rank 2 came to all_reduce(shape=(3,), dtype=float64, op=sum)",
        "rank 2 came to all_reduce(shape=(3,), dtype=float32, op=max)",
        "rank 2 came to broadcast(shape=(3,), dtype=float32, root=1)",
        "rank 2 came to all_gather(shape=(1,), dtype=float32)",
        "",
        "expected an array of shape (2,) from rank 0 for rank 2 in all_to_all(dtype=float32), got "
        "(3,)",
        "expected an array of shape (1,) from rank 2 for rank 0 in scatter(dtype=float32, root=2), "
        "got (3,)",
        "",
    ]
    for (name, text), expected in zip(found, said, strict=True):
        assert name == ("RankMismatchError" if expected else "no error"), name
        assert expected in text, text
    assert world.all_gather_object(found) == [found] * 4
"""

PRIVATE = """
    from mpi4py import MPI

    # A message and a collective of the user's own, in flight around ours, with any tag.
    user = MPI.COMM_WORLD
    values, sums = np.full(2, world.rank), np.zeros(2, int)
    begun = user.Iallreduce(values, sums)
    sent = user.isend(("mine", world.rank), (world.rank + 1) % 4, tag=1)
    assert world.all_reduce(np.ones(2)).tolist() == [4, 4]
    assert world.broadcast_object(world.rank, 3) == 3
    assert user.recv(tag=MPI.ANY_TAG) == ("mine", (world.rank - 1) % 4)
    sent.wait(), begun.Wait()
    assert sums.tolist() == [6, 6]
"""

CATCH_UP = """
    from helpers.mpi_clock import end_grace_with

    end_grace_with(world, {0, 1, 3})
    if world.rank == 2:
        from mpi4py import MPI
        # Comes once the others have given up.
        for rank in (0, 1, 3):
            MPI.COMM_WORLD.recv(source=rank)
        error = "none"
        world.all_reduce(x)
    else:
        world.timeout = 0.3
        error = error_of(lambda: world.all_reduce(x))[1]
        MPI.COMM_WORLD.send(None, 2)
    world.timeout = 300
    assert world.all_reduce(x).tolist() == [4, 4, 4]
    assert error == ("none" if odd else (
        "expected ranks [2] to come to all_reduce(shape=(3,), dtype=float32, op=sum) within 0.3 s; "
        "every rank of the group must call it, or raise timeout"
    )), error
    world.close()
    assert error_of(world.barrier)[0] == "DistributedError"
    assert MpiCommunicator().all_reduce(x).tolist() == [4, 4, 4]
"""

ARGUMENTS = """
    count = world._count
    for name, wrong in [
        ("ArgumentTypeError", lambda: world.all_reduce([1])),
        ("ArgumentTypeError", lambda: world.all_reduce(np.array([None]))),
        ("ArgumentError", lambda: world.all_reduce(x, "mean")),
        ("ArgumentError", lambda: world.broadcast(x, 4)),
        ("ArgumentError", lambda: world.all_to_all([x])),
        ("ArgumentError", lambda: world.all_gather(x, [(2,)] * 4)),
        ("ArgumentTypeError", lambda: world.scatter([x] * 4, np.ones(3, int), world.rank)),
        ("ArgumentError", lambda: world.group([0, 0])),
        ("ArgumentError", lambda: setattr(world, "timeout", 0)),
    ]:
        assert error_of(wrong)[0] == name
    assert world._count == count
    assert world.all_reduce(x).tolist() == [4, 4, 4]
"""


@needs_mpi
def test_four_ranks() -> None:
    succeed(4, RUN_CASES + PRIVATE + DISAGREE + ARGUMENTS + CATCH_UP)


@needs_mpi
@pytest.mark.parametrize("ranks", [1, 3])
def test_any_number_of_ranks(ranks: int) -> None:
    succeed(ranks, RUN_CASES)


FAULT = """
    from mpi4py import MPI
    from helpers.mpi_clock import end_farewell_with, end_grace_with, write_whole

    world = MpiCommunicator(timeout={timeout})
    folder = sys.argv[1]
    # Ranks that leave end the job once these have written what they raised.
    end_farewell_with(world, [os.path.join(folder, str(rank)) for rank in {written}])
    end_grace_with(world, set({heard}))
    # All are here: MPI's own barrier, which does not know of notices and so ends before they come.
    MPI.COMM_WORLD.Barrier()
    odd = world.rank == 2
    try:
        {fault}
        world.all_reduce(np.ones(3))
        os._exit(0)  # not reached
    except Exception as error:
        # Lines of several processes may be mixed, files are not.
        path = os.path.join(folder, str(world.rank))
        write_whole(path, f"{{type(error).__name__}}: {{error}}")
        raise
"""
EVERY, WITHOUT_2 = (0, 1, 2, 3), (0, 1, 3)

WHERE = "all_reduce(shape=(3,), dtype=float64, op=sum)"


@pytest.fixture
def fails(tmp_path: Path) -> Fails:
    """Four ranks, whose rank 2 goes wrong: the job must fail. Gives the errors of the ranks.

    `heard` are the ranks that say where they wait, `written` those that raise where another one
    neither raises nor ends, so that the job ends with their farewell.
    """

    def run(
        fault: str,
        timeout: float = 300,
        options: tuple[str, ...] = (),
        heard: tuple[int, ...] = EVERY,
        written: tuple[int, ...] = (),
    ) -> dict[int, str]:
        code = FAULT.format(fault=fault, timeout=timeout, heard=heard, written=written)
        done = mpiexec(4, code, str(tmp_path), options=options)
        assert done.returncode != 0
        errors = {int(path.name): path.read_text() for path in tmp_path.iterdir()}
        assert not errors or "Traceback (most recent call last)" in done.stderr
        return errors

    return run


@needs_mpi
def test_a_rank_that_raises_ends_the_others(fails: Fails) -> None:
    assert fails('if odd: raise ValueError("planted")') == {
        rank: f"RankFailedError: rank 2 ended with ValueError: planted; rank {rank} was in {WHERE}"
        for rank in (0, 1, 3)
    } | {2: "ValueError: planted"}


@needs_mpi
def test_a_rank_that_raises_in_a_block_is_known_at_once_and_also_outside_its_groups(
    fails: Fails,
) -> None:
    # Rank 2 never ends on its own, so its exception is announced by the block, not by its end.
    errors = fails(
        "group = None if odd else world.group([0, 1, 3])\n"
        "        MPI.COMM_WORLD.Barrier()\n"
        "        try:\n"
        "            with world.announce_failures():\n"
        '                if odd: raise KeyError("planted")\n'
        "        except KeyError:\n"
        "            threading.Event().wait()\n"
        "        if world.rank != 0: group.all_reduce(np.ones(3))\n"
        "        world.barrier()",
        written=WITHOUT_2,
    )
    text = "RankFailedError: rank 2 ended with KeyError: 'planted'; rank"
    assert errors == {
        0: f"{text} 0 was in barrier()",
        1: f"{text} 1 was in {WHERE}",
        3: f"{text} 3 was in {WHERE}",
    }


@needs_mpi
def test_a_rank_that_never_comes_is_named_by_all_others(fails: Fails) -> None:
    wait = "if odd: threading.Event().wait()"
    errors = fails(wait, timeout=0.5, heard=WITHOUT_2, written=WITHOUT_2)
    text = f"CollectiveTimeoutError: expected ranks [2] to come to {WHERE} within 0.5 s; "
    assert sorted(errors) == [0, 1, 3]
    assert all(error.startswith(text) for error in errors.values())


@needs_mpi
def test_a_rank_that_waits_elsewhere_is_found_there(fails: Fails) -> None:
    errors = fails(
        "pair = world.group([2, 3]) if world.rank >= 2 else None\n"
        "        if odd: pair.timeout = 300; pair.barrier()",
        timeout=0.5,
    )
    text = (
        f"CollectiveTimeoutError: expected ranks [2] to come to {WHERE} within 0.5 s; rank 2 waits "
        f"in barrier() of ranks (2, 3); "
    )
    assert all(errors[rank].startswith(text) for rank in (0, 1, 3)), errors
    assert errors[2].startswith("RankFailedError: rank ")


@needs_mpi
def test_ranks_in_different_operations_are_named_when_time_is_over(fails: Fails) -> None:
    errors = fails("if odd: world.broadcast(np.ones(3), 1)", timeout=0.5)
    assert errors == dict.fromkeys(
        range(4),
        f"RankMismatchError: expected every rank in {WHERE}, as ranks [0, 1, 3] are; rank 2 came "
        f"to broadcast(shape=(3,), dtype=float64, root=1)",
    )


@needs_mpi
def test_errors_of_mpi_itself_say_where_and_how_to_find_out(fails: Fails) -> None:
    errors = fails("world.broadcast(np.ones(2 if odd else 3))")
    assert errors[2].startswith("DistributedError: MPI failed in broadcast(shape=(2,), dtype=")
    assert "set NBRT_DISTRIBUTED_CHECK=1 for the ranks that differ" in errors[2]


@needs_mpi
def test_a_rank_that_dies_ends_the_job(fails: Fails) -> None:
    fails("if odd: os._exit(3)")  # mpiexec ends the others


@needs_mpi
def test_ranks_that_outlive_a_dead_one_find_out_and_end(fails: Fails) -> None:
    keep = "-disable-auto-cleanup"
    if mpiexec(1, "", options=(keep,)).returncode:
        pytest.skip(f"this mpiexec has no {keep}: it ends all ranks itself")
    die = "if odd: os._exit(3)"
    errors = fails(die, timeout=0.5, options=(keep,), heard=WITHOUT_2, written=WITHOUT_2)
    text = f"CollectiveTimeoutError: expected ranks [2] to come to {WHERE} within 0.5 s; "
    assert sorted(errors) == [0, 1, 3]
    assert all(error.startswith(text) for error in errors.values())


def test_importing_the_module_needs_no_mpi_and_using_it_says_how_to_get_it() -> None:
    code = """
        import sys
        sys.modules["mpi4py"] = None
        from nbrt.distributed.communicators.mpi import MpiCommunicator
        from nbrt.errors import BackendUnavailableError
        try:
            MpiCommunicator()
        except BackendUnavailableError as error:
            print(error)
    """
    assert 'install them with pip install "nbrt[mpi]" mpich' in output_of(code)
